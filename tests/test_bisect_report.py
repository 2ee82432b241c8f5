"""What a bisection prints, writes and refuses."""

import io
import json
import sys

import pytest
import torch
from torch import nn

from safeops.diagnose.bisection.bisect import bisect_autocast, bisect_layers
from tests.bisect_cases import X, mlp, sgd, stepper


def test_report(tmp_path):
    model = mlp()
    report = bisect_layers(model, stepper(model, sgd(model, ("2", "4")), X))
    text = str(report)
    assert text.startswith("found: finite with 2, 4 frozen; no set is smaller (")
    assert "requires_grad_(False)" in text
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["modules"] == ["2", "4"]
    assert len(plain["trials"]) == plain["runs"] == report.runs
    assert [trial["finite"] for trial in plain["trials"][:3]] == [False, False, True]
    assert plain["findings"][0]["what"] == "must not be trained as it is"
    report.to_html(tmp_path / "bisection.html")
    assert "<svg" in (tmp_path / "bisection.html").read_text()


def test_progress_in_a_terminal(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    model = mlp()
    assert bisect_layers(model, stepper(model, sgd(model, "4"), X)).modules == ["4"]
    assert "Bisection of layers" in terminal.getvalue()
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    before = terminal.getvalue()
    bisect_layers(model, stepper(model, sgd(model, "4"), X))
    assert terminal.getvalue() == before


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (({}, print), TypeError, r"expected a torch\.nn\.Module, got dict"),
        ((nn.Linear(1, 1), 3), TypeError, "step that can be called without arguments, got int"),
    ],
)
@pytest.mark.parametrize("bisect", [bisect_layers, bisect_autocast])
def test_bad_arguments(bisect, arguments, error, text):
    with pytest.raises(error, match=text):
        bisect(*arguments)
    with pytest.raises(TypeError, match=r"others with state_dict.* got list"):
        bisect(nn.Linear(1, 1), print, others=[[]])
    scheduler = torch.optim.lr_scheduler.StepLR(sgd(mlp(), "4"), 1)
    with pytest.raises(TypeError, match=r"got StepLR: pass others=\[...\]"):
        bisect(nn.Linear(1, 1), print, others=scheduler)
    with pytest.raises(TypeError, match="an optimizer with param_groups, got Linear"):
        bisect(nn.Linear(1, 1), print, optimizer=nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"filter_fn\(module, name\), got str"):
        bisect(nn.Linear(1, 1), print, filter_fn="0")
    with pytest.raises(ValueError, match="pass filter_fn, got none"):
        bisect(nn.Linear(1, 1), print, filter_fn=lambda module, name: False)
    lazy = nn.Sequential(nn.LazyLinear(2), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="got a lazy one"):
        bisect(lazy, print)


def test_no_parameters_and_other_dtypes():
    with pytest.raises(ValueError, match="trainable parameters of their own that pass"):
        bisect_layers(nn.ReLU(), print)
    with pytest.raises(ValueError, match=r"torch.bfloat16 or None, got torch\.float64"):
        bisect_autocast(nn.ReLU(), print, dtype=torch.float64)
