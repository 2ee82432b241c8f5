"""finite_clip: clamp to finite bounds, and replace NaN if asked."""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from ._elementwise import Unary
from ._formulas import Formulas
from ._options import Constants, check, number, rounded, within


def _value(x: Tensor, min: float, max: float, nan: float) -> Tensor:
    clipped = torch.where(x < min, min, torch.where(x > max, max, x))
    return torch.where(x != x, nan, clipped)


def _gradient_x(grad: Tensor, x: Tensor, min: float, max: float, nan: float) -> Tensor:
    return torch.where((x >= min) & (x <= max), grad, 0.0)


def _bound(name: str, value: float | None, default: float, dtype: torch.dtype) -> float:
    """A bound rounded to dtype and held inside its range."""
    if value is None:
        return default
    if isinstance(value, Real) and abs(value) == math.inf:
        return abs(default) if value > 0 else -abs(default)
    limit, bound = torch.finfo(dtype).max, number("finite_clip", name, value)
    return math.copysign(limit, bound) if abs(bound) >= limit else rounded(bound, dtype)


def constants(
    dtype: torch.dtype, min: float | None, max: float | None, nan: float | None
) -> Constants:
    limit = torch.finfo(dtype).max
    low, high = _bound("min", min, -limit, dtype), _bound("max", max, limit, dtype)
    if low > high:
        raise ValueError(f"finite_clip: expected min <= max, got min={min!r} and max={max!r}")
    if nan is None:
        return low, high, math.nan
    return low, high, within(number("finite_clip", "nan", nan), dtype)


def _overflows(min: float, max: float, nan: float) -> bool:
    return False


_finite_clip = Unary(
    "finite_clip", "finite_clip", constants, Formulas(_value, (_gradient_x,), _overflows)
)


def finite_clip(
    x: Tensor, min: float | None = None, max: float | None = None, *, nan: float | None = None
) -> Tensor:
    r"""min(max(x, min), max), with finite bounds, and ``nan`` (if given) in place of NaN.

    .. math:: f(x) = \min(\max(x, \text{min}), \text{max}), \qquad
              f'(x) = 1 \text{ if } \text{min} \le x \le \text{max}, \text{ else } 0

    One pass for ``nan_to_num`` and ``clamp``. An infinity goes to its bound; a NaN stays, since
    hiding it is the caller's decision. The gradient is 0 wherever x was clipped, replaced or NaN.

    Args:
        x: a tensor of any shape.
        min, max: numbers, rounded to the dtype; by default, and at most, ±finfo(dtype).max, so
            infinities are allowed.
        nan: the value to put in place of NaN; by default NaN stays.

    Returns:
        A tensor like x; integers and bounds promote as in torch.clamp.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; options that are no numbers.
        ValueError: min > max, or an option that is NaN.

    >>> finite_clip(torch.tensor([float("nan"), float("inf"), 0.5]), -1.0, 1.0, nan=0.0)
    tensor([0.0000, 1.0000, 0.5000])

    Source: torch.clamp and torch.nan_to_num, of which it is the composition.
    """
    if isinstance(x, Tensor) and not (x.is_floating_point() or x.is_complex()):
        return _clip_integers(x, min, max, nan)
    return _finite_clip((min, max, nan), x)


def _clip_integers(x: Tensor, min: float | None, max: float | None, nan: float | None) -> Tensor:
    """An integer is finite: only the bounds that were given matter, and they promote."""
    check("finite_clip", x)
    bounds = [bound for bound in (min, max) if bound is not None]
    constants(torch.float64, min, max, nan)
    dtype = torch.result_type(x, sum(bounds, 0))
    if dtype.is_floating_point:
        return finite_clip(x.to(dtype), min, max, nan=nan)
    return x.clamp(min, max) if bounds else x.clone()
