"""Shapes, strides and sizes: the numbers do not depend on how a tensor lies in memory."""

import pytest
import torch

from safeops.testing import bit_sweep
from tests.cases import DTYPES, OP, OPS
from tests.kernelless_cases import EVERY_OP
from tests.samples import label

each_op = pytest.mark.parametrize("op", EVERY_OP, ids=label)
each_kernel = pytest.mark.parametrize("op", OPS, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
VECTOR_EDGES = [*range(71), *range(1000, 1101)]


def values(*shape, dtype=torch.float32, seed=0):
    """Numbers of every size in this shape."""
    n = torch.Size(shape).numel()
    generator = torch.Generator().manual_seed(seed)
    x = bit_sweep(dtype, max(n, 2), seed)
    x = x.repeat(n // x.numel() + 1)[:n]
    return x[torch.randperm(n, generator=generator)].reshape(shape)


def operands(op, *shape, dtype=torch.float32):
    return [values(*shape, dtype=dtype, seed=seed) for seed in range(op.arity)]


def agrees(op):
    """The same numbers; within a few units where they are torch's own, which takes the ends of a
    tensor, and one with gaps, another way."""
    return assert_same if op.raw is not None else assert_near


def negative_view(x):
    """The imaginary part of a conjugate: the values of x, with the negative bit set."""
    view = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert view.is_neg()
    return view


LAYOUTS = {
    "transposed": lambda x: x.clone().transpose(0, -1).contiguous().transpose(0, -1),
    "strided": lambda x: x.repeat_interleave(3, -1)[..., ::3],
    "sliced": lambda x: torch.nn.functional.pad(x, (1, 2))[..., 1:-2],
    "permuted": lambda x: x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "unaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x),
    "expanded": lambda x: x[:1].expand_as(x),
    "expanded inside": lambda x: x[..., :1].expand_as(x),
    "scalar expanded": lambda x: x.flatten()[5].expand_as(x),
    "negative bit": negative_view,
}
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


@each_op
@each_layout
def test_layouts(route, op, layout):
    """Value, gradient and strides of the result are those of the same numbers laid out plainly."""
    inputs = [LAYOUTS[layout](x) for x in operands(op, 3, 4, 5, 6)]
    plain = [x.clone(memory_format=torch.contiguous_format).resolve_neg() for x in inputs]
    upstream = values(3, 4, 5, 6, seed=9)
    value, gradients = route.both(op, inputs, upstream)
    expected, expected_gradients = route.both(op, plain, upstream)
    agrees(op)(value, expected)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        agrees(op)(ours, theirs)
    assert value.stride() == op.torch(*inputs).stride()


@each_layout
def test_mixed_layouts(route, layout):
    x, y = operands(OP["safe_div"], 3, 4, 5, 6)
    for pair in [(LAYOUTS[layout](x), y), (x, LAYOUTS[layout](y))]:
        value = route.value(OP["safe_div"], pair)
        assert_same(value, route.value(OP["safe_div"], [t.clone().contiguous() for t in pair]))
        assert value.stride() == torch.div(*pair).stride()


@each_op
@each_layout
def test_layouts_of_the_upstream_gradient(route, op, layout):
    inputs = operands(op, 3, 4, 5, 6)
    upstream = LAYOUTS[layout](values(3, 4, 5, 6, seed=9))
    plain = upstream.clone(memory_format=torch.contiguous_format).resolve_neg()
    expected = route.gradients(op, inputs, plain)
    for ours, theirs in zip(route.gradients(op, inputs, upstream), expected, strict=True):
        agrees(op)(ours, theirs)


@each_kernel
@each_dtype
def test_sizes_around_vector_edges(route, op, dtype):
    inputs, upstream = operands(op, 1100, dtype=dtype), values(1100, dtype=dtype, seed=9)
    whole = route.both(op, inputs, upstream)
    for n in VECTOR_EDGES:
        value, gradients = route.both(op, [x[:n] for x in inputs], upstream[:n])
        assert_same(value, whole[0][:n])
        for ours, theirs in zip(gradients, whole[1], strict=True):
            assert_same(ours, theirs[:n])


@each_kernel
@each_dtype
def test_storage_offsets(route, op, dtype):
    inputs, upstream = operands(op, 200, dtype=dtype), values(200, dtype=dtype, seed=9)
    whole = route.both(op, inputs, upstream)
    for start in range(33):
        value, gradients = route.both(op, [x[start:] for x in inputs], upstream[start:])
        assert_same(value, whole[0][start:])
        for ours, theirs in zip(gradients, whole[1], strict=True):
            assert_same(ours, theirs[start:])


@each_op
@each_dtype
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4), (1, 0)], ids=str)
def test_empty(route, op, dtype, shape):
    inputs = [torch.empty(shape, dtype=dtype) for _ in range(op.arity)]
    value, gradients = route.both(op, inputs)
    for tensor in (value, *gradients):
        assert (tensor.shape, tensor.dtype) == (torch.Size(shape), dtype)


@each_op
@each_dtype
def test_no_dimensions(route, op, dtype):
    inputs = [torch.tensor(2.0, dtype=dtype) for _ in range(op.arity)]
    value, gradients = route.both(op, inputs)
    for tensor in (value, *gradients):
        assert (tensor.shape, tensor.dtype) == (torch.Size(()), dtype)


@pytest.mark.parametrize("op", [op for op in EVERY_OP if op.arity == 1], ids=label)
def test_many_dimensions(route, op):
    x = values(*[2] * 12).permute(*range(11, -1, -1))[..., ::2]
    agrees(op)(route.value(op, [x]), route.value(op, [x.contiguous()]))


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def assert_near(actual, expected):
    eps = torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=16 * eps, atol=16 * eps, equal_nan=True)
