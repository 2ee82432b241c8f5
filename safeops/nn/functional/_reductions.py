"""What the losses share: the word for the reduction, the reduction, and autocast's dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction

from ...ops._scaling import guarded_sum, saturated


def named(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """The reduction, of which torch has two older words."""
    if size_average is None and reduce is None:
        return reduction
    return _reduction.legacy_get_string(size_average, reduce, emit_warning=False)


def reduced(loss: Tensor, reduction: str, dtype: torch.dtype, total: Any = None) -> Tensor:
    """The loss in dtype, saturated; a mean is the sum by the number of elements, or by total, and
    0 where that is 0."""
    if reduction == "none":
        return saturated(loss, dtype).to(dtype) if loss.dtype is not dtype else loss
    if reduction == "sum":
        return guarded_sum(loss, dtype)
    total = max(loss.numel(), 1) if total is None else torch.where(total == 0, 1.0, total)
    return guarded_sum(loss, dtype, total)


def recast(*tensors: Any) -> tuple[Any, ...]:
    """Under autocast the half tensors in float32, in which torch runs losses then."""
    first = next(x for x in tensors if isinstance(x, Tensor))
    kind = first.device.type
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(x.float() if _is_half(x) else x for x in tensors)


def _is_half(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16)
