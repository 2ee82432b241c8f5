"""safe_cosh: the hyperbolic cosine, saturated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, bounded, overflows, usual
from .exp import limit


def hyperbolic(op: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """torch's cosh or sinh, which overflows before its result does, as exp(|x|) / 2 far out."""
    far = x.abs() > (700 if x.dtype is torch.float64 else 80)
    half = (torch.where(far, x.abs(), 0.0) / 2).exp()
    sign = op(x.detach().sign()).sign()
    return torch.where(far, sign * (half / 2 * half), op(torch.where(far, 0.0, x)))


def _value(x: Tensor, limit: float) -> Tensor:
    return hyperbolic(torch.cosh, x)


def _gradient(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    return grad * bounded(partial(hyperbolic, torch.sinh), limit, x)


_cosh = Unary(
    "safe_cosh",
    limit,
    Formulas(_value, (_gradient,), overflows, divides=False),
    Quick(usual(torch.cosh), (_gradient,)),
)


def safe_cosh(x: Tensor) -> Tensor:
    r"""cosh(x), at most the largest number of the dtype.

    .. math:: f(x) = \min(\cosh x, max), \qquad f'(x) = \max(-max, \min(\sinh x, max))

    torch overflows to inf, from \|x\| = 88.8 in float32 and 11.8 in float16. Here value and slope
    saturate together, so that log(cosh(x)) keeps its slope ±1.

    Args:
        x: a tensor of any shape.

    Returns:
        A tensor like x, with torch.cosh's own bits where nothing overflows (integers give the
        default dtype). NaN stays NaN; cosh(±inf) is inf.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> safe_cosh(torch.tensor([0.0, -1000.0]))
    tensor([1.0000e+00, 3.4028e+38])

    Source: torch.cosh.
    """
    return _cosh((), x)
