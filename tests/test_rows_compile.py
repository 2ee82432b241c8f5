"""The row ops under torch.compile: one graph, with the kernels in it, forward and backward. Under
torch.export: the formulas."""

import math

import pytest
import torch
from torch import func
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.utils import run_and_get_code

from tests.row_cases import LOG_SOFTMAX, LOGSUMEXP, ROW_OPS, SOFTMAX
from tests.row_samples import masked_specials, random_mask, scores
from tests.samples import label

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_dim = pytest.mark.parametrize("dim", [0, -1])
ALL = {op.raw for op in ROW_OPS}
BACKWARDS = {op.backward for op in ROW_OPS}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


def everything(x, mask):
    """One graph with all of them in it, so that it compiles once."""
    return (
        SOFTMAX.function(x, -1),
        SOFTMAX.function(x, 0, mask=mask),
        LOG_SOFTMAX.function(x, 0),
        LOG_SOFTMAX.function(x, -1, mask=mask),
        LOGSUMEXP.function(x, -1),
        LOGSUMEXP.function(x, (0, 1), keepdim=True, mask=mask),
    )


class Seen:
    """A backend that runs the graphs as they are and keeps the safeops nodes of each."""

    def __init__(self):
        self.forward, self.backward = [], []
        self.backend = aot_autograd(
            fw_compiler=self.watch(self.forward), bw_compiler=self.watch(self.backward)
        )

    def watch(self, names):
        def compiler(graph, inputs):
            targets = [str(node.target) for node in graph.graph.nodes]
            names.extend(t.split(".")[1] for t in targets if t.startswith("safeops."))
            return graph.forward

        return compiler


def pulled(function, x, mask):
    leaf = x.clone().requires_grad_()
    values = function(leaf, mask)
    upstreams = [torch.linspace(-1, 2, v.numel()).view_as(v).to(v) for v in values]
    return [v.detach() for v in values], torch.autograd.grad(values, leaf, upstreams)


def assert_same(ours, theirs):
    for mine, eager in zip([*ours[0], *ours[1]], [*theirs[0], *theirs[1]], strict=True):
        torch.testing.assert_close(mine, eager, equal_nan=True)


def kernels(route, names):
    return names if route.name == "kernel" else set()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_kernels_stay_in_the_graph(route, dynamic):
    """All of them, forward and backward, with and without a mask; and the numbers are eager's."""
    seen = Seen()
    compiled = torch.compile(everything, fullgraph=True, dynamic=dynamic, backend=seen.backend)
    for shape in ((5, 7), (33, 70)) if route.name == "kernel" else ((5, 7),):
        x, mask = scores(*shape), random_mask(*shape)
        mask[1] = False
        assert_same(pulled(compiled, x, mask), pulled(everything, x, mask))
    assert set(seen.forward) == kernels(route, ALL)
    assert set(seen.backward) == kernels(route, BACKWARDS)
    graphs = 1 if dynamic else 2
    assert len(seen.forward) == len(seen.backward) == (route.name == "kernel") * graphs * 6


def test_inductor(route):
    """The generated code calls the kernels; on special values too."""
    for dtype in (torch.float32, torch.bfloat16) if route.name == "kernel" else (torch.float32,):
        x, mask = masked_specials(dtype)
        with torch.no_grad():
            ours, code = run_and_get_code(torch.compile(everything, fullgraph=True), x, mask)
            torch.testing.assert_close(ours, everything(x, mask), equal_nan=True)
        called = {name for name in ALL if f"torch.ops.safeops.{name}.default" in "".join(code)}
        assert called == kernels(route, ALL)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_inductor_with_gradients(kernel, dynamic):
    compiled = torch.compile(everything, fullgraph=True, dynamic=dynamic)
    for shape in ((6, 17), (3, 130)) if dynamic else ((6, 17),):
        x, mask = scores(*shape), random_mask(*shape)
        assert_same(pulled(compiled, x, mask), pulled(everything, x, mask))


def test_a_transposed_input(kernel):
    """The compiler may choose strides of its own; the kernel must see what it was promised."""

    def function(x, mask):
        return [op.function(x.mT * 2, -1) for op in ROW_OPS]

    compiled = torch.compile(function, fullgraph=True)
    x = scores(3, 40, 17)
    assert_same(pulled(compiled, x, None), pulled(function, x, None))


def test_fused_neighbours(route):
    """Work before and after, as a model has it: a scale, a mask that is computed, a loss."""

    def function(x, lengths):
        mask = torch.arange(x.shape[-1]) < lengths[:, None]
        values = [op.function(x * 0.125, -1, mask=mask) for op in ops]
        return [torch.where(v > -math.inf, v, 0.0).square().sum() for v in values]

    ops = ROW_OPS if route.name == "kernel" else [SOFTMAX]  # it takes long without them
    x, lengths = scores(6, 50), torch.tensor([50, 3, 0, 7, 49, 1])
    ours = pulled(torch.compile(function, fullgraph=True), x, lengths)
    assert_same(ours, pulled(function, x, lengths))
    assert (ours[1][0][2] == 0).all()


@each_op
def test_compiled_func_grad_and_vmap(op):
    """A transform inside: the composite, which must not come back as zeros."""
    x, weights = scores(4, 5), torch.linspace(1, 2, 5)
    gradient = func.vmap(func.grad(lambda t: (op.function(t, -1) * weights).sum()))
    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    assert gradient(x).abs().sum() > 0.1
    torch.testing.assert_close(compiled(x), gradient(x))


def test_compiled_autocast(route):
    @torch.compile(fullgraph=True, backend="aot_eager")
    def attention(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return SOFTMAX.function(x, -1)

    assert attention(scores(3, 4)).dtype is torch.float32


def test_compiled_dtype_and_integers(route):
    compiled = torch.compile(
        lambda x: (SOFTMAX.function(x, 0, dtype=torch.float64), LOGSUMEXP.function(x, 0)),
        fullgraph=True,
        backend="aot_eager",
    )
    y, total = compiled(torch.tensor([1, 2, 3]))
    assert (y.dtype, total.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(y.sum().item(), 1.0)


@each_op
@pytest.mark.parametrize("dim", [-3, 2], ids=str)
def test_errors_come_through_the_compiler(op, dim):
    compiled = torch.compile(lambda x: op.function(x, dim), backend="eager")
    with pytest.raises(Exception, match="Dimension out of range"):
        compiled(scores(2, 3))


class Everything(torch.nn.Module):
    def forward(self, x, mask):
        return everything(x, mask)


def test_export():
    """A program that runs where safeops is not installed."""
    batch = torch.export.Dim("batch", min=2)
    x, mask = scores(5, 7), random_mask(5, 7)
    program = torch.export.export(Everything(), (x, mask), dynamic_shapes=({0: batch}, {0: batch}))
    assert not any("safeops" in str(node.target) for node in program.graph.nodes)
    mask[1] = False
    torch.testing.assert_close(program.module()(x[:3], mask[:3]), everything(x[:3], mask[:3]))


def test_checkpoint_inside_the_compiler(kernel):
    """Recomputed in the backward graph."""

    def function(x, mask):
        block = lambda t: [op.function(t.sin(), -1).cos() for op in ROW_OPS]  # noqa: E731
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)

    x = scores(4, 30)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_same(pulled(compiled, x, None), pulled(function, x, None))
