"""What the normalizations share: rows scaled by powers of two, so that no square overflows or
vanishes. A normalized row does not depend on its scale, but for eps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...ops._options import COMPUTE
from ...ops._scaling import ours
from ...ops._scaling import regular as within


@dataclass(frozen=True)
class Range:
    """bound: rows beyond it are scaled to a largest magnitude of 2**exponent. There a row that is
        not constant has a variance beside which no usual eps counts, and torch's backward, which
        takes the third power of the inverse deviation, does not underflow.
    steepest: beyond it, that third power overflows, or the half type that keeps the deviation.
    negligible: an eps that does not count beside the variance of a scaled row, and is regular for
        a constant one.
    """

    bound: float
    exponent: int
    steepest: float
    negligible: float


_RANGES = {
    torch.float64: Range(2.0**450, 300, 2.0**320, 2.0**-60),
    torch.float32: Range(2.0**49, 40, 2.0**40, 2.0**-60),
    torch.bfloat16: Range(2.0**49, 40, 2.0**40, 2.0**-60),
    torch.float16: Range(math.inf, 13, 2.0**15, 2.0**-10),
}


def taken(*tensors: Any) -> bool:
    """Tensors that the formulas here are for, or none; torch's own op has the others."""
    return ours(*(t for t in tensors if t is not None))


def thin(eps: float | None, dtype: torch.dtype) -> bool:
    """Whether eps does not keep a row without variance regular."""
    return eps is not None and 0 <= eps < _RANGES[dtype].steepest ** -2


def vanishes(eps: float | None, dtype: torch.dtype) -> bool:
    """Whether eps is no number of the compute type."""
    return eps is not None and 0 <= eps < torch.finfo(COMPUTE[dtype]).tiny


def counted(eps: Any, dtype: torch.dtype) -> Any:
    """The eps for scaled rows."""
    return _RANGES[dtype].negligible if vanishes(eps, dtype) else eps


def regular(rstd: Tensor) -> bool:
    """Whether the inverse deviations of a plain CPU computation show no overflow and no pole."""
    return within(rstd, above=0.0, below=_RANGES[rstd.dtype].steepest)


def small(x: Tensor) -> bool:
    """Whether no row of a plain CPU tensor needs a scale."""
    if x.numel() == 0:
        return True
    low, high = x.detach().aminmax()
    bound = min(_RANGES[x.dtype].bound, torch.finfo(x.dtype).max)
    return -bound <= low.item() and high.item() <= bound


@dataclass(frozen=True)
class Rows:
    """Of each row: its largest magnitude and number, the power of two to divide it by (None: 1 for
    all), and whether it has no variance (None: eps keeps it regular). No derivatives."""

    top: Tensor
    level: Tensor
    scale: Tensor | None
    dead: Tensor | None

    def settled(self, x: Tensor, back: Callable[[Tensor], Tensor] = lambda row: row) -> Tensor:
        """x / scale, and 0 in rows without variance; back broadcasts a statistic to x."""
        if self.scale is not None:
            x = x / back(self.scale)
        return x if self.dead is None else torch.where(back(self.dead), 0.0, x)


def rows_of(x: Tensor, dims: Any, eps: float | None, centred: bool = True) -> Rows:
    """The rows along dims; centred: their mean is taken off."""
    x = x.detach()
    top = x.abs().amax(dims, keepdim=True)
    scale = _scale(top, vanishes(eps, x.dtype))
    if not thin(eps, x.dtype):
        return Rows(top, top, scale, None)
    low, high = (x.amin(dims, keepdim=True), x.amax(dims, keepdim=True)) if centred else (-top, top)
    return Rows(top, high, scale, low == high)


def _scale(top: Tensor, all_rows: bool) -> Tensor | None:
    spans = _RANGES[top.dtype]
    if spans.bound == math.inf and not all_rows:
        return None
    beyond = (top > (0.0 if all_rows else spans.bound)) & (top < math.inf)
    power = torch.exp2(torch.where(beyond, top, 1.0).log2().floor() - spans.exponent)
    return torch.where(beyond, power.clamp(min=torch.finfo(top.dtype).tiny), 1.0)
