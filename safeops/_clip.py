"""The decision of a clip: what is done with the gradients, and what is said about them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._formulas import overlaps
from ._gradients import (
    Gradients,
    NonFiniteGradientError,
    NonFiniteGradientWarning,
    check_tensors,
    user_level,
)
from ._ranks import is_sharded
from ._reports import ClipReport, counts_of
from ._route import DTYPES
from ._statistics import scaled

NAMED = 10  # gradients that a message names
WRITTEN = ("clipped", "dropped")  # verdicts after which the gradients are others
VERDICTS = {"skip": "skipped", "drop": "dropped", "keep": "kept", "raise": "kept"}


class Outcome(NamedTuple):
    """What a clip does, decided before anything is written."""

    verdict: str
    total_norm: Tensor
    parts: tuple[float, float] = (1.0, 0)

    @property
    def factor(self) -> float:
        """What the gradients are multiplied by; its parts say it beyond the normal numbers too."""
        return scaled(*self.parts)


def decide(gradients: Gradients, max_norm: float, policy: str, by: float = 1.0) -> Outcome:
    """by: a factor that the gradients are to be multiplied by in any case."""
    norm = gradients.norm(by, finite=policy == "drop")
    if gradients.bad and policy != "drop":
        return Outcome(VERDICTS[policy], norm)
    parts = gradients.factor(max_norm, by)
    verdict = "dropped" if gradients.bad else "ok" if parts == (by, 0) else "clipped"
    return Outcome(verdict, norm, parts)


def apply(gradients: Gradients, outcome: Outcome) -> None:
    if outcome.verdict == "skipped":
        gradients.release()
    elif outcome.verdict in WRITTEN:
        gradients.scale(*outcome.parts)


def report_of(gradients: Gradients, outcome: Outcome, max_norm: float) -> ClipReport:
    found = gradients.lots.found(gradients.names())
    return ClipReport(found, gradients.lots.p, gradients.bad, outcome, max_norm)


def carry_out(
    gradients: Gradients,
    outcome: Outcome,
    max_norm: float,
    policy: str,
    act: Callable[[Gradients, Outcome], None] = apply,
    detailed: bool = False,
) -> ClipReport | None:
    """Say and do; an error comes before anything has changed, a warning after."""
    complain = gradients.bad and policy != "keep"
    report = report_of(gradients, outcome, max_norm) if detailed or complain else None
    message = complaint(gradients, report, policy) if complain and report is not None else ""
    act(gradients, outcome)
    if message:
        warnings.warn(message, NonFiniteGradientWarning, stacklevel=user_level())
    return report


def clip_value(gradients: Gradients, value: float, policy: str) -> None:
    """The same for a bound of every element."""

    def act(gradients: Gradients, outcome: Outcome) -> None:
        apply(gradients, outcome)
        if outcome.verdict in ("ok", "dropped") and gradients.total.largest > value:
            gradients.clip(value)

    carry_out(gradients, decide(gradients, math.inf, policy), math.inf, policy, act)


def check_real(gradients: Gradients) -> None:
    for place, tensor in gradients.lots.tensors().items():
        if tensor.is_complex():
            name = gradients.names()[place]
            raise TypeError(
                f"expected real gradients, got {tensor.dtype} in {name}: they have no order"
            )


def check_writable(tensors: list[Any]) -> None:
    """What torch's in-place operations ask for, before anything is written."""
    check_tensors(tensors, "tensors")
    for tensor in tensors:
        if tensor.dtype not in DTYPES:
            raise TypeError(f"expected float64, float32, float16 or bfloat16, got {tensor.dtype}")
        if tensor.layout is not torch.strided or tensor.is_nested or overlaps(tensor):
            raise TypeError("expected dense tensors, got a sparse, nested or expanded one")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                "expected tensors that need no grad, since they are changed in place: "
                "use torch.no_grad(), or safeops.finite_clip"
            )


REMEDY = {
    "skip": "All gradients are set to None, so the next optimizer step changes nothing",
    "drop": "Those elements are set to 0",
}


def complaint(gradients: Gradients, report: ClipReport, policy: str) -> str:
    """What a warning says; under "raise" the error itself."""
    where = listing(report, first_bad(gradients) if policy == "raise" else None)
    message = f"gradients are not finite: {where}"
    if policy == "raise":
        raise NonFiniteGradientError(f"{message}. Nothing has been changed", report)
    return f"{message}. {REMEDY[policy]}"


def listing(report: ClipReport, at: Sequence[str] | None = None) -> str:
    """The bad gradients with their counts, and what `at` says of each row; the first few."""
    rows = zip(report, at or [""] * len(report), strict=True)
    bad = [f"{row.name} ({counts_of(row)}{where})" for row, where in rows if row.bad]
    more = [f"and {len(bad) - NAMED} more"] if len(bad) > NAMED else []
    return ", ".join([*bad[:NAMED], *more]) or "on another rank; those of this rank are finite"


def first_bad(gradients: Gradients) -> list[str]:
    """Where the first bad element of each gradient is; another read."""
    wholes = gradients.lots.wholes()
    indices = ((wholes[i], first_index(t)) for i, t in gradients.lots.tensors().items())
    return ["" if index is None else first_at(whole, index) for whole, index in indices]


def first_at(whole: Tensor, index: list[int]) -> str:
    part = " of this rank's part" if is_sharded(whole) else ""
    return f", first at {in_whole(whole, index)}{part}"


def first_index(tensor: Tensor) -> list[int] | None:
    found = (~tensor.detach().isfinite()).nonzero()
    return found[0].tolist() if len(found) else None


def in_whole(whole: Tensor, index: list[int]) -> list[int]:
    """An index into the values of a sparse gradient as one into the gradient."""
    if whole.layout is not torch.sparse_coo:
        return index
    return [*whole.indices()[:, index[0]].tolist(), *index[1:]]
