"""Guard: keep a training run alive, or stop it cleanly with the whole story."""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import _gradients
from .._arguments import check_callable, check_model
from .._gradients import user_level
from .._ranks import own_rank
from . import judge, settings
from .attempt import Attempt, Closure, StepResult, given_loss
from .company import Company, group_of
from .events import Event, GuardWarning, Log
from .judge import Judge
from .optimizers import parameters_in
from .policy import Policy
from .recovery import Recovery
from .scaling import Scaling
from .snapshots import Buffers, Ring, copied
from .state import Parts, State
from .stepping import Every, Stepper
from .storage import Storage
from .summary import GuardReport


class Guard:
    r"""forward, backward, check, clip, step; and a bad step is as if it had never been.

    One read of loss and gradients tells whether a step is good. A bad one (NaN, infinity, or
    beyond the bounds of the policy) is skipped: weights, moments, counts, running statistics and
    random numbers are bit by bit what they were (random numbers go on from the second bad step in
    a row, since they may be what is bad). Too many in a row, or weights that are bad
    themselves, roll the run back to the last good snapshot; too many roll-backs stop it with
    TrainingDiverged. A step that `run` has tried is tried once more under
    `safeops.diagnose.detect`, which names the operation, module and line. Each event is in
    ``events``, in a JSON-lines log, and a GuardWarning.

    Args:
        model: what is trained; DDP, FSDP2 (fully_shard) and compiled ones too. All ranks decide
            alike, also if one alone is sick.
        optimizer: a torch optimizer or several, which step together; fused, foreach, and those
            that need a closure (LBFGS: `run` only).
        max_norm: the largest norm of all gradients as one vector, as in safeops.clip_grad_norm_;
            None or inf clips nothing.
        scheduler: one or several that advance after each good step. Others belong in ``others``.
        scaler: torch's or safeops.amp's GradScaler. Steps that it skips because its scale is too
            high are "overflow" events, not bad steps.
        checkpoint_dir: where checkpoints, the log and dumps go; None writes nothing.
        policy: a safeops.guard.Policy: the ladder, its budgets, spikes.
        others: what else has a state: modules (a loss with weights, an average of the model),
            torch.Generators, and what has state_dict() and load_state_dict().
        data: the position in the data, such as safeops.guard.Batches(loader) or a sampler with
            state_dict() and load_state_dict().
        accumulate: how many calls of `run` make a step; each loss is divided by it.
        check_every: after how many steps weights, buffers and optimizer states are read.
        check_batch: read the batch that `run` is given before the forward.
        snapshots: how many lie in memory, each as large as model and optimizer; 0 is none.
        snapshot_every: after how many steps one is taken.
        snapshot_device: where they lie; None is where the tensors do.
        checkpoint_every, checkpoints: after how many steps one is written, and how many are kept.
        replay: try bad steps of `run` again under detect. What the closure changes outside of
            model and random numbers is changed twice then.
        dumps: how many bad steps are written, for ``safeops replay``; 0 is none.
        dump_dir: where; None is checkpoint_dir/dumps.
        log: the JSON-lines file; None is checkpoint_dir/guard.jsonl.
        writer: a torch.utils.tensorboard.SummaryWriter, for loss, norm and events.
        process_group: the ranks that train this model; None finds those of DDP and FSDP2.

    Attributes:
        steps: how many were asked for, bad ones included.
        events: all of them, the oldest first.

    Raises:
        TypeError, ValueError: arguments of the wrong kind, an optimizer of other parameters, a
            model that is not finite before it starts.
        OSError: a directory that cannot be written.

    >>> import torch, warnings
    >>> model = torch.nn.Linear(2, 1)
    >>> guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> good, bad = torch.ones(4, 2), torch.full((4, 2), float("nan"))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     [guard.run(lambda: model(x).square().mean()).verdict for x in (good, bad, good)]
    ['ok', 'skipped', 'ok']
    >>> guard.events[0].reason, guard.events[0].finding.cause
    ('the loss is nan', 'bad input')

    Source: Chowdhery et al., 2022, "PaLM", section 5.1, for going back to a good state and on with
    other data.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        max_norm: float | None = 1.0,
        scheduler: Any = None,
        scaler: Any = None,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        *,
        policy: Policy | None = None,
        others: Sequence[Any] = (),
        data: Any = None,
        accumulate: int = 1,
        check_every: int = 100,
        check_batch: bool = False,
        snapshots: int = 2,
        snapshot_every: int = 100,
        snapshot_device: torch.device | str | None = "cpu",
        checkpoint_every: int = 1000,
        checkpoints: int = 3,
        replay: bool = True,
        dumps: int = 3,
        dump_dir: str | os.PathLike[str] | None = None,
        log: str | os.PathLike[str] | None = None,
        writer: Any = None,
        process_group: Any = None,
    ):
        optimizers, schedulers = settings.as_list(optimizer), settings.as_list(scheduler)
        counts = {
            "accumulate": (accumulate, 1),
            "check_every": (check_every, 1),
            "snapshots": (snapshots, 0),
            "snapshot_every": (snapshot_every, 1),
            "checkpoint_every": (checkpoint_every, 1),
            "checkpoints": (checkpoints, 1),
            "dumps": (dumps, 0),
        }
        check_model(model)
        others = list(others) if isinstance(others, Iterable) else others
        settings.check_optimizers(optimizers)
        settings.check_rest(others, data, counts)
        settings.check_parameters(model, optimizers, others)
        settings.check_schedulers(schedulers, optimizers)
        asks = settings.asks(optimizers, accumulate, snapshots)
        settings.check_scaler(scaler, asks)
        settings.check_writer(writer)
        settings.check_log(log)
        limit = math.inf if max_norm is None else _gradients.limit("max_norm", max_norm)
        policy = settings.as_policy(policy)
        where = None if snapshot_device is None else torch.device(snapshot_device)
        self._parts = Parts(model, optimizers, schedulers, scaler, others, data)
        company = Company(group_of(model, process_group), parameters_in(optimizers)[0].device)
        self._log = Log(writer)
        self._recovery = Recovery(
            model=model,
            policy=policy,
            parts=self._parts,
            buffers=Buffers([self._parts.model, *settings.changed_by_forward(others)]),
            scaling=Scaling(scaler, optimizers),
            company=company,
            ring=Ring(snapshots, where),
            log=self._log,
            again=(lambda *given: self._stepper.again(*given)) if replay else None,
            dump=self._dump,
            stored=self._stored,
        )
        self._stepper = Stepper(
            model,
            self._recovery,
            Judge(policy, limit),
            Every(check_every, snapshot_every, checkpoint_every),
            accumulate,
            check_batch,
            asks,
            None if checkpoint_dir is None else self._save,
            lambda: self._storage.check_own(),
        )
        self._recovery.buffers.keep()
        self._storage = Storage(checkpoint_dir, dump_dir, checkpoints, dumps, self._parts, company)
        self._log.path = settings.log_path(log, self._storage.directory)

    @property
    def steps(self) -> int:
        return self._stepper.steps

    @property
    def events(self) -> list[Event]:
        return self._log.events

    def run(self, closure: Closure, *, batch: Any = None) -> StepResult:
        """zero_grad, forward, backward, check, clip, step.

        Args:
            closure: gives the loss, a tensor of one element with a graph; autocast belongs in it.
                It may be called again, for the replay.
            batch: what the closure reads, in tuples, lists and dicts: for check_batch and dumps.

        Returns:
            A StepResult.

        Raises:
            TrainingDiverged: nothing helped; the model is at its last good state.
            TypeError, ValueError: the closure does not give a loss. Then, and if the closure
                raises, nothing has happened: the state of training is as before.
        """
        check_callable("closure", closure)
        return self._stepper.run(closure, batch)

    def step(self, loss: Tensor | float | None = None, *, batch: Any = None) -> StepResult:
        """check, clip, step: in place of ``optimizer.step()``, or of the scaler's step and update,
        after backward. Random numbers go on, and nothing is replayed.

        Args:
            loss: to be checked, too; None checks the gradients alone.
            batch: for the dump of a bad step.

        Returns, Raises:
            As run; RuntimeError where there are no gradients.
        """
        self._refuse_others()
        return self._stepper.finish_given(given_loss(loss), self._told(batch))

    def before_step(self, loss: Tensor | float | None = None, *, batch: Any = None) -> StepResult:
        """For trainers that call ``optimizer.step()`` themselves: check, clip and decide.

        Unless the verdict is "ok" every ``.grad`` is None, with which a torch optimizer changes
        nothing; schedulers and after_step are not to be called then. Else they are, in that order.
        """
        self._refuse_others()
        return self._stepper.before_given(given_loss(loss), self._told(batch))

    def after_step(self) -> StepResult:
        """After the optimizer's step: look at weights, take snapshots and checkpoints when they are
        due. The verdict may be "rolled_back"."""
        return self._stepper.after()

    def _refuse_others(self) -> None:
        if self._stepper.asks:
            raise RuntimeError("expected run(closure): the optimizer evaluates the loss itself")
        if self._stepper.accumulate > 1:
            raise RuntimeError(
                f"expected run(closure) with accumulate={self._stepper.accumulate}; in a loop of "
                "your own leave it at 1, and call step() once the gradients are added up"
            )

    def _told(self, batch: Any) -> Attempt | None:
        return None if batch is None else Attempt.of_batch(batch)

    # --- files -----------------------------------------------------------------------------------

    def checkpoint(self) -> Path:
        """Write one now; killed at any instant, the directory has a good one if it had one.

        Raises:
            ValueError: no checkpoint_dir; the state is not finite. RuntimeError: within a step.
            OSError: it cannot be written; another run writes there, too.
        """
        if self._stepper.attempt or self._stepper.pending:
            raise RuntimeError("expected checkpoint() between two steps, got it within one")
        problem = self._recovery.problem()
        if self._recovery.company.worst(judge.STATE if problem else judge.OK):
            raise ValueError(f"expected a finite state to write: {problem or 'on another rank'}")
        return self._write()

    def _write(self) -> Path:
        """Of a state that has been looked at."""
        path = self._storage.write(self.steps, self._whole())
        self._log.add(Event("checkpoint", self.steps, path=str(path), rank=own_rank()))
        return path

    def _whole(self) -> State:
        return {**self._recovery.state(), "guard": self.state_dict()}

    def _save(self) -> None:
        """After the look at the state that is due with it; the run goes on without it."""
        try:
            self._write()
        except (OSError, TypeError, RuntimeError) as error:
            self._log.add(Event("checkpoint_failed", self.steps, f"{error}", rank=own_rank()))

    def _stored(self) -> tuple[int, State] | None:
        found = self._storage.read_own()
        return None if found is None else found[1:]

    def _dump(self, step: int, reason: str, attempt: Attempt | None) -> str:
        """The run goes on without it."""
        try:
            return self._storage.dump(step, reason, attempt, self._parts.state())
        except Exception as error:  # of the disk, or of what a batch is made of
            text = f"safeops.Guard: no dump of step {step}: {error}"
            warnings.warn(text, GuardWarning, stacklevel=user_level())
            return ""

    def resume(self, directory: str | os.PathLike[str] | None = None) -> int:
        """Load the newest good checkpoint: weights, optimizers, schedulers, scaler, others, random
        numbers, position in the data and the counts of the guard, bit by bit.

        Args:
            directory: of the checkpoints; None is checkpoint_dir.

        Returns:
            The number of steps that were asked for until then; 0 if there is no checkpoint yet.

        Raises:
            ValueError: it is of another model, optimizer or number of ranks; there is no directory,
                or no checkpoint in the one that was given.
            RuntimeError: all checkpoints there are broken. Nothing has been changed then.
        """
        if directory is None and self._storage.directory is None:
            raise ValueError("expected a directory to resume from: Guard(..., checkpoint_dir=...)")
        found = self._storage.read(directory)
        if found is None:
            return self._nothing(directory)
        path, step, state = found
        if misfits := self._parts.misfits(state):
            raise ValueError(f"{path} does not fit: {judge.listed(misfits)}. Nothing was changed")
        self._load(state)
        if directory is None or self._storage.is_own(directory):
            self._storage.adopt()
        self._log.add(Event("resumed", step, path=str(path), rank=own_rank()))
        return step

    def _nothing(self, directory: Any) -> int:
        """There is no checkpoint yet; where one was asked for, there should be."""
        if directory is None:
            return 0
        raise ValueError(
            f"expected a directory with checkpoints, got {directory}: give the checkpoint_dir, "
            "not a step-... folder in it"
        )

    def _load(self, state: State) -> None:
        before = copied(self._whole(), device=torch.device("cpu"))
        try:
            self._load_all(state)
        except BaseException:
            self._load_all(before)
            raise

    def _load_all(self, state: State) -> None:
        self._parts.load(state)
        self.load_state_dict(state["guard"])
        self._recovery.ring.clear()
        self._stepper.attempt = self._stepper.pending = None
        self._recovery.at = self.steps
        self._recovery.buffers.keep()
        self._parts.set_random(state["random"])

    def state_dict(self) -> dict[str, Any]:
        """The counts, and what the last good steps were like."""
        return {
            "steps": self.steps,
            "good": self._stepper.good,
            "counts": dict(self._log.counts),
            "ladder": self._recovery.ladder.state_dict(),
            "judge": self._stepper.judge.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stepper.steps, self._stepper.good = state["steps"], state["good"]
        self._stepper.last = self._stepper.good_at = state["steps"]
        self._log.counts = Counter(state["counts"])
        self._recovery.ladder.load_state_dict(state["ladder"])
        self._stepper.judge.load_state_dict(state["judge"])

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "expected a Guard to stay where it is: it holds the live training, and a copy would "
            "not; checkpoint() and resume() take its state elsewhere"
        )

    def summary(self) -> GuardReport:
        """A Report of all events: print it, or write it with ``.to_html(path)``."""
        return GuardReport(self.steps, self._stepper.good, self._log)
