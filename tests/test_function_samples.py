"""torch's own samples of the functions that are not elementwise: ours equal torch's own."""

import itertools
import warnings

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map

from tests.cases import DTYPES, HALF
from tests.function_table import is_leaf, nobody_looks, outputs
from tests.functions import FUNCTIONS
from tests.samples import label

with warnings.catch_warnings():  # it misses packages that are not needed here
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

LIMIT = 24
INFO = {(op.name, op.variant_test_name): op for op in op_db}
torchs_own = pytest.mark.filterwarnings("ignore")
SAMPLED = [
    pytest.param(function, INFO[key], dtype, id=f"{function.name}-{'-'.join(key)}-{label(dtype)}")
    for function in FUNCTIONS
    for key in function.samples
    if key in INFO
    for dtype in DTYPES
    if dtype in INFO[key].dtypes
]
FLOAT_SAMPLED = [row for row in SAMPLED if row.values[2] is torch.float32]
WIDE_SAMPLED = [row for row in SAMPLED if row.values[2] not in HALF]


def samples(info, dtype):
    """At most LIMIT of torch's own, spread over all of them."""
    made = list(info.sample_inputs("cpu", dtype, requires_grad=True))
    return made[:: 1 + len(made) // LIMIT]


def on_sample(function, sample):
    """The outputs, and the gradients to all floating tensors; upstream is 0 where not finite."""
    torch.manual_seed(0)
    call = tree_map(fresh, (sample.input, sample.args, sample.kwargs))
    leaves = [t for t in tree_flatten(call)[0] if is_leaf(t) and t.requires_grad]
    values = outputs(function(call[0], *call[1], **call[2]))
    wanted = [value for value in values if value.requires_grad]
    if not wanted or not leaves:
        return [value.detach() for value in values], []
    upstream = [upstream_of(value) for value in wanted]
    gradients = torch.autograd.grad(wanted, leaves, upstream, materialize_grads=True)
    return [value.detach() for value in values], gradients


def fresh(value):
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def upstream_of(value):
    ramp = torch.linspace(0.5, 2.0, max(value.numel(), 1), dtype=torch.float64)
    ramp = ramp[: value.numel()].view(value.shape).to(value.dtype)
    return torch.where(value.detach().isfinite(), ramp, 0.0)


def assert_equal_where_finite(ours, theirs, exact=False):
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    finite, eps = theirs.isfinite(), torch.finfo(theirs.dtype).eps
    top = theirs[finite].abs().amax().item() if finite.any() else 0.0
    bound = {"rtol": 0, "atol": 0} if exact else {"rtol": 8 * eps, "atol": 64 * eps * max(top, 1)}
    torch.testing.assert_close(ours[finite], theirs[finite], **bound)


@torchs_own
@pytest.mark.parametrize(("function", "info", "dtype"), SAMPLED)
def test_equals_torch(function, info, dtype):
    """With torch's own bits, since a look at the value shows that nothing has to be guarded.
    Half types compute in float32 where something has."""
    tried = samples(info, dtype)
    assert tried
    for sample in tried:
        values, gradients = on_sample(function.function, sample)
        expected, expected_gradients = on_sample(info.op, sample)
        for ours, theirs in zip(values, expected, strict=True):
            assert_equal_where_finite(ours, theirs, exact=function.bits and dtype not in HALF)
        for ours, theirs in zip(gradients, expected_gradients, strict=True):
            assert_equal_where_finite(ours, theirs)


@torchs_own
@pytest.mark.parametrize(("function", "info", "dtype"), WIDE_SAMPLED)
def test_composite_equals_torch(monkeypatch, function, info, dtype):
    """In half types torch rounds at every step."""
    nobody_looks(monkeypatch)
    for sample in samples(info, dtype)[::2]:
        values, gradients = on_sample(function.function, sample)
        expected, expected_gradients = on_sample(info.op, sample)
        for ours, theirs in zip(values, expected, strict=True):
            assert_equal_where_finite(ours, theirs)
        for ours, theirs in zip(gradients, expected_gradients, strict=True):
            assert_equal_where_finite(ours, theirs)


@torchs_own
@pytest.mark.parametrize(("function", "info", "dtype"), SAMPLED)
def test_nan_goes_out_as_in_torch(function, info, dtype):
    """But not what is NaN in torch without one."""
    for sample in itertools.islice(info.sample_inputs("cpu", dtype), 3):
        healthy = on_sample(info.op, sample)[0]
        if sample.input.numel():
            sample.input.view(-1)[0] = torch.nan
        expected = attempt(lambda: on_sample(info.op, sample)[0])  # noqa: B023
        values = attempt(lambda: on_sample(function.function, sample)[0])  # noqa: B023
        if isinstance(expected, Exception):
            assert type(values) is type(expected)
            continue
        for ours, theirs, before in zip(values, expected, healthy, strict=True):
            known = before.isfinite()
            assert torch.equal(ours.isnan() & known, theirs.isnan() & known)


def attempt(call):
    try:
        return call()
    except Exception as error:
        return error


def emptied(sample):
    """The sample without the elements of the first dimension, where its tensors share that."""
    size = sample.input.shape[:1]
    call = (sample.input, sample.args, sample.kwargs)
    return tree_map(lambda t: t[:0] if getattr(t, "shape", ())[:1] == size else t, call)


@torchs_own
@pytest.mark.parametrize(("function", "info", "dtype"), FLOAT_SAMPLED)
def test_empty_as_torch(function, info, dtype):
    for sample in itertools.islice(info.sample_inputs("cpu", dtype), 3):
        if sample.input.dim() == 0:
            continue
        first, args, kwargs = emptied(sample)
        expected = attempt(lambda: outputs(info.op(first, *args, **kwargs)))  # noqa: B023
        values = attempt(lambda: outputs(function.function(first, *args, **kwargs)))  # noqa: B023
        if isinstance(expected, Exception):
            assert type(values) is type(expected)
            continue
        for ours, theirs in zip(values, expected, strict=True):
            assert_equal_where_finite(ours, theirs)
