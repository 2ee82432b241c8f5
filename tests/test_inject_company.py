"""Injected faults in checkpointed, compiled, distributed, copied and swapped models."""

import copy
import pickle
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import safeops
from safeops.diagnose.injection.inject import inject
from tests import ranks
from tests.inject_cases import X, net, same


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


class Mine(nn.Sequential):
    """compile() passes over torch's own modules."""

    def forward(self, x):
        return super().forward(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("where", ["forward", "backward", "weight", "batch"])
@pytest.mark.parametrize("in_place", [True, False])
def test_compiled_models_run_as_they_were_written(where, in_place):
    compiled_calls = []

    def backend(graph, inputs):
        return lambda *args: [compiled_calls.append(0), graph(*args)][1]

    model = Mine(*net())
    if in_place:
        model.compile(backend=backend)
        compiled, path = model, "0"
    else:
        compiled, path = torch.compile(model, backend=backend), "_orig_mod.0"
    compiled(X).sum().backward()
    model.zero_grad()
    assert compiled_calls
    before = len(compiled_calls)
    with inject(compiled, path, 1, "nan", where) as fault:
        compiled(X).sum().backward()
        assert fault.fired is None
        assert all(p.grad.isfinite().all() for p in model.parameters())
        compiled(X).sum().backward()
    assert fault.fired == 1
    assert not all(p.grad.isfinite().all() for p in model.parameters())
    assert len(compiled_calls) == before
    compiled(X)
    assert len(compiled_calls) > before


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
