"""What a guarded run has been through, as a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..diagnose import Report
from .events import Log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SAID = (
    ("skipped", "skipped"),
    ("rolled_back", "rolled back"),
    ("overflow", "skipped by the scaler"),
    ("checkpoint_failed", "checkpoints failed"),
)


class GuardReport(Report):
    """Counts of a guarded run, those before a resume included, and events since; true if nothing
    was bad."""

    title = "Guard"

    def __init__(self, steps: int, good: int, log: Log):
        self.steps, self.good, self.events = steps, good, list(log.events)
        self.counts, self.curve = dict(log.counts), list(log.curve)

    def __bool__(self) -> bool:
        return not any(map(self._count, ("skipped", "rolled_back", "stopped")))

    def _count(self, kind: str) -> int:
        return self.counts.get(kind, 0)

    def summary(self) -> str:
        parts = [f"{self._count(kind)} {word}" for kind, word in _SAID if self._count(kind)]
        saved = [event for event in self.events if event.kind == "checkpoint"]
        parts += [f"last checkpoint after step {saved[-1].step}"] if saved else []
        parts += ["stopped"] if self._count("stopped") else []
        return ", ".join([f"{self.steps} steps, {self.good} good", *parts])

    def columns(self) -> Sequence[str]:
        return "step", "event", "reason", "culprit", "to step"

    def rows(self) -> Sequence[Sequence[object]]:
        return [
            (
                event.step,
                event.kind,
                event.reason or event.path,
                event.replay or "-",
                "-" if event.to_step is None else event.to_step,
            )
            for event in self.events
        ]

    def figures(self) -> list[tuple[str, Figure]]:
        from .figure import curves

        return [curves(self.curve, self.events)] if self.curve else []

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "good": self.good,
            "counts": self.counts,
            "events": [event.to_dict() for event in self.events],
        }
