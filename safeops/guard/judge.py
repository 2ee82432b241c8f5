"""Is a step good? One read of its loss and gradients; now and then one of weights and states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _clip
from .._gradients import Gradients, Listed
from .._lots import Lots
from .._reports import counts_of
from .._route import DTYPES
from ..gradients import check_finite
from .policy import Policy, Spikes
from .tensors import local, named_leaves

# The worst is the largest.
OK, OVERFLOW, SPIKE, HUGE, STATISTICS, GRADIENTS, LOSS, BATCH, STATE = range(9)
NAMED = 3  # tensors that a reason names
Named = Sequence[tuple[str, Tensor]]


class Reading(NamedTuple):
    """What was read of a step; reason is text if it is bad."""

    code: int = OK
    reason: str = ""
    loss: float = math.nan
    norm: float = math.nan
    gradients: Gradients | None = None
    outcome: _clip.Outcome | None = None

    def clip(self) -> bool:
        """Whether there was something to clip."""
        if self.gradients is None or self.outcome is None:
            return False
        _clip.apply(self.gradients, self.outcome)
        return self.outcome.verdict == "clipped"


def _mean(losses: Sequence[float]) -> float:
    """NaN of none."""
    if not all(map(math.isfinite, losses)):
        return sum(losses)
    return math.fsum(losses) / len(losses) if losses else math.nan


class Judge:
    """The bounds of a run, and what its good steps were like."""

    def __init__(self, policy: Policy, max_norm: float):
        self.policy, self.max_norm = policy, max_norm
        self.losses = Spikes(policy.loss_spike)
        self.norms = Spikes(policy.norm_spike, logarithm=True)

    def read(
        self, losses: Sequence[float], parameters: Listed, may_overflow: Callable[[], bool]
    ) -> Reading:
        gradients = Gradients(parameters)
        outcome = _clip.decide(gradients, self.max_norm, "keep")
        reading = Reading(OK, "", _mean(losses), float(outcome.total_norm))
        reading = reading._replace(gradients=gradients, outcome=outcome)
        return self._judged(reading, bool(losses), may_overflow)

    def _judged(
        self, reading: Reading, has_loss: bool, may_overflow: Callable[[], bool]
    ) -> Reading:
        gradients = reading.gradients
        assert gradients is not None
        if has_loss and not math.isfinite(reading.loss):
            return reading._replace(code=LOSS, reason=f"the loss is {reading.loss}")
        if gradients.bad:
            code = OVERFLOW if may_overflow() else GRADIENTS
            report = _clip.report_of(gradients, reading.outcome, self.max_norm)  # type: ignore[arg-type]
            where = _clip.listing(report, _clip.first_bad(gradients))
            return reading._replace(code=code, reason=f"gradients are not finite: {where}")
        return self._judged_by_size(reading)

    def _judged_by_size(self, reading: Reading) -> Reading:
        pairs = (("loss", reading.loss, self.losses), ("norm", reading.norm, self.norms))
        for name, value, spikes in pairs:
            text = f"the {name} is {value:.4g}"
            if abs(value) >= self.policy.huge:
                return reading._replace(code=HUGE, reason=f"{text}, {self._largest(reading)}")
            if spikes.is_spike(value):
                return reading._replace(code=SPIKE, reason=f"{text}, far above the last ones")
        return reading

    def _largest(self, reading: Reading) -> str:
        report = _clip.report_of(reading.gradients, reading.outcome, self.max_norm)  # type: ignore[arg-type]
        names = [row.name for row in report.sorted_by("largest")[:NAMED]]
        return f"the largest gradients are those of {', '.join(names)}"

    def with_statistics(
        self, reading: Reading, statistics: Sequence[tuple[str, Tensor, Tensor]]
    ) -> Reading:
        """A forward that made running statistics bad; the loss need not show it. What was not
        finite before, as a mask, is meant so."""
        if reading.code != OK or not unhealthy((name, now) for name, now, _ in statistics):
            return reading
        changed = [(name, now) for name, now, was in statistics if not unhealthy([(name, was)])]
        bad = unhealthy(changed)
        if not bad:
            return reading
        return reading._replace(code=STATISTICS, reason=f"running statistics: {listed(bad)}")

    def good(self, reading: Reading) -> None:
        self.losses.add(reading.loss)
        self.norms.add(reading.norm)

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self.losses.state_dict(), "norms": self.norms.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses.load_state_dict(state["losses"])
        self.norms.load_state_dict(state["norms"])


# --- weights, states and batches -----------------------------------------------------------------


def unhealthy(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Those that are not finite, or so near the end of their dtype's range that the next step may
    leave it: a quarter of it."""
    pairs = [(name, local(one)) for name, one in tensors if _is_readable(one)]
    kinds: dict[torch.dtype, list[tuple[str, Tensor]]] = {}
    for name, one in pairs:
        kinds.setdefault(one.dtype, []).append((name, one))
    return [text for dtype, alike in kinds.items() for text in _unhealthy_of(dtype, alike)]


def _is_readable(tensor: Tensor) -> bool:
    return not (tensor.is_nested or tensor.is_meta or tensor.is_quantized) and (
        tensor.dtype in DTYPES or tensor.is_complex()
    )


def _unhealthy_of(dtype: torch.dtype, pairs: Named) -> list[str]:
    limit = torch.finfo(dtype).max / 4
    total = Lots([one for _, one in pairs], p=math.inf).total()
    if not total.bad and total.finite_norm < limit:
        return []
    rows = check_finite(pairs)
    bad = [f"{row.name} ({counts_of(row)})" for row in rows if row.bad]
    return bad + [f"{r.name} (up to {r.largest:.3g})" for r in rows if r.largest >= limit]


def problem_of_batch(batch: Any) -> str:
    """Text if a tensor in it holds a NaN or an infinity."""
    tensors = [(name, one) for name, one in named_leaves(batch, "batch") if _is_readable(one)]
    bad = [f"{row.name} ({counts_of(row)})" for row in check_finite(tensors).bad]
    return f"the batch is not finite: {listed(bad)}" if bad else ""


def listed(texts: Sequence[str]) -> str:
    more = [f"and {len(texts) - NAMED} more"] if len(texts) > NAMED else []
    return ", ".join([*texts[:NAMED], *more])
