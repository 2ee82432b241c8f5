"""safe_atanh: the inverse hyperbolic tangent, defined on the whole real line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._inside_one import inside_one


def _slope(grad: Tensor, x: Tensor) -> Tensor:
    return grad / ((1 - x) * (1 + x))


def _ends(dtype: torch.dtype, eps: float) -> tuple[float, float]:
    """Without eps at the number of the dtype next below 1."""
    beside = eps or torch.finfo(dtype).eps / 2
    end = 0.5 * (math.log(2 - beside) - math.log(beside)) if beside < 1 else 0.0
    return -end, end


_atanh = inside_one("atanh", torch.atanh, _slope, _ends)


def safe_atanh(x: Tensor, *, eps: float | None = None, fill: float | None = None) -> Tensor:
    r"""atanh(x), and its value at the number next below 1 (with the sign of x) where \|x\| >= 1.

    .. math:: f(x) = \operatorname{artanh}(\max(-1 + \epsilon, \min(x, 1 - \epsilon))), \qquad
              f'(x) = \frac{1}{1 - x^2} \text{ if } |x| < 1, \text{ else } 0

    torch gives ±inf at ±1 and NaN beyond, with infinite gradients. Here the gradient at a guarded
    element is 0.

    Args:
        x: a tensor of any shape.
        eps: hold the argument in [-1 + eps, 1 - eps] (rounded to the compute type); outside the
            gradient is 0. At most 1.
        fill: the value at guarded elements, in place of the one at the bound.

    Returns:
        A tensor like x, with torch.atanh's own bits where nothing is guarded (integers give the
        default dtype). NaN stays NaN.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; options that are no numbers.
        ValueError: eps that is not in (0, 1] in the compute type; fill that is not finite.

    >>> safe_atanh(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([-8.6643,  0.0000,  8.6643])

    Source: torch.atanh.
    """
    return _atanh((eps, fill), x)
