"""Settings of the policy: what is bad beside NaN and infinities, and what a roll-back changes."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from safeops.guard import Guard, Policy, TrainingDiverged
from tests.guard_runs import (
    ALWAYS,
    STEPS,
    Fault,
    Setup,
    data,
    guarded,
    told,
    training,
)

# ---- learning rates


def scaled_loss(model, by):
    return model(torch.ones(3, 4)).square().mean() * by


@pytest.mark.parametrize(("snapshots", "folder"), [(1, False), (2, False), (0, True)])
def test_lr_factor(tmp_path, snapshots, folder):
    """At each roll-back once more, whatever it goes back to."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    settings = {"snapshots": snapshots, "checkpoint_dir": tmp_path if folder else None}
    policy, rates = Policy(skips=0, lr_factor=0.5), []
    guard = Guard(model, optimizer, policy=policy, checkpoint_every=1, **ALWAYS | settings)
    for factor in (1e-3, 1e-3, math.nan, math.nan, math.nan, 1e-3):
        with told(guard):
            guard.run(partial(scaled_loss, model, factor))
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 1.0, 0.5, 0.25, 0.125, 0.125]


RATES = {
    "OneCycleLR": lambda one: lr_scheduler.OneCycleLR(one, 0.1, total_steps=100),
    "CyclicLR": lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.1, 5),
    "CosineAnnealingLR": lambda one: lr_scheduler.CosineAnnealingLR(one, 100),
    "SequentialLR": lambda one: lr_scheduler.SequentialLR(
        one, [lr_scheduler.LambdaLR(one, lambda i: 1 / (i + 1)), lr_scheduler.StepLR(one, 5)], [4]
    ),
    "ChainedScheduler": lambda one: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LambdaLR(one, lambda i: 1 / (i + 1)), lr_scheduler.StepLR(one, 5)]
    ),
}


@pytest.mark.parametrize("kind", RATES)
def test_lr_factor_of_schedulers(kind):
    """Half of what it would have been, at all later steps."""
    rates = {}
    for factor in (1.0, 0.5):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        policy, scheduler = Policy(skips=0, lr_factor=factor), RATES[kind](optimizer)
        guard = Guard(model, optimizer, scheduler=scheduler, policy=policy, **ALWAYS)
        for by in (1.0, 1.0, math.nan, *[1.0] * 7):
            with told(guard):
                guard.run(partial(scaled_loss, model, by))
            rates.setdefault(factor, []).append(optimizer.param_groups[0]["lr"])
    wanted = rates[1.0][:2] + [rate / 2 for rate in rates[1.0][2:]]
    assert rates[0.5] == pytest.approx(wanted, rel=1e-12)


def test_advance_scheduler_at_first_step():
    """torch warns of a scheduler that advances before the optimizer has; this one is meant to."""
    steps = data()
    run = training(Setup())
    outcome = guarded(run, steps, {0: Fault("forward")}, policy=Policy(advance_scheduler=True))
    assert outcome.verdicts[0] == "skipped"
    assert run.scheduler.last_epoch == STEPS


# ---- spikes


class Scaled:
    """A model whose loss and gradients are what each step wants them to be."""

    def __init__(self, **policy):
        self.weight = nn.Parameter(torch.ones(()))
        self.model = nn.ParameterList([self.weight])
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.guard = Guard(self.model, optimizer, policy=Policy(**policy), **ALWAYS)

    def run(self, loss, norm):
        """The loss is linear in the weight, which stays 1."""
        with told(self.guard):
            return self.guard.run(lambda: self.weight * norm + (loss - norm)).verdict


def values(middle, count):
    """Around it, with a median distance of a tenth."""
    return [middle * (1 + 0.1 * (i % 5 - 2)) for i in range(count)]


SPIKES = {  # loss, norm, whether it is one for loss_spike=6, for norm_spike=6
    "like the others": (1.1, 1.1, False, False),
    "loss": (3.0, 1.0, True, False),
    "norm": (1.0, 9.0, False, True),
    "lower loss": (-50.0, 1.0, False, False),
    "lower norm": (1.0, 1e-9, False, False),
    "no gradient": (1.0, 0.0, False, False),
    "both": (1e9, 1e9, True, True),
}


@pytest.mark.parametrize("kind", ["loss_spike", "norm_spike"])
@pytest.mark.parametrize("case", SPIKES)
def test_spikes(kind, case):
    loss, norm, *bad = SPIKES[case]
    run = Scaled(**{kind: 6.0})
    assert {run.run(value, value) for value in values(1.0, 20)} == {"ok"}
    wanted = "skipped" if bad[kind == "norm_spike"] else "ok"
    assert run.run(loss, norm) == wanted
    reasons = [event.reason for event in run.guard.events]
    text = f"the {kind[:4]} is {loss if kind == 'loss_spike' else norm:.4g}"
    assert reasons == [f"{text}, far above the last ones"] * (wanted == "skipped")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_spikes_among_bad_values(bad):
    """They count as no values."""
    run = Scaled(skips=999, loss_spike=6.0, norm_spike=6.0)
    for i, value in enumerate(values(1.0, 25)):
        assert run.run(value, value) == "ok"
        assert run.run(bad, bad if i % 2 else 1.0) == "skipped"
    assert run.run(9.0, 1.0) == run.run(1.0, 9.0) == "skipped"
    assert run.run(1.0, 1.0) == "ok"


def test_too_few_values():
    run = Scaled(loss_spike=6.0)
    assert [run.run(value, 1.0) for value in values(1.0, 19)] == ["ok"] * 19
    assert run.run(1e6, 1.0) == "ok"
    assert run.run(1e6, 1.0) == "skipped"


def test_level_shift():
    """A new level never becomes the old one: skipped, rolled back, and in the end stopped."""
    run = Scaled(skips=2, rollbacks=1, loss_spike=6.0)
    for value in values(1.0, 30):
        run.run(value, 1.0)
    assert [run.run(9.0, 1.0) for _ in range(5)] == [
        *["skipped"] * 2,
        "rolled_back",
        *["skipped"] * 2,
    ]
    with pytest.raises(TrainingDiverged):
        run.run(9.0, 1.0)


def test_slow_rise():
    """A trend is no spike."""
    run = Scaled(loss_spike=6.0, norm_spike=6.0)
    assert {run.run(1.03**i, 1.03**i) for i in range(300)} == {"ok"}


HUGE = [(1e19, 1.0, "ok"), (2e19, 1.0, "skipped"), (-2e19, 1.0, "skipped"), (1.0, 2e19, "skipped")]


@pytest.mark.parametrize(("loss", "norm", "wanted"), HUGE)
def test_huge(loss, norm, wanted):
    """From 2^64 on; nothing is replayed, since all is finite."""
    run = Scaled()
    assert run.run(loss, norm) == wanted
    for event in run.guard.events:
        assert event.reason.endswith("the largest gradients are those of 0")
        assert event.finding is None
        assert event.replay == ""


def test_own_bound():
    run = Scaled(huge=10.0)
    assert [run.run(*pair) for pair in ((9.0, 9.0), (10.0, 1.0), (1.0, 11.0))] == [
        "ok",
        "skipped",
        "skipped",
    ]
