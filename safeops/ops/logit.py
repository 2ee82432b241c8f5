"""safe_logit: the inverse of the sigmoid, defined on the whole real line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary
from ._options import COMPUTE, Constants, rounded
from .log import lowest


def _clamped(x: Tensor, low: float, high: float) -> Tensor:
    """As torch does: a bound above the other one wins."""
    return torch.where(x < low, low, torch.where(x > high, high, x))


def _value(x: Tensor, low: float, high: float, lowest: float, highest: float) -> Tensor:
    x = _clamped(x, low, high)
    inside = ~((x <= 0) | (x >= 1))
    outside = torch.where(x <= 0, lowest, torch.full_like(x, highest))
    return torch.where(inside, torch.logit(torch.where(inside, x, 0.5)), outside)


def _quick_gradient(grad: Tensor, x: Tensor, low: float, high: float, *ends: float) -> Tensor:
    slope = grad / (x * (1 - x))
    return torch.where((x < low) | (x > high), 0.0, slope) if low > 0 else slope


def _gradient(grad: Tensor, x: Tensor, low: float, high: float, *ends: float) -> Tensor:
    outside = (x <= 0) | (x >= 1) | (x < low) | (x > high)
    x = torch.where(outside, 0.5, x)
    return torch.where(outside, 0.0, grad / (x * (1 - x)))


def _constants(dtype: torch.dtype, eps: float | None) -> Constants:
    info, compute = torch.finfo(dtype), COMPUTE[dtype]
    least = lowest(dtype)
    highest = math.log1p(-info.eps / 2) - math.log(info.eps / 2)
    if eps is None or eps <= 0:
        return 0.0, 1.0, least, highest
    low = rounded(float(eps), compute)
    return low, rounded(1 - low, compute), least, highest


def _overflows(*constants: float) -> bool:
    return False


def _torchs_own(options: tuple, x: Tensor) -> Tensor:
    return torch.logit(x, *options)


_logit = Unary(
    "safe_logit",
    _constants,
    Formulas(_value, (_gradient,), _overflows, divides=False),
    Quick(_torchs_own, (_quick_gradient,)),
)


def safe_logit(x: Tensor, eps: float | None = None) -> Tensor:
    r"""log(x / (1 - x)), and its value at the number next inside (0, 1) beyond it.

    .. math:: f(x) = \log\frac{z}{1 - z}, \quad z = \max(\epsilon, \min(x, 1 - \epsilon)), \qquad
              f'(x) = \frac{1}{x (1 - x)} \text{ if } x = z \text{ and } 0 < x < 1,
              \text{ else } 0

    torch gives ∓inf at 0 and 1 and NaN beyond, with infinite gradients. Here it is the value at the
    smallest positive number of the dtype at x <= 0, that at the number next below 1 at x >= 1, and
    the gradient is 0 at both.

    Args:
        x: a tensor of any shape.
        eps: torch.logit's own: clamp x to [eps, 1 - eps] first.

    Returns:
        A tensor like x, with torch.logit's own bits where nothing is guarded (integers give the
        default dtype). NaN stays NaN.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; an eps that torch.logit does not
            take.

    >>> safe_logit(torch.tensor([0.0, 0.5, 1.0]))
    tensor([-103.2789,    0.0000,   16.6355])
    >>> safe_logit(torch.tensor([0.0, 0.5, 1.0]), 0.25)
    tensor([-1.0986,  0.0000,  1.0986])

    Source: torch.logit.
    """
    return _logit((eps,), x)
