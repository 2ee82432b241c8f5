"""Injected faults: the value, place and step that were asked for, once, and nothing else."""

import copy
import math
import pickle
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import safeops
from safeops.diagnose.inject import inject
from tests import ranks

X = torch.arange(12.0).view(4, 3) / 12 + 0.1
VALUES = {"nan": math.nan, "inf": math.inf, "huge": torch.finfo(torch.float32).max}


def is_value(number, what):
    wanted = VALUES[what]
    return number == wanted or (math.isnan(wanted) and math.isnan(number))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def same(a, b):
    return torch.equal(a.nan_to_num(7), b.nan_to_num(7))


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


# --- computed again ------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """One module in two segments."""

    def __init__(self, reentrant):
        super().__init__()
        self.first, self.second, self.shared = nn.Linear(3, 3), nn.Linear(3, 3), nn.Tanh()
        self.reentrant = reentrant

    def forward(self, x):
        x = checkpoint(lambda x: self.shared(self.first(x)) ** 2, x, use_reentrant=self.reentrant)
        return checkpoint(
            lambda x: self.shared(self.second(x)) ** 2, x, use_reentrant=self.reentrant
        )


def gradient_of(model, where, call, what="huge"):
    torch.manual_seed(0)
    for layer in (model.first, model.second):
        layer.reset_parameters()
    x = X.clone().requires_grad_()
    with inject(model, "shared", 0, what, where) as fault:
        call(model, x).sum().backward()
    assert fault.fired == 0
    return [x.grad, model.first.weight.grad, model.second.weight.grad]


class Plain(Checkpointed):
    def forward(self, x):
        return self.shared(self.second(self.shared(self.first(x)) ** 2)) ** 2


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("what", ["nan", "inf"])
def test_recomputed_modules_give_the_same_again(reentrant, what):
    model = Checkpointed(reentrant)
    expected = gradient_of(Plain(reentrant), "forward", Plain.__call__, what)
    assert not expected[2].isfinite().all()
    ours = gradient_of(model, "forward", Checkpointed.__call__, what)
    assert all(same(*pair) for pair in zip(ours, expected, strict=True))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("where", ["batch", "weight"])
def test_a_model_that_is_checkpointed_as_a_whole(reentrant, where):
    def grads(call):
        model, x = net(), X.clone().requires_grad_()
        with inject(model, "0", 0, "huge", where) as fault:
            call(model, x).sum().backward()
            assert fault._seen == 0
        return [p.grad for p in model.parameters()]

    ours = grads(lambda model, x: checkpoint(model, x, use_reentrant=reentrant))
    assert all(same(*pair) for pair in zip(ours, grads(nn.Module.__call__), strict=True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_backward_of_checkpointed_modules(reentrant):
    ours = gradient_of(Checkpointed(reentrant), "backward", Checkpointed.__call__, "inf")
    assert not ours[0][0].isfinite().all()
    assert ours[0][1:].isfinite().all()


def test_second_backward_has_no_fault():
    model = net()
    with inject(model, "1", where="backward"):
        loss = model(X).sum()
        loss.backward(retain_graph=True)
        assert not model[0].weight.grad.isfinite().all()
        model.zero_grad()
        loss.backward()
        assert model[0].weight.grad.isfinite().all()


# --- company -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["forward", "backward", "weight", "batch"])
@pytest.mark.parametrize("in_place", [True, False])
def test_compiled_models(where, in_place):
    model = net()
    if in_place:
        model.compile(backend="eager")
        compiled, path = model, "0"
    else:
        compiled, path = torch.compile(model, backend="eager"), "_orig_mod.0"
    compiled(X).sum().backward()
    model.zero_grad()
    with inject(compiled, path, 1, "nan", where) as fault:
        for step in range(2):
            assert model[0].weight.grad is None or model[0].weight.grad.isfinite().all()
            assert fault.fired is None
            compiled(X).sum().backward()
            assert step == 1 or fault.fired is None
    assert fault.fired == 1
    assert not all(p.grad.isfinite().all() for p in model.parameters())
    assert torch._dynamo.eval_frame._stance.stance == "default"


def check_one_rank(rank, ranks):
    model, last = nn.parallel.DistributedDataParallel(net()), ranks - 1
    with inject(model, "module.0", 0, rank=last) as fault:
        out = model(X)
    assert fault.fired == (0 if rank == last else None)
    assert out.isfinite().all().item() == (rank != last)
    with inject(model, rank=ranks):
        assert model(X).isfinite().all()
    with inject(model, "module.2", where="backward"):
        model(X).sum().backward()
    assert not model.module[2].weight.grad.isfinite().all()
    return model.module[2].bias.grad.isfinite().tolist()


def test_one_rank(tmp_path):
    dist.init_process_group("gloo", (tmp_path / "store").as_uri(), rank=0, world_size=1)
    try:
        check_one_rank(0, 1)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_several_ranks():
    ranks.run([check_one_rank], 2)


def test_copies_and_pickles_are_whole_and_without_the_fault():
    model = net()
    with inject(model, "1"), inject(model, "1", what="inf", where="backward"):
        both = copy.deepcopy(model), pickle.loads(pickle.dumps(model.train()[1]))
        expected = net()(X)
        with torch.no_grad():
            both[0][0].weight.zero_()
        assert not torch.equal(both[0](X), expected)
        assert both[0](X).isfinite().all()
        assert both[1](X).isfinite().all()
        assert not model(X).isfinite().all()


def test_swapped_models():
    model = nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1))
    with inject(model, "0") as fault:
        safeops.swap_(model)
        assert not model(X).isfinite().all()
    assert fault.fired == 0
    assert model(X).isfinite().all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_removed_in_any_order_nothing_is_left(order):
    model = net()
    model[1].forward = own = torch.sin
    wheres = ("forward", "backward")
    faults = [inject(model, at, 0, where=where) for at in ("1", "2") for where in wheres]
    for place in order:
        faults[place].remove()
        faults[place].remove()
        faults[2 + place].remove()
    assert model(X).isfinite().all()
    assert [fault.fired for fault in faults] == [None] * 4
    assert model[1].forward is own
    assert "forward" not in vars(model[2])
    assert not model._forward_pre_hooks


def test_removed_also_if_the_step_raises():
    model = net()
    with pytest.raises(KeyError), inject(model, "1"), inject(model, where="optimizer"):
        raise KeyError
    assert not model._forward_pre_hooks
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
    assert "forward" not in vars(model[1])


# --- bad arguments -------------------------------------------------------------------------------


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
