"""The runs of safeops demo: one training loop, and what is around it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .demo_model import PATCHED, PLAIN, SAFE, Classifier, Ops, accuracy, batches, shuffled, split
from .diagnose import Finding, detect
from .guard import Event, Guard, GuardWarning, TrainingDiverged
from .swap.functions import safe_mode
from .swap.modules import swapped

Step = Callable[[Tensor, Tensor], None]


@dataclass
class Outcome:
    """What one run did; ``bad`` is (step, where) of the first NaN or Inf."""

    name: str
    bad: tuple[int, str] | None = None
    zeros: int = 0
    accuracy: float = math.nan
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    guard: Guard | None = None

    def add(self, began: float, right: Tensor, loss: float) -> None:
        """A step that ends now."""
        self.seconds.append(time.perf_counter() - began)
        self.zeros += int((right == 0).sum())
        self.losses.append(loss)

    def events(self, kind: str) -> list[Event]:
        events = [] if self.guard is None else self.guard.events
        return [event for event in events if event.kind == kind]

    @property
    def dead(self) -> bool:
        return self.bad is not None and (self.guard is None or bool(self.events("stopped")))


# --- a step ------------------------------------------------------------------------------------


def first_bad(quantities: Iterable[tuple[str, Tensor | None]]) -> str | None:
    for name, value in quantities:
        if value is not None and not value.isfinite().all():
            return f"{name} ({'NaN' if value.isnan().any() else 'Inf'})"
    return None


def gradients(model: nn.Module) -> Iterator[tuple[str, Tensor | None]]:
    for name, parameter in model.named_parameters():
        yield f"gradient of {name}", parameter.grad


def plain_step(model: Classifier, optimizer: Optimizer, outcome: Outcome) -> Step:
    """Forward, backward, the optimizer's step, and a record of what happened."""

    def step(x: Tensor, y: Tensor) -> None:
        began = time.perf_counter()
        features, right, loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outcome.add(began, right, loss.item())
        if outcome.bad is None:
            seen = [("standardised input", x), ("standardised features", features), ("loss", loss)]
            where = first_bad([*seen, *gradients(model)])
            outcome.bad = (len(outcome.losses) - 1, where) if where else None

    return step


def guarded_step(model: Classifier, optimizer: Optimizer, outcome: Outcome) -> Step:
    """The same by a guard, which clips nothing here: only what is bad makes a difference."""
    outcome.guard = guard = Guard(model, optimizer, max_norm=None)

    def step(x: Tensor, y: Tensor) -> None:
        rights = []  # a replay adds to it

        def closure() -> Tensor:
            _, right, loss = model(x, y)
            rights.append(right)
            return loss

        began = time.perf_counter()
        result = guard.run(closure)
        outcome.add(began, rights[0], result.loss)
        if result.verdict != "ok" and outcome.bad is None:
            outcome.bad = (len(outcome.losses) - 1, _first_told(guard))

    return step


def _first_told(guard: Guard) -> str:
    event = guard.events[0]
    if event.finding is None:
        return event.reason
    return f"{event.finding.op} ({event.finding.cause})"


# --- a run -------------------------------------------------------------------------------------


@contextmanager
def quietly(model: nn.Module) -> Iterator[None]:
    """The guard's warnings are told at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuardWarning)
        yield


@contextmanager
def cured(model: nn.Module) -> Iterator[None]:
    """The forward by the swap; data and evaluation, which lie outside of it, by safe_mode."""
    with swapped(model), safe_mode():
        yield


class Run(NamedTuple):
    """``around`` is entered before the data are made."""

    name: str
    ops: Ops
    step: Callable[[Classifier, Optimizer, Outcome], Step] = plain_step
    around: Callable[[nn.Module], AbstractContextManager[object]] = nullcontext


ALMOST = PATCHED._replace(sqrt=torch.sqrt)
DYING = Run("plain torch", PLAIN)
SURVIVING = Run("all patched but sqrt + guard", ALMOST, guarded_step, quietly)
SWAPPED = Run("plain torch, swapped", PLAIN, around=cured)
RUNS = (
    DYING,
    Run("all patched but sqrt", ALMOST),
    SURVIVING,
    Run("hand-written patches", PATCHED),
    Run("safeops", SAFE),
    SWAPPED,
)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The caller's random numbers stay."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def train(
    run: Run, seed: int, epochs: int, advance: Callable[[], object] = lambda: None
) -> Outcome:
    """One run to its end, also past a NaN: no run is stopped early, but by its guard."""
    with seeded(seed):
        order, model, outcome = shuffled(), Classifier(run.ops), Outcome(run.name)
        with run.around(model):
            data = split(run.ops, order)
            step = run.step(model, torch.optim.Adam(model.parameters(), lr=0.003), outcome)
            with suppress(TrainingDiverged):  # an event of the guard, too
                for index in batches(epochs):
                    step(data.x[index], data.y[index])
                    advance()
            outcome.accuracy = accuracy(model, data)
    return outcome


# --- a culprit ---------------------------------------------------------------------------------


def culprit(run: Run, seed: int) -> Finding | None:
    """The beginning of a run once more, under detect: its data and its first step."""
    with seeded(seed):
        order, model = shuffled(), Classifier(run.ops)
        with detect(model) as found:
            data = split(run.ops, order)
            index = next(batches(1))
            model(data.x[index], data.y[index])[2].backward()
    return found.first
