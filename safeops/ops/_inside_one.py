"""What acos, asin and atanh share: defined for \\|x\\| <= 1, with an infinite slope at the ends."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, usual
from ._options import COMPUTE, Constants, number, positive, rounded, within

Slope = Callable[[Tensor, Tensor], Tensor]
Ends = tuple[float, float]


def _regular(x: Tensor, bound: float) -> Tensor:
    """Everything not guarded, NaN among it."""
    return ~(x.abs() > bound) if bound < 1 else ~(x.abs() >= 1)


def gap(op: str, dtype: torch.dtype, eps: float | None) -> float:
    """eps, checked; 0 for none."""
    bound = 0.0 if eps is None else positive(op, "eps", eps, dtype)
    if bound > 1:
        raise ValueError(f"{op}: eps must be at most 1, or nothing is left of [-1, 1]; got {eps!r}")
    return bound


def inside_one(
    name: str,
    op: Callable[[Tensor], Tensor],
    slope: Slope,
    ends: Callable[[torch.dtype, float], Ends],
) -> Unary:
    """The op safe_<name>.

    slope  (grad, x) -> its gradient inside
    ends   (dtype, eps) -> the values at the lower and the upper end; eps = 0 for none
    """
    public = f"safe_{name}"

    def value(x: Tensor, bound: float, low: float, high: float) -> Tensor:
        inside = _regular(x, bound)
        outside = torch.where(x < 0, low, torch.full_like(x, high))
        return torch.where(inside, op(torch.where(inside, x, 0.0)), outside)

    def quick_gradient(grad: Tensor, x: Tensor, *constants: float) -> Tensor:
        return slope(grad, x)

    def gradient(grad: Tensor, x: Tensor, bound: float, low: float, high: float) -> Tensor:
        inside = _regular(x, bound)
        return torch.where(inside, slope(grad, torch.where(inside, x, 0.0)), 0.0)

    def constants(dtype: torch.dtype, eps: float | None, fill: float | None) -> Constants:
        e = gap(public, dtype, eps)
        bound = rounded(1 - e, COMPUTE[dtype])
        if fill is None:
            return bound, *ends(dtype, e)
        held = within(number(public, "fill", fill), dtype)
        return bound, held, held

    return Unary(
        public,
        constants,
        Formulas(value, (gradient,), _overflows, divides=False),
        Quick(usual(op, None, None), (quick_gradient,)),
    )


def _overflows(bound: float, low: float, high: float) -> bool:
    return False


def acos_beside(eps: float) -> float:
    """acos(1 - eps)."""
    return 2 * math.asin(math.sqrt(eps / 2))
