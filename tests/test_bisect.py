"""Bisection of layers names the planted culprits by the shortest set."""

import itertools

import pytest
import torch
from torch import nn

import safeops
from safeops.diagnose.bisection.bisect import bisect_autocast, bisect_layers
from tests import ranks
from tests.bisect_cases import LAYER_CASES, X, mlp, sgd, stepper


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("case", LAYER_CASES)
def test_layers_are_named(case, given):
    model, optimizer, culprits = case()
    step = stepper(model, optimizer, X)
    report = bisect_layers(model, step, optimizer=optimizer if given else None)
    assert (report.verdict, report.modules, report.smallest) == ("found", culprits, True)
    assert not report
    assert report.runs == len(report.trials)
    assert (tuple(culprits), True) in report.trials


class Product(nn.Module):
    """It overflows if both factors of a product have grown; one of them alone may."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(1, 1) for name in "abcd"})

    def forward(self, x):
        a, b, c, d = (layer(x) for layer in self.layers.values())
        return a * b + c * d


def test_either_of_two_factors():
    model = Product()
    groups = [{"params": m.parameters(), "lr": 1e25} for m in model.layers.values()]
    optimizer = torch.optim.SGD(groups)

    def step():
        model.zero_grad()
        a, b, c, d = (layer(X[:, :1]).mean() for layer in model.layers.values())
        (a + b + c + d).backward()
        optimizer.step()
        return model(X[:, :1]).sum()

    report = bisect_layers(model, step)
    assert report.verdict == "found"
    assert report.smallest
    assert report.modules in [[f"layers.{one}", f"layers.{two}"] for one in "ab" for two in "cd"]


def test_large_models_need_few_runs():
    model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(65)])
    for layer in model:
        nn.init.eye_(layer.weight)
    report = bisect_layers(model, stepper(model, sgd(model, ("20.", "50.")), X, 2))
    assert report.modules == ["20", "50"]
    assert report.smallest
    assert report.runs < 45  # of 65 layers


def test_filter_and_frozen_parameters():
    model = mlp()
    step = stepper(model, sgd(model, ("2", "8")), X)
    model[0].requires_grad_(False)
    report = bisect_layers(model, step, filter_fn=lambda module, name: name != "8")
    assert report.verdict == "frozen all, and still not finite"
    assert report.candidates == ["2", "4", "6"]
    assert "detect" in report.summary()


def test_finite_as_it_is_takes_one_run():
    model = mlp()
    report = bisect_layers(model, stepper(model, sgd(model, "none"), X))
    assert (report.verdict, report.modules, report.runs) == ("finite as it is", [], 1)
    assert report


def test_not_reproducible():
    model, calls = mlp(), itertools.count()

    def step():
        return torch.tensor([torch.nan, 1.0])[next(calls)]

    report = bisect_layers(model, step)
    assert (report.verdict, report.runs) == ("not reproducible", 2)
    assert "others" in report.summary()


def test_not_reproducible_at_the_end():
    planned = iter([torch.nan, torch.nan, 1.0, torch.nan])
    report = bisect_layers(nn.Linear(2, 2), lambda: next(planned))
    assert (report.verdict, report.modules, report.runs) == ("not reproducible", [], 4)


def test_trials_that_contradict_each_other_prove_nothing():
    """Of good sets some supersets are bad."""
    model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    good = ["01234567", "014567", "0167", "167", "67"]

    def step():
        before = [layer.bias.detach().clone() for layer in model]
        stepper(model, optimizer, X, 1)()
        pairs = zip(model, before, strict=True)
        frozen = "".join(str(i) for i, (m, b) in enumerate(pairs) if torch.equal(m.bias, b))
        return 1.0 if frozen in good else torch.nan

    report = bisect_layers(model, step)
    assert (report.verdict, report.modules) == ("found", ["6", "7"])
    assert not report.smallest
    assert "a smaller set is not ruled out" in report.summary()


def test_the_data_is_bad():
    model = mlp()
    report = bisect_layers(model, stepper(model, sgd(model, "none"), X * torch.nan))
    assert report.verdict == "frozen all, and still not finite"
    assert report.runs == 3


def test_masks_in_buffers_are_not_bad():
    model = mlp()
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    assert bisect_layers(model, stepper(model, sgd(model, "none"), X))
    step = stepper(model, sgd(model, "4"), X)
    assert bisect_layers(model, step).modules == ["4"]


def raising(error):
    def step(model, optimizer):
        def run():
            stepper(model, optimizer, X)()
            if not all(p.isfinite().all() for p in model.parameters()):
                raise error

        return run

    return step


def skipping(model, optimizer):
    def run():
        stepper(model, optimizer, X, 1)()
        model.zero_grad()
        (model(X).mean() * 1e30).square().backward()
        safeops.clip_grad_norm_(model, 1.0)

    return run


def torch_raises(model, optimizer):
    def run():
        loss = stepper(model, optimizer, X, 2)()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        model.zero_grad()
        return loss.detach().nan_to_num(0, 0, 0)

    return run


@pytest.mark.parametrize(
    "step",
    [
        raising(FloatingPointError("bad")),
        raising(safeops.NonFiniteGradientError("bad")),
        torch_raises,
    ],
)
def test_what_the_step_raises_may_be_the_verdict(step):
    model = mlp()
    assert bisect_layers(model, step(model, sgd(model, "4"))).modules == ["4"]


def test_gradients_that_are_skipped_are_bad():
    model = mlp()
    report = bisect_layers(model, skipping(model, sgd(model, "none")))
    assert not report


def test_under_a_gradient_scaler_with_accumulated_gradients():
    model = mlp()
    optimizer = sgd(model, "4", momentum=0.9, weight_decay=0.1)
    scaler = safeops.amp.GradScaler("cpu", init_scale=1024.0)
    model(X).sum().backward()

    def step():
        for _ in range(2):
            scaler.scale(model(X).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        return model(X).sum()

    report = bisect_layers(model, step, others=[scaler])
    assert report.modules == ["4"]
    assert scaler.get_scale() == 1024


@pytest.mark.parametrize("closure", [True, False])
def test_what_is_frozen_does_not_move(closure):
    """Momentum, weight decay and moments of before would move it."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)
    stepper(model, optimizer, X)()
    before, moved = model[2].weight.detach().clone(), []

    def gradients():
        optimizer.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        return loss

    def step():
        loss = optimizer.step(gradients) if closure else (gradients(), optimizer.step())[0]
        moved.append(not torch.equal(model[2].weight, before))
        return loss * torch.nan

    report = bisect_layers(model, step)
    assert moved == [True, True, False]
    assert report.verdict == "frozen all, and still not finite"


def check_agreement(rank, ranks):
    """Only one rank sees the overflow of its loss."""
    model = nn.parallel.DistributedDataParallel(mlp())
    step = stepper(model, sgd(model, "module.4"), X)
    report = bisect_layers(model, lambda: step() if rank else step().detach().nan_to_num(0, 0, 0))
    return report.modules, report.trials


def check_half_precision(rank, ranks):
    """Only the batch of one rank overflows."""
    inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    step = stepper(model, optimizer, X * 1e6 if rank else X, 1, 1e-3)
    report = bisect_autocast(model, step, dtype=torch.float16)
    assert report.modules == ["module.0"]
    return report.trials


@pytest.mark.slow
def test_several_ranks():
    ranks.run([check_agreement, check_half_precision], 2)
