"""Loops that call backward, and perhaps the optimizer's step, themselves."""

import copy
from contextlib import nullcontext

import pytest

from safeops.guard import Guard, GuardWarning, Policy, TrainingDiverged
from tests.guard_runs import (
    ALWAYS,
    GRID,
    OPTIMIZERS,
    PLACES,
    Fault,
    Outcome,
    Setup,
    assert_as_if_never,
    assert_same,
    data,
    plain,
    told,
    training,
    without,
)

STILL = Setup(dropout=0.0)

# ---- guard.step


@pytest.mark.parametrize("place", ["batch", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("at", [0, 3])
def test_step(place, at):
    run, steps = training(Setup(dropout=0.0)), data()
    guard, losses = Guard(run.model, run.optimizer, scheduler=run.scheduler, **ALWAYS), []
    for i, [batch] in enumerate(steps):
        fault = Fault(place, replayed=False).on(run) if i == at else nullcontext()
        with told(guard), fault:
            run.optimizer.zero_grad()
            loss = run.loss(batch)
            loss.backward()
            losses.append(guard.step(loss))
    outcome = Outcome(guard, losses)
    assert len(guard.events) == 1
    assert_as_if_never(run, outcome, steps, {at})


# ---- guard.before_step and guard.after_step


def driven(run, steps, faults=(), **settings):
    """By a trainer that steps optimizer or scaler in any case."""
    settings = ALWAYS | {"scheduler": run.scheduler, "scaler": run.scaler} | settings
    guard, results = Guard(run.model, run.optimizer, **settings), []
    for i, [batch] in enumerate(steps):
        fault = faults[i].on(run) if i in faults else nullcontext()
        with told(guard), fault:
            results.append(_driven_step(guard, run, batch))
    return Outcome(guard, results)


def _driven_step(guard, run, batch):
    run.optimizer.zero_grad()
    loss = run.loss(batch)
    (loss if run.scaler is None else run.scaler.scale(loss)).backward()
    result = guard.before_step(loss)
    if run.scaler is None:
        run.optimizer.step()
    else:
        run.scaler.step(run.optimizer)
        run.scaler.update()
    if result.verdict != "ok":
        return result
    run.scheduler.step()
    return guard.after_step()


PAIRS = [(place, kind) for place, kind in GRID if (place, kind) != ("batch", "huge")]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("place", "kind"), [*PAIRS, ("", "")])
def test_driven(optimizer, place, kind):
    for at in (0, 3) if place != "weight" else (3,):
        run, steps = training(Setup(optimizer, dropout=0.0)), data()
        faults = {at: Fault(place, kind, replayed=False)} if place else {}
        outcome = driven(run, steps, faults)
        assert [event.step for event in outcome.guard.events] == [at] * bool(place)
        assert [event.replay for event in outcome.guard.events] == [""] * bool(place)
        assert_as_if_never(run, outcome, steps, faults)


SCALED = [("torch", scale, place) for scale in (2.0**16, 1.0) for place in PLACES[:4]]
SCALED += [("safeops", 2.0**16, "backward"), ("safeops", 1.0, "optimizer")]  # else it warns, too


@pytest.mark.parametrize(("scaler", "scale", "place"), SCALED)
def test_driven_with_a_scaler(scaler, scale, place):
    """The trainer's scaler hears of gradients that are not finite, and lowers its scale."""
    run, steps = training(Setup("sgd", scaler, scale=scale, dropout=0.0)), data()
    outcome = driven(run, steps, {3: Fault(place, replayed=False)})
    [event] = outcome.guard.events
    assert event.kind == ("overflow" if place == "backward" and scale > 1 else EVENTS[place])
    assert_as_if_never(run, outcome, steps, {3}, changed=["scaler"])


EVENTS = {"forward": "skipped", "backward": "skipped"}
EVENTS |= {"weight": "rolled_back", "optimizer": "rolled_back"}


@pytest.mark.parametrize("max_norm", [1e-3, 0.5])
def test_driven_and_clipped(max_norm):
    run, steps = training(STILL), data()
    outcome = driven(run, steps, {3: Fault("forward", replayed=False)}, max_norm=max_norm)
    reference = training(STILL)
    assert outcome.losses == plain(reference, without(steps, {3}), max_norm)
    assert_same(run.state(), reference.state())
    assert any(result.clipped for result in outcome.results)


def test_driven_up_the_ladder():
    """Back, and then to the end."""
    run, steps = training(STILL), data()
    faults = {i: Fault("forward", replayed=False) for i in (3, 4, 5, 6)}
    policy = Policy(skips=1, rollbacks=1)
    with pytest.raises(TrainingDiverged) as stopped:
        driven(run, steps, faults, policy=policy)
    assert [event.to_step for event in stopped.value.events] == [None, 3, None, 3]
    reference = training(STILL)
    plain(reference, steps[:3])
    assert_same(run.state(), reference.state())


def test_order():
    """after_step() without a step that is good so far."""
    run = training(STILL)
    guard = Guard(run.model, run.optimizer, **ALWAYS)
    with pytest.raises(RuntimeError, match=r"expected before_step\(\) with the verdict 'ok'"):
        guard.after_step()
    run.loss(data()[0][0]).backward()
    guard.before_step()
    run.optimizer.step()
    guard.after_step()
    with pytest.raises(RuntimeError, match=r"expected before_step\(\) with the verdict 'ok'"):
        guard.after_step()


@pytest.mark.parametrize("name", ["step", "before_step"])
def test_not_with_accumulation(name):
    """Which is of `run`; nothing has changed."""
    run = training(STILL)
    guard = Guard(run.model, run.optimizer, accumulate=2, **ALWAYS)
    run.loss(data()[0][0]).backward()
    before = copy.deepcopy(run.state())
    with pytest.raises(RuntimeError, match=r"expected run\(closure\) with accumulate=2"):
        getattr(guard, name)(1.0)
    assert_same(run.state(), before)
    assert guard.steps == 0


# ---- hooks, and what else is called


@pytest.mark.parametrize("how", ["run", "step"])
def test_hooks_of_the_optimizer(how):
    """Not at steps that are skipped."""
    run, calls = training(STILL), []
    run.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    run.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    guard = Guard(run.model, run.optimizer, scheduler=run.scheduler, **ALWAYS)
    for bad in (False, True, False):
        calls.append(bad)
        with told(guard), Fault("forward", replayed=how == "run").on(run) if bad else nullcontext():
            if how == "run":
                guard.run(lambda: run.loss(data()[0][0]))
            else:
                run.loss(data()[0][0]).backward()
                guard.step()
    assert calls == [False, "before", "after", True, False, "before", "after"]


class Writer:
    """A TensorBoard that breaks at its nth call."""

    def __init__(self, breaks):
        self.breaks, self.calls = breaks, 0

    def add_scalar(self, *_):
        self.calls += 1
        if self.calls == self.breaks:
            raise ConnectionError("no room")

    add_text = add_scalar


@pytest.mark.parametrize("breaks", [1, 4, 8])
def test_writer_that_fails(breaks):
    """It is told once, and not asked again; the run is the same."""
    run, steps = training(STILL), data()
    writer = Writer(breaks)
    guard = Guard(run.model, run.optimizer, scheduler=run.scheduler, writer=writer, **ALWAYS)
    match = "the writer fails, and is given up: ConnectionError: no room"
    with pytest.warns(GuardWarning, match=match) as caught:
        results = [guard.run(lambda batch=batch: run.loss(batch)) for [batch] in steps]
    assert len(caught) == 1
    assert writer.calls == breaks
    assert_as_if_never(run, Outcome(guard, results), steps, ())
