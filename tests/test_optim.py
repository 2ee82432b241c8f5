"""GradNormClipper: a clip inside the step of every torch optimizer."""

import math

import pytest
import torch

from safeops import GradNormClipper, NonFiniteGradientError, NonFiniteGradientWarning
from tests.gradient_samples import Untouched, bits, runs_on
from tests.optimizers import (
    Run,
    assert_near,
    each_fused,
    each_optimizer,
    look,
    one_thread,  # noqa: F401
    plain_and_fused,
    reads,
    writes,
)

BAD = (math.nan, -math.inf)
each_bad = pytest.mark.parametrize("bad", BAD, ids=str)
SIZES = (100.0, 3000.0, 10.0, 500.0)  # so large that torch's 1e-6 is lost in the norm's rounding


def clipped(make, max_norm=1.0, dtype=torch.float32, **options):
    run = Run(make, dtype)
    return run, GradNormClipper(run.optimizer, max_norm, **options)


def trained(make, steps, **options):
    run, clipper = clipped(make, **options)
    for seed in range(steps):
        run.train(seed)
    return run, clipper


def by_hand(run, seed, size, max_norm):
    """A step on gradients that are clipped by the exact norm."""
    run.backward(seed, size)
    run.scale(min(1.0, max_norm / run.norm()))
    run.optimizer.step()


@each_optimizer
@pytest.mark.parametrize("max_norm", [1.0, 300.0])
def test_torchs_clip_and_step(route, make, max_norm):
    (ours, clipper), theirs = clipped(make, max_norm), Run(make)
    for seed, size in enumerate(SIZES):
        theirs.backward(seed, size)
        norm = torch.nn.utils.clip_grad_norm_(theirs.params, max_norm).item()
        theirs.optimizer.step()
        with runs_on(route):
            ours.train(seed, size)
        assert_near(ours, theirs)
        assert clipper.total_norm.item() == pytest.approx(norm, rel=1e-6)
        assert clipper.factor == pytest.approx(min(1.0, max_norm / norm), rel=1e-6)
        assert clipper.verdict == ("clipped" if norm > max_norm else "ok")


@plain_and_fused
@pytest.mark.parametrize("p", [1, 2, 3, math.inf, "inf"])
def test_norm_type(make, p):
    (ours, clipper), theirs = clipped(make, norm_type=p), Run(make)
    for seed in range(2):
        theirs.backward(seed, 1000.0)
        norm = torch.nn.utils.clip_grad_norm_(theirs.params, 1.0, float(p)).item()
        theirs.optimizer.step()
        ours.train(seed, 1000.0)
        assert_near(ours, theirs)
        assert clipper.total_norm.item() == pytest.approx(norm, rel=1e-6)


@each_optimizer
@pytest.mark.parametrize("max_norm", [1e9, math.inf])
def test_a_step_that_clips_nothing_is_torchs(make, max_norm):
    """Bit by bit, and nothing is written."""
    (ours, _), theirs = clipped(make, max_norm), Run(make)
    for seed in range(3):
        theirs.train(seed)
        with writes(0), reads(1):
            ours.train(seed)
        assert ours.state() == theirs.state()
        assert not hasattr(ours.optimizer, "grad_scale")


@each_fused
def test_a_fused_step_divides_on_its_own_way(make):
    """The gradients are as they were until the step itself, which is told the quotient."""
    run, _ = clipped(make, 2.0)
    seen = look(run.optimizer)
    for seed in range(2):
        run.backward(seed)
        before, norm = list(map(bits, run.gradients)), run.norm()
        with writes(0), reads(1):
            run.optimizer.step()
        assert seen.pop() == (before, pytest.approx(norm / 2, rel=1e-6))
        assert not hasattr(run.optimizer, "grad_scale")


@each_optimizer
def test_others_are_written_once(make):
    run, _ = clipped(make)
    fused = run.optimizer.defaults.get("fused")
    for seed in range(2):
        with writes(0 if fused else 1), reads(1):
            run.train(seed)


# --- bad gradients -------------------------------------------------------------------------------


@each_optimizer
@each_bad
@pytest.mark.parametrize("good", [0, 2])
def test_skip(route, make, bad, good):
    """Not even the step counts change, and the next good step is as if it had not been."""
    (ours, clipper), (others, _) = trained(make, good), trained(make, good)
    before = ours.state()
    for skipped in (1, 2):
        with pytest.warns(NonFiniteGradientWarning, match=r"param_groups\[0\]\[1\] \(1 "):
            ours.train(7, bad=bad)
        assert ours.state() == before == others.state()
        assert ours.gradients == [None] * 3
        assert (clipper.verdict, clipper.factor, clipper.skipped) == ("skipped", 1.0, skipped)
    assert str(clipper.total_norm.item()) == ("nan" if bad != bad else "inf")
    ours.train(8)
    others.train(8)
    assert ours.state() == others.state() != before


@each_optimizer
@pytest.mark.parametrize("good", [0, 2])
def test_raise(make, good):
    run, clipper = trained(make, good, nonfinite="raise")
    before = run.state()
    run.backward(7, bad=-math.inf)
    message = r"param_groups\[0\]\[1\] \(1 -inf, first at \[2\]\)"
    with Untouched(run.params), pytest.raises(NonFiniteGradientError, match=message) as error:
        run.optimizer.step()
    assert run.state() == before
    assert [row.neginf for row in error.value.report] == [0, 1, 0]
    assert not hasattr(run.optimizer, "grad_scale")
    run.train(8)
    assert clipper.verdict == "clipped"


@each_optimizer
@each_bad
def test_drop(route, make, bad):
    """A step on 0 in their places, and the rest clipped by the norm of the rest."""
    (ours, clipper), theirs = clipped(make, nonfinite="drop"), Run(make)
    for seed in range(2):
        with pytest.warns(NonFiniteGradientWarning):
            ours.train(seed, 1000.0, bad)
        theirs.backward(seed, 1000.0, 0.0)
        norm = torch.nn.utils.clip_grad_norm_(theirs.params, 1.0)
        theirs.optimizer.step()
        assert_near(ours, theirs)
        assert clipper.total_norm.item() == pytest.approx(norm.item(), rel=1e-6)
        assert clipper.verdict == "dropped"
    assert not hasattr(ours.optimizer, "grad_scale")


@each_optimizer
@each_bad
def test_keep(make, bad):
    """The step that torch would do."""
    (ours, clipper), theirs = clipped(make, nonfinite="keep"), Run(make)
    with writes(0):
        ours.train(1, bad=bad)
    theirs.train(1, bad=bad)
    assert ours.state() == theirs.state()
    assert (clipper.verdict, clipper.factor) == ("kept", 1.0)


# --- numbers -------------------------------------------------------------------------------------


@each_optimizer
def test_float64(make):
    """The factor has the precision of the gradients."""
    (ours, clipper), theirs = clipped(make, dtype=torch.float64), Run(make, torch.float64)
    for seed, size in enumerate((1.0, 30.0)):
        ours.train(seed, size)
        by_hand(theirs, seed, size, 1.0)
        assert_near(ours, theirs, 32)
    assert clipper.total_norm.dtype is torch.float64


EXTREMES = {
    "huge": (torch.float64, 1e200, 1.0),
    "tiny limit": (torch.float32, 1e3, 1e-45),
    "tiny quotient": (torch.float32, 1e35, 1e-3),
    "quotient below doubles": (torch.float64, 1e290, 1e-30),
    "tiny gradients": (torch.float64, 1e-200, 1e-210),
    "to zero": (torch.float32, 1.0, 0.0),
    "small": (torch.float32, 1e12, 1e-17),
}


@plain_and_fused
@pytest.mark.parametrize("case", EXTREMES)
def test_extreme_factors(make, case):
    dtype, size, max_norm = EXTREMES[case]
    (ours, _), theirs = clipped(make, max_norm, dtype), Run(make, dtype)
    for seed in range(2):
        ours.train(seed, size)
        theirs.backward(seed, min(max(size, 1e-100), 1e100))
        theirs.scale(max_norm / theirs.norm())
        theirs.optimizer.step()
        assert_near(ours, theirs, 16)


@plain_and_fused
def test_default_dtype(make):
    """That of new tensors is nothing to the step."""
    (ours, _), theirs = clipped(make), Run(make)
    torch.set_default_dtype(torch.float64)
    try:
        ours.train(1, 10.0)
    finally:
        torch.set_default_dtype(torch.float32)
    by_hand(theirs, 1, 10.0, 1.0)
    assert_near(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fused", [False, True])
def test_half_types(dtype, fused):
    """By Adam's first moment: torch's fused SGD on a CPU passes vectors of half types over
    (pytorch#191763)."""
    run, clipper = clipped(lambda p: torch.optim.Adam(p, fused=fused), 1.0, dtype)
    run.backward(1, 100.0)
    wide = [0.1 * g.double() / run.norm() for g in run.gradients]
    run.optimizer.step()
    for moments, gradient in zip(run.moments, wide, strict=True):
        unit = torch.finfo(dtype).eps * gradient.abs().max()
        assert (moments["exp_avg"] - gradient).abs().max() <= unit
    assert clipper.total_norm.dtype is torch.float32
