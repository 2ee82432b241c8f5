"""safe_expm1: exp(x) - 1, saturated."""

from __future__ import annotations

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, usual
from .exp import gradient, no_constants, overflows


def _quick_gradient(grad: Tensor, x: Tensor) -> Tensor:
    return grad * x.exp()


_expm1 = Unary(
    "safe_expm1",
    no_constants,
    Formulas(torch.expm1, (gradient,), overflows, divides=False),
    Quick(usual(torch.expm1), (_quick_gradient,)),
)


def safe_expm1(x: Tensor) -> Tensor:
    r"""exp(x) - 1 without cancellation, at most the largest number of the dtype.

    .. math:: f(x) = \min(e^x - 1, max), \qquad f'(x) = e^x

    torch overflows to inf. Here value and gradient saturate; the gradient is that of exp, saturated
    too. torch takes it from the rounded result + 1, and it is 0 from x = -17 on in float32.

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
