"""safe_hypot: the length of a pair, with a gradient at the origin."""

from __future__ import annotations

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Binary, Quick, no_constants, overflows, usual
from ._scaled_pair import origin, scale_of
from .atan2 import BOTH


def _value(x: Tensor, y: Tensor) -> Tensor:
    fixed, scale = origin(x, y), scale_of(x, y)
    x, y = (torch.where(fixed, 1.0, tensor * scale) for tensor in (x, y))
    return torch.where(fixed, 0.0, torch.hypot(x, y) / scale)


def _share(grad: Tensor, part: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """grad * part / hypot(x, y), and 0 at the origin."""
    fixed, scale = origin(x, y), scale_of(x, y)
    x, y = (torch.where(fixed, 1.0, tensor * scale) for tensor in (x, y))
    return grad * (torch.where(fixed, 0.0, part * scale) / torch.hypot(x, y))


def _gradient_x(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return _share(grad, x, x, y)


def _gradient_y(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return _share(grad, y, x, y)


def _quick_x(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return grad * (x / torch.hypot(x, y))


def _quick_y(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return grad * (y / torch.hypot(x, y))


_hypot = Binary(
    "safe_hypot",
    no_constants,
    Formulas(_value, (_gradient_x, _gradient_y), overflows, uses=BOTH, divides=False),
    Quick(usual(torch.hypot), (_quick_x, _quick_y)),
)


def safe_hypot(x: Tensor, y: Tensor) -> Tensor:
    r"""sqrt(x² + y²), with gradient 0 at the origin.

    .. math:: f(x, y) = \sqrt{x^2 + y^2}, \qquad \nabla f = \frac{(x, y)}{f},
              \text{ and 0 at the origin}

    torch's gradient is NaN at the origin. Here it is 0 there.

    Args:
        x, y: tensors of shapes that broadcast.

    Returns:
        A tensor of the broadcast shape with torch.hypot's own values, at most finfo(dtype).max;
        dtype by torch's promotion (integers give the default dtype). NaN stays NaN.

    Raises:
        TypeError: complex, sparse, nested or quantized tensors.

    >>> x = torch.tensor([0.0, 3.0], requires_grad=True)
    >>> safe_hypot(x, torch.tensor([0.0, 4.0])).sum().backward()
    >>> x.grad
    tensor([0.0000, 0.6000])

    Source: torch.hypot; the pair is scaled by a power of two where the result would overflow.
    """
    return _hypot((), x, y)
