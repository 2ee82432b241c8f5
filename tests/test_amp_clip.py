"""GradScaler with max_norm, against torch's unscale_ and clip; what it reads and writes."""

import math
from unittest import mock

import pytest
import torch
from torch import nn

from safeops import NonFiniteGradientWarning
from safeops.amp import GradScaler
from tests.gradient_samples import Untouched, bits, draw, runs_on
from tests.optimizers import (
    MAKERS,
    assert_near,
    each_fused,
    each_optimizer,
    look,
    one_thread,  # noqa: F401
    plain_and_fused,
    reads,
    writes,
)
from tests.test_amp import LARGE, Scaled, pair

pytestmark = pytest.mark.filterwarnings("ignore::safeops.NonFiniteGradientWarning")


@each_optimizer
@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscale_"])
def test_torchs_unscale_and_clip(route, make, unscale):
    max_norm = 500.0
    ours, theirs = pair(make, ours={"max_norm": max_norm}, growth_interval=2)
    for seed, size in enumerate((LARGE, 3 * LARGE, LARGE / 10)):
        theirs.iterate(seed, size, max_norm=max_norm)
        with runs_on(route):
            ours.iterate(seed, size, unscale=unscale)
        assert_near(ours, theirs)
        assert ours.scaler.total_norm.item() == pytest.approx(theirs.clipped, rel=1e-6)
        assert ours.scaler.state_dict() == theirs.scaler.state_dict()
        assert not {"grad_scale", "found_inf"} & set(vars(ours.optimizer))


@plain_and_fused
@pytest.mark.parametrize("p", [1, math.inf, "inf", 3])
def test_norm_type(make, p):
    ours, theirs = pair(make, ours={"max_norm": 10.0, "norm_type": p})
    for seed in range(2):
        theirs.iterate(seed, LARGE, max_norm=10.0, p=float(p))
        ours.iterate(seed, LARGE)
        assert_near(ours, theirs)
        assert ours.scaler.total_norm.item() == pytest.approx(theirs.clipped, rel=1e-6)


@plain_and_fused
def test_each_optimizer_has_its_own_norm(make):
    scaler = GradScaler("cpu", max_norm=50.0)
    runs = [Scaled(make, scaler), Scaled(make, scaler)]
    theirs = [pair(make)[1], pair(make)[1]]
    for run, other, size in zip(runs, theirs, (LARGE, 3 * LARGE), strict=True):
        scaler.scale(run.loss(1, size)).backward()
        other.iterate(1, size, max_norm=50.0)
    for run, other in zip(runs, theirs, strict=True):
        scaler.step(run.optimizer)
        assert scaler.total_norm.item() == pytest.approx(other.clipped, rel=1e-6)
        assert_near(run, other)
    scaler.update()


@each_fused
def test_a_fused_step_divides_on_its_own_way(make):
    """It finds the scaled gradients, and is told scale · norm / max_norm."""
    run = pair(make, ours={"max_norm": 2.0})[0]
    seen = look(run.optimizer)
    for seed in range(2):
        run.scaler.scale(run.loss(seed)).backward()
        before, norm = list(map(bits, run.gradients)), run.norm()
        with writes(0), reads(1):
            run.step()
        run.optimizer.zero_grad()
        assert seen.pop() == (before, pytest.approx(norm / 2, rel=1e-6))


@each_optimizer
@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscale_"])
@pytest.mark.parametrize("max_norm", [None, 1.0, 1e9])
def test_one_read_and_one_write(route, make, unscale, max_norm):
    """unscale_, check, norm and clip together; a bad step writes nothing, and is read once more
    for its report."""
    run = pair(make, ours={"max_norm": max_norm})[0]
    fused = run.optimizer.defaults.get("fused") and not unscale
    for seed, bad in enumerate((None, math.nan, None)):
        run.optimizer.zero_grad()
        run.scaler.scale(run.loss(seed, 1.0, bad)).backward()
        with reads(2 if bad else 1), writes(0 if fused or bad else 1):
            run.step(unscale)


def test_a_scale_of_1_writes_nothing():
    run = pair(MAKERS["SGD"], init_scale=1.0)[0]
    with writes(0):
        run.iterate(1)


@plain_and_fused
def test_gradients_after_unscale(make):
    """Unscaled and clipped, for whoever looks at them between the two."""
    run = pair(make, ours={"max_norm": 10.0})[0]
    run.scaler.scale(run.loss(1, LARGE)).backward()
    expected = [g / run.norm() * 10 for g in run.gradients]
    run.scaler.unscale_(run.optimizer)
    torch.testing.assert_close(run.gradients, expected, rtol=3e-7, atol=0)
    seen = look(run.optimizer)
    before = list(map(bits, run.gradients))
    run.scaler.step(run.optimizer)
    assert seen == [(before, None)]


@plain_and_fused
def test_float64(make):
    """The factor has the precision of the gradients."""
    ours, theirs = pair(make, torch.float64, ours={"max_norm": 1.0})
    for seed in range(2):
        ours.iterate(seed, LARGE)
        theirs.scaler.scale(theirs.loss(seed, LARGE)).backward()
        theirs.scale(1 / theirs.norm())
        theirs.optimizer.step()
        theirs.optimizer.zero_grad()
        assert_near(ours, theirs, 32)
    assert ours.scaler.total_norm.dtype is torch.float64


EXTREMES = {  # dtype, size, max_norm, scale
    "huge": (torch.float64, 1e200, 1.0, 2.0**16),
    "tiny limit": (torch.float32, 1e3, 1e-45, 2.0**16),
    "tiny quotient": (torch.float32, 1e30, 1e-3, 2.0**16),
    "quotient below doubles": (torch.float64, 1e290, 1e-30, 2.0**16),
    "to zero": (torch.float32, 1.0, 0.0, 2.0**16),
    "small": (torch.float32, 1e12, 1e-10, 2.0**16),
    "huge scale": (torch.float32, 1.0, 1e-3, 2.0**120),
    "tiny scale": (torch.float32, 1.0, 1e-3, 2.0**-120),
}


@plain_and_fused
@pytest.mark.parametrize("case", EXTREMES)
def test_extreme_factors(make, case):
    dtype, size, max_norm, scale = EXTREMES[case]
    ours, theirs = pair(make, dtype, ours={"max_norm": max_norm}, init_scale=scale)
    for seed in range(2):
        ours.iterate(seed, size)
        theirs.backward(seed, min(size, 1e100))
        theirs.scale(max_norm / theirs.norm())
        theirs.optimizer.step()
        assert_near(ours, theirs, 16)


@plain_and_fused
def test_norm_that_only_the_scale_makes_too_large(make):
    """Four elements of 1e308 are beyond a double, and are not before they were scaled."""
    parameter = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer, scaler = make([parameter]), GradScaler("cpu", max_norm=1.0)
    scaler.scale(torch.ones(()))
    parameter.grad = torch.full((4,), 1e308, dtype=torch.float64)
    scaler.step(optimizer)
    assert scaler.total_norm.item() == pytest.approx(2 * (1e308 / 2**16))


@each_fused
def test_grad_scale_of_the_user(make):
    """torch's scaler takes the product; the norm is that of what the step sees."""
    ours, theirs = pair(make, ours={"max_norm": 5.0})
    theirs.iterate(1, LARGE, max_norm=5.0)
    ours.optimizer.grad_scale = torch.tensor(4.0)
    ours.iterate(1, 4 * LARGE)
    assert ours.scaler.total_norm.item() == pytest.approx(theirs.clipped, rel=1e-6)
    assert_near(ours, theirs)


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_sparse(max_norm):
    """A row that comes twice is summed before anything else."""
    weights = []
    for scaler in (GradScaler("cpu", max_norm=max_norm), torch.amp.GradScaler("cpu")):
        table = nn.Embedding.from_pretrained(draw(6, 4), freeze=False, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), 0.1)
        scaler.scale((table(torch.tensor([1, 3, 1])) * draw(3, 4, seed=1)).sum()).backward()
        if max_norm and type(scaler) is not GradScaler:
            scaler.unscale_(optimizer)
            table.weight.grad = table.weight.grad.to_dense()
            torch.nn.utils.clip_grad_norm_(table.weight, max_norm)
        scaler.step(optimizer)
        weights.append(table.weight.detach())
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


# --- enabled=False -------------------------------------------------------------------------------


@each_optimizer
def test_disabled(make):
    """As torch's: nothing is scaled, read or skipped."""
    ours, theirs = pair(make, enabled=False)
    for seed, bad in enumerate((None, math.nan)):
        with reads(0), mock.patch("safeops.amp.check_finite", side_effect=AssertionError):
            ours.iterate(seed, bad=bad)
        theirs.iterate(seed, bad=bad)
        assert ours.state() == theirs.state()
    assert ours.scaler.scale(loss := torch.ones(1)) is loss
    assert ours.scaler.state_dict() == {}
    assert ours.scaler.get_scale() == 1
    assert ours.scaler.step(ours.optimizer, lambda: 3.0) == 3


@each_optimizer
def test_disabled_clip(make):
    """The gradients are clipped all the same."""
    ours, theirs = pair(make, ours={"max_norm": 500.0}, enabled=False)
    for seed, size in enumerate((LARGE, 3 * LARGE, LARGE / 10)):
        ours.iterate(seed, size)
        theirs.iterate(seed, size, max_norm=500.0)
        assert_near(ours, theirs)
        assert ours.scaler.total_norm.item() == pytest.approx(theirs.clipped, rel=1e-6)


@each_optimizer
@pytest.mark.parametrize("good", [0, 1])
def test_disabled_clip_of_bad_gradients(make, good):
    """And such a step is skipped."""
    run = pair(make, ours={"max_norm": 1.0}, enabled=False)[0]
    for seed in range(good):
        run.iterate(seed)
    before = run.state()
    with pytest.warns(NonFiniteGradientWarning, match=r"param_groups\[0\]\[1\] \(1 nan\)"):
        run.iterate(7, bad=math.nan)
    assert run.state() == before
    assert run.scaler.total_norm.isnan()


def test_disabled_clip_and_closures():
    """A clip before them would be of old gradients."""
    run = pair(MAKERS["SGD"], ours={"max_norm": 1.0}, enabled=False)[0]
    run.backward(1)
    with Untouched(run.params), pytest.raises(RuntimeError, match="closure"):
        run.scaler.step(run.optimizer, lambda: 0.0)
