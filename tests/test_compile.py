"""torch.compile and torch.export: one graph, the formulas, gradients that are not lost."""

import pytest
import torch
from torch import func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

import safeops
from safeops.testing import ulp_distance
from tests.cases import OP
from tests.kernelless_cases import EVERY_OP
from tests.routes import Recorder
from tests.samples import label, sweep
from tests.test_transforms import X, Y, operands, slopes

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
each_op = pytest.mark.parametrize("op", EVERY_OP, ids=label)
BACKENDS = ["aot_eager", "inductor"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()


def everything(x, y):
    """One graph with all ops and options in it, so that it compiles once."""
    return (
        safeops.safe_log(x),
        safeops.safe_log(x, eps=1e-3),
        safeops.safe_log(x, eps=1e-3, extend="linear"),
        safeops.safe_sqrt(x),
        safeops.safe_sqrt(x, eps=1e-3, fill=7.0),
        safeops.safe_div(x, y),
        safeops.safe_div(x, y, eps=0.5),
        safeops.finite_clip(x, -1.0, 2.0, nan=0.0),
    )


def pulled(function, x, y):
    """Values and gradients, with an upstream that differs from output to output."""
    leaves = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    values = function(*leaves)
    upstreams = [torch.full_like(v, 1.0 + i) for i, v in enumerate(values)]
    return [v.detach() for v in values], torch.autograd.grad(values, leaves, upstreams)


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=label)
def test_compiled_is_eager(backend, dtype):
    """No graph break, and the same numbers: special values, saturation and guards too."""
    x, y = sweep(OP["safe_div"], dtype, 200)
    compiled = torch.compile(everything, fullgraph=True, backend=backend)
    with torch.no_grad():
        for ours, theirs in zip(compiled(x, y), everything(x, y), strict=True):
            assert ulp_distance(ours, theirs).max() <= 2
    small = [t[(x.abs() < 1e3) & (y.abs() > 1e-3)] for t in (x, y)]
    ours, theirs = pulled(compiled, *small), pulled(everything, *small)
    for part in (0, 1):
        for mine, eager in zip(ours[part], theirs[part], strict=True):
            torch.testing.assert_close(mine, eager, equal_nan=True)


@each_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=label)
def test_compiled_gradients_saturate(op, dtype):
    tiny, most = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    inputs = [torch.full((8,), v, dtype=dtype, requires_grad=True) for v in (most, tiny)][
        : op.arity
    ]
    compiled = torch.compile(op.function, fullgraph=True, backend="aot_eager")
    upstream = torch.full((8,), most, dtype=dtype)
    for gradient in torch.autograd.grad(compiled(*inputs), inputs, upstream):
        assert gradient.isfinite().all()


@each_backend
def test_dynamic_shapes(backend):
    compiled = torch.compile(everything, fullgraph=True, dynamic=True, backend=backend)
    for n in (5, 17, 64):
        generator = torch.Generator().manual_seed(n)
        x, y = torch.rand(2, n, generator=generator) + 0.1
        ours, theirs = pulled(compiled, x, y), pulled(everything, x, y)
        for part in (0, 1):
            torch.testing.assert_close(ours[part], theirs[part])


@pytest.mark.parametrize(
    ("op", "backend"),
    [(op, backend) for op in EVERY_OP for backend in BACKENDS if op.raw or backend != "inductor"],
    ids=label,
)
def test_compiled_func_grad_is_not_zero(op, backend):
    """A Function with setup_context silently gave zeros here."""
    inputs = operands(op)
    gradient = func.grad(lambda *t: op.function(*t).sum(), tuple(range(op.arity)))
    compiled = torch.compile(gradient, fullgraph=True, backend=backend)
    for ours, theirs in zip(compiled(*inputs), slopes(op, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


@each_op
def test_compiled_vmap(op):
    inputs = operands(op)
    compiled = torch.compile(func.vmap(op.function), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), op.function(*inputs))


def test_compiled_autocast():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def half(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return safeops.safe_log(x)

    assert half(X).dtype is torch.float32


class Everything(torch.nn.Module):
    def forward(self, x, y):
        return everything(x, y)


def test_export():
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(Everything(), (X, Y), dynamic_shapes=({0: batch}, {0: batch}))
    assert not any("safeops" in str(node.target) for node in program.graph.nodes)
    ours, theirs = program.module()(X[:3], Y[:3]), everything(X[:3], Y[:3])
    torch.testing.assert_close(ours, theirs, equal_nan=True)


@each_op
def test_meta_tensors(op):
    inputs = [torch.empty(3, 1, device="meta", dtype=torch.bfloat16) for _ in range(op.arity)]
    value = op.function(*inputs)
    assert (value.shape, value.dtype, value.device.type) == ((3, 1), torch.bfloat16, "meta")


@each_op
def test_fake_tensors(op):
    with FakeTensorMode():
        inputs = [torch.empty(3, 4, requires_grad=True) for _ in range(op.arity)]
        value = op.function(*inputs)
        gradients = torch.autograd.grad(value.sum(), inputs)
    assert [t.shape for t in (value, *gradients)] == [(3, 4)] * (op.arity + 1)


def recorded(op):
    """The raw ops of forward and backward, as a call runs them, with their arguments."""
    inputs = [t.requires_grad_() for t in operands(op)]
    with Recorder() as recorder:
        torch.autograd.grad(op.function(*inputs).sum(), inputs)
    assert recorder.names == {op.raw, f"{op.raw}_backward"}
    return recorder.calls


@each_op
@pytest.mark.parametrize("which", [0, 1], ids=["value", "backward"])
def test_raw_ops_pass_opcheck(kernel, op, which):
    raw, arguments = recorded(op)[which]
    plain = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in arguments)
    opcheck(raw, plain)


@each_op
def test_raw_ops_on_fake_tensors_keep_the_strides(kernel, op):
    raw, arguments = recorded(op)[0]
    shapes = [torch.rand(3, 4, 5).transpose(0, 2), torch.rand(5, 1, 3)][: op.arity]
    real = raw(*shapes, *arguments[op.arity :])
    with FakeTensorMode() as mode:
        fake = raw(*[mode.from_tensor(t) for t in shapes], *arguments[op.arity :])
    assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


def test_one_tensor_as_both_operands(route):
    function = torch.compile(lambda x: safeops.safe_div(x, x), backend="aot_eager", fullgraph=True)
    x = torch.tensor([2.0, 0.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    assert gradient.tolist() == [0.0, 0.0]


def test_options_that_change_between_calls(route):
    function = torch.compile(
        lambda x, e: safeops.finite_clip(safeops.safe_div(x, x, fill=e), -e, e),
        backend="eager",
        fullgraph=True,
    )
    for bound in (0.1, 0.2, 0.3):
        assert function(torch.zeros(1), bound) == torch.tensor([bound])
