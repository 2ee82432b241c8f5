"""Checks of the decision: one for all ranks about what one of them alone sees."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import nn

import safeops
from safeops.amp import GradScaler
from tests.rank_common import (
    TOLERANCE,
    assert_clips,
    assert_decides_alike,
    assert_hears,
    assert_treated,
    has_partial,
    has_replica,
    poison,
    poisoned,
)
from tests.ranks import (
    SHAPES,
    close,
    distributed,
    grouped,
    layouts,
    meshes,
    norm,
    randoms,
    whole,
)


def bad_last(case, bad, here):
    """With a bad element in the last gradient, which the last rank alone has."""
    case.everything[-1][1, 1] = bad
    if here:
        case.parameters[-1].grad[1, 1] = bad
    return case


def check_group_decision(rank, ranks):
    last = rank == ranks - 1
    for bad in (math.nan, math.inf, -math.inf):
        texts = assert_decides_alike(lambda bad: bad_last(grouped(rank, ranks), bad, last), bad)
        assert_hears(texts, bad, f"parameters[{len(SHAPES) - ranks}]", last)
        assert ("first at [1, 1]" in texts["raise"]) == last


def check_layout_decision(rank, ranks):
    """Each layout; where there are replicas, the NaN is in one that is not counted."""
    last = rank == ranks - 1
    for mesh, placements in layouts(ranks):
        lone = has_replica(mesh, placements)

        def make(bad, layout=(mesh, placements), lone=lone):
            return poisoned(distributed(randoms(), *layout), bad, last, lone=lone)

        texts = assert_decides_alike(make, math.nan, lone)
        if not has_partial(placements):
            assert_hears(texts, math.nan, "parameters[0]", last)


def replicated(ranks, **options):
    from torch.distributed.tensor import Replicate

    case = distributed(randoms(), meshes(ranks)[0], [Replicate()])
    return case._replace(options=options)


def check_lone_replica(rank, ranks):
    """Replicas that differ: what is bad on one rank is bad for all, though it is not counted."""
    for options in ({}, {"process_group": dist.group.WORLD}):

        def make(bad, options=options):
            return poisoned(replicated(ranks, **options), bad, rank == ranks - 1, lone=True)

        for bad in (math.nan, math.inf):
            texts = assert_decides_alike(make, bad, lone=True)
            assert_hears(texts, bad, "parameters[0]", rank == ranks - 1)


def check_replicas_in_a_group(rank, ranks):
    """They count once, also where the group would count its ranks."""
    case = replicated(ranks, process_group=dist.group.WORLD)
    return assert_clips(case, 2.0, TOLERANCE[torch.float32])


def step(scaler, optimizer, loss, bad):
    """With a NaN in the gradient if bad."""
    scaler.scale(loss).backward()
    poison(optimizer.param_groups[0]["params"][0].grad, math.nan, bad)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def check_scaler(rank, ranks):
    """Other parameters on each rank: one norm, one skipped step, one scale."""
    weight, group = nn.Parameter(torch.zeros(3)), dist.group.WORLD
    scaler = GradScaler("cpu", init_scale=8.0, max_norm=1.0, process_group=group)
    total = norm([torch.full((3,), each + 1.0) for each in range(ranks)], 2.0)
    optimizer = torch.optim.SGD([weight], 1.0)
    for bad, scale in ((False, 8.0), (True, 4.0), (False, 4.0)):
        before = weight.detach().clone()
        step(scaler, optimizer, (rank + 1.0) * weight.sum(), bad and rank == ranks - 1)
        moved = torch.full((3,), 0.0 if bad else (rank + 1.0) / total)
        close(before - weight.detach(), moved, 1e-6)
        assert scaler.total_norm.item() == pytest.approx(math.nan if bad else total, nan_ok=True)
        assert scaler.get_scale() == scale


def check_values(rank, ranks):
    """clip_grad_value_: every element for itself, but one decision."""
    for mesh, placements in layouts(ranks):
        case = distributed(randoms(), mesh, placements)
        safeops.clip_grad_value_(case.parameters, 0.5)
        for parameter, gradient in zip(case.parameters, case.gradients, strict=True):
            close(whole(parameter.grad), gradient.clamp(-0.5, 0.5), TOLERANCE[torch.float32])
        poison(case.parameters[0].grad, math.nan, rank == ranks - 1)
        with pytest.warns(safeops.NonFiniteGradientWarning):
            safeops.clip_grad_value_(case.parameters, 0.5)
        assert_treated(case.parameters, [], "skip")
