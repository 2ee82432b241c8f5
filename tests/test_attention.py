"""Attention: torch's own, and 0 for a query that may look at nothing, whatever the kernel."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from safeops import _route
from safeops.nn.functional.attention import scaled_dot_product_attention
from tests.cases import DTYPES
from tests.samples import label

with warnings.catch_warnings():  # it misses packages that are not needed here
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning")
INF = math.inf
BATCH, HEADS, LENGTH, WIDTH = 2, 2, 3, 4
DEAD = (slice(None), slice(None), 1)  # the query that may look at nothing


@pytest.mark.filterwarnings("ignore")
@each_dtype
def test_equals_torch(dtype):
    """With dropout too: the same numbers are drawn."""
    assert_equals_torch(
        scaled_dot_product_attention,
        F.scaled_dot_product_attention,
        "nn.functional.scaled_dot_product_attention",
        dtype,
    )


def assert_equals_torch(ours, theirs, name, dtype):
    (info,) = (op for op in op_db if op.name == name)
    samples = list(info.sample_inputs("cpu", dtype, requires_grad=True))
    for sample in samples[:: 1 + len(samples) // 60]:
        value, gradients = both(ours, sample)
        expected, expected_gradients = both(theirs, sample)
        torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(gradients, expected_gradients, equal_nan=True)


def both(function, sample):
    torch.manual_seed(1)
    result = function(sample.input, *sample.args, **sample.kwargs)
    value = result[0] if isinstance(result, tuple) else result
    leaves = [t for t in (sample.input, *sample.args) if getattr(t, "requires_grad", False)]
    return value.detach(), torch.autograd.grad(value.sum(), leaves, allow_unused=True)


def qkv(dtype=torch.float32):
    return [torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=dtype) for _ in range(3)]


def dead_mask(kind, dtype=torch.float32, shape=(LENGTH, LENGTH)):
    """All but one query look at everything."""
    mask = torch.ones(shape, dtype=torch.bool)
    mask[..., 1, :] = False
    return mask if kind == "bool" else torch.where(mask, 0.0, -INF).to(dtype)


def backward(function, *tensors):
    leaves = [t.clone().requires_grad_() for t in tensors]
    value = function(*leaves)
    return value.detach(), torch.autograd.grad(value.sum(), leaves)


def alone(q, k, v):
    """What the queries that may look get and give."""
    value = F.scaled_dot_product_attention(q[..., [0, 2], :], k, v)
    return torch.stack([value[..., 0, :], torch.zeros_like(q[..., 0, :]), value[..., 1, :]], -2)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", [(3, 3), (1, 1, 3, 3), (2, 1, 3, 3), (2, 2, 3, 3), (2, 3, 3)])
@each_dtype
def test_dead_query(dtype, shape, kind, backend):
    mask = dead_mask(kind, dtype, shape)
    with sdpa_kernel([backend, SDPBackend.MATH]):
        value, gradients = backward(
            lambda *t: scaled_dot_product_attention(*t, mask), *qkv_of_seed(dtype)
        )
    expected, expected_gradients = backward(alone, *qkv_of_seed(dtype))
    assert (value[DEAD] == 0).all()
    assert (gradients[0][DEAD] == 0).all()
    bound = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(value, expected, rtol=bound, atol=bound)
    torch.testing.assert_close(gradients, expected_gradients, rtol=bound, atol=bound)


def qkv_of_seed(dtype):
    torch.manual_seed(0)
    return qkv(dtype)


@compiles
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_dead_query_compiled_and_exported(kind):
    class Module(torch.nn.Module):
        def forward(self, q, k, v, mask):
            return scaled_dot_product_attention(q, k, v, mask)

    given = (*qkv(), dead_mask(kind))
    expected = Module()(*given)
    compiled = torch.compile(Module(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given), expected)
    torch.testing.assert_close(torch.export.export(Module(), given).module()(*given), expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_dead_query_by_vmap():
    q, k, v = qkv()
    mask = dead_mask("bool")
    value = torch.func.vmap(lambda q, k, v: scaled_dot_product_attention(q, k, v, mask))(q, k, v)
    torch.testing.assert_close(value, scaled_dot_product_attention(q, k, v, mask))


def test_float_mask_gets_its_gradient():
    q, k, v = qkv()
    mask = dead_mask("float").requires_grad_()
    scaled_dot_product_attention(q, k, v, mask).sum().backward()
    assert mask.grad.isfinite().all()
    assert (mask.grad[1] == 0).all()
    assert (mask.grad[0] != 0).any()


@pytest.mark.parametrize("bad", [math.nan, INF])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("groups", [1, 2])
def test_keys_that_nobody_reads(kind, bad, groups):
    q, k, v = qkv()
    q = q.repeat_interleave(groups, 1)
    mask = torch.ones(BATCH, q.shape[1], LENGTH, LENGTH, dtype=torch.bool)
    mask[..., 2] = False
    mask = mask if kind == "bool" else torch.where(mask, 0.0, -INF)
    filled = [torch.where(torch.arange(3)[:, None] == 2, bad, t) for t in (k, v)]
    options = {"enable_gqa": groups > 1}
    call = lambda *t: scaled_dot_product_attention(*t, mask, **options)  # noqa: E731
    value, gradients = backward(call, q, *filled)
    expected, expected_gradients = backward(call, q, k, v)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradients, expected_gradients)


def test_a_nan_that_is_read_goes_out():
    q, k, v = qkv()
    k[0, 0, 0, 0] = math.nan
    value = scaled_dot_product_attention(q, k, v, dead_mask("bool"))
    assert value[0, 0, [0, 2]].isnan().all()
    assert (value[0, 0, 1] == 0).all()
    assert value[1].isfinite().all()


def test_scores_that_overflow():
    q, k, v = (torch.full((1, 2, 4), 1e30) for _ in range(3))
    assert F.scaled_dot_product_attention(q, k, v).isnan().all()
    value, gradients = backward(scaled_dot_product_attention, q, k, v)
    torch.testing.assert_close(value, v)
    assert all(g.isfinite().all() for g in gradients)


def test_large_half_outputs_are_torchs():
    """Whose sum overflows, though each is finite."""
    q, k, v = (torch.full((1, 8, 4), 3e4, dtype=torch.float16) for _ in range(3))
    assert torch.equal(scaled_dot_product_attention(q, k, v), v)


def test_causal_bias_is_torchs():
    from torch.nn.attention.bias import causal_lower_right

    q, k, v = qkv()
    mask = causal_lower_right(LENGTH, LENGTH)
    ours = scaled_dot_product_attention(q, k, v, mask)
    assert torch.equal(ours, F.scaled_dot_product_attention(q, k, v, mask))


def test_errors_are_torchs():
    q, k, v = qkv()
    with pytest.raises(RuntimeError):
        scaled_dot_product_attention(q, k, v, torch.ones(4, 5, dtype=torch.bool))


def test_looks_are_left_out_under_a_compiler(monkeypatch):
    """The result is the same where nothing has to be mended."""
    q, k, v = qkv()
    expected = scaled_dot_product_attention(q, k, v, dead_mask("bool"))
    monkeypatch.setattr(_route, "is_compiling", lambda: True)
    torch.testing.assert_close(
        scaled_dot_product_attention(q, k, v, dead_mask("bool")), expected, rtol=0, atol=0
    )
