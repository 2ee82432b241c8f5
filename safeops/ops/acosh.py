"""safe_acosh: the inverse hyperbolic cosine, defined on the whole real line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, usual
from ._options import COMPUTE, Constants, number, positive, rounded, within


def _regular(x: Tensor, bound: float) -> Tensor:
    """Everything not guarded, NaN among it."""
    return ~(x < bound) if bound > 1 else ~(x <= 1)


def _value(x: Tensor, bound: float, below: float) -> Tensor:
    inside = _regular(x, bound)
    return torch.where(inside, torch.acosh(torch.where(inside, x, 2.0)), below)


def _quick_gradient(grad: Tensor, x: Tensor, *constants: float) -> Tensor:
    """x² - 1 would overflow."""
    return grad * (x - 1).rsqrt() * (x + 1).rsqrt()


def _gradient(grad: Tensor, x: Tensor, bound: float, below: float) -> Tensor:
    inside = _regular(x, bound)
    return torch.where(inside, _quick_gradient(grad, torch.where(inside, x, 2.0)), 0.0)


def _acosh_beside(eps: float) -> float:
    """acosh(1 + eps)."""
    return 2 * math.asinh(math.sqrt(eps / 2))


def _constants(dtype: torch.dtype, eps: float | None, fill: float | None) -> Constants:
    e = 0.0 if eps is None else positive("safe_acosh", "eps", eps, dtype)
    bound = rounded(1 + e, COMPUTE[dtype])
    if fill is None:
        return bound, within(_acosh_beside(e), dtype)
    return bound, within(number("safe_acosh", "fill", fill), dtype)


def _overflows(bound: float, below: float) -> bool:
    return False


_acosh = Unary(
    "safe_acosh",
    _constants,
    Formulas(_value, (_gradient,), _overflows, divides=False),
    Quick(usual(torch.acosh, None, None), (_quick_gradient,)),
)


def safe_acosh(x: Tensor, *, eps: float | None = None, fill: float | None = None) -> Tensor:
    r"""acosh(x), and 0 where x <= 1.

    .. math:: f(x) = \operatorname{arcosh}(\max(x, 1 + \epsilon)), \qquad
              f'(x) = \frac{1}{\sqrt{x^2 - 1}} \text{ if } x \ge 1 + \epsilon \text{ and } x > 1,
              \text{ else } 0

    torch gives NaN below 1 and an infinite gradient at 1. Here the gradient at a guarded element
    is 0; where x² overflows it is right, and not 0 as torch's.

    Args:
        x: a tensor of any shape.
        eps: guard x < 1 + eps (rounded to the compute type) instead of x <= 1; the value there is
            acosh(1 + eps).
        fill: the value at guarded elements, in place of the one at the bound.

    Returns:
        A tensor like x, with torch.acosh's own bits where nothing is guarded (integers give the
        default dtype). NaN stays NaN; acosh(inf) is inf.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; options that are no numbers.
        ValueError: eps that is not positive and finite in the compute type; fill that is not
            finite.

    >>> safe_acosh(torch.tensor([-1.0, 1.0, 2.0]))
    tensor([0.0000, 0.0000, 1.3170])

    Source: torch.acosh.
    """
    return _acosh((eps, fill), x)
