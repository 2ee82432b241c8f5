"""Forwards under safe_mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .._route import readable
from ..ops._row_formulas import finite
from ..swap.functions import SAFE, entered


def under_safe_mode(forward: Callable[..., Any]) -> Callable[..., Any]:
    """This forward, within safe_mode."""

    @functools.wraps(forward)
    def safe_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with entered(SAFE):
            return forward(self, *args, **kwargs)

    return safe_forward


def keeping_statistics(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same, and a batch that is not finite leaves the buffers, its count among them, as they
    were. (Of those that torch takes together across processes, each process looks at its own.)"""

    @functools.wraps(forward)
    def safe_forward(self: nn.Module, input: Tensor) -> Tensor:
        buffers = list(self.buffers(recurse=False)) if self.training else []
        before = [buffer.clone() for buffer in buffers]
        with entered(SAFE):
            output = forward(self, input)
        if buffers and not (readable(input) and finite(input)):
            good = input.detach().isfinite().all()
            for buffer, old in zip(buffers, before, strict=True):
                buffer.copy_(torch.where(good, buffer, old))
        return output

    return safe_forward
