"""What is done about a bad step: find the culprit, and put back what was before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from .._ranks import own_rank
from ..diagnose.detection import causes
from . import judge
from .attempt import Attempt, StepResult
from .company import Company
from .events import Event, Log, TrainingDiverged
from .judge import Reading, listed, unhealthy
from .optimizers import parameters_in
from .policy import Ladder, Policy
from .replaying import Replay, replayed
from .scaling import Scaling
from .snapshots import Buffers, Ring, Snapshot
from .state import Parts, State

GONE = "not replayed: the weights before the step are gone; snapshot_every=1 keeps them"
REPLAYED = (judge.STATISTICS, judge.GRADIENTS, judge.LOSS, judge.STATE)
TOLD = 10  # events in a message
ADVICE = (
    "what to try: the remedy of a culprit above; clean data where batches are bad; a lower "
    "learning rate, or Policy(lr_factor=0.5), where losses grew before"
)


class Case(NamedTuple):
    """A bad step: how many were before, and what was read. taken: an optimizer has changed the
    weights."""

    step: int
    reading: Reading
    attempt: Attempt | None
    taken: bool = False


class Verdict(NamedTuple):
    """What a rank has to say about a bad step."""

    code: int
    reason: str
    replay: Replay


@dataclass
class Recovery:
    """Of one run.

    again: runs an attempt once more, with the optimizers' step or without.
    dump: writes what a later replay needs, and gives the path.
    stored: reads the state of the newest good checkpoint, None if there is none.
    """

    model: nn.Module
    policy: Policy
    parts: Parts
    buffers: Buffers
    scaling: Scaling
    company: Company
    ring: Ring
    log: Log
    again: Callable[[Attempt, bool], object] | None
    dump: Callable[[int, str, Attempt | None], str]
    stored: Callable[[], tuple[int, State] | None]

    def __post_init__(self) -> None:
        self.ladder = Ladder(self.policy)
        self.at = 0  # after how many steps the model was what it is before this one
        self.meant = self._check_start()
        self.known = {name for name, _ in self.parts.named_tensors()}

    # --- weights and states ----------------------------------------------------------------------

    def _check_start(self) -> set[str]:
        """Buffers that are not finite from the start are meant so, as a mask is."""
        weights = {id(one) for one in self.parts.model.parameters()}
        bad = [pair for pair in self.parts.named_tensors() if unhealthy([pair])]
        told = [name for name, one in bad if id(one) in weights]
        if told:
            raise ValueError(
                f"expected a finite model, got NaN or infinities in {listed(told)}: "
                "safeops.diagnose.audit(model) says more"
            )
        return {name for name, _ in bad}

    def _is_made_so(self, name: str, tensor: Tensor) -> bool:
        """A buffer that a good step has made, with infinities: a mask."""
        is_buffer = any(tensor is one for one in self.parts.model.buffers())
        return is_buffer and bool(unhealthy([(name, tensor)])) and not bool(tensor.isnan().any())

    def problem(self) -> str:
        """Text if weights, buffers or optimizer states are unhealthy."""
        named = dict(self.parts.named_tensors())
        born = [(name, one) for name, one in named.items() if name not in self.known]
        self.meant |= {name for name, one in born if self._is_made_so(name, one)}
        self.known |= named.keys()
        bad = unhealthy(pair for pair in named.items() if pair[0] not in self.meant)
        return f"the state is not healthy: {listed(bad)}" if bad else ""

    def state(self) -> State:
        return {**self.parts.state(), "random": self.parts.random()}

    def snapshot(self, step: int) -> None:
        """Of a state that has been looked at."""
        self.at = step
        self.ring.take(step, self.parts.form(), self.state(), self.ladder.lowered)

    # --- a bad step ------------------------------------------------------------------------------

    def refuse(self, case: Case) -> StepResult:
        """All ranks come here together."""
        lost = self.forward_undone(None)
        known = not case.taken or self.undone()
        problem = "" if case.taken else self.problem()
        own = max(case.reading.code, judge.STATE if problem else judge.OK)
        code = self.company.worst(own)
        replay = self._replay(case, known) if code in REPLAYED else Replay()
        reason = "; ".join(filter(None, (case.reading.reason, problem, lost)))
        told = self._heard(Verdict(own, reason, replay))
        self._put_back(case.attempt)
        path = self.dump(case.step, told.reason, case.attempt) if own == code and known else ""
        action = self.ladder.bad(code == judge.STATE)
        to_step = None if action == "skipped" else self._roll_back(stops=action == "stopped")
        return self._tell(case, action, told, to_step, path)

    def undone(self) -> bool:
        """Whether the state before a step that was taken is known; it is loaded."""
        snapshot = self.ring.last(self.parts.form())
        if snapshot is None or snapshot.step != self.at:
            return False
        self._load(snapshot, data=False)
        return True

    def _load(self, snapshot: Snapshot, data: bool) -> None:
        self.parts.load(snapshot.state, data=data)
        lower_rates(self.parts, self.policy.lr_factor ** (self.ladder.lowered - snapshot.lowered))

    def _replay(self, case: Case, known: bool) -> Replay:
        attempt, again = case.attempt, self.again
        if again is None or attempt is None or not attempt.closures:
            return Replay()
        if not known:
            return Replay(None, GONE)
        self._put_back(attempt)
        try:
            self._rewind(attempt)
            replay = replayed(self.model, case.step, lambda: again(attempt, case.taken))
            problem = self.problem() if case.taken else ""
        finally:
            self._put_back(attempt)
            if case.taken:
                self.undone()
        if problem and replay.finding is None:
            return Replay(None, f"run again, it is the same: {problem}")
        return replay

    def _heard(self, own: Verdict) -> Verdict:
        """The worst of all ranks, and the finding of the one that has made it."""
        every = self.company.all(own)
        if len(every) == 1:
            return own
        rank, worst = max(enumerate(every), key=lambda pair: (pair[1].code, -pair[0]))
        replays = [one.replay for one in every if one.replay.finding is not None]
        made = [one for one in replays if one.finding.cause != causes.RANK]
        replay = next(iter(made or replays), worst.replay)
        return Verdict(worst.code, f"rank {rank}: {worst.reason}", replay)

    def _put_back(self, attempt: Attempt | None) -> None:
        """Gradients, buffers, scaler and random numbers. After several bad steps in a row the last
        go on, since they may be what is bad."""
        for parameter in parameters_in(self.parts.optimizers):
            parameter.grad = None
        self.scaling.discard()
        self.forward_undone(attempt if self.ladder.bad_in_a_row == 0 else None)

    def forward_undone(self, attempt: Attempt | None) -> str:
        """Buffers, and random numbers if there is an attempt, are those of before. A buffer that
        has changed for the first time is in the last snapshot as it was; text if there is none."""
        lost, snapshot = self.buffers.back(), self.ring.last(self.parts.form())
        known = self.parts.no_state() if snapshot is None else snapshot.state
        names = self.parts.load_buffers(lost, known) if lost else []
        if attempt is not None:
            self._rewind(attempt)
        return f"without a snapshot these buffers stay changed: {listed(names)}" if names else ""

    def _rewind(self, attempt: Attempt) -> None:
        if attempt.random is not None:
            self.parts.set_random(attempt.random)

    def _roll_back(self, stops: bool) -> int | None:
        """The step whose state there is now; None if there was nothing to go back to. A run that
        stops is left with the newest good state."""
        form = self.parts.form()
        snapshot = self.ring.last(form) if stops else self.ring.back(form)
        snapshot = snapshot or self._from_disk()
        if snapshot is None:
            return None
        self.ladder.lowered += not stops
        self._load(snapshot, data=self.policy.rewind)
        if self.policy.rewind:
            self.parts.set_random(snapshot.state["random"])
        self.at = snapshot.step
        return snapshot.step

    def _from_disk(self) -> Snapshot | None:
        stored = self.stored()
        if stored is None or self.parts.misfits(stored[1]):
            return None
        step, state = stored
        return Snapshot(step, None, state, state["guard"]["ladder"]["lowered"])

    def _tell(
        self, case: Case, action: str, told: Verdict, to_step: int | None, path: str
    ) -> StepResult:
        if action == "rolled_back" and to_step is None:
            action = "stopped"
        reading, replay = case.reading, told.replay
        event = Event(
            action,
            case.step,
            told.reason,
            reading.loss,
            reading.norm,
            to_step,
            replay.finding,
            replay.text,
            path,
            own_rank(),
        )
        try:
            self.log.add(event)
        finally:  # also where warnings are errors
            if action == "stopped":
                raise TrainingDiverged(story(self.log.events, self.ladder), self.log.events)
        return StepResult(reading.loss, action, reading.norm, False, replay.finding)


def story(events: Sequence[Event], ladder: Ladder) -> str:
    """Why it stops, the last events, and what to try."""
    to_step = events[-1].to_step
    head = "there is no snapshot or checkpoint to go back to"
    if to_step is not None:
        tried = f"{ladder.rollbacks - 1} roll-backs did not help"
        head = f"{tried}, and the model is as it was after step {to_step}"
    lines = [str(event) for event in events if event.kind not in ("checkpoint", "overflow")]
    earlier = [f"({len(lines) - TOLD} earlier events are in .events)"] if len(lines) > TOLD else []
    return "\n  ".join([f"training diverged: {head}", *earlier, *lines[-TOLD:], ADVICE])


def lower_rates(parts: Parts, factor: float) -> None:
    """Learning rates, and the bounds that schedulers compute them from."""
    if factor == 1.0:
        return
    seen: set[int] = set()  # tensors, which groups may share
    for optimizer in parts.optimizers:
        for group in optimizer.param_groups:
            for key in group.keys() & {"lr", "initial_lr", "max_lr", "min_lr"}:
                if isinstance(group[key], Tensor) and id(group[key]) in seen:
                    continue
                seen.add(id(group[key]))
                group[key] *= factor  # in place, where it is a tensor
    for scheduler in parts.schedulers:
        _lower_bounds(scheduler, factor)


def _lower_bounds(scheduler: Any, factor: float) -> None:
    for name in vars(scheduler).keys() & {"base_lrs", "max_lrs"}:
        setattr(scheduler, name, [rate * factor for rate in getattr(scheduler, name)])
    if hasattr(scheduler, "eta_min"):
        scheduler.eta_min *= factor
    for inner in getattr(scheduler, "_schedulers", ()):
        _lower_bounds(inner, factor)
