"""Bisection of half precision gives the smallest set of modules that must leave it."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from safeops.diagnose.bisection.bisect import bisect_autocast, bisect_layers
from tests.bisect_cases import X, mlp, sgd, stepper


class Map(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Block(nn.Module):
    """Arithmetic around its layers."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        hidden = self.inner(x) + 300
        return self.outer(hidden * hidden / 1e5)


def half_net(*middle):
    return nn.Sequential(nn.Linear(6, 6), *middle, nn.LayerNorm(6), nn.Linear(6, 1))


def overflow_in_a_block():
    return half_net(Block()), ["1"]


def two_blocks():
    return half_net(Block(), nn.Tanh(), Block()), ["1", "3"]


def either_of_two():
    """The one whose result overflows is meant, not the one whose float32 result would spare it."""
    first, second = Map(lambda x: (x.clamp(0.5, 1) + 1) * 200), Map(lambda x: x * 400)
    return half_net(first, nn.Identity(), second), ["3"]


def a_long_sum():
    return half_net(Map(lambda x: (x + 200).repeat(1, 500).cumsum(-1)[:, -6:])), ["1"]


def exponential():
    return half_net(Map(lambda x: torch.exp(12 + 0 * x))), ["1"]


def sum_of_squares():
    return half_net(Map(lambda x: x / (1e4 + x).square().sum(-1, keepdim=True) * 1e8)), ["1"]


def a_linear_layer():
    model = half_net(nn.Tanh(), nn.Linear(6, 6))
    nn.init.constant_(model[2].bias, 1e5)
    return model, ["2"]


AUTOCAST_CASES = [
    overflow_in_a_block,
    two_blocks,
    either_of_two,
    a_long_sum,
    exponential,
    sum_of_squares,
    a_linear_layer,
]


@pytest.mark.parametrize("way", ["step", "dtype"])
@pytest.mark.parametrize("case", AUTOCAST_CASES)
def test_half_modules_are_named(case, way):
    model, culprits = case()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step():
        with torch.autocast("cpu", torch.float16, enabled=way == "step"):
            return stepper(model, optimizer, X, 1, 1e-3)()

    options = {"dtype": torch.float16} if way == "dtype" else {}
    report = bisect_autocast(model, step, **options)
    assert (report.verdict, report.modules, report.smallest) == ("found", culprits, True)
    assert "with torch.autocast('cpu', enabled=False)" in report.findings[0].remedy
    assert all("forward" not in vars(module) for module in model.modules())


class Casting(nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.mm(x, x.mT)


@pytest.mark.parametrize("bad", [0.0, float("nan")])
def test_steps_in_which_nothing_is_half_are_told(bad):
    model = half_net()
    report = bisect_autocast(model, lambda: model(X).sum() + bad)
    says = "nothing ran in half precision: pass dtype=torch.float16, or use autocast in the step"
    assert says == report.note == report.to_dict()["note"]
    assert says in report.summary()
    assert bool(report) == (bad == 0)


class Around(nn.Module):
    """A model with its own autocast, on or off, around what it calls."""

    def __init__(self, enabled):
        super().__init__()
        self.block, self.enabled = Map(lambda x: (x.clamp(-1, 1) @ EYE + 300).square()), enabled

    def forward(self, x):
        with torch.autocast("cpu", torch.float16, self.enabled):
            return self.block(x)


EYE = torch.eye(6)


def test_a_models_own_autocast_is_kept():
    on, off = Around(True), Around(False)
    report = bisect_autocast(on, lambda: on(X).sum())
    assert (report.verdict, report.modules, report.note) == ("found", ["block"], "")
    assert bisect_autocast(off, lambda: off(X).sum(), dtype=torch.float16)


def test_steps_in_which_something_is_half():
    model, half = half_net(), half_net().half()

    def cast():
        with torch.autocast("cpu", torch.bfloat16):
            return model(X).sum()

    casting = Casting()
    for given, step in (model, cast), (half, lambda: half(X.half())), (casting, lambda: casting(X)):
        assert bisect_autocast(given, step).note == ""
    assert bisect_autocast(model, lambda: model(X), dtype=torch.bfloat16).note == ""
    assert bisect_layers(model, lambda: model(X)).note == ""


@pytest.mark.parametrize("case", [overflow_in_a_block, two_blocks])
def test_half_weights(case):
    model, culprits = case()
    before = {name: value.clone() for name, value in model.half().state_dict().items()}
    step = stepper(model, torch.optim.SGD(model.parameters(), lr=1e-5), X.half(), 1, 1e-3)
    report = bisect_autocast(model, step)
    assert (report.modules, report.smallest) == (culprits, True)
    assert all(torch.equal(value, before[k]) for k, value in model.state_dict().items())


def test_results_that_half_weights_cannot_take():
    model = half_net(Map(lambda x: (x.clamp(-1, 1) + 2) * 4e4), Map(lambda x: x / 4e4)).half()
    step = stepper(model, torch.optim.SGD(model.parameters(), lr=1e-5), X.half(), 1, 1e-3)
    report = bisect_autocast(model, step)
    assert report.verdict == "all left half precision, and still not finite"


class RunningHalf(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 300.0))
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x):
        y = (x + 1) * self.scale
        self.seen += y.detach().mean(0)
        return y * y / 1e5


def test_buffers_of_half_modules_are_written():
    model = nn.Sequential(RunningHalf(), nn.Linear(6, 1)).half()
    seen = []

    def step():
        loss = model(X.half()).sum()
        loss.backward()
        seen.append(model[0].seen.clone())
        return loss

    assert bisect_autocast(model, step).modules == ["0"]
    assert (model[0].seen == 0).all()
    assert model[0].seen.dtype == seen[-1].dtype == torch.float16
    torch.testing.assert_close(seen[-1], seen[0], rtol=1e-3, atol=0)
    assert (seen[-1] != 0).all()


@pytest.mark.filterwarnings("ignore")
def test_compiled_models():
    calls = []

    def backend(graph, inputs):
        return lambda *args: [calls.append(0), graph(*args)][1]

    model = torch.compile(half_net(Block()), backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    model(X)
    assert calls.clear() is None
    assert bisect_autocast(model, in_half(model, optimizer)).modules == ["_orig_mod.1"]
    assert not calls
    model = torch.compile(mlp(), backend="aot_eager")
    step = stepper(model, sgd(model, "_orig_mod.4"), X)
    assert bisect_layers(model, step).modules == ["_orig_mod.4"]


def in_half(model, optimizer):
    def step():
        with torch.autocast("cpu", torch.float16):
            return stepper(model, optimizer, X, 1, 1e-3)()

    return step


class Checkpointed(nn.Module):
    def __init__(self, inner, scale, reentrant):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(6, 6), inner, nn.Linear(6, 1)
        self.scale, self.reentrant = scale, reentrant

    def forward(self, x):
        x = checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)
        return self.last(((x.clamp(-1, 1) + 2) * self.scale) ** 2 / self.scale**2)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(
    ("inner", "scale", "culprits"), [(Block, 1, ["inner"]), (lambda: nn.Linear(6, 6), 300, [""])]
)
def test_checkpointed_modules(reentrant, inner, scale, culprits):
    model = Checkpointed(inner(), scale, reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    report = bisect_autocast(model, in_half(model, optimizer))
    assert report.modules == culprits
    assert report.smallest
