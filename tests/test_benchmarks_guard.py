"""The benchmark of the Guard: all forms train alike, and none leaves a trace."""

import pytest
import torch

from benchmarks import check, guard, measure
from benchmarks.guard import DUE, ROWS, STEP, Training
from benchmarks.rows import NO_GRAD
from tests.test_benchmarks_diagnose import TINY

(ROW,) = ROWS


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(guard, "SIZES", {"n_embd": 8, "n_layer": 1, "n_head": 2})


def test_a_measurement():
    case = measure.Case(ROW, *ROW.sizes, torch.float32, 1, NO_GRAD, 0.0)
    result = measure.measure(case, list(ROW.forms), TINY)
    assert set(result.times) == {*ROW.forms, measure.READ}
    agreeing = {record["contender"]: record["agrees_with_torch"] for record in result.records}
    assert agreeing == dict.fromkeys(ROW.forms) | {"safeops": True}


def test_all_forms_clip_and_step_alike():
    training = Training(torch.arange(6)[None])
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    gradients = []
    for form in STEP.values():
        form(training)
        gradients.append([parameter.grad.clone() for parameter in training.model.parameters()])
    after = training.model.parameters()
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    for other in gradients[1:]:
        for one, two in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)
    assert training.guard.events == training.due.events == []
    assert len(training.due._recovery.ring) == 1


def test_it_is_required():
    required, _ = check.plan(["Guard"], (1,), compiled=False)
    assert [line.requirement.against for line in required] == ["torch"]
    assert DUE in ROW.forms
