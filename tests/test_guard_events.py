"""What happened is told: as events, lines of JSON and warnings."""

import json
import math
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn, optim

from safeops.guard import Guard, GuardWarning, Policy
from safeops.guard.events import Event
from tests import guard_told
from tests.guard_told import INF, NAN, X, guarded, lines, recorded, strictly, train

STORIES = {
    "": [],
    "ooooo": ["checkpoint 5"],
    "ono": ["skipped 1"],
    "onioo": ["skipped 1", "skipped 2", "checkpoint 5"],
    "oonno": ["skipped 2", "rolled_back 3 to 2", "checkpoint 5"],
    "oho": ["skipped 1"],
    "ononn": ["skipped 1", "skipped 3", "rolled_back 4 to 3"],
    "oooono": ["skipped 4", "checkpoint 6"],
}


def short(event):
    return f"{event.kind} {event.step}" + f" to {event.to_step}" * (event.to_step is not None)


# ---- events, warnings and lines tell the same


@pytest.mark.parametrize("story", STORIES)
def test_stories(tmp_path, story):
    """A snapshot is due after step 2 and a checkpoint after 5, or after the next good one."""
    guard, model = guarded(tmp_path, Policy(skips=1 if "nn" in story else 4))
    with recorded() as caught:
        train(guard, model, story)
    assert [short(event) for event in guard.events] == STORIES[story]
    loud = [event for event in guard.events if event.kind != "checkpoint"]
    assert [str(one.message) for one in caught] == [f"safeops.Guard: {event}" for event in loud]
    assert {(one.category, one.filename) for one in caught} <= {(GuardWarning, guard_told.__file__)}
    told = lines(tmp_path / "guard.jsonl") if guard.events else []
    assert told == [event.to_dict() for event in guard.events]
    assert guard.steps == len(story)
    assert guard.summary().good == story.count("o")


def test_line_of_the_warning():
    """That of the user which called the guard."""
    guard, model = guarded()
    with recorded() as caught:
        guard.run(lambda: model(X * NAN).sum())  # the first
        model(X).sum().backward()
        guard.step(NAN)  # the second
    source = Path(__file__).read_text().splitlines()
    marked = [
        i for i, line in enumerate(source, 1) if line.endswith(("# the first", "# the second"))
    ]
    assert [(one.filename, one.lineno) for one in caught] == [(__file__, i) for i in marked]


def test_as_an_error():
    """pytest makes warnings errors: the step is undone before."""
    guard, model = guarded()
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(GuardWarning, match="step 0: skipped"):
        guard.run(lambda: model(X * NAN).sum())
    assert all(map(torch.equal, before, model.parameters()))
    assert [parameter.grad for parameter in model.parameters()] == [None] * 4
    assert (guard.steps, len(guard.events)) == (1, 1)


def test_other_warnings_come_through():
    """Of the user, in the closure."""
    guard, model = guarded(policy=Policy(advance_scheduler=True))

    def closure():
        warnings.warn("mine", UserWarning, stacklevel=1)
        return model(X).sum()

    with pytest.warns(UserWarning, match="^mine$"):
        guard.run(closure)


def test_silent_third_parties():
    """torch would warn of a scheduler that advances before the first step of the optimizer."""
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
    guard = Guard(model, optimizer, 1.0, scheduler, policy=Policy(advance_scheduler=True))
    with recorded() as caught:
        guard.run(lambda: model(X * NAN).sum())
        guard.run(lambda: model(X).sum())
    assert [one.category for one in caught] == [GuardWarning]
    assert scheduler.last_epoch == 2


# ---- what an event says


def test_event():
    guard, model = guarded()
    with pytest.warns(GuardWarning):
        train(guard, model, "on")
    [event] = guard.events
    assert (event.kind, event.step, event.to_step, event.path) == ("skipped", 1, None, "")
    assert event.reason == "the loss is nan"
    assert math.isnan(event.loss)
    assert event.finding.cause == "bad input"
    assert event.rank is None
    assert str(event) == f"step 1: skipped; the loss is nan; {event.replay}"


def test_replay_of_an_event():
    """The culprit, its line and what to do, in the event as in its warning."""
    guard, model = guarded()
    x = X * NAN
    with pytest.warns(GuardWarning) as caught:
        guard.run(lambda: model(x).sum())  # the line
    source = Path(__file__).read_text().splitlines()
    line = next(i for i, one in enumerate(source, 1) if one.endswith("# the line"))
    [event] = guard.events
    assert event.replay.startswith(f"{event.finding.summary()} (")
    where = (
        rf"^bad input: addmm \(forward\) in 0, step 0 \(.*{Path(__file__).name}:{line}: (.*)\); "
    )
    told = re.match(where, event.replay)
    assert told[1] in source[line - 1]
    assert re.search("; clean the data: safeops.diagnose.audit.*says where$", event.replay)
    assert event.replay in str(caught[0].message)


REASONS = {
    "n": "^the loss is nan$",
    "i": "^the loss is nan$|^gradients are not finite: ",
    "h": r"^the loss is \d.*e\+\d+, the largest gradients are those of (\d\.\w+, ){2}\d\.\w+$",
}


@pytest.mark.parametrize("letter", REASONS)
def test_reasons(letter):
    guard, model = guarded()
    with pytest.warns(GuardWarning):
        train(guard, model, letter)
    assert re.search(REASONS[letter], guard.events[0].reason)


def test_gradients_are_named():
    guard, model = guarded()
    model[2].bias.register_hook(lambda grad: grad * INF)
    with pytest.warns(GuardWarning, match=r"gradients are not finite: 2.bias \(1 -?inf, first at"):
        train(guard, model, "o")


def test_times_and_files(tmp_path):
    """Dumps and checkpoints are where the events say."""
    guard, model = guarded(tmp_path, dumps=1)
    with pytest.warns(GuardWarning):
        train(guard, model, "nnooo")
    first, second, saved = guard.events
    assert (Path(first.path).parent, second.path) == (tmp_path / "dumps", "")
    assert Path(saved.path) == tmp_path / "step-00000005"
    assert Path(first.path).is_file()
    assert (Path(saved.path) / "manifest.json").is_file()
    assert first.time <= second.time <= saved.time


def test_odd_values():
    """Also what JSON does not know."""
    event = Event("skipped", 1, loss=NAN, norm=-INF, to_step=None)
    told = json.dumps(event.to_dict(), allow_nan=False)
    assert (strictly(told)["loss"], strictly(told)["norm"]) == ("nan", "-inf")


# ---- the log


def test_log_goes_on(tmp_path):
    """Also in a run that is resumed; another path is taken if it is given."""
    for _ in range(2):
        guard, model = guarded(tmp_path, log=tmp_path / "events.jsonl")
        guard.resume()
        train(guard, model, "ooooo")
    kinds = [line["kind"] for line in lines(tmp_path / "events.jsonl")]
    assert kinds == ["checkpoint", "resumed", "checkpoint"]
    assert not (tmp_path / "guard.jsonl").exists()


def test_log_that_is_lost(tmp_path):
    """The run goes on, and says once for each event that its line is missing."""
    log = tmp_path / "log"
    guard, model = guarded(log=log)
    log.mkdir()
    with recorded() as caught:
        train(guard, model, "no")
    texts = [str(one.message) for one in caught]
    assert len(texts) == 2
    assert re.search(r"the log .*log cannot be written .*guard.events", texts[0])
    assert "step 0: skipped" in texts[1]
    assert guard.summary().good == 1
