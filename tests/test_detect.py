"""detect: what is told, where it is, and of what it is told."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from safeops.diagnose import CAUSES, detect
from tests import detected
from tests.detected import Block, Deep, below, flat, found_in, huge, step

FAULTS = (
    (below, "log", "forward", "log of a non-positive number"),
    (flat, "SqrtBackward0", "backward", "infinite slope"),
    (huge, "mul", "forward", "overflow"),
)
MODES = ("plain", "compiled", "reentrant", "not reentrant")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("act", "op", "direction", "cause"), FAULTS)
def test_tells_operation_module_line_and_cause(mode, act, op, direction, cause):
    model = Deep(act, keep=mode if "reentrant" in mode else False)
    if mode == "compiled":
        model = torch.compile(model, backend="eager")
    x = torch.ones(2, 4, requires_grad=mode == "reentrant")
    first = found_in(model, x).first
    assert (first.op, first.direction, first.cause) == (op, direction, cause)
    assert first.module == "blocks.1.1"
    assert first.source.file == detected.__file__
    assert first.source.text in {"return (0 * x).sqrt()", "return torch.log(-(x * x) - 1)"} | {
        "return (x + 20) * 1e30 * 1e30"
    }
    assert first.cause in CAUSES


def test_inputs_counts_and_index():
    model = Block(lambda x: torch.tensor([[1.0, 2.0], [3.0, 0.0]]) / torch.tensor([[1.0, 0.0]]))
    with detect(model) as found:
        model(torch.ones(1, 4))
    first = found.first
    assert first.counts == (0, 1, 0, 4) or first.counts == (1, 1, 0, 4)
    assert (first.counts.nan, first.counts.posinf, first.index) == (1, 1, (0, 1))
    numerator, denominator = first.inputs
    assert (denominator.name, denominator.shape, denominator.zeros) == ("other", (1, 2), 1)
    assert (numerator.min, numerator.max, numerator.zeros, numerator.nan) == (0.0, 3.0, 1, 0)


def test_what_hands_on_is_not_told():
    found = found_in(Deep(below))
    assert [finding.op for finding in found.findings] == ["log"]


def test_a_parameter_is_named_where_it_goes_in():
    model = nn.Linear(4, 2)
    found = found_in(model)
    assert found.first is None
    with torch.no_grad():
        model.weight[0, 1] = math.inf
    first = found_in(model).first
    assert (first.cause, first.parameter, first.direction) == ("bad weight", "weight", "forward")
    assert any(one.name.endswith("= weight") and one.posinf == 1 for one in first.inputs)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_batch_is_told_once_a_step_where_it_is_used(value):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4)
    x[1, 2] = value
    found = found_in(model, x.clone().t().contiguous().t())
    assert [f.cause for f in found.findings] == ["bad input"]
    assert (found.first.op, found.first.module) == ("addmm", "0")


def test_an_operation_in_place_is_told_of_what_was_there():
    model = Block(lambda x: (x * 0).log_())
    first = found_in(model).first
    assert (first.op, first.cause) == ("log_", "log of a non-positive number")
    assert first.inputs[0].zeros == 8


def test_what_is_overwritten_is_forgotten():
    model, buffer = Block(torch.tanh), torch.full((2, 4), math.nan)

    def act(x):
        buffer.copy_(x.detach())
        return (x + buffer).tanh()

    model.act = act
    assert found_in(model)


def test_a_view_is_no_operation():
    x = torch.tensor([2.0, 0, 0, 0])
    model = Block(lambda h: torch.log(x).view(2, 2).t()[0].expand(4, 2) + h[:1, :2])
    assert [f.op for f in found_in(model).findings] == ["log"]


def test_uninitialised_memory_is_not_judged():
    def act(x):
        memory = torch.empty(2, 4)
        memory.view(torch.int32).fill_(-1)  # all bits: a NaN
        memory.copy_(x)
        return memory

    assert found_in(Block(act))


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum()

    @staticmethod
    def backward(ctx, grad):
        return (grad / 0).expand(2, 4)


def test_a_function_of_the_users_own():
    first = found_in(Block(Sum.apply)).first
    assert (first.op, first.direction) == ("SumBackward", "backward")
    assert first.source.text == "return x.sum()"


def test_a_gradient_that_a_hook_breaks():
    def act(x):
        x.register_hook(lambda grad: grad * math.inf)
        return x.tanh()

    first = found_in(Block(act)).first
    assert (first.direction, first.cause) == ("backward", "bad gradient")
    assert first.op == "AddmmBackward0"


def test_gradients_that_overflow_as_they_are_summed():
    def act(x):
        wide = x.to(torch.float16)
        return (wide * 60000).sum() + (wide * 60000).sum()

    with torch.no_grad():
        model = Block(act)
        model.lin.weight.fill_(0)
        model.lin.bias.fill_(0)
    first = found_in(model).first
    assert (first.direction, first.cause) == ("backward", "overflow in half precision")


def test_accumulation_that_overflows():
    model = nn.Linear(4, 2, bias=False).half()
    with detect(model) as found:
        for _ in range(3):
            model(torch.full((1, 4), 30000.0).half()).mul(0.8).sum().float().backward()
    assert (found.first.op, found.first.parameter) == ("AccumulateGrad", "weight")


def test_exploding_gradients():
    model = Block(lambda x: x.mul(1e-30).mul(1e30))
    with detect(model) as found:
        (model(torch.ones(2, 4)) * 1e20).sum().backward()
    first = found.first
    assert (first.op, first.direction) == ("MulBackward0", "backward")
    assert first.cause == "exploding gradient"
    assert first.source.text == "(model(torch.ones(2, 4)) * 1e20).sum().backward()" or "mul" in (
        first.source.text
    )


OPTIMIZERS = (
    (torch.optim.SGD, {"lr": 1e30}),
    (torch.optim.Adam, {}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.Adam, {"fused": True}),
)


@pytest.mark.parametrize(("make", "options"), OPTIMIZERS)
def test_an_optimizer(make, options):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1, bias=False))
    optimizer = make(model[1].parameters(), **options)
    with detect(model) as found:
        step(model, 1e25 * torch.ones(8, 4), optimizer)
    first = found.first
    assert (first.direction, first.module, first.parameter) == ("optimizer", "1", "1.weight")
    assert first.source.text == "optimizer.step()"


def test_adam_without_eps_divides_by_zero():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), eps=0.0, foreach=False)
    with detect(model) as found:
        step(model, torch.zeros(1, 4), optimizer)
    assert (found.first.direction, found.first.cause) == ("optimizer", "division by zero")
    assert found.first.parameter == "weight"


def test_a_closure_is_forward_and_backward():
    model = Block(flat)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        return loss

    with detect(model) as found:
        optimizer.step(closure)
    assert (found.first.op, found.first.direction) == ("SqrtBackward0", "backward")


def test_second_derivatives():
    model = Block(lambda x: (x * 0) ** 1.5)
    with detect(model) as found:
        y = model(torch.ones(2, 4))
        (slope,) = torch.autograd.grad(y.sum(), model.lin.weight, create_graph=True)
        slope.sum().backward()
    assert (found.first.direction, found.first.cause) == ("backward", "infinite slope")
    assert found.first.module == ""


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("act", [lambda x: below(x).detach(), torch.sqrt])
def test_finds_what_anomaly_mode_misses(act):
    """A NaN of a forward, and an infinite gradient."""
    model = Block(act)
    with torch.no_grad():
        model.lin.weight.zero_()
        model.lin.bias.zero_()
    with torch.autograd.detect_anomaly(), detect(model) as found:
        loss = model(torch.ones(2, 4)).sum()
        if loss.requires_grad:
            loss.backward()
    assert found.first


def test_autocast():
    model = Block(lambda x: (x * 0 + 300) @ torch.full((4, 4), 300.0))
    with detect(model) as found, torch.autocast("cpu", torch.float16):
        model(torch.ones(2, 4))
    assert (found.first.op, found.first.cause) == ("mm", "overflow in half precision")


def test_steps_are_counted():
    model = nn.Linear(4, 1)
    with detect(model) as found:
        for number in range(5):
            loss = model(torch.ones(2, 4)).sum()
            (loss * 0).sqrt().backward() if number == 3 else loss.backward()
    assert found.first.step == 3


@pytest.mark.parametrize(("kinds", "ops"), [("nan", ["mul"]), ("inf", ["log"])])
def test_kinds(kinds, ops):
    model = Block(lambda x: (x * 0).log() * 0)
    with detect(model, kinds=kinds) as found:
        model(torch.ones(2, 4))
    assert [finding.op for finding in found.findings] == ops


def test_allow():
    model = Block(lambda x: x[:0].mean())
    with detect(model, allow=["mean"]) as found:
        model(torch.ones(2, 4))
    assert found


def test_function_transforms():
    model = Block(flat)
    parameters = dict(model.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(model, parameters, torch.ones(2, 4)).sum()

    with detect(model) as found:
        torch.func.grad(loss)(parameters)
    assert found.first.direction == "backward"


def test_an_evaluation_without_gradients():
    """An infinity of the loss, and one that nothing is made of."""
    model = nn.Softmax(-1)
    with detect(model) as found, torch.no_grad():
        p = model(torch.tensor([[0.0, 200.0]]))
        p.log()
        assert found
        p.log().mean()
        torch.rand(3).sub(2).log_()
    assert [finding.op for finding in found.findings] == ["log", "log_"]


def test_a_step_by_hand():
    model = nn.Linear(4, 1, bias=False)
    with detect(model) as found:
        (model(torch.ones(2, 4)) * 1e15).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e30 * parameter.grad
    first = found.first
    assert (first.op, first.direction, first.parameter) == ("mul", "optimizer", "weight")


def test_a_constant_and_a_message():
    first = found_in(Block(lambda x: x * math.nan)).first
    assert first.cause == "constant that is not finite"


def test_gradients_of_the_loss_itself():
    model = nn.Linear(4, 3)
    with detect(model) as found:
        F.nll_loss(model(torch.ones(2, 4)), torch.full((2,), -100)).backward()
    assert found.first.cause == "empty selection"
    assert found.first.module == "(outside the model)"


def test_uninitialised_memory():
    def act(x):
        memory = torch.empty(2, 4)
        memory.view(torch.int32).fill_(-1)  # all bits: a NaN
        return x + memory

    first = found_in(Block(act)).first
    assert (first.op, first.cause) == ("add", "uninitialised memory")
