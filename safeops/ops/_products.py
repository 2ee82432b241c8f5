"""What xlogy and xlog1py share: x * log, where 0 * log 0 = 0."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ._formulas import Formulas
from ._kernelless import Binary, Quick, usual
from ._options import Constants
from .atan2 import BOTH

Op = Callable[..., Tensor]


def product(public: str, op: Op, log: Op, shift: float, lowest: Callable[..., float]) -> Binary:
    """x * log(shift + y), by torch's logarithm of y; `lowest` is its value where it has none."""

    def held_log(x: Tensor, y: Tensor, least: float) -> Tensor:
        """The logarithm; 0 where x is, but at a y at which the slope to x is finite."""
        inside = ~(y <= -shift)
        value = torch.where(inside, log(torch.where(inside, y, 1.0)), least)
        return torch.where((x == 0) & (~inside | (y == math.inf)), 0.0, value)

    def value(x: Tensor, y: Tensor, least: float) -> Tensor:
        inside = ~(y <= -shift)
        outside = torch.where(x == 0, 0.0, x * least)
        return torch.where(inside, op(x, torch.where(inside, y, 1.0)), outside)

    def quick_x(grad: Tensor, x: Tensor, y: Tensor, least: float) -> Tensor:
        return grad * log(y)

    def quick_y(grad: Tensor, x: Tensor, y: Tensor, least: float) -> Tensor:
        return grad * x / (shift + y if shift else y)

    def gradient_x(grad: Tensor, x: Tensor, y: Tensor, least: float) -> Tensor:
        return grad * held_log(x, y, least)

    def gradient_y(grad: Tensor, x: Tensor, y: Tensor, least: float) -> Tensor:
        inside = ~(y <= -shift)
        return torch.where(inside, quick_y(grad, x, torch.where(inside, y, 1.0), least), 0.0)

    def constants(dtype: torch.dtype) -> Constants:
        return (lowest(dtype),)

    return Binary(
        public,
        constants,
        Formulas(value, (gradient_x, gradient_y), _overflows, uses=BOTH, divides=False),
        Quick(usual(op), (quick_x, quick_y)),
    )


def _overflows(least: float) -> bool:
    return True
