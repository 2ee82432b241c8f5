"""What atan2 and hypot share: a pair of numbers whose squares neither overflow nor vanish."""

from __future__ import annotations

import torch
from torch import Tensor


def scale_of(x: Tensor, y: Tensor) -> Tensor:
    """A power of two by which both are multiplied: 1 for ordinary ones. No derivative."""
    largest = torch.maximum(x.detach().abs(), y.detach().abs())
    wider = 8 if x.dtype is torch.float64 else 1  # how many times longer its exponents reach
    up = torch.where(largest < 2.0 ** (-48 * wider), 2.0 ** (96 * wider), torch.ones_like(largest))
    return torch.where(largest > 2.0 ** (62 * wider), 2.0 ** (-65 * wider), up)


def origin(x: Tensor, y: Tensor) -> Tensor:
    return (x == 0) & (y == 0)
