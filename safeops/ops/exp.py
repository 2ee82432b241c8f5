"""safe_exp: the exponential function, saturated."""

from __future__ import annotations

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, bounded, overflows, usual
from ._options import Constants


def gradient(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    """The slope saturates as the value does: in log(1 + exp(x)) one divides what the other
    multiplies."""
    return grad * bounded(torch.exp, limit, x)


def _quick_gradient(grad: Tensor, result: Tensor, limit: float) -> Tensor:
    return grad * result


def _value(x: Tensor, limit: float) -> Tensor:
    return x.exp()


def limit(dtype: torch.dtype) -> Constants:
    return (torch.finfo(dtype).max,)


_exp = Unary(
    "safe_exp",
    limit,
    Formulas(_value, (gradient,), overflows, divides=False),
    Quick(usual(torch.exp), (_quick_gradient,), keeps_result=True),
)


def safe_exp(x: Tensor) -> Tensor:
    r"""exp(x), at most the largest number of the dtype.

    .. math:: f(x) = \min(e^x, max), \qquad f'(x) = \min(e^x, max)

    torch overflows to inf, from x = 88.8 in float32 and 11.1 in float16, and inf - inf or 0 * inf
    give NaN soon. Here value and slope saturate together: x is still pulled back, and
    log(1 + exp(x)) keeps its slope 1.

    Args:
        x: a tensor of any shape.

    Returns:
        A tensor like x, with torch.exp's own bits where nothing overflows (integers give the
        default dtype). NaN stays NaN; exp(inf) is inf.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> safe_exp(torch.tensor([0.0, 1000.0]))
    tensor([1.0000e+00, 3.4028e+38])

    Source: torch.exp.
    """
    return _exp((), x)
