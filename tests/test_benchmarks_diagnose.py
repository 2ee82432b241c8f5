"""The benchmarks of detect and monitor: each form watches the model while it runs, and not longer.

Nothing here asserts a time.
"""

import pytest
import torch

from benchmarks import __main__ as cli
from benchmarks import check, diagnose, measure, timing
from benchmarks.diagnose import ROWS, Training
from benchmarks.rows import NO_GRAD
from tests.monitored import hooks

TINY = timing.Effort(seconds=0.0, least=3)
BY_ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.op} {row.layout}")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, size in {"LAYERS": 1, "WIDTH": 8, "HEADS": 2, "VOCABULARY": 11}.items():
        monkeypatch.setattr(diagnose, name, size)


def case(row):
    return measure.Case(row, *row.sizes, torch.float32, 1, NO_GRAD, 0.0)


@BY_ROW
def test_a_measurement(row):
    result = measure.measure(case(row), list(row.forms), TINY)
    assert set(result.times) == {*row.forms, measure.READ}
    agreeing = {record["contender"]: record["agrees_with_torch"] for record in result.records}
    assert agreeing == dict.fromkeys(row.forms) | {"safeops": True}


@BY_ROW
def test_no_form_sees_what_another_opened(row):
    (training,), _ = measure.inputs_of(case(row))
    seen = []
    training.model[0].register_forward_pre_hook(lambda *_: seen.append(hooks(training.model)))
    for form in row.forms.values():
        form(training)
        assert hooks(training.model) == 1
        assert not torch.is_anomaly_enabled()
    seen.clear()
    row.forms["torch"](training)
    assert set(seen) == {1}


@pytest.mark.parametrize(("row", "count"), [(ROWS[1], 1), (ROWS[2], 10)], ids=["1", "10"])
def test_one_step_of_a_call_is_observed(monkeypatch, row, count):
    opened, plain = [], diagnose.monitor
    monkeypatch.setattr(
        diagnose, "monitor", lambda *given, **how: opened.append(plain(*given, **how)) or opened[-1]
    )
    for form in row.forms.values():
        form(*measure.inputs_of(case(row))[0])
    (m,) = opened
    assert (m.steps, m.seen) == ([0], count)
    assert len(m.table()) == 2 * len(m.layers)


def test_steps_stay_alike():
    training = Training(torch.arange(6).reshape(2, 3))
    losses = {training.step().item() for _ in range(5)}
    assert len(losses) == 1
    assert all(parameter.grad.any() for parameter in training.model.parameters())


def test_the_command_and_the_check(capsys):
    argv = ["--op", "detect", "monitor", "--quick", "--threads", "1", "--allow-formulas"]
    assert cli.main(argv) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("anomaly", "every tenth", "every step"))
    required, _ = check.plan(["detect", "monitor"], (1,), compiled=False)
    assert [(line.cases[0].row, line.requirement.against) for line in required] == [
        (row, "torch") for row in ROWS
    ]
