"""safe_div: division that is defined where the denominator is zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ._elementwise import Binary
from ._formulas import Formulas
from ._options import Constants, number, positive, within

_DEFAULT: Any = object()


def _regular(y: Tensor, bound: float) -> Tensor:
    """Everything not guarded, NaN among it."""
    return ~(y.abs() < bound if bound else y == 0)


def _held(y: Tensor, bound: float, hold: float) -> Tensor:
    """y, with guarded elements moved to where the division is defined."""
    outside = torch.full_like(y, bound).copysign(y.detach()) if hold else 1.0
    return torch.where(_regular(y, bound), y, outside)


def _value(x: Tensor, y: Tensor, bound: float, fill: float, hold: float) -> Tensor:
    quotient = x / _held(y, bound, hold)
    if hold:
        return quotient
    hidden = torch.where(x == x, fill, torch.nan).to(x.dtype)
    return torch.where(_regular(y, bound), quotient, hidden)


def _gradient_x(grad: Tensor, y: Tensor, bound: float, fill: float, hold: float) -> Tensor:
    quotient = grad / _held(y, bound, hold)
    return quotient if hold else torch.where(_regular(y, bound), quotient, 0.0)


def _gradient_y(
    grad: Tensor, x: Tensor, y: Tensor, bound: float, fill: float, hold: float
) -> Tensor:
    regular = _regular(y, bound)
    product = -_product_over_square(grad, x, torch.where(regular, y, 1.0))
    return torch.where(regular, product, 0.0).to(grad.dtype)


def _product_over_square(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """g * x / y**2 without an overflow or underflow on the way.

    Under a compiler that would cost more than the rest, and taking float64's exponents apart
    cannot be differentiated at every point: there it is torch's own order, which may saturate
    early where x / y**2 overflows.
    """
    if is_compiling() or (torch.is_grad_enabled() and g.dtype is torch.float64):
        return g * (x / y / y)
    if g.dtype is torch.float32:
        g, x, y = g.double(), x.double(), y.double()
        return g * x / (y * y)
    (g, eg), (x, ex), (y, ey) = torch.frexp(g), torch.frexp(x), torch.frexp(y)
    exponent = eg + ex - 2 * ey
    third = exponent // 3
    value = (g / y) * (x / y)
    for part in (third, third, exponent - 2 * third):
        value = torch.ldexp(value, part.clamp(-1000, 1000))
    return value


def _constants(dtype: torch.dtype, eps: float | None, fill: float | None) -> Constants:
    if fill is None and eps is None:
        raise ValueError(
            "safe_div: fill=None holds the denominator eps away from zero; give eps as well"
        )
    bound = 0.0 if eps is None else positive("safe_div", "eps", eps, dtype)
    if fill is None:
        return bound, 0.0, 1.0
    return bound, within(number("safe_div", "fill", fill), dtype), 0.0


def _overflows(bound: float, fill: float, hold: float) -> bool:
    return True


_div = Binary(
    "div",
    "safe_div",
    _constants,
    Formulas(_value, (_gradient_x, _gradient_y), _overflows, uses=((1,), (0, 1))),
)


def safe_div(
    x: Tensor | float, y: Tensor | float, *, eps: float | None = None, fill: float | None = _DEFAULT
) -> Tensor:
    r"""x / y, and ``fill`` (0 by default) where y == 0.

    .. math:: f(x, y) = x / y \text{ if } |y| \ge \epsilon \text{ and } y \ne 0,
              \text{ else fill}

    torch gives ±inf or NaN at y == 0, and masking the element afterwards still leaves a NaN
    gradient. Here the gradient to both operands is 0 at a guarded element; elsewhere it is
    grad / y and -grad * x / y². A NaN numerator stays NaN.

    Args:
        x, y: tensors of shapes that broadcast, or Python numbers; at least one tensor.
        eps: guard \|y\| < eps instead of y == 0. Alone, it holds the denominator:
            x / copysign(max(\|y\|, eps), y), with gradient 1 / copysign(eps, y) to x and 0 to y
            where it held. Converted to the compute type, so 1e-8 works in float16.
        fill: the value at guarded elements. ``None`` is the held form and needs eps.

    Returns:
        A tensor of the broadcast shape; dtype by torch's promotion (integers give the default
        dtype). Half types compute in float32 and round once. A quotient of finite operands that
        overflows is ±finfo(dtype).max.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; options that are no numbers.
        ValueError: eps that is not positive and finite in the compute type; fill=None without eps.

    >>> safe_div(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 4.0]))
    tensor([0.0000, 0.2500])
    >>> safe_div(torch.tensor([1.0, 1.0]), torch.tensor([0.0, -4.0]), eps=0.5)
    tensor([ 2.0000, -0.2500])

    Source: IEEE 754 division; the held form keeps the sign that ``x / (y + eps)`` loses.
    """
    if fill is _DEFAULT:
        fill = 0.0 if eps is None else None
    return _div((eps, fill), x, y)
