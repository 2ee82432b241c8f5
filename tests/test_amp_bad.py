"""GradScaler and bad steps: what they leave alone, the floor of the scale, verdicts, patience."""

import math

import pytest
import torch
from torch import nn

from safeops import NonFiniteGradientError
from safeops.amp import GradScaler
from tests.optimizers import (
    MAKERS,
    assert_near,
    each_optimizer,
    one_thread,  # noqa: F401
    plain_and_fused,
)
from tests.test_amp import Scaled, pair

pytestmark = pytest.mark.filterwarnings("ignore::safeops.NonFiniteGradientWarning")
SGD = MAKERS["SGD"]
BAD = (math.nan, math.inf, -math.inf)


def run_of(make=SGD, **options):
    return Scaled(make, GradScaler("cpu", **options))


def trained(make, steps, **options):
    run = run_of(make, **options)
    for seed in range(steps):
        run.iterate(seed)
    return run


@each_optimizer
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscale_"])
@pytest.mark.parametrize(("good", "bad"), [(0, math.nan), (0, math.inf), (2, -math.inf)])
def test_a_bad_step_changes_nothing(make, max_norm, unscale, good, bad):
    """Not even as the first one, and the next good one is as if it had not been."""
    ours, others = (trained(make, good, max_norm=max_norm) for _ in range(2))
    before = ours.state()
    ours.iterate(7, bad=bad, unscale=unscale)
    assert ours.state() == before == others.state()
    assert ours.gradients == [None] * 3
    assert str(ours.scaler.total_norm.item()) == ("nan" if bad != bad else "inf")
    ours.iterate(8, unscale=unscale)
    others.iterate(8)
    assert_near(ours, others)
    assert (ours.scaler.verdict, ours.scaler.bad_in_a_row) == ("ok", 0)


# --- the scale -----------------------------------------------------------------------------------


def scales(run, *bad):
    """After an iteration for each."""
    for seed, number in enumerate(bad):
        run.iterate(seed, bad=number)
        yield run.scaler.get_scale()


FLOORS = [
    ({}, [4, 2, 1, 1, 1]),
    ({"min_scale": 4.0}, [4, 4, 4, 4, 4]),
    ({"min_scale": 3.0}, [4, 3, 3, 3, 3]),
    ({"min_scale": 0.0}, [4, 2, 1, 0.5, 0.25]),
    ({"min_scale": 16.0}, [8, 8, 8, 8, 8]),
    ({"backoff_factor": 0.1}, [1, 1, 1, 1, 1]),
]


@pytest.mark.parametrize(("options", "expected"), FLOORS, ids=[str(row[0]) for row in FLOORS])
def test_floor(options, expected):
    """A scale that begins below the floor stays there."""
    run = run_of(init_scale=8.0, **options)
    assert list(scales(run, *[math.inf] * 5)) == expected


def test_growth_from_the_floor():
    run = run_of(init_scale=2.0, growth_interval=2)
    bad = [math.inf] * 3 + [None] * 4 + [math.inf]
    assert list(scales(run, *bad)) == [1, 1, 1, 1, 2, 2, 4, 2]


def test_without_a_floor_as_torch():
    ours, theirs = pair(SGD, ours={"min_scale": 0.0}, init_scale=2.0, growth_interval=3)
    bad = [math.inf] * 4 + [None] * 4 + [math.nan]
    assert list(scales(ours, *bad)) == list(scales(theirs, *bad))


# --- verdicts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_overflow(bad):
    """Gradients alone say that the scale may have been too high."""
    run = run_of(init_scale=4.0)
    for scale, verdict in ((4, "overflow"), (2, "overflow"), (1, "nan"), (1, "nan")):
        assert run.scaler.get_scale() == scale
        backward(run, 1.0, bad)
        run.step()
        assert run.scaler.verdict == verdict
    assert run.scaler.bad_in_a_row == 4
    backward(run, 1.0, 1.0)
    run.step()
    assert (run.scaler.verdict, run.scaler.bad_in_a_row) == ("ok", 0)


def backward(run, loss, gradient):
    """A loss of that value, with that number in a gradient."""
    run.optimizer.zero_grad()
    run.scaler.scale(torch.tensor(loss))
    for param in run.params:
        param.grad = torch.ones(param.shape)
    run.params[1].grad[2] = gradient


@pytest.mark.parametrize("loss", BAD, ids=str)
def test_a_loss_that_is_not_finite(loss):
    """It was so before it was scaled, so that no scale helps."""
    run = run_of()
    backward(run, loss, math.nan)
    run.step()
    assert run.scaler.verdict == "nan"
    backward(run, 1.0, math.nan)
    run.step()
    assert run.scaler.verdict == "overflow"


@pytest.mark.parametrize("several", [list, tuple])
def test_one_of_several_losses(several):
    """All that were scaled in this iteration count, and none of the one before."""
    run = run_of()
    for bad, verdict in ((math.nan, "nan"), (2.0, "overflow")):
        backward(run, 1.0, math.inf)
        run.scaler.scale(several([torch.ones(2), torch.tensor([1.0, bad])]))
        run.scaler.scale(torch.ones(()))
        run.step()
        assert run.scaler.verdict == verdict


def test_a_good_step_on_a_bad_loss():
    """The gradients decide."""
    run = run_of()
    backward(run, math.inf, 1.0)
    run.step()
    assert (run.scaler.verdict, run.scaler.bad_in_a_row) == ("ok", 0)


# --- patience ------------------------------------------------------------------------------------


@plain_and_fused
@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscale_"])
def test_patience(make, unscale):
    """The error names what is bad; everything is in order then, and training can go on."""
    run, other = run_of(make, init_scale=8.0, patience=3), run_of(make)
    before = run.state()
    for _ in range(2):
        run.iterate(1, bad=math.inf, unscale=unscale)
    message = r"3 steps .* at scale 2: .* param_groups\[0\]\[1\] \(1 nan\); the loss was not finite"
    with pytest.raises(NonFiniteGradientError, match=message) as error:
        run.iterate(1, bad=math.nan, unscale=unscale)
    assert [row.nan for row in error.value.report] == [0, 1, 0]
    assert (run.scaler.get_scale(), run.scaler.bad_in_a_row, run.scaler.verdict) == (1, 3, "nan")
    assert run.state() == before
    run.iterate(2, unscale=unscale)
    other.iterate(2)
    assert_near(run, other)


@pytest.mark.parametrize(
    ("scale", "says"), [(2.0, "too high; it is 1 now"), (1.0, "look at the data")]
)
def test_patience_says_that_the_loss_was_fine(scale, says):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.named_parameters(), 0.1)
    scaler = GradScaler("cpu", scale, patience=1)
    scaler.scale(torch.ones(()))
    model.weight.grad, model.bias.grad = torch.tensor([[math.inf, -math.inf]]), torch.ones(1)
    scaler.step(optimizer)
    message = rf"weight \(1 inf, 1 -inf\); the loss was finite\. .* {says}"
    with pytest.raises(NonFiniteGradientError, match=message) as error:
        scaler.update()
    assert [(row.name, row.bad) for row in error.value.report] == [("weight", 2), ("bias", 0)]


def test_a_good_step_restores_patience():
    run = run_of(patience=2)
    assert len(list(scales(run, *[math.inf, None] * 4))) == 8
    with pytest.raises(NonFiniteGradientError):
        list(scales(run, math.inf, math.inf))


def test_patience_of_20_and_without_end():
    run, patient = run_of(), run_of(patience=None)
    seen = []
    with pytest.raises(NonFiniteGradientError, match="20 steps"):
        seen.extend(scales(run, *[math.inf] * 30))
    assert (run.scaler.bad_in_a_row, run.scaler.get_scale()) == (20, 1)
    assert list(scales(patient, *[math.inf] * 30))[-1] == 1
    assert patient.scaler.bad_in_a_row == 30


@plain_and_fused
@pytest.mark.parametrize("bad", [(math.inf, None), (None, math.inf), (math.inf, math.nan)], ids=str)
def test_two_optimizers_lose_patience_together(make, bad):
    """One bad step or two, it is one iteration."""
    scaler = GradScaler("cpu", patience=2)
    runs = [Scaled(make, scaler), Scaled(make, scaler)]
    once(scaler, runs, bad)
    assert scaler.bad_in_a_row == 1
    with pytest.raises(NonFiniteGradientError, match="2 steps") as error:
        once(scaler, runs, bad)
    assert [row.bad for row in error.value.report] == [0, 1, 0]


def once(scaler, runs, bad):
    for run, number in zip(runs, bad, strict=True):
        run.optimizer.zero_grad()
        scaler.scale(run.loss(1, bad=number)).backward()
    for run in runs:
        scaler.step(run.optimizer)
    scaler.update()
