"""Checks of several meshes: beside each other, plain tensors, a group, and parameters elsewhere."""

import math
from itertools import chain, permutations

import pytest
import torch
from torch import nn

import safeops
from tests.rank_common import (
    ORDERS,
    TOLERANCE,
    assert_clips,
    assert_decides_alike,
    assert_hears,
    assert_treated,
    has_replica,
    poison,
    poisoned,
)
from tests.rank_decisions import bad_last
from tests.ranks import (
    SHAPES,
    Case,
    all_reduces,
    close,
    distributed,
    grouped,
    layouts,
    meshes,
    randoms,
    sharded,
    whole,
    with_gradient,
)

# ---- beside each other


def mixed(ranks):
    """DTensors on two meshes, and plain tensors that are the same on all ranks."""
    cases = [distributed(randoms(), *layout) for layout in [*layouts(ranks)][::3]]
    plain = randoms()
    parameters = [*chain(*(case.parameters for case in cases)), *map(with_gradient, plain)]
    gradients = [*chain(*(case.gradients for case in cases)), *(each.clone() for each in plain)]
    return Case(parameters, gradients, gradients, {})


def check_two_meshes(rank, ranks):
    totals = []
    for p in ORDERS:
        with all_reduces() as seen:
            totals.append(assert_clips(mixed(ranks), p, TOLERANCE[torch.float32]))
        assert seen.count == (3 if ranks > 2 else 2)
    return totals


def check_mixed_decision(rank, ranks):
    """The NaN is in a DTensor of one mesh, on one rank; the plain tensors go with it."""
    assert_decides_alike(lambda bad: poisoned(mixed(ranks), bad, rank == ranks - 1), math.nan)


def check_lone_plain(rank, ranks):
    """It is in a plain tensor, on one rank, and there is no group: the meshes tell the others."""
    name = f"parameters[{len(mixed(ranks).parameters) - 1}]"
    for bad, where in ((math.nan, 0), (math.nan, ranks - 1), (math.inf, ranks - 1)):
        here = rank == where

        def make(bad, here=here):
            return poisoned(mixed(ranks), bad, here, place=-1)

        texts = assert_decides_alike(make, bad, lone=not here)
        assert_hears(texts, bad, name, here)


def check_lone_plain_beside_frozen(rank, ranks):
    """The DTensors have no gradients; their meshes tell it all the same."""
    for layout in layouts(ranks):
        frozen = nn.Parameter(sharded(torch.ones(8, 4), *layout), requires_grad=False)
        plain = with_gradient(torch.ones(3))
        poison(plain.grad, math.nan, rank == ranks - 1)
        with pytest.warns(safeops.NonFiniteGradientWarning):
            total = safeops.clip_grad_norm_([frozen, plain], 1.0)
        assert math.isnan(total)
        assert plain.grad is None


def check_idle_shard(rank, ranks):
    """A rank without a gradient takes part in the communication over its parameter's mesh."""
    value = torch.arange(1.0, 1 + 2 * ranks)
    parameter = with_gradient(sharded(value, *next(layouts(ranks))))
    gradient, wanted = parameter.grad.to_local(), value[2:].norm()
    if rank == 0:
        parameter.grad = None
    total = safeops.clip_grad_norm_(parameter, 1.0)
    close(total, wanted, 1e-6)
    close(gradient, value.view(ranks, 2)[rank] / (wanted if rank else 1), 1e-6)
    return total.item()


# ---- of parameters elsewhere


def moved(case, home):
    """The same gradients, of parameters on another mesh or, without one, of plain parameters."""
    from torch.distributed.tensor import Shard

    zeros = [torch.zeros(shape) for shape in SHAPES]
    if home:
        zeros = [sharded(zero, home, [Shard(0)] * home.ndim) for zero in zeros]
    parameters = [nn.Parameter(zero) for zero in zeros]
    for parameter, known in zip(parameters, case.parameters, strict=True):
        parameter.grad = known.grad
    return case._replace(parameters=parameters)


def away(ranks):
    """Layouts of gradients, each with a mesh of parameters that is another one, or none."""
    line, grid = meshes(ranks)
    for mesh, placements in [*layouts(ranks)][::3]:
        yield from (((mesh, placements), home) for home in (None, line if mesh == grid else grid))


def check_moved(rank, ranks):
    """Gradients count by their own mesh, in one all_reduce for each dim of it."""
    totals = []
    for layout, home in away(ranks):
        for p in ORDERS:
            case = moved(distributed(randoms(), *layout), home)
            with all_reduces() as seen:
                totals.append(assert_clips(case, p, TOLERANCE[torch.float32]))
            assert seen.count == sum(size > 1 for size in layout[0].shape)
    return totals


def check_moved_decision(rank, ranks):
    for layout, home in away(ranks):
        lone = has_replica(*layout)

        def make(bad, layout=layout, home=home, lone=lone):
            case = moved(distributed(randoms(), *layout), home)
            return poisoned(case, bad, rank == ranks - 1, lone=lone)

        assert_decides_alike(make, math.nan, lone)


# ---- beside a group


def check_group_beside_mesh(rank, ranks):
    """The plain tensors are other ones on each rank; the DTensors belong to all."""

    def make(bad=None):
        own, plain = distributed(randoms(), *next(layouts(ranks))), grouped(rank, ranks)
        both = (a + b for a, b in zip(own[:3], plain[:3], strict=True))
        case = Case(*both, plain.options)
        return case if bad is None else bad_last(case, bad, rank == ranks - 1)

    assert_decides_alike(make, math.nan)
    return [assert_clips(make(), p, TOLERANCE[torch.float32]) for p in ORDERS]


def stage(rank, ranks, bad=None):
    """One of two models, sharded along one dim of a grid and joined along the other."""
    from torch.distributed.tensor import Shard

    _, grid = meshes(ranks)
    models = [randoms(), randoms()]
    own = distributed(models[grid.get_local_rank("outer")], grid["inner"], [Shard(0)])
    poison(own.parameters[0].grad, bad, bad and rank == ranks - 1)
    if bad:
        models[1][0].view(-1)[-1] = bad
    options = {"process_group": grid.get_group("outer")}
    return own._replace(everything=[*chain(*models)], options=options)


def check_pipeline(rank, ranks):
    """Stages, other models each."""
    assert_decides_alike(lambda bad: stage(rank, ranks, bad), math.nan)
    return [assert_clips(stage(rank, ranks), p, TOLERANCE[torch.float32]) for p in ORDERS]


def nested(ranks, order):
    """Gradients on a grid, on one dim of it, and a plain one; the two are in that order."""
    from torch.distributed.tensor import Shard

    _, grid = meshes(ranks)
    layouts = {"both": (grid, [Shard(0)] * 2)}
    layouts |= {name: (grid[name], [Shard(0)]) for name in ("inner", "outer")}
    cases = [distributed(randoms(), *layouts[name]) for name in order]
    parameters = [*(case.parameters[0] for case in cases), with_gradient(torch.ones(3))]
    gradients = [whole(parameter.grad) for parameter in parameters]
    return Case(parameters, gradients, gradients, {})


def check_nested_meshes(rank, ranks):
    """What one rank sees in any of them reaches all ranks, by one mesh after the other."""
    for order in permutations(("both", "inner", "outer"), 2):
        for place in range(3):
            case = nested(ranks, order)
            poison(case.parameters[place].grad, math.nan, rank == ranks - 1)
            with pytest.warns(safeops.NonFiniteGradientWarning):
                total = safeops.clip_grad_norm_(case.parameters, 1.0)
            assert math.isnan(total)
            assert_treated(case.parameters, [], "skip")
        assert_clips(nested(ranks, order), 2.0, TOLERANCE[torch.float32])
