"""Ranks that train one model: they decide alike."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .._ranks import device_of, is_sharded


class Company:
    """The ranks of a group; alone if it is None."""

    def __init__(self, group: Any, device: torch.device):
        alone = group is None or dist.get_world_size(group) == 1
        self.group = None if alone else group
        self._device = None if alone else device_of(group, device)

    def worst(self, code: int) -> int:
        """The largest of all ranks."""
        if self.group is None:
            return code
        value = torch.tensor(float(code), device=self._device)
        dist.all_reduce(value, dist.ReduceOp.MAX, group=self.group)
        return int(value)

    def all(self, value: Any) -> list[Any]:
        """What each rank has, in rank order."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(values, value, group=self.group)
        return values


def group_of(model: nn.Module, given: Any) -> Any:
    """The given one; else that of DDP, or all ranks if a parameter is sharded."""
    if given is not None:
        return given
    if not (dist.is_available() and dist.is_initialized()):
        return None
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            return module.process_group
    return dist.group.WORLD if any(map(is_sharded, model.parameters())) else None


@contextmanager
def unsynchronised(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Gradients of DDP stay on their ranks: more are to be added before they are summed up."""
    idle = model.no_sync() if wanted and isinstance(model, DistributedDataParallel) else None
    with idle or nullcontext():
        yield
