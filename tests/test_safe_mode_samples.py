"""torch's own samples of its ops within safe_mode: torch's results wherever they are finite."""

import itertools
import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import safeops
from tests.cases import DTYPES, HALF
from tests.samples import label

with warnings.catch_warnings():  # it misses packages that are not needed here
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

LIMIT = 24
NAMES = {
    *("div", "true_divide", "reciprocal", "__rdiv__", "log", "log2", "log10", "log1p", "sqrt"),
    *(
        "rsqrt",
        "pow",
        "__rpow__",
        "exp",
        "expm1",
        "cosh",
        "sinh",
        "norm",
        "linalg.norm",
        "linalg.vector_norm",
    ),
    *("std", "var", "std_mean", "var_mean", "mean", "acos", "asin", "atanh", "acosh", "atan2"),
    *("hypot", "logit", "xlogy", "special.xlog1py", "special.entr", "logaddexp", "logaddexp2"),
    *("logcumsumexp", "softmax", "log_softmax", "logsumexp", "cdist", "nn.functional.softmin"),
    *(f"nn.functional.{name}" for name in safeops.nn.functional.__all__),
}
WITHOUT_SAMPLES = {  # F.softmax and F.log_softmax have those of torch
    *("nn.functional.softmax", "nn.functional.log_softmax", "nn.functional.kl_div"),
}
INFOS = [op for op in op_db if op.name in NAMES and set(DTYPES) & set(op.dtypes)]
ROWS = [
    pytest.param(op, dtype, id=f"{op.name}-{op.variant_test_name}-{label(dtype)}")
    for op in INFOS
    for dtype in DTYPES
    if dtype in op.dtypes
]
pytestmark = pytest.mark.filterwarnings("ignore")


def test_there_are_samples_of_all():
    assert {op.name for op in INFOS} | WITHOUT_SAMPLES == NAMES


def calls_of(op):
    """torch's function, its method and its in-place method."""
    yield op.op
    if op.method_variant is not None:
        yield op.method_variant
    if op.inplace_variant is not None:
        yield in_place(op.inplace_variant)


def in_place(variant):
    def call(x, *args, **kwargs):
        return variant(x.clone(), *args, **kwargs)

    return call


def fresh(value, dtype=None):
    """A copy, in a wider type if asked."""
    if not isinstance(value, torch.Tensor):
        return value
    made = value.detach().clone().requires_grad_(value.requires_grad)
    return (
        made
        if dtype is None or not floating(value)
        else made.detach().to(dtype).requires_grad_(value.requires_grad)
    )


def floating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def outcome(call, sample, dtype=None):
    """The results and gradients, or the kind of the error."""
    torch.manual_seed(0)
    given = sample.input, sample.args, sample.kwargs
    x, args, kwargs = tree_map(lambda value: fresh(value, dtype), given)
    try:
        values = [v for v in tree_leaves(call(x, *args, **kwargs)) if isinstance(v, torch.Tensor)]
        return values, gradients_of(values, tree_leaves((x, args, kwargs)))
    except Exception as error:
        return type(error), []


def gradients_of(values, inputs):
    """Of what is finite."""
    wanted = [v for v in values if v.requires_grad]
    leaves = [v for v in inputs if floating(v) and v.requires_grad]
    if not wanted or not leaves:
        return []
    upstream = [torch.where(v.detach().isfinite(), torch.ones_like(v), 0.0) for v in wanted]
    return torch.autograd.grad(wanted, leaves, upstream, materialize_grads=True)


def assert_equal_where_finite(ours, theirs, wider=None):
    """Or equal to what torch finds in a wider type, whose gradients round less on the way."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    if not floating(theirs):
        return torch.testing.assert_close(ours, theirs)
    eps = torch.finfo(theirs.dtype).eps
    unit = (16 if theirs.dtype in HALF else 8) * eps
    right = torch.isclose(ours, theirs, rtol=unit, atol=unit) | ~theirs.isfinite()
    if wider is not None:
        right |= torch.isclose(ours.to(wider.dtype), wider, rtol=unit, atol=unit)
    assert right.all(), (ours[~right], theirs[~right])
    return None


WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
ROUNDS_MORE = {"acos", "asin", "acosh", "atanh", "logsumexp"}  # torch's gradient in float64


@pytest.mark.parametrize(("op", "dtype"), ROWS)
def test_equals_torch(op, dtype):
    made = list(op.sample_inputs("cpu", dtype, requires_grad=True))
    for sample, call in itertools.product(made[:: 1 + len(made) // LIMIT], calls_of(op)):
        values, gradients = outcome(call, sample)
        _, wide = outcome(op.op, sample, WIDER.get(dtype, torch.float64))
        with safeops.safe_mode():
            found, found_gradients = outcome(call, sample)
        if isinstance(values, type):
            assert found is values or values is NotImplementedError
            continue
        for ours, theirs in zip(found, values, strict=True):
            assert_equal_where_finite(ours, theirs)
        if dtype is torch.float64 and op.name in ROUNDS_MORE:
            continue
        for ours, theirs, wider in zip(found_gradients, gradients, wide, strict=True):
            assert_equal_where_finite(ours, theirs, wider)
