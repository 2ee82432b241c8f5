"""Checks of the rows that ranks join, and of what each rank holds of a DTensor."""

import math

import pytest
import torch
import torch.distributed as dist

from safeops import _ranks
from safeops._statistics import Row, joined
from tests.rank_common import ORDERS, has_partial
from tests.ranks import all_reduces, close, distributed, layouts, meshes, norm, randoms, sharded


def row(values):
    largest = norm([values], math.inf)
    return Row(*math.frexp(norm([values], 2.0)), largest=largest, numel=values.numel())


def check_group_rows(rank, ranks):
    """One all_reduce; the same bits everywhere, in the order of the ranks."""
    values = torch.rand(ranks, 10, dtype=torch.float64)
    with all_reduces() as seen:
        total = _ranks.joined_over_group(row(values[rank]), dist.group.WORLD, 2.0, "cpu")
    assert total == joined([row(each) for each in values], 2.0)
    assert seen.count == 1
    return total


def check_extreme_rows(rank, ranks):
    """Beyond the range of a double, and below it, nothing is lost on the way."""
    for exponent in (4000.0, -4000.0):
        mine = Row(0.5, exponent, 1e308, numel=1.0)
        total = _ranks.joined_over_group(mine, dist.group.WORLD, 2.0, "cpu")
        wanted, shift = math.frexp(0.5 * math.sqrt(ranks))
        assert total == Row(wanted, exponent + shift, 1e308, numel=ranks)


def check_lone_bad_row(rank, ranks):
    mine = Row(nan=2.0, numel=3.0, bad=1.0) if rank == ranks - 1 else Row(0.5, 1.0, numel=3.0)
    total = _ranks.joined_over_group(mine, dist.group.WORLD, 2.0, "cpu")
    assert (total.nan, total.bad, total.numel) == (2, 1, 3 * ranks)
    assert math.isnan(total.total_norm)
    return total


def check_replica_rows(rank, ranks):
    """A rank that is not counted adds what is bad, and nothing to the norm, whatever the order."""
    mine = Row(0.75, 1.0, numel=3.0) if rank == 0 else Row(bad=1.0)
    for p in (*ORDERS, 0.5, -1.0, -math.inf):
        total = _ranks.joined_over_group(mine, dist.group.WORLD, p, "cpu")
        assert total == Row(0.75, 1.0, numel=3.0, bad=ranks - 1.0)


def check_sub_groups(rank, ranks):
    """Each half of the ranks for itself; a group of one does not communicate."""
    halves = [list(range(ranks // 2)), list(range(ranks // 2, ranks))]
    mine, *_ = [dist.new_group(half) for half in halves][rank // (ranks // 2) :]
    with all_reduces() as seen:
        total = _ranks.joined_over_group(Row(0.5, 1.0, numel=1.0), mine, 1.0, "cpu")
    assert total.numel == total.finite_norm == ranks // 2
    assert seen.count == (ranks > 2)


def check_strangers(rank, ranks):
    from torch.distributed.device_mesh import DeviceMesh

    group, mesh = dist.new_group([0]), DeviceMesh("cpu", [0])
    if rank == 0:
        assert _ranks.joined_over_group(Row(), group, 2.0, "cpu") == Row()
        assert _ranks.joined_over_mesh(Row(), mesh, 2.0) == Row()
        return
    with pytest.raises(ValueError, match=rf"process_group: expected .* on rank {rank}\. Pass each"):
        _ranks.joined_over_group(Row(), group, 2.0, "cpu")
    with pytest.raises(ValueError, match=rf"expected DTensors .* rank {rank} is not in DeviceMesh"):
        _ranks.joined_over_mesh(Row(), mesh, 2.0)


def check_locals(rank, ranks):
    """Plain tensors on the memory of the shards, which together count every element once."""
    for mesh, placements in layouts(ranks):
        parameters, gradients, *_ = distributed(randoms(), mesh, placements)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            part = _ranks.local(parameter.grad)
            assert type(part.tensor) is torch.Tensor
            assert part.tensor.data_ptr() == part.gradient.to_local().data_ptr()
            assert (part.gradient is parameter.grad) == (not has_partial(placements))
            mine = row(part.tensor) if part.counted else Row()
            total = _ranks.joined_over_mesh(mine, part.mesh, 2.0)
            assert total.numel == gradient.numel(), placements
            assert total.finite_norm == pytest.approx(norm([gradient], 2.0), rel=1e-6)


def check_unfinished_local(rank, ranks):
    """A gradient whose last collective is still under way."""
    from torch.distributed.tensor import Partial, Replicate

    gradient = sharded(torch.arange(6.0), meshes(ranks)[0], [Partial()])
    with torch.no_grad():
        gradient = gradient.redistribute(placements=[Replicate()], async_op=True)
    part = _ranks.local(gradient)
    assert type(part.tensor) is torch.Tensor
    part.tensor.mul_(2)
    close(gradient.to_local(), 2 * torch.arange(6.0), 1e-6)
