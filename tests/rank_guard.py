"""Checks of guarded runs on several ranks; test_guard_ranks.py runs them."""

import torch
import torch.distributed as dist
from torch import nn

from safeops.diagnose.detection import causes
from tests.guard_runs import (
    GRID,
    STEPS,
    Fault,
    Setup,
    assert_as_if_never,
    data,
    guarded,
    training,
)

AT_STEP = 3


def ddp(model):
    return nn.parallel.DistributedDataParallel(model)


def own_data(rank, parts=1):
    return data(parts=parts, seed=10 + rank)


def check_ddp_healthy(rank, ranks):
    run, steps = training(Setup(), ddp), own_data(rank)
    outcome = guarded(run, steps)
    assert outcome.verdicts == ["ok"] * STEPS
    assert_as_if_never(run, outcome, steps, (), ddp)
    return [result.norm for result in outcome.results]


def _one_fault(rank, setup, grid=GRID):
    """One rank alone has it; all do the same, and know what that one has found."""
    verdicts = []
    for place, kind in grid:
        scaled = place == "backward" and bool(setup.scaler)
        fault = Fault(place, kind, rank=1, part=setup.parts - 1, replayed=not scaled)
        run, steps = training(setup, ddp), own_data(rank, setup.parts)
        outcome = guarded(run, steps, {AT_STEP: fault})
        assert outcome.verdicts.count("ok") == STEPS - 1, (place, kind, outcome.verdicts)
        [event] = outcome.guard.events
        changed = ["scaler"] if event.kind == "overflow" else []
        try:
            assert_as_if_never(run, outcome, steps, {AT_STEP}, ddp, changed)
        except AssertionError as error:
            raise AssertionError(f"{place} {kind}: {event}") from error
        verdicts.append((place, kind, event.kind, event.reason, _found(event.finding)))
        assert event.rank == rank
    return verdicts


def _found(finding):
    if finding is None:
        return None
    assert finding.cause != causes.RANK
    return finding.cause, finding.module, finding.direction, finding.rank


def check_ddp(rank, ranks):
    told = _one_fault(rank, Setup())
    for place, kind, _, reason, found in told:
        assert reason.startswith("rank 1: ") or place == "backward", (place, kind, reason)
        assert (found is None) == ((place, kind) == ("optimizer", "huge")), (place, kind, found)
        assert found is None or found[-1] == 1, (place, kind, found)
    return told


def check_ddp_scaled(rank, ranks):
    return _one_fault(rank, Setup("sgd", scaler="torch", dropout=0.0))


def check_ddp_accumulated(rank, ranks):
    return _one_fault(rank, Setup("sgd", parts=2))


def check_ddp_ways_of_adamw(rank, ranks):
    grid = [("backward", "nan"), ("optimizer", "inf"), ("weight", "nan")]
    return [_one_fault(rank, Setup(kind), grid) for kind in ("fused", "foreach", "amsgrad")]


# ---- sharded


def fsdp(model):
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.hidden)
    return fully_shard(model)


def check_fsdp(rank, ranks):
    """The shard or the batch of one rank."""
    told = []
    for place, kind in GRID:
        fault = Fault(place, kind, rank=1)
        run, steps = training(Setup(), fsdp), own_data(rank)
        outcome = guarded(run, steps, {AT_STEP: fault})
        [event] = outcome.guard.events
        assert outcome.verdicts.count("ok") == STEPS - 1
        try:
            assert_as_if_never(run, outcome, steps, {AT_STEP}, fsdp)
        except AssertionError as error:
            raise AssertionError(f"{place} {kind}: {event}") from error
        told.append((place, kind, event.kind, event.reason, _found(event.finding)))
    return told


def check_only_one_trains(rank, ranks):
    """A model of one rank alone, beside others: no company."""
    run, steps = training(Setup()), own_data(rank)
    outcome = guarded(run, steps, {AT_STEP: Fault("forward")} if rank == 1 else {})
    assert len(outcome.guard.events) == rank
    assert_as_if_never(run, outcome, steps, {AT_STEP} if rank == 1 else ())
    dist.barrier()
    assert torch.isfinite(torch.tensor(outcome.losses)).all()
