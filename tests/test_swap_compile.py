"""Swapped models under torch.compile, export, func, autocast, checkpointing and wrappers."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import safeops
from tests.swap_models import BUILT, built

pytestmark = pytest.mark.filterwarnings("ignore")


class Sick(nn.Module):
    """A bit of everything that dies, in every way to write it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.softmax = nn.Softmax(-1)

    def forward(self, x, padded):
        y = self.norm(self.linear(x)) * (1 - padded.float()[..., None])
        y = y / y.norm(dim=-1, keepdim=True) + 1 / y + y**-0.5 + (y * 0).log() + torch.sqrt(y)
        y = y + self.attention(y, y, y, key_padding_mask=padded)[0]
        y = self.softmax(y) + F.softmax(y.masked_fill(padded[..., None], -torch.inf), -1)
        y = y + y.std(dim=-1, keepdim=True) + y.exp().mean() + torch.acos(y * 9)
        y /= y * 0
        return F.cross_entropy(y.flatten(0, 1), torch.full((y.numel() // 4,), -100))


def inputs():
    torch.manual_seed(0)
    return torch.randn(2, 3, 4), torch.tensor([[False, False, True], [True, True, True]])


def sick():
    torch.manual_seed(0)
    return Sick()


def results(model, *args):
    value = model(*args)
    return value, torch.autograd.grad(value, [p for p in model.parameters()], allow_unused=True)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_break(backend):
    torch._dynamo.reset()
    model = sick()
    assert not model(*inputs()).isfinite()
    safeops.swap_(model)
    expected, gradients = results(model, *inputs())
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    value, found = results(compiled, *inputs())
    torch.testing.assert_close(value, expected)
    for ours, theirs in zip(found, gradients, strict=True):
        if theirs is not None:
            assert ours.isfinite().all()
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


PAIRS = {
    "hypot": torch.hypot,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "xlogy": torch.xlogy,
    "2 ** x": lambda x, y: 2**x + torch.xlogy(2, y) + torch.pow(2, x),
    "x ** n": lambda x, y: x ** x.shape[0] + y ** -y.shape[0],
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("grad", [False, True])
def test_pairs_compile_with_and_without_a_gradient(name, grad):
    torch._dynamo.reset()
    x, y = (torch.rand(3, requires_grad=grad) for _ in range(2))
    with safeops.safe_mode():
        expected = PAIRS[name](x, y)
        compiled = torch.compile(PAIRS[name], fullgraph=True, backend="aot_eager", dynamic=True)
        torch.testing.assert_close(compiled(x, y), expected)


@pytest.mark.parametrize("name", BUILT)
def test_healthy_models_compile_without_a_break(name):
    torch._dynamo.reset()
    net, loss, batch = built(name)
    net.eval()
    x = batch()
    safeops.swap_(net)
    expected = loss(net, x)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(loss(compiled, x), expected, rtol=1e-4, atol=1e-5)


def test_swapping_a_compiled_model_compiles_it_anew():
    torch._dynamo.reset()
    model = nn.Sequential(nn.Softmax(-1))
    compiled = torch.compile(model, backend="eager")
    x = torch.full((1, 2), -torch.inf)
    assert compiled(x).isnan().all()
    report = safeops.swap_(compiled)
    assert [entry.name for entry in report.replaced] == ["_orig_mod.0"]
    assert (compiled(x) == 0).all()
    safeops.unswap_(compiled)
    assert compiled(x).isnan().all()


@pytest.mark.parametrize("strict", [False, True])
def test_exports(strict):
    model = sick().eval()
    safeops.swap_(model)
    expected = model(*inputs())
    exported = torch.export.export(model, inputs(), strict=strict).module()
    torch.testing.assert_close(exported(*inputs()), expected)


def test_func_grad_and_vmap():
    model = sick()
    safeops.swap_(model)
    x, padded = inputs()
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x[None], padded[:1]))

    per_sample = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    assert all(gradient.isfinite().all() for gradient in per_sample.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast(dtype):
    model = sick()
    safeops.swap_(model)
    with torch.autocast("cpu", dtype):
        value = model(*inputs())
    value.backward()
    assert value.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.sick, self.reentrant = sick(), reentrant

    def forward(self, x, padded):
        return checkpoint(self.sick, x, padded, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_checkpointing(reentrant):
    """Backward runs the child again, outside the model's forward."""
    model = Checkpointed(reentrant)
    safeops.swap_(model)
    x, padded = inputs()
    model(x.requires_grad_(), padded).backward()
    assert x.grad.isfinite().all()


class Decorated(nn.Module):
    """Gives a method to checkpoint, which runs it again outside of the forward."""

    def __init__(self, reentrant):
        super().__init__()
        self.linear, self.reentrant = nn.Linear(4, 4), reentrant

    @safeops.safe_mode()
    def block(self, x):
        return x / x.norm(dim=-1, keepdim=True)

    def forward(self, x):
        return checkpoint(self.block, self.linear(x) * 0, use_reentrant=self.reentrant).sum()


@pytest.mark.parametrize("reentrant", [False, True])
def test_decorated_methods_under_checkpointing(reentrant):
    model = Decorated(reentrant)
    safeops.swap_(model)
    model(torch.randn(2, 4)).backward()
    assert model.linear.weight.grad.isfinite().all()


def test_wrapped_by_data_parallel_and_fully_shard(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(sick(), find_unused_parameters=True)
        report = safeops.swap_(model)
        assert type(model) is nn.parallel.DistributedDataParallel
        assert [entry.name for entry in report.forwards] == ["module"]
        model(*inputs()).backward()
        safeops.unswap_(model)
        assert type(model.module) is Sick
        check_fully_sharded()
    finally:
        torch.distributed.destroy_process_group()


def check_fully_sharded():
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    before, after = sick(), sick()
    torch.distributed.fsdp.fully_shard(before, mesh=mesh)
    kind = type(before)
    safeops.swap_(before)
    before(*inputs()).backward()
    safeops.unswap_(before)
    assert type(before) is kind
    safeops.swap_(after)
    torch.distributed.fsdp.fully_shard(after, mesh=mesh)
    assert after(*inputs()).isfinite()
    with pytest.raises(RuntimeError, match="undo that first"):
        safeops.unswap_(after)
