"""When a step is bad, and what is done about it."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Any

from .._arguments import check_whole
from .._gradients import number

FEWEST = 20  # values that must be known before one can be a spike
WINDOW = 100  # of the last values
LEAST_SPREAD = 0.05  # of the median: how far values may always be off


@dataclass(frozen=True)
class Policy:
    """The ladder: skip a bad step, roll back, stop; and what is bad beside NaN and infinities.

    Args:
        skips: how many bad steps in a row are skipped; the next one rolls back.
        rollbacks: how many times; the next one stops the run with TrainingDiverged.
        forgive_after: after that many good steps the roll-backs until then count no more.
        lr_factor: what the learning rates are multiplied by at each roll-back, in (0, 1].
        rewind: a roll-back also takes the data (``data=``) and the random numbers back to the
            snapshot; else they go on, and the batches since then do not come again.
        advance_scheduler: schedulers advance at skipped steps, too.
        huge: a loss or a norm at or beyond it is bad. The default is the square root of float32's
            range: its square, a second moment, overflows.
        loss_spike: a loss that lies more than this many deviations above the median of the last
            100 good ones is bad; None is never. The deviation is 1.4826 times the median distance
            from the median, which no outlier moves, and at least 5 % of the median.
        norm_spike: the same for the logarithm of the norm of the gradients.

    Raises:
        TypeError, ValueError: a setting of the wrong kind, or out of its range.

    Source: Huber, 1981, "Robust Statistics", section 5.1 for the median deviation.
    """

    skips: int = 4
    rollbacks: int = 3
    forgive_after: int = 1000
    lr_factor: float = 1.0
    rewind: bool = False
    advance_scheduler: bool = False
    huge: float = 2.0**64
    loss_spike: float | None = None
    norm_spike: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("skips", 0), ("rollbacks", 0), ("forgive_after", 1)):
            check_whole(name, getattr(self, name), least)
        if not 0 < number("lr_factor", self.lr_factor) <= 1:
            raise ValueError(f"expected lr_factor in (0, 1], got {self.lr_factor!r}")
        for name in ("huge", "loss_spike", "norm_spike"):
            value = getattr(self, name)
            if value is not None and number(name, value) <= 0:
                raise ValueError(f"expected {name} > 0, got {value!r}")


class Ladder:
    """How far up the run is."""

    def __init__(self, policy: Policy):
        self.policy = policy
        self.bad_in_a_row = self.rollbacks = self.good_since = 0
        self.lowered = 0  # how often the learning rates were

    def good(self) -> None:
        self.bad_in_a_row = 0
        self.good_since += 1
        if self.good_since >= self.policy.forgive_after:
            self.rollbacks = 0

    def bad(self, state_is_bad: bool) -> str:
        """What is to be done: a state that is bad cannot be skipped."""
        self.bad_in_a_row += 1
        if self.bad_in_a_row <= self.policy.skips and not state_is_bad:
            return "skipped"
        self.bad_in_a_row = self.good_since = 0
        self.rollbacks += 1
        return "rolled_back" if self.rollbacks <= self.policy.rollbacks else "stopped"

    def state_dict(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name != "policy"}

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


class Spikes:
    """The last good values, or their logarithms; whether a new one is far above them."""

    def __init__(self, deviations: float | None, logarithm: bool = False):
        self.deviations, self._logarithm = deviations, logarithm
        self._last: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        if self.deviations is None or not math.isfinite(value := self._scaled(value)):
            return
        self._last.append(value)
        insort(self._sorted, value)
        if len(self._last) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._last.popleft())]

    def _scaled(self, value: float) -> float:
        return value if not self._logarithm else math.log(value) if value > 0 else -math.inf

    def is_spike(self, value: float) -> bool:
        if self.deviations is None or len(self._last) < FEWEST:
            return False
        middle = statistics.median(self._sorted)
        off = statistics.median(abs(one - middle) for one in self._sorted)
        least = LEAST_SPREAD * (1.0 if self._logarithm else abs(middle))
        return self._scaled(value) > middle + self.deviations * max(1.4826 * off, least)

    def state_dict(self) -> dict[str, Any]:
        return {"last": list(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last = deque(state["last"])
        self._sorted = sorted(self._last)
