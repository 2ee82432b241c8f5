"""safe_sqrt: the square root, defined on the whole real line."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._elementwise import Unary
from ._formulas import Formulas
from ._one_sided import continued, one_sided, overflows, regular
from ._options import Constants


def _value(x: Tensor, bound: float, below: float, run: float) -> Tensor:
    return continued(torch.sqrt, x, bound, below, run)


def _gradient_x(grad: Tensor, saved: Tensor, bound: float, below: float, run: float) -> Tensor:
    result = _saves_result(bound, below)
    inside = saved != 0 if result else regular(saved, bound)
    kept = torch.where(inside, saved, 1.0)
    root = kept if result else kept.sqrt()
    return torch.where(inside, grad / (2 * root), grad / run if run else 0.0)


def _saves_result(bound: float, below: float) -> bool:
    """The result tells which elements were guarded: those where it is 0."""
    return bound == 0 and below == 0


def _save(x: Tensor, result: Tensor, bound: float, below: float, run: float) -> Tensor:
    return result if _saves_result(bound, below) else x


def _constants(dtype: torch.dtype, eps: float | None, fill: float | None, extend: str) -> Constants:
    return one_sided(
        "safe_sqrt", dtype, eps, fill, extend, 0.0, math.sqrt, lambda e: 2 * math.sqrt(e)
    )


_sqrt = Unary(
    "sqrt", "safe_sqrt", _constants, Formulas(_value, (_gradient_x,), overflows, save=_save)
)


def safe_sqrt(
    x: Tensor, *, eps: float | None = None, fill: float | None = None, extend: str = "clamp"
) -> Tensor:
    r"""sqrt(x), and 0 where x <= 0.

    .. math:: f(x) = \sqrt{\max(x, \epsilon)}, \qquad f'(x) = \frac{1}{2\sqrt{x}}
              \text{ if } x \ge \epsilon \text{ and } x > 0, \text{ else } 0

    torch gives NaN below 0 and an infinite gradient at 0, the usual death of norms and standard
    deviations. Here the gradient at a guarded element is 0.

    Args:
        x: a tensor of any shape.
        eps: guard x < eps instead of x <= 0; the value there is sqrt(eps). Converted to the
            compute type, so 1e-8 works in float16.
        fill: the value at guarded elements, in place of the clamped one.
        extend: ``"clamp"``, or ``"linear"``: below eps the function continues along its tangent,
            sqrt(eps) + (x - eps) / (2 sqrt(eps)), and its gradient pulls x back.

    Returns:
        A tensor like x, correctly rounded at x > 0 by the kernels (torch.sqrt, and so the torch
        formulas, may be 1 ULP off); integers give the default dtype. Half types compute in
        float32 and round once. NaN stays NaN; sqrt(inf) is inf.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors; options that are no numbers.
        ValueError: eps that is not positive and finite in the compute type; an unknown extend;
            extend="linear" without eps or with a fill.

    >>> x = torch.tensor([0.0, 4.0], requires_grad=True)
    >>> safe_sqrt(x).sum().backward()
    >>> x.grad
    tensor([0.0000, 0.2500])

    Source: IEEE 754 square root. In the default form backward keeps the result, as torch does.
    """
    return _sqrt((eps, fill, extend), x)
