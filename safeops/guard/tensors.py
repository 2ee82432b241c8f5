"""What a rank holds of a tensor, and of which kind it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


@torch.no_grad()
def put(live: Tensor, value: Tensor) -> None:
    """live.copy_(value), also where live is expanded."""
    live = local(live)
    for dim, (size, stride) in enumerate(zip(live.shape, _strides(live), strict=True)):
        if size > 1 and stride == 0:
            live, value = live.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    live.copy_(value)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout is torch.strided else (1,) * tensor.dim()


def kind_of(value: Any) -> str:
    if not isinstance(value, Tensor):
        return "no tensor"
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def named_leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested mappings, lists and tuples with their paths."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from named_leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(tree, (list, tuple)):
        for place, value in enumerate(tree):
            yield from named_leaves(value, f"{path}[{place}]")
