"""The elementwise ops give the same bits on a GPU as on the CPU."""
# ruff: noqa: F811  (fixtures)

import pytest
import torch

from tests.cases import DTYPES, HALF, OPS, UNARY
from tests.cuda_devices import DeviceRoute, gpu, shifted  # noqa: F401
from tests.routes import Route
from tests.samples import label, sweep, upstreams

pytestmark = pytest.mark.cuda

CPU = Route("kernel")
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
each_op = pytest.mark.parametrize("op", OPS, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)


def assert_bits(actual, expected):
    """The same, with the sign of a zero; any NaN will do for a NaN."""
    assert actual.dtype is expected.dtype
    words = (t.contiguous().view(WORDS[t.itemsize]) for t in (actual, expected))
    same = torch.eq(*words) | (actual.isnan() & expected.isnan())
    assert same.all(), f"{(~same).sum()} of {same.numel()} differ"


def assert_bits_of_the_cpu(route, op, inputs, upstream, **options):
    value, gradients = route.both(op, inputs, upstream, **options)
    expected, expected_gradients = CPU.both(op, inputs, upstream, **options)
    assert_bits(value, expected)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        assert_bits(ours, theirs)


@each_op
@each_dtype
def test_bits_of_the_cpu(gpu, op, dtype):
    inputs = sweep(op, dtype)
    for options in op.options:
        for upstream in upstreams(inputs[0]):
            assert_bits_of_the_cpu(DeviceRoute(device=gpu), op, inputs, upstream, **options)


@pytest.mark.parametrize("op", UNARY, ids=label)
@pytest.mark.parametrize("dtype", HALF, ids=label)
def test_bits_of_all_half_numbers(gpu, op, dtype):
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype)
    for options in op.options:
        upstream = torch.ones_like(every)
        assert_bits_of_the_cpu(DeviceRoute(device=gpu), op, [every], upstream, **options)


@each_op
@each_dtype
def test_bits_where_vectors_do_not_fit(gpu, op, dtype):
    inputs = [shifted(x, 1) for x in sweep(op, dtype)]
    upstream = shifted(upstreams(inputs[0])[1], 1)
    assert_bits_of_the_cpu(DeviceRoute(device=gpu), op, inputs, upstream)
