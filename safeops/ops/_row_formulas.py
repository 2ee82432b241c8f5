"""What the torch formulas of the ops on rows share.

A row is the elements along dim, or those of them that a mask lets take part. Its top is the
largest: -inf where no element has weight (a guarded row), +inf or NaN where one is that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._route import is_empty, readable


def only(part: Tensor | None, value: Tensor, fill: float) -> Tensor:
    """value, and fill at what takes no part."""
    return value if part is None else torch.where(part, value, fill)


def both(weighty: Tensor, mask: Tensor | None) -> Tensor:
    """The elements that take part in rows that are not guarded."""
    return weighty if mask is None else weighty & mask


def fused(
    op: Callable[..., Tensor], x: Tensor, *rest: Any, part: Tensor | None = None
) -> Tensor | None:
    """torch's own op where a look at its result (or that part of it) shows no guard and no
    overflow, else None."""
    if not readable(x):
        return None
    value = op(x, *rest)
    return value if finite(only(part, value, 0.0)) else None


def finite(value: Tensor) -> bool:
    """True if all elements are (and their sum is): one pass, less than isfinite takes."""
    return bool(value.detach().sum().abs() < math.inf)


def all_finite(value: Tensor) -> bool:
    """True if all elements are, also where their sum is not: mostly one pass, nothing allocated."""
    half = value.dtype in (torch.float16, torch.bfloat16)
    total = (value.detach().sum(dtype=torch.float32) if half else value.detach().sum()).item()
    return math.isfinite(total) or bool(value.detach().isfinite().all())


def top_of(x: Tensor, dim: Any) -> Tensor:
    """The largest element of each row, without a derivative; -inf for a row of none."""
    x = x.detach()
    return x.sum(dim, keepdim=True) - math.inf if is_empty(x) else x.amax(dim, keepdim=True)


def settled(x: Tensor, top: Tensor) -> Tensor:
    """The rows, with constants in place of one whose top is no number: 0 at the top, -inf below,
    and NaN everywhere if the top is that. torch's own op gives such a row its limit."""
    fixed = x.detach()
    return torch.where(top.abs() < math.inf, x, torch.where(fixed == top, 0.0, -top.abs()))


def limited(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of the compute type in dtype's range."""
    limit = torch.finfo(dtype).max
    return value if value.dtype is dtype else value.clamp(-limit, limit)


def held(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Finite values moved into dtype's range; their slope stays (V2)."""
    if value.dtype is dtype:
        return value
    fixed, limit = value.detach(), torch.finfo(dtype).max
    excess = fixed - fixed.clamp(-limit, limit)
    return value - torch.where(fixed.abs() < math.inf, excess, 0.0)


def size_of(grad: Tensor, dim: int) -> Tensor:
    """The sum of a row's upstream magnitudes: 0 if no gradient is wanted (G1)."""
    return grad.abs().sum(dim, keepdim=True)


def scale_of(size: Tensor) -> Tensor:
    """A power of two by which an upstream gradient of that size is multiplied first, so that sums
    of it do not overflow: 1 nearly always. No row has 2**40 elements."""
    large = size > torch.finfo(size.dtype).max / 4
    return torch.ones_like(size).masked_fill(large, 2.0**-40)
