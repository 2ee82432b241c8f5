"""safe_pow: powers, defined where the base is zero or negative."""

from __future__ import annotations

import math
from functools import partial
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from .._route import readable
from ._formulas import Formulas
from ._kernelless import Binary, Quick, Unary, bounded, no_constants, overflows
from ._options import Constants
from ._scaling import regular
from .atan2 import BOTH

# --- the exponent is a number --------------------------------------------------------------------


def _whole(p: float) -> bool:
    return p == p // 1 or abs(p) == math.inf


def _outside(x: Tensor, p: float) -> Tensor | None:
    """The guarded elements; None where no exponent guards any."""
    if _whole(p):
        return x == 0 if p < 0 else None
    return x <= 0


def _number_value(x: Tensor, p: float) -> Tensor:
    outside = _outside(x, p)
    if outside is None:
        return x.pow(p)
    return torch.where(outside, abs(p) * 0.0, torch.where(outside, 1.0, x).pow(p))


def _power_slope(x: Tensor, p: float) -> Tensor:
    return p * (x if p == 2 else x.pow(p - 1))


def _slope(grad: Tensor, x: Tensor, p: float) -> Tensor:
    """In torch's order."""
    return grad * bounded(partial(_power_slope, p=p), torch.finfo(x.dtype).max, x)


def _number_gradient(grad: Tensor, x: Tensor, p: float) -> Tensor:
    outside = _outside(x, p)
    if p == 0:
        return torch.zeros_like(grad)
    if outside is None:
        return _slope(grad, x, p)
    return torch.where(outside, 0.0, _slope(grad, torch.where(outside, 1.0, x), p))


def _quick_number(grad: Tensor, x: Tensor, p: float) -> Tensor:
    return grad * _power_slope(x, p)


def _number_constants(dtype: torch.dtype, p: float) -> Constants:
    return (p,)


_by_number = Unary(
    "safe_pow",
    _number_constants,
    Formulas(_number_value, (_number_gradient,), overflows, divides=False),
    Quick(lambda options, x: x.pow(options[0]), (_quick_number,)),
)

# --- the exponent is a tensor --------------------------------------------------------------------


def _guarded(x: Tensor, p: Tensor) -> Tensor:
    whole = p == p.detach().floor()
    return torch.where(whole, (x == 0) & (p < 0), x <= 0)


def _movable(x: Tensor, p: Tensor) -> Tensor:
    """The exponent, without its derivative where the base leaves it none."""
    return torch.where(x <= 0, p.detach(), p)


def _power(x: Tensor, p: Tensor) -> Tensor:
    """x ** p, of which p has no derivative where x <= 0: forward mode would make it 0 * log(x)."""
    positive = x > 0
    below = torch.where(positive, 1.0, x).pow(p.detach())
    return torch.where(positive, torch.where(positive, x, 1.0).pow(p), below)


def _value(x: Tensor, p: Tensor) -> Tensor:
    outside = _guarded(x, p)
    value = _power(torch.where(outside, 1.0, x), p)
    return torch.where(outside, torch.where(p == p, 0.0, p.detach()), value)


def _gradient_x(grad: Tensor, x: Tensor, p: Tensor) -> Tensor:
    outside = _guarded(x, p) | (p == 0)
    base = torch.where(outside, 1.0, x)
    exponent = _movable(x, p)
    slope = bounded(lambda b, e: e * _power(b, e - 1), torch.finfo(x.dtype).max, base, exponent)
    return torch.where(outside, 0.0, grad * slope)


def _gradient_p(grad: Tensor, x: Tensor, p: Tensor) -> Tensor:
    outside = x <= 0
    base = torch.where(outside, 1.0, x)
    slope = bounded(lambda b, p: b.pow(p) * b.log(), torch.finfo(x.dtype).max, base, p)
    return torch.where(outside, 0.0, grad * slope)


def _quick_x(grad: Tensor, x: Tensor, p: Tensor) -> Tensor:
    return grad * (p * x.pow(p - 1))


def _quick_p(grad: Tensor, x: Tensor, p: Tensor) -> Tensor:
    return grad * (x.pow(p) * x.log())


_by_tensor = Binary(
    "safe_pow",
    no_constants,
    Formulas(_value, (_gradient_x, _gradient_p), overflows, uses=BOTH, divides=False),
    Quick(lambda options, x, p: x.pow(p), (_quick_x, _quick_p)),
)


def _moderate(x: Any) -> bool:
    """A look shows that neither squares nor cubes, nor their slopes, come near an overflow. It is
    worth it where torch's own op then does all of the work, backward too."""
    if not isinstance(x, Tensor) or x.dtype not in _ROOM or x.is_nested:
        return False
    if not readable(x):
        return False
    return regular(x, above=-_ROOM[x.dtype], below=_ROOM[x.dtype])


_ROOM = {torch.float64: 2.0**150, torch.float32: 2.0**20, torch.bfloat16: 2.0**20}


def _integral(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.is_quantized)
    return isinstance(value, Integral)


def safe_pow(x: Tensor | float, exponent: Tensor | float) -> Tensor:
    r"""x ** exponent, 0 at its pole and where a root of a negative number is asked for.

    .. math:: f(x, p) = x^p, \qquad \frac{\partial f}{\partial x} = p x^{p - 1}, \quad
              \frac{\partial f}{\partial p} = x^p \log x

    torch gives inf at x == 0 with p < 0 and NaN at x < 0 with a p that is no integer, and an
    infinite gradient at x == 0 with 0 < p < 1. Here the value at the first two is 0; the gradient
    to x is 0 at all of them, and that to p is 0 wherever x <= 0.

    Args:
        x: a tensor, or a Python number.
        exponent: a tensor of a shape that broadcasts, or a Python number; one of both is a tensor.

    Returns:
        A tensor of the broadcast shape, with torch.pow's own bits where nothing is guarded; dtype
        by torch's promotion. Powers of integers by integers are torch's own. What overflows is
        ±finfo(dtype).max. NaN stays NaN, but for x ** 0 and 1 ** p, which are 1.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; two Python numbers.

    >>> x = torch.tensor([0.0, 4.0, -4.0], requires_grad=True)
    >>> value = safe_pow(x, -0.5)
    >>> value.tolist(), torch.autograd.grad(value.sum(), x)[0].tolist()
    ([0.0, 0.5, 0.0], [0.0, -0.0625, 0.0])

    Source: torch.pow; the gradient is computed in torch's order, grad · (p · x ** (p - 1)).
    """
    if _integral(x) and _integral(exponent):
        return torch.pow(x, exponent)  # type: ignore[arg-type]
    if isinstance(exponent, Tensor):
        return _by_tensor((), x, exponent)
    if not isinstance(exponent, Real):
        raise TypeError(
            "safe_pow: expected a torch.Tensor or a Python number as exponent, got "
            f"{type(exponent).__name__}; wrap it in torch.as_tensor(...)"
        )
    if exponent in (2, 3) and _moderate(x):
        return x.pow(exponent)
    return _by_number((exponent,), x)
