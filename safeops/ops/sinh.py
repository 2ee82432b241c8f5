"""safe_sinh: the hyperbolic sine, saturated."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, bounded, overflows, usual
from .cosh import hyperbolic
from .exp import limit


def _value(x: Tensor, limit: float) -> Tensor:
    return hyperbolic(torch.sinh, x)


def _gradient(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    return grad * bounded(partial(hyperbolic, torch.cosh), limit, x)


_sinh = Unary(
    "safe_sinh",
    limit,
    Formulas(_value, (_gradient,), overflows, divides=False),
    Quick(usual(torch.sinh), (_gradient,)),
)


def safe_sinh(x: Tensor) -> Tensor:
    r"""sinh(x), within ± the largest number of the dtype.

    .. math:: f(x) = \max(-max, \min(\sinh x, max)), \qquad f'(x) = \min(\cosh x, max)

    torch overflows to ±inf, from \|x\| = 88.8 in float32 and 11.8 in float16. Here value and slope
    saturate together.

    Args:
        x: a tensor of any shape.

    Returns:
        A tensor like x, with torch.sinh's own bits where nothing overflows (integers give the
        default dtype). NaN stays NaN; sinh(±inf) is ±inf.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> safe_sinh(torch.tensor([0.0, -1000.0]))
    tensor([ 0.0000e+00, -3.4028e+38])

    Source: torch.sinh.
    """
    return _sinh((), x)
