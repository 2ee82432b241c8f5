"""GradScaler in wrong use: the errors are torch's, and those of our own arguments."""

import math
import pickle

import pytest
import torch
from torch import nn

from safeops.amp import GradScaler
from tests.gradient_samples import Untouched
from tests.optimizers import (
    MAKERS,
    one_thread,  # noqa: F401
    plain_and_fused,
)
from tests.test_amp import pair

pytestmark = pytest.mark.filterwarnings("ignore::safeops.NonFiniteGradientWarning")

# of a scaler that has scaled a loss, and an optimizer that has gradients
MISUSES = {
    "unscale_ twice": lambda s, o: (s.unscale_(o), s.unscale_(o)),
    "unscale_ after step": lambda s, o: (s.step(o), s.unscale_(o)),
    "step twice": lambda s, o: (s.step(o), s.step(o)),
    "unscale_, step, step": lambda s, o: (s.unscale_(o), s.step(o), s.step(o)),
    "closure": lambda s, o: s.step(o, closure=lambda: 0.0),
    "update without a step": lambda s, o: s.update(),
    "a scale with a gradient": lambda s, o: s.update(torch.ones((), requires_grad=True)),
    "pickle after unscale_": lambda s, o: (s.unscale_(o), pickle.dumps(s)),
    "scale of a number": lambda s, o: s.scale(3.0),
}
TOO_EARLY = {
    "unscale_": lambda s, o: s.unscale_(o),
    "step": lambda s, o: s.step(o),
    "update": lambda s, o: s.update(),
}


def error_of(run, misuse):
    with pytest.raises(Exception, match=r".") as error:
        misuse(run.scaler, run.optimizer)
    return type(error.value), str(error.value)


@plain_and_fused
@pytest.mark.parametrize("max_norm", [None, 1e9])
@pytest.mark.parametrize("name", MISUSES)
def test_misuse(make, max_norm, name):
    """Error and message are torch's, and what has happened until then."""
    ours, theirs = pair(make, ours={"max_norm": max_norm})
    for run in (ours, theirs):
        run.scaler.scale(run.loss(1)).backward()
    assert error_of(ours, MISUSES[name]) == error_of(theirs, MISUSES[name])
    assert ours.state() == theirs.state()


@plain_and_fused
@pytest.mark.parametrize("name", TOO_EARLY)
def test_before_scale(make, name):
    ours, theirs = pair(make)
    for run in (ours, theirs):
        run.backward(1)
    with Untouched(ours.params):
        assert error_of(ours, TOO_EARLY[name]) == error_of(theirs, TOO_EARLY[name])
    assert ours.state() == theirs.state()


def half(fused):
    """Adam over a parameter in float16 that has a gradient."""
    parameter = nn.Parameter(torch.ones(20, dtype=torch.float16))
    parameter.grad = torch.full((20,), 64.0, dtype=torch.float16)
    return parameter, torch.optim.Adam([("weight", parameter)], 0.5, fused=fused)


@pytest.mark.parametrize("name", ["unscale_", "step"])
def test_float16(name):
    """Their unscaled gradients could vanish, and their next scaled ones overflow."""
    parameter, optimizer = half(False)
    scaler = GradScaler("cpu", max_norm=1.0)
    scaler.scale(torch.ones(()))
    with Untouched([parameter]), pytest.raises(ValueError, match="got float16 in weight: keep"):
        TOO_EARLY[name](scaler, optimizer)
    torchs = torch.amp.GradScaler("cpu")
    torchs.scale(torch.ones(()))
    with pytest.raises(ValueError, match="FP16"):
        TOO_EARLY[name](torchs, optimizer)


def test_float16_in_a_fused_step():
    """That one torch allows."""
    seen = []
    for scaler in (GradScaler("cpu", 64.0), torch.amp.GradScaler("cpu", 64.0)):
        parameter, optimizer = half(True)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        seen.append(parameter.detach())
    assert torch.equal(*seen)
    assert (seen[0] == 0.5).all()


WRONG = [
    (AssertionError, "growth factor", {"growth_factor": 1.0}),
    (AssertionError, "backoff factor", {"backoff_factor": 1.0}),
    (TypeError, "a number as max_norm, got str", {"max_norm": "1"}),
    (ValueError, "max_norm >= 0, got -1", {"max_norm": -1}),
    (ValueError, "max_norm, got NaN", {"max_norm": math.nan}),
    (ValueError, "norm_type, got NaN", {"norm_type": math.nan}),
    (ValueError, "norm_type, got 'two'", {"norm_type": "two"}),
    (TypeError, "min_scale, got NoneType", {"min_scale": None}),
    (ValueError, "min_scale >= 0, got -1", {"min_scale": -1}),
    (TypeError, "patience, got str", {"patience": "20"}),
    (ValueError, "patience >= 0, got -1", {"patience": -1}),
]


@pytest.mark.parametrize(("error", "message", "options"), WRONG, ids=[row[1] for row in WRONG])
def test_wrong_arguments(error, message, options):
    with pytest.raises(error, match=message):
        GradScaler("cpu", **options)


def test_ours_are_keywords():
    with pytest.raises(TypeError):
        GradScaler("cpu", 2.0, 2.0, 0.5, 2000, True, 1.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to scale on")
def test_no_gpu():
    """The default is cuda; without one a scaler turns itself off, as torch's."""
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = GradScaler(max_norm=500.0)
    assert not scaler.is_enabled()
    run, other = pair(MAKERS["SGD"])
    run.scaler = scaler
    run.iterate(1, 100.0)
    other.iterate(1, 100.0, max_norm=500.0)
    torch.testing.assert_close(run.numbers(), other.numbers(), rtol=1e-6, atol=1e-6)
