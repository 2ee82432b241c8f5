"""safe_log: the natural logarithm, defined on the whole real line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._elementwise import Unary
from ._formulas import Formulas
from ._one_sided import continued, one_sided, overflows, regular
from ._options import Constants


def _value(x: Tensor, bound: float, below: float, run: float) -> Tensor:
    return continued(torch.log, x, bound, below, run)


def _gradient_x(grad: Tensor, x: Tensor, bound: float, below: float, run: float) -> Tensor:
    inside = regular(x, bound)
    return torch.where(inside, grad / torch.where(inside, x, 1.0), grad / run if run else 0.0)


def lowest(dtype: torch.dtype) -> float:
    """log of the smallest positive number of the dtype."""
    info = torch.finfo(dtype)
    return math.log(info.smallest_normal) + math.log(info.eps)


def _constants(dtype: torch.dtype, eps: float | None, fill: float | None, extend: str) -> Constants:
    return one_sided("safe_log", dtype, eps, fill, extend, lowest(dtype), math.log, lambda e: e)


_log = Unary("log", "safe_log", _constants, Formulas(_value, (_gradient_x,), overflows))


def safe_log(
    x: Tensor, *, eps: float | None = None, fill: float | None = None, extend: str = "clamp"
) -> Tensor:
    r"""log(x), and log of the smallest positive number of the dtype where x <= 0.

    .. math:: f(x) = \log(\max(x, \epsilon)), \qquad f'(x) = 1/x \text{ if } x \ge \epsilon
              \text{ and } x > 0, \text{ else } 0

    torch gives -inf at 0 and NaN below, with gradients ±inf; ``torch.where(x > 0, x.log(), 0)``
    still has a NaN gradient. Here the gradient at a guarded element is 0.

    Args:
        x: a tensor of any shape.
        eps: guard x < eps instead of x <= 0; the value there is log(eps). Converted to the
            compute type, so 1e-8 works in float16.
        fill: the value at guarded elements, in place of the clamped one.
        extend: ``"clamp"``, or ``"linear"``: below eps the function continues along its tangent,
            log(eps) + (x - eps) / eps, and its gradient 1 / eps pulls x back.

    Returns:
        A tensor like x, at most 1 ULP off (integers give the default dtype). Half types compute
        in float32 and round once. NaN stays NaN; log(inf) is inf; an extension that overflows is
        -finfo(dtype).max.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; options that are no numbers.
        ValueError: eps that is not positive and finite in the compute type; an unknown extend;
            extend="linear" without eps or with a fill.

    >>> safe_log(torch.tensor([0.0, 1.0]), eps=1e-6)
    tensor([-13.8155,   0.0000])
    >>> safe_log(torch.tensor([0.0, 1.0]), fill=0.0)
    tensor([0., 0.])

    Source: reduction to [2/3, 4/3) and a minimax polynomial, csrc/scalar/log.h.
    """
    return _log((eps, fill, extend), x)
