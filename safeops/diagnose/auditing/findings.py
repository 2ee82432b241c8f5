"""What an audit can find, and how tensors are read for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ..._reports import TensorStats
from ...gradients import check_finite

KINDS = {
    "nan": "a NaN",
    "inf": "an infinity",
    "stale gradient": "a NaN or infinity in a gradient, to which the next one is added",
    "negative variance": "a running variance below 0, whose root is NaN in eval mode",
    "subnormal": "many numbers below the normal range",
    "huge": "numbers whose squares overflow, or far beyond what a model holds",
    "weights too large": "weights that make a signal grow from layer to layer",
    "weights too small": "weights that make it vanish",
    "alike": "units that start alike and stay alike",
    "zero": "a layer that passes no signal and no gradient",
    "uninitialised": "parameters without a shape yet",
    "no data": "tensors on the meta device",
    "constant column": "a feature that never changes",
    "range": "data far from mean 0 and standard deviation 1",
    "class index": "a class or row that does not exist",
    "ignored targets": "targets of which the loss looks at none",
    "masked row": "a row of which every position is masked",
    "overflow": "data beyond the range of the parameters' dtype",
    "eps": "an eps that is 0",
    "setting": "a learning rate, decay or momentum that cannot work",
    "not optimised": "parameters that no step will change",
    "nothing to train": "a model without a parameter that requires a gradient",
    "not in the model": "parameters that are stepped and not used",
    "float16 weights": "steps that round to nothing",
    "dead units": "ReLUs that are 0 over the whole batch",
    "saturated": "a sigmoid or tanh at its ends",
    "activation": "outputs that are not finite, or near the end of their range",
    "not a tensor": "a numpy array, on which the model raised an exception",
    "forward failed": "the model raised an exception",
}
SEVERITIES = ("error", "warning")


@dataclass(frozen=True)
class AuditFinding:
    """One thing that is wrong, or looks so.

    where: the parameter, buffer, module, setting or part of the batch, by name.
    what: one of `KINDS`.
    severity: "error", training cannot work, or "warning", it is likely to suffer.
    amount: how bad, a number: a count, a share, a gain or the setting itself.
    how_bad: the same in words. remedy: what to do, with the call.
    """

    where: str
    what: str
    severity: str
    amount: float
    how_bad: str
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values, for JSON; NaN and infinities stay floats."""
        return asdict(self)


def error(where: str, what: str, amount: float, how_bad: str, remedy: str) -> AuditFinding:
    return AuditFinding(where, what, "error", float(amount), how_bad, remedy)


def warning(where: str, what: str, amount: float, how_bad: str, remedy: str) -> AuditFinding:
    return AuditFinding(where, what, "warning", float(amount), how_bad, remedy)


def few(names: Sequence[str], shown: int = 3) -> str:
    """The first names, and how many more."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + f" and {more} more" * (more > 0)


# --- rows of the table ------------------------------------------------------------------------

_NUMBER = re.compile(r"(?:(?<=^)|(?<=\.))\d+(?=\.)")  # a whole part of a dotted path
SEVERAL = 3  # findings that differ by such numbers alone are one row
THE_LESS = ("weights too small", "eps")  # the less, the worse


def grouped(findings: Sequence[AuditFinding]) -> list[AuditFinding]:
    """Equal ones of numbered layers as one, at the place of the first: with the worst of them."""
    groups: dict[Any, list[AuditFinding]] = {}
    for one in findings:
        pattern = _NUMBER.sub("*", one.where)
        groups.setdefault((one.severity, one.what, pattern), []).append(one)
    shown: list[AuditFinding] = []
    for (_, _, pattern), group in groups.items():
        shown += [_together(pattern, group)] if len(group) >= SEVERAL else group
    return shown


def _together(pattern: str, group: Sequence[AuditFinding]) -> AuditFinding:
    sign = -1 if group[0].what in THE_LESS else 1
    worst = max(group, key=lambda one: sign * one.amount)
    where = f"{pattern}, {len(group)} layers; worst {worst.where}"
    return replace(
        worst, where=where, remedy=f"{worst.remedy}; likewise the {len(group) - 1} others"
    )


# --- tensors -----------------------------------------------------------------------------------


class Read(NamedTuple):
    """What one read of many tensors gave, by name; `unread` says why others were left."""

    rows: dict[str, TensorStats]
    unread: dict[str, str]


def read(named: Iterable[tuple[str, Tensor]]) -> Read:
    """In one call if no tensor is of an odd kind, else those one by one."""
    found = Read({}, {})
    plain: list[tuple[str, Tensor]] = []
    for name, tensor in named:
        if reason := unreadable(tensor):
            found.unread[name] = reason
        elif tensor.is_floating_point() or tensor.is_complex():
            plain.append((name, _widened(tensor.detach())))
    try:
        found.rows.update({row.name: row for row in check_finite(plain)})
    except (TypeError, RuntimeError, NotImplementedError):
        for pair in plain:
            _read_one(pair, found)
    return found


def _read_one(pair: tuple[str, Tensor], found: Read) -> None:
    try:
        found.rows.update({row.name: row for row in check_finite([pair])})
    except (TypeError, RuntimeError, NotImplementedError) as reason:
        found.unread[pair[0]] = str(reason).partition("\n")[0]


def unreadable(tensor: Tensor) -> str:
    """Why it cannot be read, or "". Integers can."""
    if is_lazy(tensor):
        return "uninitialised"
    kinds = {"meta": tensor.is_meta, "quantized": tensor.is_quantized, "nested": tensor.is_nested}
    return next((name for name, holds in kinds.items() if holds), "")


def _widened(tensor: Tensor) -> Tensor:
    """Eight-bit floats, which nothing reads, as float32."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def rms(row: TensorStats) -> float:
    """sqrt(mean(x^2)) of the finite elements."""
    finite = row.numel - row.bad
    return float(row.norm / finite**0.5) if finite else 0.0


def largest_of(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).max)
