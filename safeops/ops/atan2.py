"""safe_atan2: the angle of a point, with a gradient at every distance."""

from __future__ import annotations

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Binary, Quick, no_constants, usual
from ._scaled_pair import origin, scale_of

BOTH = ((0, 1), (0, 1))


def _value(y: Tensor, x: Tensor) -> Tensor:
    """The angle at the origin has no derivative."""
    fixed, scale = origin(y, x), scale_of(y, x)
    y = torch.where(fixed, y.detach(), y) * scale
    return torch.atan2(y, torch.where(fixed, x.detach(), x) * scale)


def _over_square(grad: Tensor, part: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """grad * part / (x² + y²), and 0 at the origin."""
    fixed, scale = origin(y, x), scale_of(y, x)
    y, x = (torch.where(fixed, 1.0, tensor * scale) for tensor in (y, x))
    part = torch.where(fixed, 0.0, part * scale)
    return grad * (part / (x * x + y * y) * scale)


def _gradient_y(grad: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return _over_square(grad, x, y, x)


def _gradient_x(grad: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return -_over_square(grad, y, y, x)


def _overflows() -> bool:
    """The slopes do."""
    return True


_gradients = (_gradient_y, _gradient_x)
_atan2 = Binary(
    "safe_atan2",
    no_constants,
    Formulas(_value, _gradients, _overflows, uses=BOTH, divides=False),
    Quick(usual(torch.atan2), _gradients),
)


def safe_atan2(y: Tensor, x: Tensor) -> Tensor:
    r"""atan2(y, x), with a gradient that does not vanish or overflow with x² + y².

    .. math:: f(y, x) = \operatorname{atan2}(y, x), \qquad
              \frac{\partial f}{\partial y} = \frac{x}{x^2 + y^2}, \quad
              \frac{\partial f}{\partial x} = \frac{-y}{x^2 + y^2}, \text{ and 0 at the origin}

    torch squares x and y: its gradient is inf or NaN near the origin, 0 far from it (below 1e-19
    and from 1e19 on in float32) and its second derivative at the origin is NaN.

    Args:
        y, x: tensors of shapes that broadcast.

    Returns:
        A tensor of the broadcast shape with torch.atan2's own values; dtype by torch's promotion
        (integers give the default dtype). NaN stays NaN.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> y = torch.tensor([0.0, 1e-30], requires_grad=True)
    >>> safe_atan2(y, torch.tensor([0.0, 1e-30])).sum().backward()
    >>> y.grad
    tensor([0.0000e+00, 5.0000e+29])

    Source: torch.atan2; the pair is scaled by a power of two where its squares would overflow.
    """
    return _atan2((), y, x)
