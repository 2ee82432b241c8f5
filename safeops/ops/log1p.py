"""safe_log1p: log(1 + x), defined on the whole real line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Quick, Unary, usual
from ._one_sided import one_sided, overflows
from ._options import COMPUTE, Constants, rounded


def regular(x: Tensor, bound: float) -> Tensor:
    """Everything not guarded, NaN among it."""
    return ~(x < bound) if bound > -1 else ~(x <= -1)


def _value(x: Tensor, bound: float, below: float, run: float) -> Tensor:
    inside = regular(x, bound)
    outside = below + (torch.where(inside, 0.0, 1 + x) - run) / run if run else below
    return torch.where(inside, torch.log1p(torch.where(inside, x, 0.0)), outside)


def _quick_gradient(grad: Tensor, x: Tensor, *constants: float) -> Tensor:
    return grad / (1 + x)


def _gradient(grad: Tensor, x: Tensor, bound: float, below: float, run: float) -> Tensor:
    inside = regular(x, bound)
    slope = grad / (1 + torch.where(inside, x, 0.0))
    return torch.where(inside, slope, grad / run if run else 0.0)


def lowest(dtype: torch.dtype) -> float:
    """log1p of the number of the dtype next above -1."""
    return math.log(torch.finfo(dtype).eps / 2)


def _constants(dtype: torch.dtype, eps: float | None, fill: float | None, extend: str) -> Constants:
    """Of the logarithm, with its bound (0 or eps) moved to where x meets it."""
    e, below, run = one_sided(
        "safe_log1p", dtype, eps, fill, extend, lowest(dtype), math.log, lambda e: e
    )
    return rounded(e - 1, COMPUTE[dtype]), below, run


_log1p = Unary(
    "safe_log1p",
    _constants,
    Formulas(_value, (_gradient,), overflows, divides=False),
    Quick(usual(torch.log1p, None, None, "clamp"), (_quick_gradient,)),
)


def safe_log1p(
    x: Tensor, *, eps: float | None = None, fill: float | None = None, extend: str = "clamp"
) -> Tensor:
    r"""log(1 + x), and its value at the number of the dtype next above -1 where x <= -1.

    .. math:: f(x) = \log(\max(1 + x, \epsilon)), \qquad f'(x) = \frac{1}{1 + x}
              \text{ if } 1 + x \ge \epsilon \text{ and } x > -1, \text{ else } 0

    torch gives -inf at -1 and NaN below, with gradients ±inf. Here the gradient at a guarded
    element is 0.

    Args:
        x: a tensor of any shape.
        eps: guard x < -1 + eps (rounded to the compute type) instead of x <= -1; the value there
            is log(eps).
        fill: the value at guarded elements, in place of the clamped one.
        extend: ``"clamp"``, or ``"linear"``: below -1 + eps the function continues along its
            tangent, log(eps) + (1 + x - eps) / eps, and its gradient 1 / eps pulls x back.

    Returns:
        A tensor like x, with torch.log1p's own bits where nothing is guarded (integers give the
        default dtype). NaN stays NaN; log1p(inf) is inf; an extension that overflows is
        -finfo(dtype).max.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; options that are no numbers.
        ValueError: eps that is not positive and finite in the compute type; an unknown extend;
            extend="linear" without eps or with a fill.

    >>> safe_log1p(torch.tensor([-1.0, 0.0]), eps=1e-6)
    tensor([-13.8155,   0.0000])

    Source: torch.log1p, guarded as safe_log is.
    """
    return _log1p((eps, fill, extend), x)
