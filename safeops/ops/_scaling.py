"""Powers of two that keep sums in range, and results that saturate but keep their slope."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from .._route import is_empty, transforms_active
from ._options import COMPUTE

# Above the first number a row has the second as its scale: 2**40 squares of what is below, or of
# the dtype's largest number divided by the scale, stay in range.
_SQUARES = {
    torch.float64: (2.0**480, 2.0**640),
    torch.float32: (2.0**43, 2.0**86),
    torch.bfloat16: (2.0**43, 2.0**86),
}
_SUMS = {
    torch.float64: (2.0**980, 2.0**44),
    torch.float32: (2.0**84, 2.0**44),
    torch.bfloat16: (2.0**84, 2.0**44),
}


def row_scale(x: Tensor, dim: Any = None) -> Tensor:
    """A power of two for each row along dim (one, several, or None for all), with keepdim.

    1 where the squares of the row and their sum stay in range, so that x / scale is x; also for a
    row that holds NaN or ±inf, and for float16, whose squares torch adds in float32. No derivative.
    The inverse is exact.
    """
    return _scale(x.detach(), dim, _SQUARES)


def sum_scale(x: Tensor, dim: Any = None) -> Tensor:
    """The same for sums of the row itself."""
    return _scale(x.detach(), dim, _SUMS)


def _scale(x: Tensor, dim: Any, scales: dict[torch.dtype, tuple[float, float]]) -> Tensor:
    dims = tuple(range(x.dim())) if dim is None else dim
    if is_empty(x) or x.dtype not in scales:
        return torch.ones_like(x.sum(dims, keepdim=True))
    bound, scale = scales[x.dtype]
    top = x.abs().amax(dims, keepdim=True)
    return torch.ones_like(top).masked_fill((top > bound) & (top < math.inf), scale)


def power_scale(x: Tensor, dim: Any, p: float) -> Tensor:
    """The same for p-th powers (p > 0) of a row in its compute type: of a row whose powers cannot
    be added 2**40 times, the power of two that brings its largest number just below that."""
    top = x.detach().abs().amax(dim, keepdim=True)
    room = 960 if x.dtype is torch.float64 else 86
    bound = 2.0 ** (room / max(p, 1.0) // 1)
    huge = (top > bound) & (top < math.inf)
    return torch.where(huge, power_of_two(torch.where(huge, top, 1.0)) / (bound / 2), 1.0)


def power_of_two(x: Tensor) -> Tensor:
    """The largest in x > 0."""
    return x / (2 * torch.frexp(x).mantissa)


def ours(*tensors: Any) -> bool:
    """Dense tensors of the dtypes that the formulas take; all else is left to torch."""
    for x in tensors:
        if not isinstance(x, Tensor) or x.dtype not in COMPUTE or x.layout is not torch.strided:
            return False
        if x.is_nested:
            return False
    return True


def regular(value: Tensor, above: float = -math.inf, below: float = math.inf) -> bool:
    """True if these (few) results of torch's own op on readable tensors lie between two bounds, and
    so are finite."""
    count = value.numel()
    if count == 1:
        return above < value.item() < below
    if count == 0:
        return True
    low, high = value.detach().aminmax()
    return above < low.item() and high.item() < below


def least_divisor(dtype: torch.dtype) -> float:
    """torch's own gradient, if it divides by its result, is in range where that is larger."""
    return 2.0**-10 if dtype is torch.float16 else 0.0


class _Widen(torch.autograd.Function):
    """apply(x): a half type in float32, with a gradient that saturates on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return x.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return saturated(grad, ctx.dtype).to(ctx.dtype)


_widen: Any = _Widen.apply


def widened(x: Tensor) -> Tensor:
    """x in its compute type. Inside transforms a gradient beyond the range of x may be ±inf."""
    if COMPUTE[x.dtype] is x.dtype:
        return x
    return x.float() if transforms_active() else _widen(x)


def saturated(value: Tensor, dtype: torch.dtype) -> Tensor:
    """±inf as the largest numbers of dtype, without a slope there."""
    limit = torch.finfo(dtype).max
    return value.clamp(-limit, limit)


def held(value: Tensor, limit: Any) -> Tensor:
    """Finite values moved into ±limit; their slope stays (V2)."""
    fixed = value.detach()
    over = (fixed.abs() > limit) & (fixed.abs() < math.inf)
    return torch.where(over, (value - fixed) + fixed.sign() * limit, value)


def beyond_half(number: Any, tensor: Any) -> bool:
    """A Python number, beside a tensor of a half type, that leaves the range of that."""
    half = isinstance(tensor, Tensor) and tensor.dtype in (torch.float16, torch.bfloat16)
    if not half or not isinstance(number, Real):
        return False
    info = torch.finfo(tensor.dtype)
    size: Any = abs(number)
    return info.max < size < math.inf or 0 < size < info.smallest_normal


def narrowed(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A result of the compute type in a half type, saturated; a gradient goes through."""
    return held(value, torch.finfo(dtype).max).to(dtype)


def unscaled(value: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """value * scale in dtype, saturated. A gradient goes through at its own size."""
    limit = torch.finfo(dtype).max / scale.to(value.dtype)
    return (held(value, limit) * scale).to(dtype)


def guarded_sum(x: Tensor, dtype: torch.dtype, share: Any = 1.0) -> Tensor:
    """sum(x) / share in dtype, saturated; x in its compute type."""
    scale = sum_scale(x)
    return unscaled((x / scale).sum() / share, scale.reshape(()), dtype)


def tangent(x: Tensor, slope: Tensor, where: Tensor) -> Tensor:
    """0, with the derivative slope in x, and none outside where."""
    kept = torch.where(where, x, 0.0)
    return (kept - kept.detach()) * torch.where(where, slope.detach(), 0.0)


def squeezed(value: Tensor, dims: Any, keepdim: bool) -> Tensor:
    """A result that was computed with keepdim."""
    return value if keepdim else value.squeeze(dims)
