"""Odd tensors and odd callers: an answer or a clear error, and nothing changed by half."""

import math

import pytest
import torch
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import safeops
from safeops import GradNormClipper
from tests.gradient_samples import parameters


def clipped(x):
    y = x * 2
    safeops.finite_clip_([y], -1.0, 1.0)
    return y


def test_tensors_without_memory(route):
    assert safeops.check_finite(torch._efficientzerotensor(3))[0].zeros == 3
    assert functionalize(clipped)(torch.tensor([5.0, 0.1])).tolist() == pytest.approx([1.0, 0.2])


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace", "ignore::torch.jit.TracerWarning")
def test_tracers_see_a_clip(route):
    x = torch.tensor([5.0, 0.1])
    expected = clipped(x)
    assert torch.equal(make_fx(clipped)(x)(x), expected)
    assert torch.equal(torch.jit.trace(clipped, (x,), check_trace=False)(x), expected)


def test_total_of_a_strided_gradient(route):
    gradient = torch.zeros(8, 8)[::2, ::2]
    gradient += 2
    gradient[0, 0] = 0
    report = safeops.clip_report(parameters(gradient), 1.0)
    assert (report.total.largest, report.total.zeros, report.total.numel) == (2.0, 1, 16)
    assert report.total[3:] == report[0][3:]


@pytest.mark.parametrize("policy", ["skip", "drop"])
@pytest.mark.parametrize("kind", ["expanded", "uncoalesced"])
def test_one_gradient_of_two_parameters(route, kind, policy):
    """Written elsewhere, it is the other's too."""
    gradient = torch.tensor(3.0).expand(4)
    if kind == "uncoalesced":
        gradient = torch.sparse_coo_tensor(
            [[0, 0, 1]], [1.0, 2.0, 4.0], (3,), check_invariants=True
        )
    first, second = parameters(gradient, gradient)
    norm = safeops.clip_grad_norm_([first, second], 1.0, nonfinite=policy)
    assert first.grad is second.grad
    assert norm.item() == pytest.approx(6.0 if kind == "expanded" else 5.0)
    values = first.grad.coalesce().values() if kind == "uncoalesced" else first.grad
    assert values.norm().item() == pytest.approx(1.0)


def test_callers_without_a_name():
    (parameter,) = parameters(torch.tensor([math.nan]))
    with pytest.warns(safeops.NonFiniteGradientWarning):
        exec("safeops.clip_grad_norm_([p], 1.0)", {"safeops": safeops, "p": parameter})
    assert parameter.grad is None


def test_an_error_in_the_step_leaves_the_optimizer_clean():
    """torch's scaler would take its own numbers for the user's at the next step."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0, fused=True)
    clipper = GradNormClipper(optimizer, 1e9, nonfinite="raise")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale((weight * torch.tensor([math.inf, 40.0])).sum()).backward()
    with pytest.raises(safeops.NonFiniteGradientError):
        scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    scaler.scale((weight * torch.tensor([1.0, 40.0])).sum()).backward()
    scaler.step(optimizer)
    assert weight.tolist() == [-1.0, -40.0]
    assert clipper.total_norm.item() == pytest.approx(math.hypot(1, 40))


ODD = {
    "sparse": lambda: torch.tensor([0.0, 5.0], dtype=torch.float64).to_sparse(),
    "expanded": lambda: torch.ones(1, dtype=torch.float64).expand(4),
    "float8": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "integer": lambda: torch.ones(2, dtype=torch.int64),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_tensor_that_cannot_be_clipped(route, kind):
    good = torch.tensor([5.0])
    with pytest.raises(TypeError, match=r"expected (dense|float64)"):
        safeops.finite_clip_([good, ODD[kind]()], -1.0, 1.0)
    assert good.item() == 5.0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_refused(route, layout):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with pytest.raises(TypeError, match=r"nested one: pass its values\(\)"):
        safeops.check_finite(nested)


@pytest.mark.parametrize("bad", [1.0, math.nan])
def test_wrapper_subclasses(route, bad):
    gradient = TwoTensor(torch.tensor([3.0, 4.0 * bad]), torch.tensor([3.0, 4.0 * bad]))
    (parameter,) = parameters(gradient)
    report = safeops.clip_report([parameter], 1.0, nonfinite="keep")
    assert report[0].nan == math.isnan(bad)
    assert math.isnan(report.total_norm.item()) == math.isnan(bad)


def test_losses_in_any_iterable():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = safeops.amp.GradScaler("cpu", init_scale=4.0)
    for loss in scaler.scale(iter([(weight * math.inf).sum()])):
        loss.backward()
    scaler.step(optimizer)
    with pytest.warns(safeops.NonFiniteGradientWarning, match="the loss was not finite"):
        scaler.update(0.25)
    assert (scaler.verdict, scaler.get_scale()) == ("nan", 0.25)
