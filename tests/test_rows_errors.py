"""Arguments of the row ops: dims, masks, dtypes. Every error names the op, what was expected, what
came, and what to do."""

import inspect
import re

import pytest
import torch

from tests.cases import DTYPES
from tests.row_cases import LOG_SOFTMAX, LOGSUMEXP, ROW_OPS, SOFTMAX
from tests.samples import label
from tests.test_errors import WRONG, torchs_own

each_op = pytest.mark.parametrize("op", ROW_OPS, ids=label)
each_softmax = pytest.mark.parametrize("op", [SOFTMAX, LOG_SOFTMAX], ids=label)
X = torch.arange(6.0).view(2, 3)


def error_of(kind, op, *arguments, **options):
    with pytest.raises(kind) as error:
        op.function(*arguments, **options)
    text = str(error.value)
    assert text.startswith(f"{op.name}: "), text
    return text


@torchs_own
@each_op
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("mask", [None, torch.ones(2, dtype=torch.bool)], ids=["", "masked"])
def test_tensors_that_are_not_taken(route, op, kind, mask):
    make, came, advice = WRONG[kind]
    with route.runs():
        text = error_of(TypeError, op, make(), 0, mask=mask)
    assert came in text
    assert advice in text


@each_op
@pytest.mark.parametrize("shape", [(2, 3), (4,), (), (2, 0, 3)], ids=str)
def test_dims_out_of_range(route, op, shape):
    """torch's own words and kind of error."""
    x, n = torch.ones(shape), max(len(shape), 1)
    for dim in (n, -n - 1, 100):
        text = error_of(IndexError, op, x, dim)
        with pytest.raises(IndexError) as theirs:
            op.torch(x, dim)
        assert str(theirs.value).rstrip(".") in text


@each_op
@pytest.mark.parametrize("dim", [True, 1.0, "0", None, torch.tensor(0)], ids=str)
def test_dims_that_are_no_ints(route, op, dim):
    text = error_of(TypeError, op, X, dim)
    assert "dim" in text
    assert "int" in text
    assert type(dim).__name__ in text


@each_softmax
@pytest.mark.parametrize("dim", [(0,), [0, 1], ()], ids=str)
def test_softmax_has_one_dim(route, op, dim):
    assert type(dim).__name__ in error_of(TypeError, op, X, dim)


@pytest.mark.parametrize("dim", [(0, 0), (0, -2), [1, 0, -1]], ids=str)
def test_repeated_dims(route, dim):
    text = error_of(RuntimeError, LOGSUMEXP, X, dim)
    with pytest.raises(RuntimeError) as theirs:
        torch.logsumexp(X, tuple(dim))
    assert str(theirs.value) in text


@pytest.mark.parametrize("dim", [(), []], ids=str)
def test_no_dims(route, dim):
    assert "dim" in error_of((RuntimeError, IndexError, ValueError), LOGSUMEXP, X, dim)


@pytest.mark.parametrize("dim", [(0, True), (0, 1.0), (None,), ((0, 1),), ("0",)], ids=str)
def test_several_dims_that_are_no_ints(route, dim):
    assert "int" in error_of(TypeError, LOGSUMEXP, X, dim)


@pytest.mark.parametrize("dim", [(0, 2), (-3,), (0, 1, 5)], ids=str)
def test_several_dims_out_of_range(route, dim):
    text = error_of(IndexError, LOGSUMEXP, X, dim)
    assert "expected to be in range of [-2, 1]" in text


NO_MASKS = {
    "float32": torch.ones(2, 3),
    "int64": torch.ones(2, 3, dtype=torch.int64),
    "uint8": torch.ones(2, 3, dtype=torch.uint8),
    "list": [[True, False, True]],
    "bool": True,
    "float": 1.0,
    "ndarray": torch.ones(2, 3, dtype=torch.bool).numpy(),
}


@each_op
@pytest.mark.parametrize("kind", NO_MASKS)
def test_masks_that_are_no_bool_tensors(route, op, kind):
    with route.runs():
        text = error_of(TypeError, op, X, -1, mask=NO_MASKS[kind])
    assert kind in text
    assert "bool" in text


@each_op
@pytest.mark.parametrize(
    "shape", [(2,), (3, 2), (2, 2), (1, 1, 3), (4, 2, 3), (0,), (2, 0)], ids=str
)
@pytest.mark.parametrize("dim", [0, -1])
def test_masks_that_do_not_broadcast(route, op, shape, dim):
    """Or that would make x larger."""
    with route.runs():
        text = error_of(RuntimeError, op, X, dim, mask=torch.ones(shape, dtype=torch.bool))
    assert str(tuple(shape)) in text
    assert "(2, 3)" in text


@each_op
@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 1), (1,), ()], ids=str)
def test_masks_do_not_enlarge_x(route, op, shape):
    """A single element has no room for a mask of many."""
    mask = torch.ones(shape, dtype=torch.bool)
    if mask.dim() > 0:
        error_of(RuntimeError, op, torch.tensor(1.0), 0, mask=mask)
    if mask.numel() > 1:
        error_of(RuntimeError, op, torch.ones(1, 1), 0, mask=mask)


@each_op
def test_masks_of_another_device(route, op):
    mask = torch.ones(2, 3, dtype=torch.bool, device="meta")
    text = error_of(RuntimeError, op, X, 0, mask=mask)
    assert "cpu" in text
    assert "meta" in text


@torchs_own
@each_op
@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr"])
def test_masks_that_are_not_dense(route, op, kind):
    mask = getattr(torch.eye(3), kind)().bool()
    assert "sparse" in error_of(TypeError, op, torch.ones(3, 3), 0, mask=mask)


@each_softmax
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool], ids=label)
def test_integers_want_a_dtype(any_route, op, dtype):
    """torch has no kernel for them and says no more than that."""
    x = torch.tensor([[1, 0, 1]]).to(dtype)
    text = error_of(TypeError, op, x, 1)
    assert "pass dtype=torch.float32" in text
    assert label(dtype) in text
    for target in DTYPES:
        value = any_route.value(op, [x], dim=1, dtype=target)
        torch.testing.assert_close(value, op.torch(x, 1, dtype=target))


@each_softmax
@pytest.mark.parametrize("source", DTYPES, ids=label)
@pytest.mark.parametrize("target", DTYPES, ids=label)
def test_dtype_converts_first(any_route, op, source, target):
    """As in torch: a result like that of the converted x, a gradient like x."""
    x = (torch.randn(3, 40, dtype=torch.float64) * 4).to(source)
    value, (gradient,) = any_route.both(op, [x], dim=-1, dtype=target)
    converted, (expected,) = any_route.both(op, [x.to(target)], dim=-1)
    assert torch.equal(value, converted)
    assert (value.dtype, gradient.dtype) == (target, source)
    torch.testing.assert_close(gradient, expected.to(source), rtol=0.02, atol=1e-6)


@each_softmax
@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.complex64, torch.bool, torch.float8_e5m2, "float32", float],
    ids=str,
)
def test_dtypes_that_are_not_floating(route, op, dtype):
    text = error_of(TypeError, op, X, -1, dtype=dtype)
    assert re.search("dtype|convert", text)


@each_softmax
def test_dtype_keeps_what_overflows_honest(any_route, op):
    """Converted first, 1e5 is inf in float16."""
    value = any_route.value(op, [torch.tensor([1e5, 0.0])], dim=0, dtype=torch.float16)
    expected = [1.0, 0.0] if op is SOFTMAX else [0.0, -torch.inf]
    assert value.tolist() == expected


@each_op
def test_options_are_keyword_only(op):
    with pytest.raises(TypeError, match="positional"):
        op.function(X, 0, *[False] * op.reduces, None)
    names = ["x", "dim", *["keepdim"] * op.reduces, "mask", *["dtype"] * (not op.reduces)]
    assert list(inspect.signature(op.function).parameters) == names


@each_op
def test_dim_has_no_default(op):
    with pytest.raises(TypeError, match="dim"):
        op.function(X)


@each_op
def test_index_like_dims(route, op):
    """numpy's integers are ints to torch too."""
    numpy = pytest.importorskip("numpy")
    assert torch.equal(op.function(X, numpy.int64(1)), op.function(X, 1))
