"""detect in several processes: each tells what it saw, and which it is."""

import math

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from safeops.diagnose import detect
from tests.ranks import run


def _step(model, rank):
    x = torch.ones(4, 8)
    if rank == 1:
        x[2, 3] = math.nan
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with detect(model) as found:
        model(x).square().sum().backward()
        optimizer.step()
    first = found.first
    return first.cause, first.direction, first.module.removeprefix("module."), first.rank


SEEN = {
    0: ("bad gradient of another rank", "optimizer", "0", 0),
    1: ("bad input", "forward", "0", 1),
}


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))


def check_ddp(rank, ranks):
    seen = _step(DistributedDataParallel(_model()), rank)
    assert seen == SEEN[rank], seen


def check_fsdp(rank, ranks):
    model = _model()
    fully_shard(model)
    seen = _step(model, rank)
    assert seen == SEEN[rank], seen


def check_healthy(rank, ranks):
    model = DistributedDataParallel(_model())
    with detect(model) as found:
        model(torch.ones(4, 8)).sum().backward()
    assert found, found


def test_ranks():
    run([check_ddp, check_fsdp, check_healthy], 2)
