"""Models that a monitor watches, and what it should have seen, from float64."""

import math

import pytest
import torch
from torch import nn

from tests.gradient_samples import draw

COLUMNS = ("largest", "rms", "zeros", "subnormal", "headroom", "nan", "inf")


def net(inplace=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace), nn.Linear(8, 2))


def train(model, *given, steps=1):
    for _ in range(steps):
        out = model(*(given or (draw(5, 4),)))
        out.pow(2).sum().backward()


def expected(*tensors):
    """A line of the table, from float64."""
    x = torch.cat([t.detach().double().flatten() for t in tensors])
    good = x[x.isfinite()]
    info = torch.finfo(tensors[0].dtype)
    small = (good != 0) & (good.abs() < info.tiny)
    largest = good.abs().max().item()
    return {
        "largest": largest,
        "rms": good.pow(2).mean().sqrt().item(),
        "zeros": (x == 0).double().mean().item(),
        "subnormal": small.sum().item() / len(x),
        "headroom": math.log2(info.max) - math.log2(largest),
        "nan": int(x.isnan().sum()),
        "inf": int(x.isinf().sum()),
    }


def assert_stats(stats, *tensors):
    wanted = expected(*tensors)
    assert {name: getattr(stats, name) for name in COLUMNS} == pytest.approx(wanted, rel=1e-12)
    assert stats.bad == wanted["nan"] + wanted["inf"]


def by_layer(m, step=-1):
    return {(stats.layer, stats.kind): stats for stats in m.table(step)}


def hooks(model):
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(module, name)) for module in model.modules() for name in names)
