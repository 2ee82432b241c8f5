"""One norm and one decision for gradients whose parts lie on several ranks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ._statistics import Row, joined

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Local(NamedTuple):
    """What this rank holds of a DTensor gradient."""

    tensor: Tensor  # shares memory with the local shard of `gradient`
    gradient: Tensor  # the DTensor itself; where a placement was Partial, the reduced one
    counted: bool  # False for a mere replica: another rank counts these elements
    mesh: Any


def own_rank() -> int | None:
    """Of this process; None without torch.distributed."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None


def is_sharded(gradient: Any) -> bool:
    """Whether it is a DTensor. Nobody has one before its module is imported, which costs a second;
    so this never imports it."""
    module = sys.modules.get("torch.distributed.tensor")
    return isinstance(gradient, getattr(module, "DTensor", ()))


def local(gradient: DTensor) -> Local:
    """This rank's part. Collective where a placement is Partial: only the sum is the gradient."""
    with torch.no_grad():  # else to_local() returns another tensor, with a history
        whole = reduced(gradient)
        tensor = whole.to_local()
        if hasattr(tensor, "wait"):  # the result of an unfinished collective
            tensor = tensor.wait()
    return Local(tensor, whole, is_counted(whole), whole.device_mesh)


def reduced(gradient: DTensor) -> DTensor:
    """The gradient with its Partial placements summed up, itself if there are none."""
    from torch.distributed.tensor import Replicate

    if not any(placement.is_partial() for placement in gradient.placements):
        return gradient
    placements = [Replicate() if each.is_partial() else each for each in gradient.placements]
    return gradient.redistribute(placements=placements)


def is_counted(gradient: DTensor) -> bool:
    """Of the replicas along a mesh dim the first one counts."""
    places = gradient.device_mesh.get_coordinate() or ()
    pairs = zip(gradient.placements, places, strict=False)  # a rank outside the mesh has no places
    return not any(placement.is_replicate() and place for placement, place in pairs)


def is_first(mesh: Any, group: Any) -> bool:
    """Of the ranks of a group that share a mesh, and so its total, the first one counts it."""
    shared = set(mesh.mesh.flatten().tolist()) & set(dist.get_process_group_ranks(group))
    return dist.get_rank() == min(shared)


def joined_over_mesh(row: Row, mesh: Any, p: float) -> Row:
    """The row of all ranks of the mesh, the same bits on each; collective, one dim after another.

    After one dim all ranks along it hold the same, so each dim adds up what it alone tells apart.
    """
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"expected DTensors on a mesh that this rank is part of; rank {dist.get_rank()} is not "
            f"in {mesh}. Pass a DTensor on the ranks of its mesh only"
        )
    for dim in range(mesh.ndim):
        if mesh.size(dim) > 1:
            row = joined_over_group(row, mesh.get_group(dim), p, mesh.device_type)
    return row


def joined_over_group(row: Row, group: Any, p: float, device: torch.device | str) -> Row:
    """The row of all ranks of the group, the same bits on each; collective."""
    if not isinstance(group, dist.ProcessGroup):  # new_group() returns a number on other ranks
        raise ValueError(
            "process_group: expected a torch.distributed.ProcessGroup that this rank is part of, "
            f"got {group!r} on rank {dist.get_rank()}. Pass each rank the group that holds it"
        )
    if dist.get_world_size(group) == 1:
        return row
    return joined(gathered(row, group, device_of(group, device)), p)


def gathered(row: Row, group: Any, device: torch.device) -> list[Row]:
    """The rows of all ranks, in rank order, by one all_reduce.

    Adding zeros changes no bit, so every rank joins equal rows in equal order and decides alike.
    """
    size = (dist.get_world_size(group), len(row))
    matrix = torch.zeros(size, dtype=torch.float64, device=device)
    matrix[dist.get_rank(group)] = torch.tensor(row, dtype=torch.float64)
    dist.all_reduce(matrix, group=group)
    return [Row(*line) for line in matrix.tolist()]


def device_of(group: Any, device: torch.device | str) -> torch.device:
    """Where the group communicates: the host for gloo; else the given device, or, where the group
    does not serve it (gradients off-loaded to the host), the one it does serve."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    wanted = torch.device(device)
    if "cpu" in backends and backends.get(wanted.type, "gloo") == "gloo":
        return torch.device("cpu")
    return wanted if wanted.type in backends else torch.device(next(iter(backends)))
