"""Several bad steps: the ladder of skips, roll-backs and the end. States are those that torch alone
comes to with the same verdicts, bit by bit."""

import copy
import pickle
from contextlib import nullcontext
from functools import partial

import pytest

from safeops.guard import Batches, Guard, Policy, TrainingDiverged
from safeops.guard.recovery import GONE
from tests.guard_runs import (
    ALWAYS,
    Fault,
    Setup,
    assert_same,
    data,
    guarded,
    plain,
    told,
    training,
)

STILL = Setup(dropout=0.0)
FAULTS = {"x": Fault("forward"), "w": Fault("weight"), "o": Fault("optimizer")}
FAULTS |= {"b": Fault("batch", "inf"), "g": Fault("backward")}
LADDERS = [  # a sign for each step: its fault, its verdict; a number is the step gone back to
    ({}, "..xbxg.x", "..ssss.s"),
    ({}, "xxxx.xxx", "ssss.sss"),
    ({}, ".xxxxx.", ".ssss1."),
    ({"skips": 0}, "..x.x..b", "..2.4..7"),
    ({"skips": 1}, "..xx.xx.", "..s2.s5."),
    ({"skips": 1}, "..xxxx..", "..s2s1.."),
    ({"skips": 1}, "..xxxx.xx", "..s2s1.s7"),
    ({"skips": 2}, "..w.xxx.", "..2.ss4."),
    ({"skips": 2}, "..xwxx.", "..s2ss."),
    ({"skips": 2}, ".oxo.o.", ".1s0.5."),
    ({"skips": 1, "rollbacks": 2}, "..xxxxxx", "..s2s1s!"),
    ({"skips": 0, "rollbacks": 0}, "..g", "..!"),
    ({"skips": 3, "rollbacks": 0}, "..xxxw", "..sss!"),
    ({"skips": 0, "rollbacks": 1, "forgive_after": 2}, "x.x", "0.!"),
    ({"skips": 0, "rollbacks": 1, "forgive_after": 2}, "x..x..w..x", "0..3..6..9"),
    ({"skips": 1, "rollbacks": 1, "forgive_after": 2}, ".w.x.w", ".1.s.5"),
    ({"skips": 0, "snapshot_every": 3}, "....x.x.", "....3.6."),
    ({"skips": 0, "snapshot_every": 3}, "...x.x.x.", "...3.0.0."),
    ({"skips": 0, "snapshot_every": 3}, "..x..x...x", "..0..0...9"),
    ({"skips": 0, "snapshots": 3}, "...xxxx", "...321!"),
    ({"skips": 0, "snapshots": 1}, "...xxx.x", "...333.!"),
    ({"skips": 0, "snapshots": 3}, "...xx.xx", "...32.6!"),  # below: what it is left with
    ({"skips": 0, "snapshots": 3, "rollbacks": 9}, "...xxxxx.x", "...32111.9"),
    ({"skips": 1, "snapshot_every": 3}, "..x.xx.", "..s.s4."),  # due at the skipped step
    ({"snapshot_every": 2, "check_every": 2}, "...w.w.", "...2.0."),
]


def climbed(settings, faults, **more):
    """What is run, its batches, and what came of it."""
    settings = settings | more
    policy = {key: settings.pop(key) for key in settings.keys() & vars(Policy())}
    made = {i: FAULTS[sign] for i, sign in enumerate(faults) if sign != "."}
    run, steps = training(STILL), data(len(faults))
    return run, steps, guarded(run, steps, made, policy=Policy(**policy), **settings)


def verdicts(outcome):
    """As in the table above."""
    events = {event.step: event for event in outcome.guard.events}
    gone_to = {step: event.to_step for step, event in events.items()}
    signs = {"ok": ".", "skipped": "s"}
    told = "".join(signs.get(v) or str(gone_to[i]) for i, v in enumerate(outcome.verdicts))
    return told + "!" * (events[max(events)].kind == "stopped")


def follow(setup, steps, outcome):
    """Losses and state of torch alone, with these verdicts."""
    run, losses = training(setup), []
    known = [copy.deepcopy(run.state())]
    events = {event.step: event for event in outcome.guard.events}
    for i, batches in enumerate(steps[: outcome.guard.steps]):
        if i not in events:
            losses += plain(run, [batches])
        elif events[i].to_step is not None:
            load(run, known[events[i].to_step])
        known.append(copy.deepcopy(run.state()))
    return losses, known[-1]


def load(run, state):
    for name in state.keys() - {"random"}:
        getattr(run, name).load_state_dict(copy.deepcopy(state[name]))


def assert_follows(run, steps, outcome):
    losses, state = follow(run.setup, steps, outcome)
    assert outcome.losses == losses
    assert_same(run.state(), state)


@pytest.mark.parametrize("where", ["cpu", None], ids=str)
@pytest.mark.parametrize(("settings", "faults", "wanted"), LADDERS)
def test_ladder(settings, faults, wanted, where):
    run, steps, outcome = climbed(settings, faults, snapshot_device=where)
    assert verdicts(outcome) == wanted
    assert outcome.guard.steps == len(faults)
    assert_follows(run, steps, outcome)


ON_DISK = [
    ({"skips": 1}, ".....xx.xx", ".....s4.s8"),
    ({"skips": 0}, ".x..x..", ".!"),
    ({"skips": 0, "rollbacks": 1}, "....x.x", "....4.!"),
    ({}, "...w.x..", "...2.s.."),
]


@pytest.mark.parametrize(("settings", "faults", "wanted"), ON_DISK)
def test_back_to_a_checkpoint(tmp_path, settings, faults, wanted):
    """Nothing is kept in memory."""
    more = {"snapshots": 0, "checkpoint_dir": tmp_path, "checkpoint_every": 2, "dumps": 0}
    run, steps, outcome = climbed(settings, faults, **more)
    outcome.guard.events[:] = [e for e in outcome.guard.events if e.kind != "checkpoint"]
    assert verdicts(outcome) == wanted
    assert_follows(run, steps, outcome)


@pytest.mark.parametrize("place", ["forward", "weight", "optimizer"])
def test_nothing_to_go_back_to(place):
    """A step that was only tried is undone; a state that is bad is left as it is."""
    run, steps = training(STILL), data()
    faults = {2: Fault("forward"), 3: Fault(place)}
    outcome = guarded(run, steps, faults, policy=Policy(skips=1), snapshots=0)
    [skipped, stopped] = outcome.guard.events
    assert (skipped.kind, stopped.kind, stopped.to_step) == ("skipped", "stopped", None)
    if place == "forward":
        assert_follows(run, steps, outcome)
        return
    assert "hidden.weight (1 nan" in stopped.reason
    assert stopped.replay.startswith("bad weight" if place == "weight" else GONE)


def test_left_with_the_newest():
    """However old the states are that the roll-backs have tried."""
    policy = {"skips": 0, "snapshots": 3}
    run, steps, outcome = climbed(policy, "...xxxx")
    assert [event.to_step for event in outcome.guard.events] == [3, 2, 1, 3]
    reference = training(STILL)
    plain(reference, steps[:3])
    assert_same(run.state(), reference.state())


@pytest.mark.parametrize(("every", "to_step"), [(3, 3), (2, 4), (100, 0)])
def test_snapshot_with_a_checkpoint(tmp_path, every, to_step):
    """Of the state that is written, whenever snapshots are due."""
    more = {"skips": 0, "snapshot_every": 100, "checkpoint_dir": tmp_path, "dumps": 0}
    run, steps, outcome = climbed(more, ".....x.", checkpoint_every=every)
    events = outcome.guard.events
    assert [event.to_step for event in events if event.kind == "rolled_back"] == [to_step]
    events[:] = [event for event in events if event.kind != "checkpoint"]
    assert_follows(run, steps, outcome)


def test_end():
    """The story, once in the message and once in events, also through a pickle."""
    run = training(STILL)
    policy = Policy(skips=1, rollbacks=1)
    guard = Guard(run.model, run.optimizer, policy=policy, **ALWAYS)
    states = [copy.deepcopy(run.state())]
    for [(x, y)] in data(3):
        guard.run(partial(run.loss, (x, y)))
        states.append(copy.deepcopy(run.state()))
    with told(guard):
        for _ in range(3):
            guard.run(partial(run.loss, (x / 0, y)))
    with pytest.raises(TrainingDiverged) as stopped:
        guard.run(partial(run.loss, (x / 0, y)))
    for error in (stopped.value, pickle.loads(pickle.dumps(stopped.value))):
        assert [event.kind for event in error.events] == KINDS
        assert error.events[-1].finding.cause == "bad input"
        assert str(error).splitlines()[0] == ENDS
        assert [line.split(";")[0].strip() for line in str(error).splitlines()[1:-1]] == STORY
        assert str(error).splitlines()[-1].strip().startswith("what to try: ")
    assert_same(run.state(), states[stopped.value.events[-1].to_step])
    assert not guard.summary()


KINDS = ["skipped", "rolled_back", "skipped", "stopped"]
ENDS = "training diverged: 1 roll-backs did not help, and the model is as it was after step 3"
STORY = ["step 3: skipped", "step 4: rolled back to step 3", "step 5: skipped"]
STORY += ["step 6: the run stops"]


def test_after_the_end():
    """Whoever goes on regardless is stopped at the next bad step, and not before."""
    run, [[batch]] = training(STILL), data(1)
    guard = Guard(run.model, run.optimizer, policy=Policy(skips=0, rollbacks=0), **ALWAYS)
    for _ in range(2):
        assert guard.run(partial(run.loss, batch)).verdict == "ok"
        with pytest.raises(TrainingDiverged), Fault("forward").on(run):
            guard.run(partial(run.loss, batch))


def test_rewind():
    """The fault does not come again, but the data and the random numbers since the snapshot do."""
    run, steps = training(Setup()), data(9)
    batches = Batches([batch for [batch] in steps])
    policy = Policy(skips=1, rewind=True)
    settings = ALWAYS | {"snapshot_every": 3, "data": batches, "policy": policy}
    guard, losses = Guard(run.model, run.optimizer, scheduler=run.scheduler, **settings), {}
    for batch in batches:
        place = batches.position
        fault = Fault("forward").on(run) if guard.steps in (4, 5) else nullcontext()
        with told(guard), fault:
            losses[place] = guard.run(partial(run.loss, batch)).loss
    assert [event.to_step for event in guard.events] == [None, 3]
    reference = training(Setup())
    assert [*losses.values()] == plain(reference, steps)
    assert_same(run.state(), reference.state())


@pytest.mark.parametrize("advance", [False, True])
def test_scheduler_at_skipped_steps(advance):
    run, steps = training(STILL), data()
    left_out = {0, 3, 4}
    policy = Policy(advance_scheduler=advance)
    outcome = guarded(run, steps, dict.fromkeys(left_out, Fault("forward")), policy=policy)
    reference = training(STILL)
    for i, batches in enumerate(steps):
        if i not in left_out:
            plain(reference, [batches])
        elif advance:
            reference.optimizer._opt_called = True  # else torch warns
            reference.scheduler.step()
    assert_same(run.state(), reference.state())
    assert len(outcome.losses) == len(steps) - len(left_out)
