"""What a rank holds of a tensor, and of which kind it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._ranks import is_sharded


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of it, in the same memory."""
    with torch.no_grad():
        if is_sharded(tensor):
            return tensor.to_local()  # type: ignore[attr-defined]
        return tensor.detach()


def kind_of(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "no tensor"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
