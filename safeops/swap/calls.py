"""Ways in which a call differs from the op that takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]


class InPlace:
    """An in-place call: the safe result is copied into the first argument."""

    def __init__(self, plain: Function, target: Function):
        self.plain, self.target = plain, target

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        recorded = torch.is_grad_enabled() and any(map(_needs_grad, (x, *args, *kwargs.values())))
        result = self.target(x.clone() if recorded else x, *args, **kwargs)
        if result.shape != x.shape or not x.is_floating_point():
            return self.plain(x, *args, **kwargs)  # which says what is wrong
        return x.copy_(result)


class Wide:
    """A call that gets float32 where autocast would give torch's own op that."""

    def __init__(self, target: Function):
        self.target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*map(_widened, args), **kwargs)


def _widened(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.is_cpu or value.dtype is torch.float64:
        return value
    kind = value.device.type
    wanted = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return value.float() if wanted and value.is_floating_point() else value


def _needs_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
