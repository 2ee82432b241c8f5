"""GradNormClipper and grad_scale: whose it is, who finds it where; GradScaler on top."""

import math
import pickle
from contextlib import nullcontext

import pytest
import torch

import safeops
from safeops import GradNormClipper, NonFiniteGradientWarning
from tests.optimizers import (
    FORMS,
    FUSED,
    MAKERS,
    Run,
    assert_near,
    each_fused,
    each_optimizer,
    one_thread,  # noqa: F401
    plain_and_fused,
    reads,
    writes,
)

SCALERS = [torch.amp.GradScaler, safeops.amp.GradScaler]
each_scaler = pytest.mark.parametrize("scaler", SCALERS, ids=["torch", "safeops"])
LARGE = 100.0  # gradients of this size have norms in which torch's 1e-6 does not show


def clipped(make, max_norm=1.0, dtype=torch.float32, **options):
    run = Run(make, dtype)
    return run, GradNormClipper(run.optimizer, max_norm, **options)


def torchs(run, seed, size=LARGE, max_norm=1.0, bad=None):
    """A step with torch's clip."""
    run.backward(seed, size, bad)
    norm = torch.nn.utils.clip_grad_norm_(run.params, max_norm)
    run.optimizer.step()
    return norm.item()


# --- other hands -------------------------------------------------------------------------------


def test_two_clippers():
    """One optimizer has one; another may follow it."""
    run = Run(MAKERS["SGD"])
    first = GradNormClipper(run.optimizer, 1.0)
    with pytest.raises(RuntimeError, match=r"remove\(\)"):
        GradNormClipper(run.optimizer, 2.0)
    first.remove()
    GradNormClipper(run.optimizer, 2.0).remove()
    first.remove()


@each_fused
@pytest.mark.parametrize("max_norm", [1.0, 1e9, 0.0])
@pytest.mark.parametrize("bad", [None, math.inf], ids=str)
def test_grad_scale_of_the_user(make, max_norm, bad):
    """It divides the gradients, before the norm; it is the same object afterwards."""
    (ours, clipper), theirs = clipped(make, max_norm, nonfinite="drop"), Run(make)
    ours.optimizer.grad_scale = scale = torch.tensor(4.0)
    norm = torchs(theirs, 1, LARGE, max_norm, None if bad is None else 0.0)
    with nullcontext() if bad is None else pytest.warns(NonFiniteGradientWarning):
        ours.train(1, LARGE * 4, bad)
    assert_near(ours, theirs)
    assert clipper.total_norm.item() == pytest.approx(norm, rel=1e-6)
    assert ours.optimizer.grad_scale is scale
    assert scale == 4


def stumble(*_):
    raise ZeroDivisionError


@plain_and_fused
@pytest.mark.parametrize("size", [LARGE, 1e-4], ids=["clips", "does not"])
def test_a_step_that_raises(make, size):
    """The next one is not the worse for it."""
    (ours, _), theirs = clipped(make), Run(make)
    handle = ours.optimizer.register_step_pre_hook(stumble)
    with pytest.raises(ZeroDivisionError):
        ours.train(0, LARGE)
    handle.remove()
    ours.train(1, size)
    torchs(theirs, 1, size)
    assert_near(ours, theirs)
    assert not hasattr(ours.optimizer, "grad_scale")


@plain_and_fused
@pytest.mark.parametrize("scale", [None, torch.tensor(2.0)], ids=["none", "theirs"])
def test_remove_after_a_step_that_raised(make, scale):
    run, clipper = clipped(make)
    if scale is not None:
        run.optimizer.grad_scale = scale
    handle = run.optimizer.register_step_pre_hook(stumble)
    with pytest.raises(ZeroDivisionError):
        run.train(0, LARGE)
    handle.remove()
    clipper.remove()
    assert getattr(run.optimizer, "grad_scale", None) is scale


def test_a_fused_step_raises_for_sparse_gradients():
    """That is torch's; a dense one is fine afterwards."""
    table = torch.nn.Embedding(3, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), 1.0, fused=True)
    GradNormClipper(optimizer, 1.0)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse"):
        optimizer.step()
    before = table.weight.detach().clone()
    table.weight.grad = torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])
    optimizer.step()
    expected = torch.tensor([[0.6, 0.0], [0.0, 0.8], [0.0, 0.0]])
    torch.testing.assert_close(before - table.weight, expected)


# --- checkpoints ---------------------------------------------------------------------------------


def load(run, saved):
    """Weights and optimizer of the other run."""
    state = pickle.loads(pickle.dumps(saved.optimizer.state_dict()))
    run.optimizer.load_state_dict(state)
    for param, value in zip(run.params, saved.params, strict=True):
        param.data.copy_(value)


@each_optimizer
def test_state_dict(make):
    """A checkpoint goes into an optimizer that has a clipper, and knows nothing of it."""
    (ours, _), theirs, (later, _) = clipped(make), Run(make), clipped(make)
    for seed in range(2):
        ours.train(seed, LARGE)
        torchs(theirs, seed)
    groups = [run.optimizer.state_dict()["param_groups"] for run in (ours, theirs)]
    assert groups[0] == groups[1]
    load(later, ours)
    later.train(2, LARGE)
    torchs(theirs, 2)
    assert_near(later, theirs)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("forms", [("plain", "fused"), ("fused", "plain")], ids=str)
def test_state_dict_of_another_form(name, forms):
    """torch's load_state_dict makes the optimizer that of the checkpoint, fused or not."""
    saved, loaded = (Run(lambda p, f=f: MAKERS[name](p, **FORMS[f])) for f in forms)
    GradNormClipper(loaded.optimizer, 1.0)
    torchs(saved, 0)
    load(loaded, saved)
    loaded.train(1, LARGE)
    torchs(saved, 1)
    assert_near(loaded, saved)


# --- scalers -------------------------------------------------------------------------------------


def scaled(run, scaler, seed, size=LARGE, bad=None, unscale=False):
    """An iteration; what the step looks at has been clipped by the optimizer's clipper."""
    run.optimizer.zero_grad()
    scaler.scale(run.loss(seed, size, bad)).backward()
    if unscale:
        scaler.unscale_(run.optimizer)
    scaler.step(run.optimizer)
    scaler.update()


@each_scaler
@each_optimizer
@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscale_"])
def test_scaler(scaler, make, unscale):
    """The norm is that of the unscaled gradients."""
    max_norm = 500.0
    (ours, clipper), theirs = clipped(make, max_norm), Run(make)
    scaler = scaler("cpu", growth_interval=2)
    for seed, size in enumerate((LARGE, 3 * LARGE, LARGE / 10)):
        norm = torchs(theirs, seed, size, max_norm)
        scaled(ours, scaler, seed, size, unscale=unscale)
        assert_near(ours, theirs)
        assert clipper.total_norm.item() == pytest.approx(norm, rel=1e-6)
        assert clipper.verdict == ("clipped" if norm > max_norm else "ok")
        assert not {"grad_scale", "found_inf"} & set(vars(ours.optimizer))


@plain_and_fused
@pytest.mark.parametrize("max_norm", [1.0, 1e9])
def test_factor_under_a_scaler(make, max_norm):
    """That of the clip alone, whoever unscales."""
    run, clipper = clipped(make, max_norm)
    scaled(run, torch.amp.GradScaler("cpu"), 1)
    assert clipper.factor == pytest.approx(min(1.0, max_norm / clipper.total_norm.item()))


@plain_and_fused
def test_scaler_and_one_read(make):
    run, _ = clipped(make)
    fused = run.optimizer.defaults["fused"]
    scaler = torch.amp.GradScaler("cpu")
    with writes(0 if fused else 1), reads(1):
        scaled(run, scaler, 1)


may_warn = pytest.mark.filterwarnings("ignore::safeops.NonFiniteGradientWarning")


@may_warn
@each_scaler
@each_optimizer
@pytest.mark.parametrize(("good", "bad"), [(0, math.nan), (2, math.inf)])
def test_bad_gradients_under_a_scaler(scaler, make, good, bad):
    """From the very first step on, where torch's fused SGD would keep a momentum of nothing."""
    (ours, _), (others, _) = clipped(make), clipped(make)
    scaler, other = scaler("cpu"), torch.amp.GradScaler("cpu")
    for seed in range(good):
        scaled(ours, scaler, seed)
        scaled(others, other, seed)
    before = ours.state()
    scaled(ours, scaler, 7, bad=bad)
    assert ours.state() == before == others.state()
    assert scaler.get_scale() == 2.0**15
    scaled(ours, scaler, 8)
    scaled(others, other, 8)
    assert_near(ours, others)


@may_warn
@plain_and_fused
@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=str)
def test_drop_under_a_scaler(make, bad):
    """The scaler skips the step, so that nothing changes, torch's momentum of nothing included."""
    run, _ = clipped(make, nonfinite="drop")
    before = run.state()
    scaled(run, torch.amp.GradScaler("cpu"), 1, bad=bad)
    assert run.state() == before
