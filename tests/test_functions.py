"""The singular points of functions that are not elementwise: value, gradients, transforms."""

import inspect

import pytest
import torch
import torch.nn.attention

from tests.function_table import fixed, is_leaf, nobody_looks, outputs, tensor, total
from tests.functions import FUNCTIONS
from tests.samples import label

MATH = torch.nn.attention.SDPBackend.MATH
torchs_own = pytest.mark.filterwarnings("ignore")
CASES = [
    pytest.param(function, case, dtype, id=f"{function.name}-{i}-{label(dtype)}")
    for function in FUNCTIONS
    for i, case in enumerate(function.cases)
    for dtype in case.dtypes
]
SMOOTH_CASES = [row for row in CASES if row.values[0].twice]
FLOAT_CASES = [row for row in CASES if row.values[2] is torch.float32]


@pytest.fixture
def attention_as_a_formula():
    """torch's fused kernel has no second derivative, and none for a mask under vmap."""
    with torch.nn.attention.sdpa_kernel(MATH):
        yield


def leaves_of(case, dtype):
    made = [(value, tensor(value, dtype)) for value in case.inputs]
    return [
        one.requires_grad_() if is_leaf(one) and not isinstance(value, fixed) else one
        for value, one in made
    ]


def wanted(inputs):
    """Those of which a gradient is wanted."""
    return [value for value in inputs if is_leaf(value) and value.requires_grad]


def on_case(function, case, dtype, upstream=1.0):
    """The outputs, and the gradients of their sum."""
    inputs = leaves_of(case, dtype)
    result = function(*inputs, **case.kwargs)
    leaves = wanted(inputs)
    loss = total(result)
    gradients = torch.autograd.grad(
        loss, leaves, torch.full_like(loss, upstream), allow_unused=True, materialize_grads=True
    )
    return [one.detach() for one in outputs(result)], gradients


def assert_as_expected(case, dtype, values, gradients):
    eps = torch.finfo(dtype).eps
    bound = {"rtol": 8 * eps, "atol": case.atol * eps, "equal_nan": True, "check_dtype": False}
    expected = case.value if isinstance(case.value, tuple) else (case.value,)
    for ours, value in zip(values, expected, strict=True):
        assert_close_to(value, ours, dtype, **bound)
    for ours, gradient in zip(gradients, (*case.gradients, *[None] * 9), strict=False):
        assert ours.isfinite().all(), ours
        assert_close_to(gradient, ours, dtype, **bound)


def assert_close_to(expected, ours, dtype, **bound):
    if expected is None:
        assert ours.isfinite().all(), ours
    else:
        torch.testing.assert_close(ours, tensor(expected, dtype), **bound)


@pytest.mark.parametrize(("function", "case", "dtype"), CASES)
def test_value_and_gradients(function, case, dtype):
    values, gradients = on_case(function.function, case, dtype)
    assert_as_expected(case, dtype, values, gradients)


@pytest.mark.parametrize(("function", "case", "dtype"), CASES)
def test_composite_value_and_gradients(monkeypatch, function, case, dtype):
    nobody_looks(monkeypatch)
    values, gradients = on_case(function.function, case, dtype)
    assert_as_expected(case, dtype, values, gradients)


@torchs_own
@pytest.mark.parametrize(("function", "case", "dtype"), CASES)
def test_torch_is_sick_there(function, case, dtype):
    values, gradients = on_case(function.torch, case, dtype)
    found = all(one.isfinite().all() for one in (*values, *gradients))
    assert found is not case.sick


@pytest.mark.parametrize(("function", "case", "dtype"), CASES)
def test_no_upstream_no_gradient(function, case, dtype):
    for gradient in on_case(function.function, case, dtype, upstream=0.0)[1]:
        assert (gradient == 0).all()


@pytest.mark.usefixtures("attention_as_a_formula")
@pytest.mark.parametrize(("function", "case", "dtype"), SMOOTH_CASES)
def test_second_derivative_is_finite(function, case, dtype):
    inputs = leaves_of(case, dtype)
    leaves = wanted(inputs)
    options = {"allow_unused": True, "materialize_grads": True}
    loss = total(function.function(*inputs, **case.kwargs))
    first = torch.autograd.grad(loss, leaves, create_graph=True, **options)
    slopes = [one.sum() for one in first if one.requires_grad]
    if slopes:
        for second in torch.autograd.grad(sum(slopes), leaves, **options):
            assert second.isfinite().all(), second


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.compiled], ids=label)
def test_compiles(function):
    """All cases in one graph."""
    torch._dynamo.reset()
    cases = [case for case in function.cases if torch.float32 in case.dtypes]
    inputs = [leaves_of(case, torch.float32) for case in cases]
    own = function.function

    @torch.compile(fullgraph=True, backend="aot_eager")
    def graph(inputs):
        return [outputs(own(*i, **case.kwargs)) for i, case in zip(inputs, cases, strict=True)]

    for case, made, values in zip(cases, inputs, graph(inputs), strict=True):
        leaves = wanted(made)
        gradients = torch.autograd.grad(
            total(values), leaves, allow_unused=True, materialize_grads=True, retain_graph=True
        )
        assert_as_expected(case, torch.float32, values, gradients)


@pytest.mark.usefixtures("attention_as_a_formula")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(("function", "case", "dtype"), FLOAT_CASES)
def test_transforms(function, case, dtype):
    """torch.func.vjp of vmap: both copies have the value and the gradients."""
    inputs = leaves_of(case, dtype)
    own, places = (
        function.function,
        [i for i, v in enumerate(inputs) if is_leaf(v) and v.requires_grad],
    )

    def call(*tensors):
        given = dict(zip(places, tensors, strict=True))
        return outputs(own(*[given.get(i, v) for i, v in enumerate(inputs)], **case.kwargs))

    tensors = [inputs[i].detach() for i in places]
    if function.vmapped:
        tensors = [torch.stack([t, t]) for t in tensors]
        call = torch.func.vmap(call)
    values, pull = torch.func.vjp(call, *tensors)
    gradients = pull([torch.ones_like(value) for value in values])
    for i in range(2 if function.vmapped else 1):
        at = (lambda t: t[i]) if function.vmapped else (lambda t: t)  # noqa: B023
        assert_as_expected(case, dtype, map(at, values), map(at, gradients))


def signature(function):
    try:
        return [
            (p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()
        ]
    except ValueError:
        return None


WRITTEN_IN_PYTHON = [
    function
    for function in FUNCTIONS
    if function.name.startswith("nn.functional") and signature(function.torch) is not None
]


@pytest.mark.parametrize("function", WRITTEN_IN_PYTHON, ids=label)
def test_signature_is_torchs(function):
    assert signature(function.function) == signature(function.torch)
