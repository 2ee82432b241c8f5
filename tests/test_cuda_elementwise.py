"""The elementwise kernels of a GPU, on one or emulated: the same bits wherever operands lie."""
# ruff: noqa: F811  (fixtures)

import pytest
import torch

from tests.cases import DTYPES, HALF, OP, OPS, UNARY
from tests.cuda_devices import DeviceRoute, gpu, shifted, there, vector  # noqa: F401
from tests.routes import Route
from tests.samples import label
from tests.test_promotion import assert_is_the_sum
from tests.test_shapes import LAYOUTS, assert_same, operands, values

DIV = OP["safe_div"]
CPU = Route("kernel")
LAYOUTS = {name: lay for name, lay in LAYOUTS.items() if name != "negative bit"}
each_op = pytest.mark.parametrize("op", OPS, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
THREADS, AT_ONCE = 256, 2  # of a block, and vectors or single elements of each


def plain(tensor):
    return tensor.clone(memory_format=torch.contiguous_format)


# --- sizes ---------------------------------------------------------------------------------------


def sizes(width):
    """Around a vector, a warp's, and what the blocks take."""
    block = THREADS * AT_ONCE * width
    ends = (width, 32 * width, block // 2, block, 2 * block)
    return sorted({end + by for end in ends for by in (-1, 0, 1, width)} | {1, 2, 3})


def assert_parts_are_the_whole(there, op, inputs, upstream, sizes):
    value, gradients = there.both(op, inputs, upstream)
    for n in sizes:
        part, part_gradients = there.both(op, [x[:n] for x in inputs], upstream[:n])
        assert_same(part, value[:n])
        for ours, theirs in zip(part_gradients, gradients, strict=True):
            assert_same(ours, theirs[:n])


@each_op
@each_dtype
def test_sizes_in_vectors(there, op, dtype):
    edges = sizes(vector(dtype))
    inputs, upstream = operands(op, edges[-1], dtype=dtype), values(edges[-1], dtype=dtype, seed=9)
    assert_parts_are_the_whole(there, op, inputs, upstream, edges)


@each_op
@each_dtype
def test_sizes_in_single_elements(there, op, dtype):
    edges = sizes(1)
    inputs = [shifted(x, 1) for x in operands(op, edges[-1], dtype=dtype)]
    upstream = shifted(values(edges[-1], dtype=dtype, seed=9), 1)
    assert_parts_are_the_whole(there, op, inputs, upstream, edges)


@each_op
@each_dtype
def test_misaligned(there, op, dtype):
    """One operand, or all of them, or the upstream gradient."""
    inputs, upstream = operands(op, 300, dtype=dtype), values(300, dtype=dtype, seed=9)
    value, gradients = there.both(op, inputs, upstream)
    for by in range(1, vector(dtype) + 1):
        moved = [shifted(x, by) for x in inputs]
        for given, g in (
            (moved, upstream),
            ([moved[0], *inputs[1:]], upstream),
            (inputs, shifted(upstream, by)),
        ):
            ours, own = there.both(op, given, g)
            assert_same(ours, value)
            for one, other in zip(own, gradients, strict=True):
                assert_same(one, other)


@each_op
@each_dtype
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 4), (1, 1)], ids=str)
def test_nothing_and_one(there, op, dtype, shape):
    inputs = [values(*shape, dtype=dtype, seed=seed) for seed in range(op.arity)]
    value, gradients = there.both(op, inputs)
    for tensor in (value, *gradients):
        assert (tensor.shape, tensor.dtype) == (torch.Size(shape), dtype)


# --- layouts -------------------------------------------------------------------------------------

SHAPES = [(3, 4, 5, 6), (3, 8, 5, 40)]  # the second in several parts where they are emulated


@each_op
@each_layout
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=label)
def test_layouts(there, op, layout, shape, dtype):
    inputs = [LAYOUTS[layout](x) for x in operands(op, *shape, dtype=dtype)]
    upstream = values(*shape, dtype=dtype, seed=9)
    value, gradients = there.both(op, inputs, upstream)
    expected, expected_gradients = there.both(op, [plain(x) for x in inputs], upstream)
    assert_same(value, expected)
    assert value.stride() == op.torch(*inputs).stride()
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert_same(ours, theirs)


@each_op
@each_layout
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_layouts_of_the_upstream_gradient(there, op, layout, shape):
    inputs, upstream = operands(op, *shape), LAYOUTS[layout](values(*shape, seed=9))
    expected = there.gradients(op, inputs, plain(upstream))
    for ours, theirs in zip(there.gradients(op, inputs, upstream), expected, strict=True):
        assert_same(ours, theirs)


@each_layout
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mixed_layouts(there, layout, shape):
    x, y = operands(DIV, *shape)
    for pair in [(LAYOUTS[layout](x), y), (x, LAYOUTS[layout](y))]:
        assert_same(there.value(DIV, pair), there.value(DIV, [plain(t) for t in pair]))


BROADCAST = [
    ((64, 96), (96,)),
    ((64, 96), (64, 1)),
    ((64, 1), (1, 96)),
    ((64, 96), (1, 1)),
    ((63, 97), (97,)),
    ((63, 97), (63, 1)),
    ((63, 1), (1, 97)),
    ((5, 1, 40), (9, 1)),
    ((4, 3, 16, 24), (1, 3, 1, 1)),
    ((4, 3, 15, 23), (4, 1, 15, 1)),
    ((1,), (6, 8)),
]


@pytest.mark.parametrize(("left", "right"), BROADCAST, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=label)
def test_broadcast(there, left, right, swapped, dtype):
    shapes = (right, left) if swapped else (left, right)
    inputs = [values(*shape, dtype=dtype, seed=k) for k, shape in enumerate(shapes)]
    shape = torch.broadcast_shapes(left, right)
    upstream = values(*shape, dtype=dtype, seed=9)
    value, gradients = there.both(DIV, inputs, upstream)
    expected, terms = there.both(DIV, [plain(x.expand(shape)) for x in inputs], upstream)
    assert_same(value, expected)
    if dtype is torch.float32:
        for ours, theirs in zip(gradients, terms, strict=True):
            assert_is_the_sum(ours, theirs)


def strided(dims, dtype=torch.float32):
    """Two in each of these dims, no two of which can be joined: the strides are odd."""
    strides = [2 * d + 3 for d in range(dims)]
    return values(sum(strides) + 1, dtype=dtype).as_strided([2] * dims, strides)


@each_op
def test_many_dimensions(there, op):
    """In parts of fewer where they are emulated."""
    inputs, upstream = [strided(13) for _ in range(op.arity)], strided(13)
    value, gradients = there.both(op, inputs, upstream)
    expected = there.both(op, [plain(x) for x in inputs], plain(upstream))
    assert_same(value, expected[0])
    for ours, theirs in zip(gradients, expected[1], strict=True):
        assert_same(ours, theirs)


@pytest.mark.cuda
def test_as_many_dimensions_as_torch(gpu):
    x = DeviceRoute(device=gpu).put(strided(25, torch.float16))
    for op in UNARY:
        assert_same(CPU.value(op, [x]), CPU.value(op, [x.contiguous()]))
    with pytest.raises(RuntimeError, match=r"at most 25 dimensions .* got 26: call contiguous"):
        CPU.value(DIV, [DeviceRoute(device=gpu).put(strided(26, torch.float16))] * 2)


# --- single numbers ------------------------------------------------------------------------------

SINGLE = [1.5, -2.0, 0.0, -0.0, float("inf"), float("nan")]


@each_dtype
@pytest.mark.parametrize("number", SINGLE)
def test_one_number_for_all(there, dtype, number):
    """In the dtype of the others, or in one of its own."""
    x, upstream = values(300, dtype=dtype), values(300, dtype=dtype, seed=9)
    for own in {dtype, torch.float32}:
        single = torch.tensor(number, dtype=own)
        whole = single.to(dtype).expand(300).contiguous()
        for ours, theirs in (([x, single], [x, whole]), ([single, x], [whole, x])):
            assert_same(there.value(DIV, ours), there.value(DIV, theirs))
            at = next(k for k, t in enumerate(ours) if t.dim())
            actual, expected = (there.gradients(DIV, t, upstream)[at] for t in (ours, theirs))
            assert_same(actual, expected)


@pytest.mark.parametrize("dtype", HALF, ids=label)
def test_a_single_denominator_is_not_rounded(there, dtype):
    x = values(300, dtype=dtype)
    limit = torch.finfo(dtype).max
    expected = (x.float() / 0.1).clamp(-limit, limit)
    expected = torch.where(x.isfinite(), expected, x.float() / 0.1).to(dtype)
    assert_same(there.value(DIV, [x, torch.tensor(0.1)]), expected)


@pytest.mark.cuda
@each_dtype
@pytest.mark.parametrize("number", SINGLE)
def test_a_number_on_the_cpu(gpu, dtype, number):
    """Goes with tensors of the GPU; its gradient is on the CPU."""
    x = values(300, dtype=dtype).to(gpu)
    here = torch.tensor(number, dtype=dtype)
    for pair in ([x, here], [here, x]):
        value, gradients = CPU.both(DIV, pair, torch.ones_like(x))
        expected, theirs = CPU.both(DIV, [t.to(gpu) for t in pair], torch.ones_like(x))
        assert_same(value, expected)
        for ours, other, like in zip(gradients, theirs, pair, strict=True):
            assert ours.device == like.device
            assert_same(ours.cpu(), other.cpu())
