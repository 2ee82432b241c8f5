"""What happens around a clip: reports that travel, likely mistakes, compiled training steps."""

import copy
import json
import math
import pickle

import pytest
import torch
from torch import nn

import safeops
from safeops._reports import FiniteReport
from tests.gradient_samples import parameters


def again(thing):
    return pickle.loads(pickle.dumps(thing))


def bad_parameters():
    return parameters(torch.tensor([1.0, math.nan]), torch.ones(3))


def same(report, other):
    assert json.dumps(report.to_dict()) == json.dumps(other.to_dict())
    assert (bool(report), str(report)) == (bool(other), str(other))


@pytest.mark.parametrize("travel", [again, copy.deepcopy], ids=["pickle", "deepcopy"])
def test_reports_travel(route, travel):
    report = safeops.clip_report(bad_parameters(), 1.0, nonfinite="keep")
    same(report, travel(report))
    for tensors in (torch.tensor([1.0, math.inf]), {"a": torch.ones(2), "b": torch.zeros(0)}):
        same(safeops.check_finite(tensors), travel(safeops.check_finite(tensors)))


def test_the_error_takes_its_report_along(route):
    with pytest.raises(safeops.NonFiniteGradientError) as caught:
        safeops.clip_grad_norm_(bad_parameters(), 1.0, nonfinite="raise")
    copied = again(caught.value)
    assert str(copied) == str(caught.value)
    same(caught.value.report, copied.report)


@pytest.mark.parametrize("clip", [safeops.clip_grad_norm_, safeops.clip_grad_value_])
def test_likely_mistakes(clip):
    model = nn.Linear(2, 1)
    loss = model(torch.ones(1, 2)).sum()
    with pytest.raises(TypeError, match="got method: call it"):
        clip(model.parameters, 1.0)
    with pytest.raises(TypeError, match="place 0 of the parameters, got Linear"):
        clip([model], 1.0)
    with pytest.raises(ValueError, match="a name for each of 2"):
        clip(model, 1.0, names=["one"])
    with pytest.warns(UserWarning, match="leaf"), pytest.raises(ValueError, match="not its loss"):
        clip(loss, 1.0)


def test_a_report_of_a_rank_that_is_well():
    found = safeops.check_finite([torch.ones(2)])._found
    outcome = type("Outcome", (), {"total_norm": torch.tensor(math.nan), "factor": 1.0})
    outcome.verdict = "skipped"
    report = safeops.ClipReport(found, 2.0, True, outcome, 1.0)
    assert (bool(report), report.bad) == (False, [])
    assert "not finite on another rank; 1 tensor here, finite" in str(report)
    assert isinstance(report, FiniteReport)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().sum().backward()
    norm = safeops.clip_grad_norm_(model, 1e-2)
    optimizer.step()
    return norm


@pytest.mark.filterwarnings("ignore")  # of a graph break
def test_in_a_compiled_step():
    """It breaks the graph, and does what it does without."""
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    twin = copy.deepcopy(model)
    compiled = torch.compile(step, backend="eager")
    for function, each in ((step, model), (compiled, twin)):
        optimizer = torch.optim.SGD(each.parameters(), 0.1)
        norms = [function(each, optimizer, x).item() for _ in range(3)]
        assert norms == sorted(norms, reverse=True)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
