"""What backward keeps: as many bytes as torch's own op, and no masks."""

import pytest
import torch

import safeops
from tests.cases import DTYPES, OPS
from tests.samples import label

each_op = pytest.mark.parametrize("op", OPS, ids=label)


def saved(function, *inputs):
    """The tensors that the graph of function(*inputs) keeps."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        function(*inputs)
    return kept


def size(tensors):
    """Bytes, each storage counted once."""
    return sum({t.untyped_storage().data_ptr(): t.nbytes for t in tensors}.values())


def leaves(op, dtype=torch.float32, n=1000):
    return [torch.rand(n, dtype=dtype).requires_grad_() for _ in range(op.arity)]


@each_op
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_bytes_are_torchs(route, op, dtype):
    inputs = leaves(op, dtype)
    for options in op.options:
        kept = saved(lambda *t: op.function(*t, **options), *inputs)  # noqa: B023
        assert size(kept) == size(saved(op.torch, *inputs)), options
        assert not any(t.dtype is torch.bool for t in kept)


@each_op
def test_nothing_is_kept_without_gradients(route, op):
    inputs = [t.detach() for t in leaves(op)]
    assert not saved(op.function, *inputs)
    with torch.no_grad():
        assert not saved(op.function, *leaves(op))


@pytest.mark.parametrize("wants", [(True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("options", [{}, {"eps": 1e-3}, {"fill": 2.0}], ids=label)
def test_division_keeps_what_the_wanted_gradients_use(route, wants, options):
    x, y = torch.rand(1000), torch.rand(1000)
    x.requires_grad_(wants[0])
    y.requires_grad_(wants[1])
    kept = saved(lambda a, b: safeops.safe_div(a, b, **options), x, y)
    pointers = {t.data_ptr() for t in kept}
    assert pointers == {y.data_ptr()} | ({x.data_ptr()} if wants[1] else set())
    assert size(kept) == size(saved(torch.div, x, y))


def test_broadcast_is_not_materialised(route):
    x, y = torch.rand(100, 50).requires_grad_(), torch.rand(50).requires_grad_()
    assert size(saved(safeops.safe_div, x, y)) == x.nbytes + y.nbytes


def test_division_by_a_number_keeps_no_tensor_of_that_size(route):
    x = torch.rand(1000).requires_grad_()
    assert size(saved(lambda t: safeops.safe_div(t, 2.0), x)) <= 8
    assert size(saved(lambda t: safeops.safe_div(2.0, t), x)) <= x.nbytes + 8


def test_square_root_keeps_its_result(route):
    """The caller's tensor may then be changed or freed, as with torch.sqrt."""
    x = torch.rand(1000).requires_grad_()
    kept = saved(safeops.safe_sqrt, x)
    assert [t.data_ptr() == x.data_ptr() for t in kept] == [False]
