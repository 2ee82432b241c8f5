"""detect: how it is entered, left, printed and stopped in, and what it leaves behind."""

import gc
import itertools
import json
import math
import sys
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from safeops.diagnose import detect
from tests.detected import Block, Deep, below, found_in, step


def test_without_a_step():
    with detect(nn.Linear(2, 2)) as found:
        pass
    assert found.first is None
    assert "nothing ran" in str(found)


def test_a_model_without_parameters():
    model = nn.Softmax(-1)
    with detect(model) as found:
        model(torch.full((2, 2), -math.inf))
    assert (found.first.op, found.first.cause) == ("_softmax", "fully masked softmax")


def test_nested_both_find():
    model = Block(below)
    with detect(model) as outer, detect(model) as inner:
        step(model)
    assert outer.first.op == inner.first.op == "log"


def test_entered_twice():
    found = detect(nn.Linear(1, 1))
    with found, pytest.raises(RuntimeError, match="entered already"), found:
        pass
    with found:
        pass


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: detect(torch.sum), TypeError, "nn.Module"),
        (lambda: detect(nn.Linear(1, 1), kinds=("NaN",)), ValueError, "'nan' and 'inf'"),
        (lambda: detect(nn.Linear(1, 1), kinds=()), ValueError, "'nan' and 'inf'"),
    ],
)
def test_bad_input(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_nothing_is_left_behind_by_an_error():
    engine = torch.autograd._engine_run_backward

    def act(x):
        raise KeyError("mine")

    model = Block(act)
    with pytest.raises(KeyError, match="mine"), detect(model):
        step(model)
    assert torch.autograd._engine_run_backward is engine
    assert not nn.modules.module._global_forward_pre_hooks
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks


def test_a_graph_is_let_go():
    """No hook keeps a node, and with it what the forward saved."""
    model = Block(torch.tanh)
    with detect(model):
        loss = model(torch.ones(2, 4)).sum()
        mark = type("Mark", (), {})()
        loss.grad_fn.metadata["mark"], node = mark, weakref.ref(mark)
        loss.backward(retain_graph=True)
        del loss, mark
        gc.collect()
        assert node() is None


def test_a_breakpoint(monkeypatch, capsys):
    stops = []
    monkeypatch.setattr("pdb.Pdb.interaction", lambda self, frame, _: stops.append(frame))
    found_in(Block(below), breakpoint_on_nonfinite=True)
    (frame,) = stops
    assert frame.f_code.co_name == "below"
    assert "log of a non-positive number" in capsys.readouterr().out


def test_healthy_results_are_the_same_bits():
    def trained(watch):
        torch.manual_seed(0)
        model = Deep(torch.relu)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in itertools.repeat(None, 3):
            optimizer.zero_grad()
            with watch(model):
                step(model, torch.randn(2, 4), optimizer)
        return list(model.parameters())

    plain, watched = trained(lambda model: nullcontext()), trained(detect)
    assert all(map(torch.equal, plain, watched))


def test_the_report(tmp_path):
    found = found_in(Deep(below))
    text = str(found)
    for part in ("log of a non-positive number", "blocks.1.1", "detected.py:", "safe_log"):
        assert part in text
    assert json.loads(json.dumps(found.to_dict()))["first"]["op"] == "log"
    found.to_html(tmp_path / "page.html")
    assert "blocks.1.1" in (tmp_path / "page.html").read_text()
    assert not found
    assert "finite" in str(found_in(nn.Linear(4, 4)))
