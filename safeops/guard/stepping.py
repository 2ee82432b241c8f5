"""A step from its closure to its verdict."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from torch import nn

from .._gradients import Listed, NonFiniteGradientError
from .._ranks import own_rank
from ..gradients import clip_grad_norm_
from . import judge
from .attempt import Attempt, Closure, StepResult
from .events import Event
from .judge import Judge, Reading, problem_of_batch
from .optimizers import parameters_in
from .recovery import Case, Recovery


class _Bad(Exception):
    """An evaluation that an optimizer asked for."""

    def __init__(self, reading: Reading):
        self.reading = reading


class Every(NamedTuple):
    """After how many steps something is done."""

    check: int
    snapshot: int
    checkpoint: int


class Pending(NamedTuple):
    """A step that is good so far."""

    reading: Reading
    attempt: Attempt | None
    clipped: bool


class Stepper:
    """Tries, judges and takes steps; what is bad goes to the recovery.

    asks: the optimizer evaluates the closure itself. save: writes a checkpoint, if one is wanted.
    check_directory: raises if it is that of another run.
    """

    def __init__(
        self,
        model: nn.Module,
        recovery: Recovery,
        bounds: Judge,
        every: Every,
        accumulate: int,
        check_batch: bool,
        asks: bool,
        save: Callable[[], object] | None,
        check_directory: Callable[[], object],
    ):
        self.model, self.recovery, self.judge = model, recovery, bounds
        self.parts, self.scaling = recovery.parts, recovery.scaling
        self.company, self.buffers = recovery.company, recovery.buffers
        self.every, self.accumulate = every, accumulate
        self.check_batch, self.asks, self.save = check_batch, asks, save
        self.check_directory = check_directory
        self.steps = self.good = 0
        self.last = self.good_at = 0  # steps at the last good one or roll-back, and at the former
        self.runs = False  # the step is that of a closure
        self.attempt: Attempt | None = None  # whose parts are not all there
        self.pending: Pending | None = None

    # --- a closure -------------------------------------------------------------------------------

    def run(self, closure: Closure, batch: Any) -> StepResult:
        attempt = self.attempt or self._begin()
        self._look_at(batch, attempt)
        attempt.add(closure, batch)
        if self.asks and not attempt.refused:
            return self._run_asking(attempt)
        if not attempt.refused:
            self._evaluate(attempt)
        if not attempt.complete:
            self.attempt = attempt
            return StepResult(attempt.losses[-1] if attempt.losses else math.nan, "accumulated")
        if attempt.refused:
            return self._refuse(Reading(judge.BATCH, attempt.problem), attempt)
        return self.finish(attempt.losses, attempt)

    def _look_at(self, batch: Any, attempt: Attempt) -> None:
        """With a bad batch no part of the step is run any more."""
        if self.check_batch:
            problem = problem_of_batch(batch)
            attempt.problem = attempt.problem or problem
            attempt.refused |= bool(self.company.worst(int(bool(problem))))

    def _begin(self) -> Attempt:
        self.ready()
        self.runs = True
        self.scaling.discard()
        self.buffers.keep()
        self._release()
        return Attempt(self.model, self.accumulate, self.scaling.scaled, self.parts.random())

    def ready(self) -> None:
        """The directory is that of this run, and the first snapshot is there."""
        if not self.steps:
            self.check_directory()
        if self._lacks_snapshot():
            problem = self.recovery.problem()
            bad = self.company.worst(int(bool(problem)))
            if bad and not self.steps:
                where = problem or "not so on another rank"
                raise ValueError(f"expected a finite model to start with: {where}")
            if not bad:
                self.recovery.snapshot(self.steps)

    def _lacks_snapshot(self) -> bool:
        """There is none, or groups of parameters were added since."""
        ring = self.recovery.ring
        return ring.size > 0 and ring.last(self.parts.form()) is None

    def _release(self) -> None:
        for parameter in parameters_in(self.parts.optimizers):
            parameter.grad = None

    def finish_given(self, losses: Sequence[float], attempt: Attempt | None) -> StepResult:
        """After a backward that was not ours."""
        self._given()
        return self.finish(losses, attempt)

    def before_given(self, losses: Sequence[float], attempt: Attempt | None) -> StepResult:
        """The same, where the optimizer's step is not ours either."""
        self._given()
        return self.before(losses, attempt, drives=False)

    def _given(self) -> None:
        """The forward is over; buffers may have changed in it."""
        if all(parameter.grad is None for parameter in parameters_in(self.parts.optimizers)):
            raise RuntimeError(
                "expected gradients, got none in any parameter: call loss.backward() before"
            )
        if self.runs:
            self.buffers.forget()
        self.runs = False
        with self.buffers.before() if self._lacks_snapshot() else nullcontext():
            self.ready()

    def _evaluate(self, attempt: Attempt) -> None:
        """If the closure raises, nothing has happened."""
        try:
            attempt.run()
        except BaseException:
            self._abandon(attempt)
            raise

    def _abandon(self, attempt: Attempt | None) -> None:
        """attempt: whose random numbers are put back."""
        self.attempt = None
        self._release()
        self.scaling.discard()
        self.recovery.forward_undone(attempt)

    def finish(self, losses: Sequence[float], attempt: Attempt | None) -> StepResult:
        result = self.before(losses, attempt)
        if result.verdict != "ok":
            return result
        try:
            self.scaling.step()
            self._advance()
        except BaseException:
            self._give_up(attempt)
            raise
        return self.after()

    def _give_up(self, attempt: Attempt | None) -> None:
        """A step that was not finished: as if it had not been, where the state before is known;
        else it counts as one."""
        self.pending = None
        known = self.recovery.undone()
        self._abandon(attempt if known else None)
        if not known:
            self._count()

    def _advance(self) -> None:
        for scheduler in self.parts.schedulers:
            scheduler.step()

    # --- the verdict -----------------------------------------------------------------------------

    def before(
        self, losses: Sequence[float], attempt: Attempt | None, drives: bool = True
    ) -> StepResult:
        """drives: the scaler, if there is one, is ours to step."""
        self.attempt, self.scaling.drives = None, drives
        reading = self._read(losses)
        code = self.company.worst(reading.code)
        if code == judge.OVERFLOW:
            return self._overflowed(reading, attempt)
        if code:
            return self._refuse(reading, attempt)
        clipped = reading.clip()
        self.pending = Pending(reading, attempt, clipped)
        return StepResult(reading.loss, "ok", reading.norm, clipped)

    def _read(self, losses: Sequence[float]) -> Reading:
        self.scaling.unscale()
        parameters = parameters_in(self.parts.optimizers)
        listed = Listed(parameters, lambda: self.parts.names_of(parameters))
        reading = self.judge.read(losses, listed, self.scaling.may_overflow)
        return self.judge.with_statistics(reading, self.buffers.moving())

    def _overflowed(self, reading: Reading, attempt: Attempt | None) -> StepResult:
        """The scaler skips the step itself, and lowers its scale; unless it gives up."""
        try:
            if self.scaling.drives:
                self.scaling.skip()
        except NonFiniteGradientError:
            return self._refuse(reading._replace(code=judge.GRADIENTS), attempt)
        numbers = (reading.reason, reading.loss, reading.norm)
        self.recovery.log.add(Event("overflow", self.steps, *numbers, rank=own_rank()))
        self._release()
        self.recovery.forward_undone(attempt)
        self._count()
        return StepResult(reading.loss, "skipped", reading.norm)

    def _refuse(self, reading: Reading, attempt: Attempt | None, taken: bool = False) -> StepResult:
        self.attempt = self.pending = None
        try:
            result = self.recovery.refuse(Case(self.steps, reading, attempt, taken))
        finally:
            self._count()
        if result.verdict == "rolled_back":
            self.last = self.steps
        if result.verdict == "skipped" and self.judge.policy.advance_scheduler:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                self._advance()
        return result

    def _count(self) -> None:
        """A forward without `run` begins here."""
        self.steps += 1
        if not self.runs:
            self.buffers.keep()

    def after(self) -> StepResult:
        if self.pending is None:
            raise RuntimeError("expected before_step() with the verdict 'ok' before after_step()")
        reading, attempt, clipped = self.pending
        check, snapshot, checkpoint = self._due()
        if check or snapshot or checkpoint:
            problem = self.recovery.problem()
            if self.company.worst(judge.STATE if problem else judge.OK):
                code = judge.STATE if problem else judge.OK
                bad = Reading(code, problem, reading.loss, reading.norm)
                return self._refuse(bad, attempt, taken=True)
        self._accept(reading, snapshot or checkpoint, checkpoint)
        return StepResult(reading.loss, "ok", reading.norm, clipped)

    def _due(self) -> tuple[bool, bool, bool]:
        """What was due at a bad step is due now; but after a roll-back there is a snapshot."""
        now = self.steps + 1
        check = now // self.every.check > self.last // self.every.check
        snapshot = now // self.every.snapshot > self.last // self.every.snapshot
        checkpoint = now // self.every.checkpoint > self.good_at // self.every.checkpoint
        return check or self.asks, snapshot or self.asks, checkpoint

    def _accept(self, reading: Reading, snapshot: bool, checkpoint: bool) -> None:
        self.pending = None
        self.good += 1
        self.recovery.ladder.good()
        self.judge.good(reading)
        self.recovery.log.scalars(self.steps, reading.loss, reading.norm)
        self.buffers.settle()
        self._count()
        self.recovery.at = self.last = self.good_at = self.steps
        if snapshot:
            self.recovery.snapshot(self.steps)
        if checkpoint and self.save is not None:
            self.save()

    # --- an optimizer that asks for the loss itself ----------------------------------------------

    def _run_asking(self, attempt: Attempt) -> StepResult:
        known: list[Pending] = []

        def evaluate() -> Any:
            self._release()
            loss = attempt.evaluate()
            reading = self._read(attempt.losses)
            if self.company.worst(reading.code):
                raise _Bad(reading)
            known.append(Pending(reading, attempt, reading.clip()))
            return loss

        try:
            self.parts.optimizers[0].step(evaluate)
        except _Bad as bad:
            return self._refuse(bad.reading, attempt, taken=True)
        except BaseException:
            self._give_up(attempt)
            raise
        self._advance()
        self.pending = known[0]
        return self.after()

    def again(self, attempt: Attempt, taken: bool) -> None:
        """An attempt once more, with the optimizer's step if it was taken."""
        if self.asks:
            self.parts.optimizers[0].step(lambda: self._plainly(attempt))
            return
        attempt.again()
        if taken:
            self.scaling.unscale()
            parameters = parameters_in(self.parts.optimizers)
            clip_grad_norm_(parameters, self.judge.max_norm, nonfinite="keep")
            self.scaling.step()

    def _plainly(self, attempt: Attempt) -> Any:
        self._release()
        return attempt.evaluate()
