"""Every fault is caught in its step, and the run is that in which the step was never taken."""

import json
import math
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch

from safeops.diagnose import inject
from safeops.guard import Guard, replay
from tests.guard_runs import (
    ALWAYS,
    GRID,
    STEPS,
    Fault,
    Setup,
    assert_as_if_never,
    data,
    guarded,
    told,
    training,
)
from tests.test_detect_inject import AT, FAULTS, Net

MODES = {
    "adamw": Setup(),
    "sgd": Setup("sgd"),
    "fused": Setup("fused"),
    "nesterov": Setup("nesterov"),
    "scaler": Setup(scaler="torch"),
    "own scaler": Setup("sgd", scaler="safeops"),
    "scale of 1": Setup(scaler="torch", scale=1.0),
    "accumulated": Setup("foreach", parts=3),
    "accumulated and scaled": Setup("sgd", scaler="safeops", parts=2),
}
OUTSIDE = "(outside the model)"
FOUND = {
    ("forward", "nan"): ("constant that is not finite", "hidden", "forward"),
    ("forward", "inf"): ("constant that is not finite", "hidden", "forward"),
    ("forward", "huge"): ("overflow", OUTSIDE, "forward"),
    ("backward", "nan"): ("bad gradient", "hidden", "backward"),
    ("backward", "inf"): ("bad gradient", "hidden", "backward"),
    ("backward", "huge"): ("exploding gradient", "hidden", "backward"),
    ("weight", "nan"): ("bad weight", "hidden", "forward"),
    ("weight", "inf"): ("bad weight", "hidden", "forward"),
    ("weight", "huge"): ("overflow", "hidden", "forward"),
    ("optimizer", "nan"): ("bad optimizer state", "hidden", "optimizer"),
    ("optimizer", "inf"): ("bad optimizer state", "hidden", "optimizer"),
    ("optimizer", "huge"): None,  # it stays finite
    ("batch", "nan"): ("bad input", "first", "forward"),
    ("batch", "inf"): ("bad input", "first", "forward"),
    ("batch", "huge"): ("overflow", "norm", "forward"),
}


def overflows(setup, place):
    """Gradients alone are bad, and there is a scale that may be the reason."""
    return place == "backward" and setup.scaler and setup.scale > 1


@pytest.mark.parametrize("setup", MODES.values(), ids=MODES)
def test_healthy(setup):
    run, steps = training(setup), data(parts=setup.parts)
    outcome = guarded(run, steps)
    assert outcome.verdicts == ["ok"] * STEPS
    assert outcome.guard.events == []
    assert_as_if_never(run, outcome, steps, ())


@pytest.mark.parametrize(("place", "kind"), GRID)
@pytest.mark.parametrize("setup", MODES.values(), ids=MODES)
def test_one_fault(setup, place, kind):
    for at in (0, 3, STEPS - 1):
        run, steps = training(setup), data(parts=setup.parts)
        fault = Fault(place, kind, part=at % setup.parts, replayed=not overflows(setup, place))
        outcome = guarded(run, steps, {at: fault})
        assert_caught(outcome, setup, fault, at)
        changed = ["scaler"] if overflows(setup, place) else []
        assert_as_if_never(run, outcome, steps, {at}, changed=changed)


def assert_caught(outcome, setup, fault, at):
    [event] = outcome.guard.events
    assert event.step == at
    assert outcome.verdicts == ["ok"] * at + [verdict_of(event)] + ["ok"] * (STEPS - 1 - at)
    if overflows(setup, fault.place):
        assert event.kind == "overflow"
        return
    assert event.finding is outcome.results[at].finding
    if event.finding is not None:
        assert event.finding.step == at
    if setup == Setup() and at:
        assert found_of(event.finding) == FOUND[fault.place, fault.kind]


def verdict_of(event):
    return "skipped" if event.kind == "overflow" else event.kind


def found_of(finding):
    return finding and (finding.cause, finding.module, finding.direction)


def test_kinds_of_events():
    """Weights and states that are bad cannot be skipped."""
    for place, kind in GRID:
        outcome = guarded(training(Setup()), data(), {2: Fault(place, kind)})
        stays = place in ("weight", "optimizer")
        assert outcome.guard.events[0].kind == ("rolled_back" if stays else "skipped")
        assert outcome.guard.events[0].to_step == (2 if stays else None)


# ---- dumps, in another process

SCRIPT = "import sys; from tests.test_guard_faults import print_replays; print_replays(sys.argv[1])"
VALUES = {"nan": math.nan, "inf": math.inf, "huge": torch.finfo(torch.float32).max}


def squares(model, x):
    return model(x).square().sum()


def dump(folder, place, kind):
    """Of the last of three steps of the model of test_detect_inject."""
    torch.manual_seed(0)
    model, batches = Net(), [torch.rand(3, 4) + 1 for _ in range(3)]
    optimizer = torch.optim.Adam(model.parameters())
    guard = Guard(model, optimizer, dump_dir=folder, replay=False, **ALWAYS)
    with told(guard), fault_of(model, place, kind, 2):
        if place == "batch":
            batches[2][0, 0] = VALUES[kind]
        for x in batches:
            guard.run(partial(squares, model, x), batch=x)
    [event] = guard.events
    return event.path


def fault_of(model, place, kind, step):
    """What is not in weights or batch must come again in a replay."""
    return nullcontext() if place == "batch" else inject(model, AT, step, kind, place)


def print_replays(folder):
    """What the replay of each dump names; its folder tells what was wrong."""
    found = {}
    for path in sorted(Path(folder).rglob("*.pt")):
        place, kind = path.parent.name.split("-")
        first = replay(path, partial(setup_of, place, kind)).first
        found[path.parent.name] = [getattr(first, name) for name in FIELDS] if first else None
    print(json.dumps(found))


FIELDS = ("op", "direction", "module", "cause", "parameter")


def setup_of(place, kind):
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    if place in ("forward", "backward", "optimizer"):
        inject(model, AT, 0, kind, place)
    return model, partial(squares, model), optimizer


def test_replays_of_dumps(tmp_path):
    """All in one fresh process."""
    for place, kind in GRID:
        path = dump(tmp_path / f"{place}-{kind}", place, kind)
        assert Path(path).parent == tmp_path / f"{place}-{kind}"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    wanted = {case: FAULTS[case] for case in GRID}
    assert found == {
        f"{place}-{kind}": [getattr(one, name) for name in FIELDS]
        for (place, kind), one in wanted.items()
    }
