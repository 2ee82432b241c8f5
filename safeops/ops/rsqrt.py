"""safe_rsqrt: the reciprocal of the square root, defined on the whole real line."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, usual
from ._one_sided import regular
from ._options import Constants, number, positive, within

_DEFAULT: Any = object()


def _value(x: Tensor, bound: float, below: float) -> Tensor:
    inside = regular(x, bound)
    return torch.where(inside, torch.where(inside, x, 1.0).rsqrt(), below)


def _quick_gradient(grad: Tensor, x: Tensor, *constants: float) -> Tensor:
    root = x.rsqrt()
    return -0.5 * grad * root * root * root


def _gradient(grad: Tensor, x: Tensor, bound: float, below: float) -> Tensor:
    inside = regular(x, bound)
    return torch.where(inside, _quick_gradient(grad, torch.where(inside, x, 1.0)), 0.0)


def _constants(dtype: torch.dtype, eps: float | None, fill: float | None) -> Constants:
    if fill is None and eps is None:
        raise ValueError("safe_rsqrt: fill=None holds x at eps or above; give eps as well")
    bound = 0.0 if eps is None else positive("safe_rsqrt", "eps", eps, dtype)
    if fill is None:
        return bound, within(1 / math.sqrt(bound), dtype)
    return bound, within(number("safe_rsqrt", "fill", fill), dtype)


def _overflows(bound: float, below: float) -> bool:
    """The slope does."""
    return True


_rsqrt = Unary(
    "safe_rsqrt",
    _constants,
    Formulas(_value, (_gradient,), _overflows, divides=False),
    Quick(usual(torch.rsqrt, None, 0.0), (_quick_gradient,)),
)


def safe_rsqrt(x: Tensor, *, eps: float | None = None, fill: float | None = _DEFAULT) -> Tensor:
    r"""1 / sqrt(x), and ``fill`` (0 by default) where x <= 0.

    .. math:: f(x) = \frac{1}{\sqrt{x}}, \quad f'(x) = -\frac{1}{2 x \sqrt{x}}
              \text{ if } x \ge \epsilon \text{ and } x > 0, \text{ else } f = fill, \ f' = 0

    torch gives inf at 0 and NaN below, with gradients -inf and NaN. Here the gradient at a guarded
    element is 0.

    Args:
        x: a tensor of any shape.
        eps: guard x < eps instead of x <= 0. Alone, it holds x: rsqrt(max(x, eps)). Converted to
            the compute type, so 1e-8 works in float16.
        fill: the value at guarded elements. ``None`` is the held form and needs eps.

    Returns:
        A tensor like x, with torch.rsqrt's own bits where nothing is guarded (integers give the
        default dtype). NaN stays NaN; rsqrt(inf) is 0.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; options that are no numbers.
        ValueError: eps that is not positive and finite in the compute type; fill=None without eps.

    >>> safe_rsqrt(torch.tensor([0.0, 4.0]))
    tensor([0.0000, 0.5000])
    >>> safe_rsqrt(torch.tensor([0.0, 4.0]), eps=0.01)
    tensor([10.0000,  0.5000])

    Source: torch.rsqrt, guarded as the division of safe_div is.
    """
    if fill is _DEFAULT:
        fill = 0.0 if eps is None else None
    return _rsqrt((eps, fill), x)
