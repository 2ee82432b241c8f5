"""Checks with torch's own parallel models: their clip and their steps are those of one process."""

import math

import torch
from torch import nn

import safeops
from tests.rank_common import (
    ORDERS,
    assert_clips,
    assert_decides_alike,
    assert_treated,
    outcome,
    poisoned,
)
from tests.ranks import Case, close, meshes, whole

OPTIMIZERS = (
    (torch.optim.SGD, False),
    (torch.optim.AdamW, False),
    (torch.optim.AdamW, True),
)


def network():
    torch.manual_seed(1)
    layers = nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3), nn.Tanh()
    return nn.Sequential(*layers).double()


def trained(parallel, part, bad=None):
    """The parallel model's gradients, and those of one process on the whole batch; `part` cuts this
    rank's share out of it, of equal size on all ranks."""
    batch, model = torch.randn(8, 5, dtype=torch.float64), network()
    if bad is not None:
        batch[-1, -1] = bad
    model(batch).square().mean().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    parallel(batch[part]).square().mean().backward()
    return Case(list(parallel.parameters()), gradients, gradients, {})


def check_ddp(rank, ranks):
    """DDP's own all_reduce gives all ranks the same gradients, and the NaN of one: no group."""

    def make(bad=None):
        parallel = nn.parallel.DistributedDataParallel(network())
        return trained(parallel, slice(rank, None, ranks), bad)

    totals = [assert_clips(make(), p, 1e-12) for p in ORDERS]
    case = make(math.nan)
    total, _ = outcome(case, "skip", 1.0)
    assert math.isnan(total)
    assert_treated(case.parameters, [], "skip")
    return totals


def fsdp(model, mesh):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def check_fsdp(rank, ranks):
    line, _ = meshes(ranks)
    share = slice(rank, None, ranks)

    def make(bad):
        return poisoned(trained(fsdp(network(), line), share), bad, rank == ranks - 1)

    assert_decides_alike(make, math.nan)
    return [assert_clips(trained(fsdp(network(), line), share), p, 1e-12) for p in ORDERS]


def check_hybrid_fsdp(rank, ranks):
    """Replicas of shards; the NaN is in one shard of the second replica."""
    _, grid = meshes(ranks)
    share = slice(rank, None, ranks)

    def make(bad):
        return poisoned(trained(fsdp(network(), grid), share), bad, rank == ranks - 1, lone=True)

    assert_decides_alike(make, math.nan, lone=True)
    return [assert_clips(trained(fsdp(network(), grid), share), p, 1e-12) for p in ORDERS]


def tensor_parallel(grid):
    """Along one dim of the grid, and sharded along the other."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import parallel

    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    halves = parallel.parallelize_module(network(), grid["inner"], plan)
    return fully_shard(halves, mesh=grid["outer"])


def check_tensor_parallel_fsdp(rank, ranks):
    """Two dims that both cut; the bias of the second layer is a replica along one of them."""
    _, grid = meshes(ranks)
    share = slice(grid.get_local_rank("outer"), None, 2)

    def make(bad=None):
        case = trained(tensor_parallel(grid), share)
        return case if bad is None else poisoned(case, bad, rank == ranks - 1)

    assert_decides_alike(make, math.nan)
    return [assert_clips(make(), p, 1e-12) for p in ORDERS]


def fit(model, optimizer, batches, clip=False):
    for batch in batches:
        model(batch).square().mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


def check_clipper(rank, ranks):
    """Steps of a sharded model are those of one process, with the clip inside or before them."""
    line, _ = meshes(ranks)
    for kind, fused in OPTIMIZERS:
        alone, sharded = network(), fsdp(network(), line)
        wanted, optimizer = (kind(m.parameters(), 0.1, fused=fused) for m in (alone, sharded))
        safeops.GradNormClipper(optimizer, 0.01)
        batches = [torch.randn(8, 5, dtype=torch.float64) for _ in range(3)]
        fit(alone, wanted, batches, clip=True)
        fit(sharded, optimizer, [batch[rank::ranks] for batch in batches])
        for ours, parameter in zip(sharded.parameters(), alone.parameters(), strict=True):
            close(whole(ours.detach()), parameter.detach(), 1e-4)
