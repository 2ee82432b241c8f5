"""Guard: keep a training run alive, or stop it cleanly with the whole story."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import _gradients
from .._arguments import check_callable, check_model
from .._gradients import user_level
from .._random import set_random_state
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
    random numbers are bit by bit what they were. Too many in a row, or weights that are bad
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
        settings.check_optimizers(optimizers)
        settings.check_rest(others, data, counts)
        settings.check_parameters(model, optimizers, others)
        settings.check_schedulers(schedulers)
        asks = settings.asks(optimizers, accumulate, snapshots)
        settings.check_scaler(scaler, asks)
        settings.check_writer(writer)
        limit = math.inf if max_norm is None else _gradients.limit("max_norm", max_norm)
        policy = settings.as_policy(policy)
        where = None if snapshot_device is None else torch.device(snapshot_device)
        self._parts = Parts(model, optimizers, schedulers, scaler, list(others), data)
        company = Company(group_of(model, process_group), parameters_in(optimizers)[0].device)
        self._storage = Storage(checkpoint_dir, dump_dir, checkpoints, dumps, self._parts, company)
        self._log = Log(settings.log_path(log, self._storage.directory), writer)
        self._recovery = Recovery(
            model=model,
            policy=policy,
            parts=self._parts,
            buffers=Buffers([model, *(one for one in others if isinstance(one, nn.Module))]),
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
        )
        self._recovery.buffers.keep()

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
            As run.
        """
        self._refuse_asking()
        return self._stepper.finish_given(given_loss(loss), self._told(batch))

    def before_step(self, loss: Tensor | float | None = None, *, batch: Any = None) -> StepResult:
        """For trainers that call ``optimizer.step()`` themselves: check, clip and decide.

        Unless the verdict is "ok" every ``.grad`` is None, with which a torch optimizer changes
        nothing; schedulers and after_step are not to be called then.
        """
        self._refuse_asking()
        return self._stepper.before_given(given_loss(loss), self._told(batch))

    def after_step(self) -> StepResult:
        """After the optimizer's step: look at weights, take snapshots and checkpoints when they are
        due. The verdict may be "rolled_back"."""
        return self._stepper.after()

    def _refuse_asking(self) -> None:
        if self._stepper.asks:
            raise RuntimeError("expected run(closure): the optimizer evaluates the loss itself")

    def _told(self, batch: Any) -> Attempt | None:
        return None if batch is None else Attempt.of_batch(batch)

    # --- files -----------------------------------------------------------------------------------

    def checkpoint(self) -> Path:
        """Write one now; killed at any instant, the directory has a good one if it had one.

        Raises:
            ValueError: no checkpoint_dir; the state is not finite. OSError: it cannot be written.
        """
        problem = self._recovery.problem()
        if self._recovery.company.worst(judge.STATE if problem else judge.OK):
            raise ValueError(f"expected a finite state to write: {problem or 'on another rank'}")
        path = self._storage.write(self.steps, self._whole())
        self._log.add(Event("checkpoint", self.steps, path=str(path), rank=own_rank()))
        return path

    def _whole(self) -> State:
        return {**self._recovery.state(), "guard": self.state_dict()}

    def _save(self) -> None:
        """The run goes on without it."""
        try:
            self.checkpoint()
        except OSError as error:
            self._log.add(Event("checkpoint_failed", self.steps, f"{error}", rank=own_rank()))

    def _stored(self) -> tuple[int, State] | None:
        found = self._storage.read()
        return None if found is None else found[1:]

    def _dump(self, step: int, reason: str, attempt: Attempt | None) -> str:
        """The run goes on without it."""
        try:
            return self._storage.dump(step, reason, attempt, self._parts.state())
        except (OSError, TypeError) as error:
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
            ValueError: it is of another model, optimizer or number of ranks; no directory; all
                checkpoints there are broken. Nothing has been changed then.
        """
        if directory is None and self._storage.directory is None:
            raise ValueError("expected a directory to resume from: Guard(..., checkpoint_dir=...)")
        found = self._storage.read(directory)
        if found is None:
            return 0
        path, step, state = found
        if misfits := self._parts.misfits(state):
            raise ValueError(f"{path} does not fit: {judge.listed(misfits)}. Nothing was changed")
        self._load(state)
        self._log.add(Event("resumed", step, path=str(path), rank=own_rank()))
        return step

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
        self._recovery.at = self.steps
        self._recovery.buffers.keep()
        set_random_state(state["random"])

    def state_dict(self) -> dict[str, Any]:
        """The counts, and what the last good steps were like."""
        counts = {"steps": self.steps, "good": self._stepper.good}
        return {
            **counts,
            "ladder": self._recovery.ladder.state_dict(),
            "judge": self._stepper.judge.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stepper.steps, self._stepper.good = state["steps"], state["good"]
        self._recovery.ladder.load_state_dict(state["ladder"])
        self._stepper.judge.load_state_dict(state["judge"])

    def summary(self) -> GuardReport:
        """A Report of all events: print it, or write it with ``.to_html(path)``."""
        return GuardReport(self.steps, self._stepper.good, self.events)
