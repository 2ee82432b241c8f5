"""The whole story: a report, the error at the end, the scaler's overflows and TensorBoard."""

import json
import pickle
from collections import Counter

import pytest
import torch
from torch import nn, optim
from torch.utils.tensorboard import SummaryWriter

import safeops
from safeops.diagnose import Report
from safeops.guard import Guard, GuardWarning, Policy, TrainingDiverged
from tests.guard_told import X, guarded, lines, recorded, strictly, train

# ---- the report


def test_report(tmp_path):
    guard, model = guarded(tmp_path, Policy(skips=1))
    with pytest.warns(GuardWarning):
        train(guard, model, "oonnooo")
    report = guard.summary()
    assert isinstance(report, Report)
    assert not report
    head = "7 steps, 5 good, 1 skipped, 1 rolled back, last checkpoint after step 5"
    assert report.summary() == head
    text = str(report)
    assert text.splitlines()[0] == head
    for event in guard.events:
        assert event.kind in text
    told = strictly(json.dumps(report.to_dict(), allow_nan=False))
    assert (told["steps"], told["good"], len(told["events"])) == (7, 5, 3)
    report.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert head in page
    assert "bad input" in page


def test_report_of_nothing():
    guard, model = guarded()
    assert guard.summary().summary() == "0 steps, 0 good"
    train(guard, model, "oo")
    report = guard.summary()
    assert report
    assert str(report).startswith("2 steps, 2 good")
    assert report.to_dict() == {"steps": 2, "good": 2, "counts": {}, "events": []}


def test_report_stays():
    """It is of then."""
    guard, model = guarded()
    report = guard.summary()
    with pytest.warns(GuardWarning):
        train(guard, model, "n")
    assert report.to_dict() == {"steps": 0, "good": 0, "counts": {}, "events": []}


# ---- the end


def test_diverged(tmp_path):
    guard, model = guarded(tmp_path, Policy(skips=1, rollbacks=2), replay=False)
    train(guard, model, "oo")
    newest = [parameter.clone() for parameter in model.parameters()]
    with recorded() as caught, pytest.raises(TrainingDiverged) as stopped:
        train(guard, model, "nnnnnnnn")
    error = stopped.value
    kinds = ["skipped", "rolled_back", "skipped", "rolled_back", "skipped", "stopped"]
    assert [event.kind for event in error.events] == kinds
    assert error.events == guard.events
    assert error.events is not guard.events
    assert len(caught) == 5
    assert [event.to_step for event in error.events] == [None, 2, None, 0, None, 2]
    assert all(map(torch.equal, newest, model.parameters()))
    assert "2 roll-backs did not help, and the model is as it was after step 2" in str(error)
    *_, last, advice = map(str.strip, str(error).splitlines())
    assert last.startswith("step 7: the run stops; the loss is nan")
    assert advice.startswith("what to try: ")
    assert lines(tmp_path / "guard.jsonl")[-1]["kind"] == "stopped"
    assert not guard.summary()
    assert guard.summary().summary().endswith("stopped")
    other = pickle.loads(pickle.dumps(error))
    assert (type(other), str(other), len(other.events)) == (TrainingDiverged, str(error), 6)
    assert [str(event) for event in other.events] == [str(event) for event in error.events]


@pytest.mark.parametrize(
    ("rollbacks", "earlier"), [(4, ""), (5, "(2 earlier events are in .events)")]
)
def test_long_story(rollbacks, earlier):
    """The message has the last ten events, and says of how many it says nothing."""
    guard, model = guarded(policy=Policy(skips=1, rollbacks=rollbacks), replay=False)
    with recorded(), pytest.raises(TrainingDiverged) as stopped:
        train(guard, model, "n" * 20)
    _, *told, _ = map(str.strip, str(stopped.value).splitlines())
    assert told == [earlier] * bool(earlier) + [str(event) for event in guard.events[-10:]]
    assert len(guard.events) == 2 * rollbacks + 2


def test_diverged_with_findings():
    guard, model = guarded(policy=Policy(skips=0, rollbacks=0))
    with pytest.raises(TrainingDiverged, match="bad input") as stopped:
        train(guard, model, "n")
    other = pickle.loads(pickle.dumps(stopped.value))
    told, expected = other.events[0].finding, stopped.value.events[0].finding
    assert (str(told), repr(told)) == (str(expected), repr(expected))


# ---- counts of overflow


def test_overflow():
    """The scaler's own task: an event, and no warning."""
    model = nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    guard = Guard(model, optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
    results = [guard.run(lambda: model(X).square().mean() * 100) for _ in range(4)]
    events = [event for event in guard.events if event.kind == "overflow"]
    assert len(events) == len(guard.events) == sum(one.verdict == "skipped" for one in results) > 0
    assert guard.summary()
    assert f"{len(events)} skipped by the scaler" in guard.summary().summary()
    assert scaler.get_scale() == 2.0 ** (127 - len(events))


# ---- TensorBoard


def test_tensorboard(tmp_path):
    """Read back: loss and norm of the good steps, counts and texts of the rest."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with SummaryWriter(tmp_path) as writer:
        guard, model = guarded(None, Policy(skips=1), writer=writer)
        with pytest.warns(GuardWarning):
            train(guard, model, "oonnono")
    read = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0, "scalars": 0})
    read.Reload()
    steps = {tag: [one.step for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    good = [0, 1, 4, 6]
    assert steps == {
        "guard/loss": good,
        "guard/norm": good,
        "guard/skipped": [2, 5],
        "guard/rolled_back": [3],
    }
    assert [one.value for one in read.Scalars("guard/skipped")] == [1, 2]
    [tag] = read.Tags()["tensors"]
    texts = [one.tensor_proto.string_val[0].decode() for one in read.Tensors(tag)]
    assert texts == [str(event) for event in guard.events]
    assert Counter(event.kind for event in guard.events) == {"skipped": 2, "rolled_back": 1}


def test_public():
    assert safeops.Guard is Guard
    assert safeops.TrainingDiverged is TrainingDiverged
