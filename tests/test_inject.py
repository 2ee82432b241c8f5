"""Injected faults: the value, place and step that were asked for, once, and nothing else."""

import math

import pytest
import torch
from torch import nn

from safeops.diagnose.injection.inject import inject
from tests.inject_cases import X, net

VALUES = {"nan": math.nan, "inf": math.inf, "huge": torch.finfo(torch.float32).max}


def is_value(number, what):
    wanted = VALUES[what]
    return number == wanted or (math.isnan(wanted) and math.isnan(number))


@pytest.mark.parametrize("what", VALUES)
def test_forward_replaces_one_element_and_its_gradient_alone(what):
    model, seen = net(), []
    model[1].register_forward_hook(lambda module, args, output: seen.append(output))
    inner = net()[:2]
    with inject(model, "1", 0, what) as fault:
        model(X)
    assert fault.fired == 0
    expected = inner(X)
    assert is_value(seen[0].flatten()[0].item(), what)
    assert torch.equal(seen[0].flatten()[1:], expected.flatten()[1:])
    weight = torch.randn(4, 5)
    weight[0, 0] = 0  # the constant has no gradient
    grads = torch.autograd.grad((expected * weight).sum(), list(inner.parameters()))
    weight[0, 0] = 3.0
    ours = torch.autograd.grad(seen[0], [*model[0].parameters()], weight)
    for a, b in zip(ours, grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("what", VALUES)
def test_backward_replaces_one_element_of_the_outputs_gradient(what):
    model, seen = net(), []
    with inject(model, "1", 0, what, "backward") as fault:
        hidden = model[0](X)
        hidden.register_hook(seen.append)
        model[0].forward, kept = (lambda x: hidden), model[0].forward
        model(X).sum().backward()
        model[0].forward = kept
    assert fault.fired == 0
    tanh = net()[:2](X)
    upstream = net()[2].weight.sum(0).expand(4, 5).clone()
    upstream[0, 0] = VALUES[what]
    expected = upstream * (1 - tanh * tanh)
    torch.testing.assert_close(seen[0], expected, equal_nan=True)


@pytest.mark.parametrize("at", ["2", "2.weight"])
@pytest.mark.parametrize("what", VALUES)
def test_weight_is_written_and_stays(what, at):
    model, before = net(), net().state_dict()
    with inject(model, at, 1, what, "weight") as fault:
        model(X)
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        model(X)
    assert fault.fired == 1
    weight = model[2].weight.detach()
    assert is_value(weight[0, 0].item(), what)
    weight[0, 0] = before["2.weight"][0, 0]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_weight_may_be_needed_by_a_backward_that_is_still_to_come():
    model = net()
    with inject(model, "2", 1, "huge", "weight"):
        (model(X) + model(X)).sum().backward()


def trained(model, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("given", [True, False])
def test_optimizer_state(given):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    options = {"optimizer": optimizer} if given else {}
    with inject(model, "2", 2, "nan", "optimizer", **options) as fault:
        trained(model, optimizer, 2)
        assert fault.fired is None
        trained(model, optimizer, 1)
    assert fault.fired == 2
    assert optimizer.state[model[2].weight]["exp_avg"].isnan().nonzero().tolist() == [[0, 0]]
    assert model[2].weight.isnan().nonzero().tolist() == [[0, 0]]
    assert optimizer.state[model[2].weight]["exp_avg_sq"].isfinite().all()


def test_optimizer_without_state_has_a_bad_gradient():
    model = net()
    with inject(model, "0.bias", 0, "inf", "optimizer") as fault:
        trained(model, torch.optim.SGD(model.parameters(), lr=0.1), 1)
    assert fault.fired == 0
    assert model[0].bias.grad.isinf().tolist() == [True, False, False, False, False]


def test_optimizers_of_other_parameters_are_not_counted():
    model = net()
    first, second = (torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2))
    with inject(model, "2", 1, where="optimizer") as fault:
        for _ in range(2):
            assert fault.fired is None
            model(X).sum().backward()
            first.step()
            second.step()
    assert fault.fired == 1
    with pytest.raises(ValueError, match="an optimizer of the parameter at '2', got a SGD"):
        inject(model, "2", where="optimizer", optimizer=first)


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, ids, extra):
        return {"ids": ids, "out": (self.inner(extra["x"]),)}


def test_batch_is_copied_and_outputs_are_nested():
    model, x = Keywords(), X.clone()
    with inject(model, where="batch") as fault:
        out = model(torch.ones(2, dtype=torch.int64), extra={"x": x, "y": X})["out"][0]
    assert fault.fired == 0
    assert torch.equal(x, X)
    assert out.isnan().any(1).tolist() == [True, False, False, False]
    with inject(model, what="inf"):
        out = model(torch.ones(2, dtype=torch.int64), extra={"x": x})
    assert out["out"][0].isinf().nonzero().tolist() == [[0, 0]]


def test_steps_are_forwards_in_training_mode():
    model = net()
    with inject(model, "0", step=1) as fault:
        bad = []
        for training in (True, False, False, True, False, True):
            model.train(training)
            bad.append(not model(X).isfinite().all().item())
    assert bad == [False, False, False, True, False, False]
    assert fault.fired == 1


def test_repr_says_what_was_seen():
    model = net()
    fault = inject(model, "0", step=1)
    model.eval()
    model(X)
    waiting = "<Injection: nan, waiting for step 1; 0 forwards in training mode seen"
    assert repr(fault) == f"{waiting}, 1 in eval mode not counted>"
    model.train()
    model(X)
    model(X)
    assert "fired at step 1; 2 forwards in training mode seen" in repr(fault)
    fault.remove()
    assert "fired at step 1, removed; 2 forwards" in repr(fault)
    with inject(model, "0", step=5) as early:
        model(X)
    assert "removed before step 5; 1 forwards" in repr(early)
    with inject(model, "0", step=5, where="optimizer") as late:
        trained(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert "2 optimizer steps seen>" in repr(late)


def test_a_module_that_is_called_twice_has_it_once():
    relu = nn.Identity()
    model = nn.Sequential(nn.Linear(3, 3), relu, nn.Linear(3, 3), relu)
    seen = []
    relu.register_forward_hook(lambda module, args, output: seen.append(output.isnan().sum()))
    with inject(model, "3"):
        model(X)
    assert seen == [1, 4 - 1]  # the first call, and the row that it spoiled


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_huge_is_the_largest_of_the_dtype(dtype):
    model = nn.Identity()
    with inject(model, what="huge"):
        out = model(torch.zeros(2, dtype=dtype))
    assert out.tolist() == [torch.finfo(dtype).max, 0]


def test_autocast():
    model, seen = net(), []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output))
    with inject(model, "0", what="huge"), torch.autocast("cpu", torch.bfloat16):
        model(X)
    assert (seen[0].dtype, seen[0][0, 0].item()) == (torch.bfloat16, torch.finfo(seen[0].dtype).max)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"at": "encoder.layer.0"}, ValueError, "did you mean 'encoder.layers.0'"),
        ({"at": "layers.0"}, ValueError, "did you mean 'encoder.layers.0'"),
        ({"at": "qqq"}, ValueError, r"got 'qqq': see model.named_modules\(\)"),
        ({"at": "encoder.layers.0.linear1.weight"}, ValueError, "path of a module of the model"),
        ({"at": "encoder.layers.0.linear1.wight", "where": "weight"}, ValueError, "linear1.weight"),
        ({"at": "encoder.layers.0.dropout", "where": "weight"}, ValueError, "floating parameters"),
        ({"step": -1}, ValueError, "step >= 0, got -1"),
        ({"step": 1.0}, TypeError, "whole number for step, got float"),
        ({"what": "zero"}, ValueError, "what to be one of nan, inf, huge, got 'zero'"),
        (
            {"optimizer": nn.Linear(1, 1), "where": "optimizer"},
            TypeError,
            "optimizer .* got Linear",
        ),
        ({"where": "loss"}, ValueError, "where to be one of forward, .* got 'loss'"),
    ],
)
def test_bad_arguments(arguments, error, text):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.ModuleDict({"encoder": nn.TransformerEncoder(layer, 2)})
    with pytest.raises(error, match=text):
        inject(model, **arguments)
    assert not model._forward_pre_hooks


def test_what_is_no_module_or_has_no_tensor():
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got dict"):
        inject({})
    model = nn.Embedding(3, 2)
    with inject(model, where="batch"), pytest.raises(ValueError, match="in the arguments of the"):
        model(torch.tensor([1]))
    with inject(model) as fault, pytest.raises(ValueError, match="got Tensor: inject elsewhere"):
        model(torch.empty(0, dtype=torch.int64))
    assert fault.fired is None
