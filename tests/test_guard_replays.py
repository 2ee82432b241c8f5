"""What the event of a bad step says of its replay."""

from contextlib import nullcontext
from functools import partial

import pytest
from torch import nn

from safeops.diagnose import inject
from safeops.guard import Guard
from safeops.guard.recovery import GONE
from safeops.guard.replaying import CLEAN
from tests.guard_runs import (
    ALWAYS,
    AT,
    Fault,
    Outcome,
    Setup,
    assert_as_if_never,
    data,
    guarded,
    told,
    training,
)
from tests.test_guard_faults import FOUND, found_of


def test_taken_after_skipped():
    """A skipped step changes nothing: the snapshot before it is still that of now."""
    run, steps = training(Setup(dropout=0.0)), data()
    outcome = guarded(run, steps, {2: Fault("forward"), 3: Fault("optimizer")})
    assert [event.to_step for event in outcome.guard.events] == [None, 2]
    assert found_of(outcome.guard.events[1].finding) == FOUND["optimizer", "nan"]
    assert_as_if_never(run, outcome, steps, {2, 3})


def test_taken_after_rolled_back():
    outcome = guarded(training(Setup()), data(), {3: Fault("weight"), 4: Fault("optimizer")})
    assert found_of(outcome.guard.events[1].finding) == FOUND["optimizer", "nan"]


@pytest.mark.parametrize("scaler", ["", "torch", "safeops"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "fused", "sgd", "nesterov"])
def test_state_of_an_optimizer(optimizer, parts, scaler):
    """The replay makes the step, too: by way of the scaler, with the same clip."""
    run, steps = training(Setup(optimizer, scaler, parts)), data(parts=parts)
    outcome = guarded(run, steps, {3: Fault("optimizer")}, max_norm=0.1)
    [event] = outcome.guard.events
    assert found_of(event.finding) == FOUND["optimizer", "nan"]
    assert event.replay.startswith(f"{event.finding.summary()} (")
    assert event.replay.endswith(event.finding.remedy)


def test_stays_finite():
    """Nothing can be named, but it came again: it is no fault of the hardware."""
    outcome = guarded(training(Setup()), data(), {3: Fault("optimizer", "huge")})
    [event] = outcome.guard.events
    assert event.finding is None
    assert event.replay.startswith("run again, it is the same: the state is not healthy: ")
    assert "exp_avg of hidden.weight (up to 3.22e+38)" in event.replay


@pytest.mark.parametrize("place", ["forward", "backward", "batch", "optimizer"])
def test_does_not_come_again(place):
    run, steps = training(Setup()), data()
    outcome = guarded(run, steps, {3: Fault(place, replayed=False)})
    [event] = outcome.guard.events
    assert (event.finding, event.replay) == (None, CLEAN)
    assert_as_if_never(run, outcome, steps, {3})


def test_weights_stay_bad():
    """The fault does not come again, the weights are bad still."""
    outcome = guarded(training(Setup()), data(), {3: Fault("weight", replayed=False)})
    assert found_of(outcome.guard.events[0].finding) == FOUND["weight", "nan"]


@pytest.mark.parametrize("place", ["forward", "optimizer"])
@pytest.mark.parametrize("early", [True, False])
def test_fails(place, early):
    """As a closure that draws from an iterator which is at its end, before the forward or later."""
    run, steps = training(Setup()), data()
    guard, results = Guard(run.model, run.optimizer, scheduler=run.scheduler, **ALWAYS), []
    for i, [(x, y)] in enumerate(steps):
        xs, ys = iter([x] if early else [x, x]), iter([y])
        fault = Fault(place, replayed=False).on(run) if i == 3 else nullcontext()
        with told(guard), fault:
            results.append(guard.run(partial(drawn, run, xs, ys)))
    [event] = guard.events
    assert (event.finding, event.replay) == (None, "the replay failed: StopIteration: ")
    assert_as_if_never(run, Outcome(guard, results), steps, {3})


def drawn(run, xs, ys):
    predicted = run.model(next(xs))
    return nn.functional.mse_loss(predicted, next(ys))


@pytest.mark.parametrize("place", ["forward", "optimizer"])
def test_none(place):
    """One forward a step, and the text is empty."""
    run, steps = training(Setup()), data()
    with inject(run.model, AT, 99) as counter:
        outcome = guarded(run, steps, {3: Fault(place, replayed=False)}, replay=False)
    assert f"{len(steps)} forwards" in repr(counter)
    [event] = outcome.guard.events
    assert (event.finding, event.replay) == (None, "")
    assert outcome.results[3].finding is None
    assert_as_if_never(run, outcome, steps, {3})


def test_weights_are_gone():
    """The last snapshot is older than the step: what would be run again is not what was run."""
    settings = {"check_every": 3, "snapshot_every": 3}
    fault = Fault("optimizer", replayed=False)
    outcome = guarded(training(Setup()), data(), {5: fault}, **settings)
    [event] = outcome.guard.events
    assert (event.step, event.to_step, event.finding, event.replay) == (5, 3, None, GONE)
