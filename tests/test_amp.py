"""GradScaler against torch.amp.GradScaler, step by step."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from safeops.amp import GradScaler
from tests.gradient_samples import bits, draw
from tests.optimizers import (
    MAKERS,
    Run,
    assert_near,
    each_optimizer,
    one_thread,  # noqa: F401
    plain_and_fused,
)

pytestmark = pytest.mark.filterwarnings("ignore::safeops.NonFiniteGradientWarning")

LARGE = 100.0  # gradients of this size have norms in which torch's 1e-6 does not show


class Scaled(Run):
    """A run under a scaler."""

    def __init__(self, make, scaler, dtype=torch.float32):
        super().__init__(make, dtype)
        self.scaler = scaler

    def step(self, unscale=False, max_norm=None, p=2.0):
        """max_norm, p: torch's clip between the two."""
        if unscale or max_norm is not None:
            self.scaler.unscale_(self.optimizer)
        if max_norm is not None:
            self.clipped = torch.nn.utils.clip_grad_norm_(self.params, max_norm, p).item()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def iterate(self, seed, size=1.0, bad=None, **options):
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss(seed, size, bad)).backward()
        self.step(**options)


def pair(make, dtype=torch.float32, ours=(), **options):
    """Runs under our scaler and under torch's; ours: what only ours knows."""
    scalers = GradScaler("cpu", **dict(ours), **options), torch.amp.GradScaler("cpu", **options)
    return [Scaled(make, scaler, dtype) for scaler in scalers]


# --- without a clip ------------------------------------------------------------------------------


@each_optimizer
@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscale_"])
def test_the_same_bits(route, make, unscale):
    """At 2**127 gradients overflow, at 2**126 they do not: the scale goes up and down."""
    ours, theirs = pair(make, init_scale=2.0**126, growth_interval=2)
    scales = []
    for seed in range(7):
        for run in (ours, theirs):
            run.iterate(seed, unscale=unscale)
        assert ours.state() == theirs.state()
        assert ours.scaler.state_dict() == theirs.scaler.state_dict()
        scales.append(math.log2(ours.scaler.get_scale()))
    assert scales == [126, 127, 126, 126, 127, 126, 126]


@each_optimizer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_scale_that_is_no_power_of_two(make, dtype):
    """The quotient is rounded, of float64 gradients too."""
    ours, theirs = pair(make, dtype, init_scale=1000.0)
    for seed in range(3):
        ours.iterate(seed)
        theirs.iterate(seed)
        assert_near(ours, theirs, 2)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_autocast(fused):
    """A model in float16, whose gradients overflow at the first scales."""
    data = draw(8, 5), draw(8, 1, seed=1)
    results = []
    for scaler in (GradScaler, torch.amp.GradScaler):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), 0.01, fused=fused)
        results.append(list(train(model, optimizer, scaler("cpu", 2.0**22), *data)))
    assert results[0] == results[1]
    assert len({scale for scale, _ in results[0]}) > 2


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 1))


def train(model, optimizer, scaler, x, y):
    """The scale and the weights after each iteration."""
    for _ in range(12):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (model(x).float() - y).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield scaler.get_scale(), [bits(p) for p in model.parameters()]


@plain_and_fused
def test_two_optimizers(make):
    """One of them overflows: only the other steps, and the scale is lowered for both."""
    for bad in (math.inf, math.nan):
        seen = []
        for scaler in (GradScaler("cpu"), torch.amp.GradScaler("cpu")):
            first, second = Scaled(make, scaler), Scaled(make, scaler)
            for seed in range(3):
                together(scaler, first, second, seed, bad if seed == 1 else None)
            seen.append((first.state(), second.state(), scaler.state_dict()))
        assert seen[0] == seen[1]
        assert seen[0][2]["scale"] == 2.0**15


def together(scaler, first, second, seed, bad):
    for run, number in ((first, None), (second, bad)):
        run.optimizer.zero_grad()
        scaler.scale(run.loss(seed, 1.0, number)).backward()
    for run in (first, second):
        scaler.step(run.optimizer)
    scaler.update()


def test_several_outputs():
    """Whatever torch takes, nested or not, it gives back in the same form."""
    ours, theirs = GradScaler("cpu"), torch.amp.GradScaler("cpu")
    one, two = torch.tensor(1.5), torch.tensor([2.0, math.nan])
    for outputs in (one, [one, two], (one, [two]), (one,)):
        mine, other = ours.scale(outputs), theirs.scale(outputs)
        assert type(mine) is type(other)
        assert repr(mine) == repr(other)
    assert [t.item() for t in ours.scale(t for t in (one, one))] == [1.5 * 2**16] * 2


def test_new_scale():
    run = pair(MAKERS["SGD"])[0]
    run.iterate(1)
    run.scaler.update(8.0)
    assert run.scaler.get_scale() == 8
    run.scaler.update(torch.tensor(16.0))
    assert run.scaler.get_scale() == 16


# --- state ---------------------------------------------------------------------------------------


def test_is_torchs():
    scaler = GradScaler("cpu", 8.0, 3.0, 0.25, 5)
    assert isinstance(scaler, torch.amp.GradScaler)
    assert scaler.is_enabled()
    assert scaler.get_scale() == 8
    assert scaler.state_dict() == torch.amp.GradScaler("cpu", 8.0, 3.0, 0.25, 5).state_dict()


@pytest.mark.parametrize("started", [False, True])
def test_state_dict(started):
    """Each loads the other's."""
    given = pair(MAKERS["SGD"], growth_interval=3)
    others = pair(MAKERS["SGD"], init_scale=2.0)
    for run in [*given, *(others if started else [])]:
        for bad in (None, math.inf, None):
            run.iterate(1, bad=bad)
    for run, other in zip(given, reversed(others), strict=True):
        other.scaler.load_state_dict(run.scaler.state_dict())
    for run in [*given, *others]:
        run.iterate(4)
        run.iterate(5)
    states = [run.scaler.state_dict() for run in [*given, *others]]
    assert states == [states[0] | {"scale": 2.0**16}] * 4


@pytest.mark.parametrize("again", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_pickle(again, steps):
    """Between iterations, also after a bad one."""
    run = pair(MAKERS["SGD"], ours={"max_norm": 1.0})[0]
    for bad in (None, math.inf)[:steps]:
        run.iterate(1, LARGE, bad)
    twin = again(run.scaler)
    assert twin.state_dict() == run.scaler.state_dict()
    assert (twin.verdict, twin.bad_in_a_row) == (run.scaler.verdict, run.scaler.bad_in_a_row)
    run.scaler = twin
    run.iterate(2, LARGE)
    assert run.scaler.total_norm > 100


@pytest.mark.parametrize("again", [lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy])
def test_pickle_of_a_scaler_that_has_scaled(route, again):
    """torch's can be saved until a step."""
    scaler = GradScaler("cpu")
    scaler.scale(torch.tensor([1.0, math.nan]))
    assert again(scaler).state_dict() == scaler.state_dict()
