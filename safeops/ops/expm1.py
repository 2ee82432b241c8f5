"""safe_expm1: exp(x) - 1, saturated."""

from __future__ import annotations

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, overflows, usual
from .exp import gradient, limit


def _value(x: Tensor, limit: float) -> Tensor:
    return x.expm1()


def _quick_gradient(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    return grad * x.exp()


_expm1 = Unary(
    "safe_expm1",
    limit,
    Formulas(_value, (gradient,), overflows, divides=False),
    Quick(usual(torch.expm1), (_quick_gradient,)),
)


def safe_expm1(x: Tensor) -> Tensor:
    r"""exp(x) - 1 without cancellation, at most the largest number of the dtype.

    .. math:: f(x) = \min(e^x - 1, max), \qquad f'(x) = \min(e^x, max)

    torch overflows to inf. Here value and slope saturate together. torch takes the slope from the
    rounded result + 1, and it is 0 from x = -17 on in float32; here it is exp(x).

    Args:
        x: a tensor of any shape.

    Returns:
        A tensor like x, with torch.expm1's own bits where nothing overflows (integers give the
        default dtype). NaN stays NaN; expm1(inf) is inf.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> safe_expm1(torch.tensor([0.0, 1000.0]))
    tensor([0.0000e+00, 3.4028e+38])

    Source: torch.expm1.
    """
    return _expm1((), x)
