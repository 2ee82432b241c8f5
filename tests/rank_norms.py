"""Checks of the norm: one for all ranks, as of one process in float64."""

import sys

import torch
import torch.distributed as dist
from torch import nn

import safeops
from tests.rank_common import ORDERS, TOLERANCE, assert_clips
from tests.ranks import all_reduces, close, distributed, grouped, layouts, randoms, with_gradient


def check_no_import(rank, ranks):
    """Who has no DTensor does not wait a second for their module. (torch.testing imports it.)"""
    parameter = with_gradient(torch.ones(4))
    safeops.clip_grad_norm_(parameter, 1.0, process_group=dist.group.WORLD)
    assert "torch.distributed.tensor" not in sys.modules


def check_group_clip(rank, ranks):
    """The norm is that of the gradients of all ranks together."""
    totals = []
    for p in ORDERS:
        for dtype, tolerance in TOLERANCE.items():
            with all_reduces() as seen:
                totals.append(assert_clips(grouped(rank, ranks, dtype), p, tolerance))
            assert seen.count == 1
    return totals


def check_idle_ranks(rank, ranks):
    """A rank without any gradient takes part in the communication."""
    value = torch.arange(1.0, 5.0)
    for idle in ([], [nn.Parameter(torch.zeros(3))]):
        mine = [with_gradient(value.clone())] if rank == ranks - 1 else idle
        total = safeops.clip_grad_norm_(mine, 1.0, process_group=dist.group.WORLD)
        close(total, value.norm(), 1e-6)
    if rank == ranks - 1:
        close(mine[0].grad, value / value.norm(), 1e-6)


def check_no_clip(rank, ranks):
    """Nothing is written, and nothing said, where the norm is small."""
    case = grouped(rank, ranks)
    versions = [parameter.grad._version for parameter in case.parameters]
    report = safeops.clip_report(case.parameters, 1e6, **case.options)
    assert (report.verdict, report.factor) == ("ok", 1.0)
    assert versions == [parameter.grad._version for parameter in case.parameters]
    return report.total_norm.item()


def check_layouts(rank, ranks):
    """One all_reduce for each mesh dim, beside what the sum of a Partial takes."""
    totals = []
    for mesh, placements in layouts(ranks):
        for p in ORDERS:
            case = distributed(randoms(), mesh, placements)
            with all_reduces() as seen:
                totals.append(assert_clips(case, p, TOLERANCE[torch.float32]))
            assert seen.count == sum(size > 1 for size in mesh.shape), placements
    return totals


def check_tied(rank, ranks):
    """A DTensor that is passed twice counts once and is scaled once."""
    case = distributed(randoms(), *next(layouts(ranks)))
    tied = case._replace(parameters=case.parameters * 2, gradients=case.gradients * 2)
    return assert_clips(tied, 2.0, TOLERANCE[torch.float32])


def check_double_layouts(rank, ranks):
    for mesh, placements in layouts(ranks):
        for p in (2.0, 3.0):
            case = distributed(randoms(torch.float64), mesh, placements)
            assert_clips(case, p, TOLERANCE[torch.float64])
