"""More than 2**31 elements on a GPU: in parts, with 64-bit offsets."""
# ruff: noqa: F811  (fixtures)

import gc

import pytest
import torch

from safeops import safe_div, safe_sqrt, softmax
from tests.cuda_devices import gpu  # noqa: F401

pytestmark = pytest.mark.cuda
MANY = (1 << 31) + 4099  # of bfloat16: 4.3 GB a tensor


@pytest.fixture
def room(gpu):
    """On the GPU, for this many tensors of 4.3 GB."""

    def take(tensors):
        gc.collect()
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(gpu)[0]
        if free < tensors * 2.2 * MANY:
            pytest.skip(f"needs {tensors * 4.8:.0f} GB of a GPU's memory, there are {free >> 30}")

    yield take
    torch.cuda.empty_cache()


# the first and last elements, and those around where a call is cut in two
EDGES = [0, 1, (1 << 30) - 1, 1 << 30, (1 << 31) - 1, 1 << 31, MANY - 2, MANY - 1]


@pytest.mark.parametrize("skew", [0, 1])
def test_huge_elementwise(gpu, room, skew):
    """In vectors, and in single elements; 64-bit offsets."""
    room(3)
    x = torch.full((MANY + skew,), 4.0, dtype=torch.bfloat16, device=gpu)[skew:]
    at = torch.tensor(EDGES, device=gpu)
    x[at] = torch.arange(1.0, 9.0, device=gpu).bfloat16() ** 2
    x.requires_grad_()
    value = safe_sqrt(x)
    assert value.detach()[at].tolist() == list(range(1, 9))
    assert value.detach().sub_(2).count_nonzero() == 7  # the second of them is 2, as all others


def test_huge_elementwise_backward(gpu, room):
    room(4)
    x = torch.full((MANY,), 4.0, dtype=torch.bfloat16, device=gpu)
    x[-1] = 16.0
    grad = torch.ones((), dtype=torch.bfloat16, device=gpu).expand(MANY)
    result = torch.ops.safeops.log_backward(grad, x, 0.0, 0.0, 0.0)
    assert result[[0, 1 << 30, 1 << 31, -1]].tolist() == [0.25, 0.25, 0.25, 0.0625]
    assert result.sub_(0.25).count_nonzero() == 1


def test_huge_broadcast(gpu, room):
    room(2)
    rows, columns = 65_537, 32_770
    x = torch.arange(1, rows + 1, device=gpu).remainder_(128).bfloat16()
    y = torch.ones(columns, dtype=torch.bfloat16, device=gpu)
    y[-1] = 2.0
    value = safe_div(x[:, None], y)
    assert torch.equal(value[:, 0], x)
    assert torch.equal(value[:, -2], x)
    assert torch.equal(value[:, -1], (x.float() / 2).bfloat16())


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("columns", [32_776, 32_769])
def test_huge_softmax(gpu, room, dim, columns):
    room(4)
    x = torch.zeros(65_537, columns, dtype=torch.bfloat16, device=gpu)
    x[-1], x[:, -1] = 5.0, 5.0
    value = softmax(x, dim)
    last, first = value.select(1 - dim, -1), value.select(1 - dim, 0)
    for own, row in ((first, x.select(1 - dim, 0)), (last, x.select(1 - dim, -1))):
        expected = torch.softmax(row.double(), 0)
        torch.testing.assert_close(own.double(), expected, rtol=2**-8, atol=0)
    total = value.sum(dim, dtype=torch.float32)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=2e-2, atol=0)
    gradient = torch.ops.safeops.softmax_backward(value, value, dim, None)
    assert gradient.isfinite().all()
