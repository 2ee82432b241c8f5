"""What happened in a guarded run: a list, a log, a warning each, and TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .._gradients import user_level
from .._reports import for_json
from ..diagnose import Finding

SHOWN = 5000  # good steps of which a page shows loss and norm
QUIET = ("overflow", "checkpoint", "resumed")  # kinds that are no reason for a warning


class GuardWarning(RuntimeWarning):
    """A step was skipped or rolled back, or a checkpoint could not be written or read."""


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    kind: "skipped", "rolled_back", "stopped"; "overflow": the scaler skipped the step, which is
        its task; "checkpoint", "checkpoint_failed", "resumed".
    step: how many steps were asked for before. to_step: the one whose state was restored.
    reason: what was bad, with the names of parameters. loss, norm: of the step, NaN if unknown.
    finding: the culprit that the replay named; replay: what the replay said, "" if there was none.
    path: of the dump, or of the checkpoint. rank: of this process, None without
        torch.distributed. time: seconds since 1970.
    """

    kind: str
    step: int
    reason: str = ""
    loss: float = math.nan
    norm: float = math.nan
    to_step: int | None = None
    finding: Finding | None = None
    replay: str = ""
    path: str = ""
    rank: int | None = None
    time: float = field(default_factory=time.time)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: NaN and infinities are text."""
        finding = None if self.finding is None else self.finding.to_dict()
        return for_json(asdict(self) | {"finding": finding})

    def __str__(self) -> str:
        words = {"rolled_back": f"rolled back to step {self.to_step}", "stopped": "the run stops"}
        head = f"step {self.step}: {words.get(self.kind, self.kind.replace('_', ' '))}"
        parts = [self.reason, self.replay, self.path]
        return "; ".join([head, *filter(None, parts)])


class TrainingDiverged(RuntimeError):
    """The run was stopped: roll-backs did not help. The model is at its last good state; `events`
    is the whole story."""

    def __init__(self, message: str, events: Sequence[Event] = ()):
        super().__init__(message)
        self.events = list(events)

    def __reduce__(self) -> Any:
        return type(self), (self.args[0], self.events)


class Log:
    """All events of a run, counted; each is also a line of a file, a warning, and a text and a
    count for TensorBoard."""

    path: Path | None = None

    def __init__(self, writer: Any):
        self.events: list[Event] = []
        self.counts: Counter[str] = Counter()
        self.curve: deque[tuple[int, float, float]] = deque(maxlen=SHOWN)
        self._writer = writer

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.counts[event.kind] += 1
        if self.path is not None:
            self._write(json.dumps(event.to_dict(), allow_nan=False))
        self._show("add_text", "guard/events", str(event), event.step)
        self._show("add_scalar", f"guard/{event.kind}", self.counts[event.kind], event.step)
        if event.kind not in QUIET and event.kind != "stopped":
            warnings.warn(f"safeops.Guard: {event}", GuardWarning, stacklevel=user_level())

    def _write(self, line: str) -> None:
        """One call for a line, so that two processes do not mix theirs; a full disk is no reason
        to stop."""
        assert self.path is not None
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            descriptor = os.open(self.path, flags, 0o644)
            try:
                os.write(descriptor, f"{line}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            warnings.warn(
                f"safeops.Guard: the log {self.path} cannot be written ({error}); events go on "
                "in guard.events",
                GuardWarning,
                stacklevel=user_level(),
            )

    def scalars(self, step: int, loss: float, norm: float) -> None:
        """Of a healthy step."""
        self.curve.append((step, loss, norm))
        self._show("add_scalar", "guard/loss", loss, step)
        self._show("add_scalar", "guard/norm", norm, step)

    def _show(self, method: str, *args: Any) -> None:
        """By the writer; one that fails is no reason to stop, and is not asked again."""
        try:
            if self._writer is not None:
                getattr(self._writer, method)(*args)
        except Exception as error:
            self._writer = None
            text = (
                f"safeops.Guard: the writer fails, and is given up: {type(error).__name__}: {error}"
            )
            warnings.warn(text, GuardWarning, stacklevel=user_level())
