"""Steps that are broken off, bad parts of steps, and what is trained in unusual ways."""

import copy
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from safeops.diagnose import inject
from safeops.guard import Guard, Policy, TrainingDiverged
from tests.guard_runs import (
    ALWAYS,
    AT,
    OPTIMIZERS,
    STEPS,
    Fault,
    Outcome,
    Setup,
    assert_as_if_never,
    assert_same,
    bits,
    data,
    guarded,
    told,
    training,
)

# ---- closures that raise


class Broken(Exception):
    pass


def broken(run, batch, error, when):
    """The loss, or the error before the forward, after it, or in the backward."""
    if when == "before":
        raise error
    loss = run.loss(batch)
    if when == "after":
        raise error
    loss.register_hook(partial(throw, error))
    return loss


def throw(error, gradient):
    raise error


BROKEN = [("", 1, 0), ("", 2, 0), ("", 2, 1), ("torch", 2, 1), ("safeops", 1, 0)]


@pytest.mark.parametrize("when", ["before", "after", "backward"])
@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize(("scaler", "parts", "part"), BROKEN)
def test_broken_off(scaler, parts, part, error, when):
    """Nothing has happened, and the next try is the first."""
    setup = Setup("sgd", scaler, parts)
    run, steps = training(setup), data(parts=parts)
    settings = ALWAYS | {"accumulate": parts, "scheduler": run.scheduler, "scaler": run.scaler}
    guard, results = Guard(run.model, run.optimizer, **settings), []
    for i, batches in enumerate(steps):
        if i in (0, 3):
            before = copy.deepcopy(run.state())
            for batch in batches[:part]:
                guard.run(partial(run.loss, batch))
            with pytest.raises(error):
                guard.run(partial(broken, run, batches[part], error, when))
            assert_same(run.state(), before)
            assert all(parameter.grad is None for parameter in run.model.parameters())
        results.append([guard.run(partial(run.loss, batch)) for batch in batches][-1])
    assert guard.events == []
    assert guard.steps == STEPS
    assert_as_if_never(run, Outcome(guard, results), steps, ())


@pytest.mark.parametrize("wrong", [None, 1.0, torch.ones(2), torch.ones(())], ids=repr)
def test_no_loss(wrong):
    """After a forward."""
    run = training(Setup())
    guard = Guard(run.model, run.optimizer, **ALWAYS)
    before = copy.deepcopy(run.state())
    with pytest.raises((TypeError, ValueError), match="expected the closure to return the loss"):
        guard.run(lambda: (run.loss(data()[0][0]), wrong)[1])
    assert_same(run.state(), before)


def test_asking_optimizer():
    """Bad in the third evaluation, in two steps one after another: weights are as before."""
    run = training(Setup("sgd", dropout=0.0))
    lbfgs = torch.optim.LBFGS(run.model.parameters(), lr=0.1, max_iter=5)
    run = run._replace(optimizer=lbfgs, scheduler=torch.optim.lr_scheduler.StepLR(lbfgs, 1000))
    guard = Guard(run.model, lbfgs, scheduler=run.scheduler, **ALWAYS)
    for at, [batch] in enumerate(data()):
        before = [bits(p) for p in run.model.parameters()]
        fault = inject(run.model, "hidden", 2) if at in (3, 4) else nullcontext()
        with told(guard) if at in (3, 4) else nullcontext(), fault:
            verdict = guard.run(partial(run.loss, batch)).verdict
        assert (before == [bits(p) for p in run.model.parameters()]) == (verdict != "ok"), at


@pytest.mark.parametrize("at", range(4))
def test_asking_optimizer_is_broken_off(at):
    run = training(Setup())
    lbfgs = torch.optim.LBFGS(run.model.parameters(), lr=0.1, max_iter=5)
    run = run._replace(optimizer=lbfgs, scheduler=torch.optim.lr_scheduler.StepLR(lbfgs, 1000))
    guard, calls = Guard(run.model, lbfgs, scheduler=run.scheduler, **ALWAYS), []

    def closure(batch):
        calls.append(batch)
        return broken(run, batch, Broken, "after") if len(calls) == at + 1 else run.loss(batch)

    for _ in range(2):
        guard.run(partial(run.loss, data()[0][0]))
    before = copy.deepcopy(run.state())
    with pytest.raises(Broken):
        guard.run(partial(closure, data()[0][0]))
    assert_same(run.state(), before)


# ---- accumulation


@pytest.mark.parametrize("part", [0, 1, 2])
@pytest.mark.parametrize("scaler", ["", "torch", "safeops"])
def test_bad_part(scaler, part):
    """With check_batch the parts after it are not run; the groups after that are whole."""
    run, steps = training(Setup("sgd", scaler, 3)), data(parts=3)
    given = [[(x.clone(), y) for x, y in batches] for batches in steps]
    given[3][part][0][0, 0] = torch.nan
    with inject(run.model, AT, 99) as counter:
        outcome = guarded(run, given, check_batch=True)
    assert f"{3 * STEPS - 3 + part} forwards" in repr(counter)
    [event] = outcome.guard.events
    assert (event.step, event.reason) == (3, "the batch is not finite: batch[0] (1 nan)")
    assert (event.replay, event.finding) == ("", None)
    assert_as_if_never(run, outcome, steps, {3})


# ---- what is trained


class Branches(nn.Module):
    """The second takes no part in even steps; the third never."""

    def __init__(self):
        super().__init__()
        self.each = nn.ModuleList(nn.Linear(4, 1) for _ in range(4))

    def forward(self, x, at):
        value = self.each[0](x) + self.each[3](x)
        return value + self.each[1](x) if at % 2 else value


def part_of_a_model(kind):
    """Of the last layer, the bias is frozen; the weight is, as are those of the third, in the
    optimizer all the same."""
    torch.manual_seed(1)
    model = Branches()
    model.each[3].requires_grad_(False)
    trained = [p for i in (0, 1, 2) for p in model.each[i].parameters()] + [model.each[3].weight]
    return model, OPTIMIZERS[kind](trained)


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS.keys() - {"nesterov"}))
@pytest.mark.parametrize("bad", [{0}, {1}, {2}, {5}, {1, 3}])
@pytest.mark.parametrize("skips", [4, 0])
def test_unused_and_frozen_parameters(kind, bad, skips):
    """States that are not there before a bad step are not there after it."""
    states = []
    for guarded_one in (True, False):
        model, optimizer = part_of_a_model(kind)
        guard = Guard(model, optimizer, policy=Policy(skips=skips, rollbacks=9), **ALWAYS)
        for at, [(x, y)] in enumerate(data()):
            if guarded_one:
                with told(guard):
                    guard.run(partial(branched, model, x / (at not in bad), y, at))
            elif at not in bad:
                optimizer.zero_grad()
                branched(model, x, y, at).backward()
                optimizer.step()
        states.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))
    assert_same(*states)


def branched(model, x, y, at):
    return nn.functional.mse_loss(model(x, at), y)


@pytest.mark.parametrize("frozen", ["bias", "weight"])
def test_frozen_parameter_goes_bad(frozen):
    """Of the optimizer or not: it is rolled back."""
    model, optimizer = part_of_a_model("sgd")
    guard = Guard(model, optimizer, **ALWAYS)
    wanted = bits(getattr(model.each[3], frozen))
    for at, [(x, y)] in enumerate(data()):
        with told(guard), torch.no_grad():
            if at == 3:
                getattr(model.each[3], frozen).fill_(torch.nan)
            with torch.enable_grad():
                guard.run(partial(branched, model, x, y, at))
    [event] = guard.events
    assert (event.kind, event.to_step) == ("rolled_back", 3)
    assert f"each.3.{frozen}" in event.reason
    assert bits(getattr(model.each[3], frozen)) == wanted


# ---- parameters that are added


def add(run):
    """A layer that the model does not call, and its group."""
    torch.manual_seed(5)
    layer = nn.Linear(2, 2)
    run.model.add_module("added", layer)
    run.optimizer.add_param_group({"params": list(layer.parameters())})


@pytest.mark.parametrize("place", ["forward", "weight", "optimizer"])
@pytest.mark.parametrize("skips", [4, 0])
@pytest.mark.parametrize("snapshots", [1, 2])
def test_added_parameters(place, skips, snapshots):
    """Snapshots of before do not fit any more: one is taken before the next step."""
    run, steps = training(Setup(dropout=0.0)), data()
    run = run._replace(scheduler=torch.optim.lr_scheduler.StepLR(run.optimizer, 2))
    policy = Policy(skips=skips)
    settings = ALWAYS | {"snapshot_every": 3, "snapshots": snapshots, "policy": policy}
    guard = Guard(run.model, run.optimizer, scheduler=run.scheduler, **settings)
    for i, [batch] in enumerate(steps):
        if i == 4:
            add(run)
            before = copy.deepcopy(run.state())
            with Fault(place).on(run), told(guard):
                guard.run(partial(run.loss, batch))
            assert_same(run.state(), before)
        else:
            guard.run(partial(run.loss, batch))


@pytest.mark.parametrize("place", ["forward", "weight"])
def test_checkpoint_without_added_parameters(tmp_path, place):
    """It does not fit, and there is nothing else."""
    run, steps = training(Setup(dropout=0.0)), data()
    run = run._replace(scheduler=torch.optim.lr_scheduler.StepLR(run.optimizer, 2))
    settings = {"snapshots": 0, "policy": Policy(skips=0), "checkpoint_every": 2}
    settings |= {"checkpoint_dir": tmp_path, "scheduler": run.scheduler}
    guard = Guard(run.model, run.optimizer, **ALWAYS | settings)
    for [batch] in steps[:4]:
        guard.run(partial(run.loss, batch))
    add(run)
    before = copy.deepcopy(run.state())
    with pytest.raises(TrainingDiverged, match="no snapshot or checkpoint"), Fault(place).on(run):
        guard.run(partial(run.loss, steps[4][0]))
    if place == "forward":
        assert_same(run.state(), before)
