"""safe_asin: the inverse sine, defined on the whole real line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._inside_one import acos_beside, inside_one


def _slope(grad: Tensor, x: Tensor) -> Tensor:
    return grad * ((1 - x) * (1 + x)).rsqrt()


def _ends(dtype: torch.dtype, eps: float) -> tuple[float, float]:
    return acos_beside(eps) - math.pi / 2, math.pi / 2 - acos_beside(eps)


_asin = inside_one("asin", torch.asin, _slope, _ends)


def safe_asin(x: Tensor, *, eps: float | None = None, fill: float | None = None) -> Tensor:
    r"""asin(x), and its value at -1 or 1 beyond them.

    .. math:: f(x) = \arcsin(\max(-1, \min(x, 1))), \qquad f'(x) = \frac{1}{\sqrt{1 - x^2}}
              \text{ if } |x| < 1, \text{ else } 0

    torch gives NaN beyond ±1, which a rounded cosine often is, and an infinite gradient at ±1.
    Here the gradient at a guarded element, \|x\| >= 1, is 0.

    Args:
        x: a tensor of any shape.
        eps: hold the argument in [-1 + eps, 1 - eps] (rounded to the compute type); outside the
            gradient is 0. At most 1.
        fill: the value at guarded elements, in place of the one at the bound.

    Returns:
        A tensor like x, with torch.asin's own bits where nothing is guarded (integers give the
        default dtype). NaN stays NaN.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; options that are no numbers.
        ValueError: eps that is not in (0, 1] in the compute type; fill that is not finite.

    >>> x = torch.tensor([1.5, 0.0], requires_grad=True)
    >>> value = safe_asin(x)
    >>> value.detach(), torch.autograd.grad(value.sum(), x)[0]
    (tensor([1.5708, 0.0000]), tensor([0., 1.]))

    Source: torch.asin.
    """
    return _asin((eps, fill), x)
