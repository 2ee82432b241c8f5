"""What logaddexp and logaddexp2 share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Binary, Quick, no_constants, overflows, usual
from .atan2 import BOTH

Op = Callable[..., Tensor]


def log_sum(public: str, op: Op, exp: Op, base: float) -> Binary:
    """log(exp(x) + exp(y)) of that base, by torch's exp of it."""

    def value(x: Tensor, y: Tensor) -> Tensor:
        same = _same_infinity(x, y)
        return torch.where(same, x.detach(), op(*(torch.where(same, 0.0, t) for t in (x, y))))

    def share(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """grad * exp(x) / (exp(x) + exp(y))."""
        same = _same_infinity(x, y)
        by = torch.where(same, 0.0, y) - torch.where(same, 0.0, x)
        far = by > math.log(torch.finfo(by.dtype).max, base)
        kept = grad / (1 + exp(torch.where(far, 0.0, by)))
        return torch.where(same & (x < 0), 0.0, torch.where(far, grad * 0.0, kept))

    def gradient_y(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return share(grad, y, x)

    def quick_x(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return grad / (1 + exp(y - x))

    def quick_y(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return grad / (1 + exp(x - y))

    return Binary(
        public,
        no_constants,
        Formulas(value, (share, gradient_y), overflows, uses=BOTH, divides=False),
        Quick(usual(op), (quick_x, quick_y)),
    )


def _same_infinity(x: Tensor, y: Tensor) -> Tensor:
    return (x == y) & (x.abs() == math.inf)
