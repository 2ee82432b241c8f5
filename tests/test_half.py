"""All 65,536 inputs of the half types, value and gradient, against float64."""

import pytest
import torch

from safeops.testing import all_values, ulp_distance
from tests import oracle
from tests.cases import HALF, OP
from tests.kernelless_cases import EVERY_OP
from tests.samples import label, shuffle

UNARY = [op for op in EVERY_OP if op.arity == 1]
each_variant = pytest.mark.parametrize(
    ("op", "options"),
    [(op, options) for op in UNARY for options in op.options],
    ids=label,
)
each_half = pytest.mark.parametrize("dtype", HALF, ids=label)


def without_nan(dtype):
    x = all_values(dtype)
    return x[~x.isnan()]


@each_variant
@each_half
def test_every_value(any_route, op, dtype, options):
    """Correctly rounded through float32 by the kernel, within one unit by the formulas.

    The linear extension cancels where it crosses 0: test_contract.py measures it.
    """
    x = without_nan(dtype)
    if "extend" in options:
        x = x[~op.guard(oracle.Options(dtype, **options), x.double())]
    value = any_route.value(op, [x], **options)
    expected = oracle.expected_half(op, [x], options, dtype)
    bound = 0 if any_route.name == "kernel" else op.torch_half_ulp
    distance = ulp_distance(value, expected)
    worst = distance.argmax()
    assert distance[worst] <= bound, (x[worst], value[worst], expected[worst])


@each_variant
@each_half
@pytest.mark.parametrize("upstream", [1.0, -0.3, 3000.0])
def test_every_gradient(route, op, dtype, options, upstream):
    x = without_nan(dtype)
    upstream = torch.full_like(x, upstream)
    (gradient,) = route.gradients(op, [x], upstream, **options)
    errors = oracle.gradient_errors(op, 0, [x], upstream, gradient, options)
    worst = errors.argmax()
    assert errors[worst] <= op.half_ulp + 1e-6, (x[worst], gradient[worst], errors[worst])


@pytest.mark.parametrize("op", UNARY, ids=label)
@each_half
def test_every_nan_stays(any_route, op, dtype):
    x = all_values(dtype)
    assert any_route.value(op, [x])[x.isnan()].isnan().all()


@each_half
@pytest.mark.parametrize("y", [3.0, 0.1, -7e-5, 1e-6, 240.0])
def test_every_numerator(route, dtype, y):
    """By a tensor of one value, and by the Python number, which keeps the compute precision."""
    x = without_nan(dtype)
    tensor = torch.full_like(x, y)
    value = route.value(OP["safe_div"], [x, tensor])
    expected = oracle.expected_half(OP["safe_div"], [x, tensor], {"fill": 0.0}, dtype)
    assert torch.equal(value, expected)
    ours, theirs = OP["safe_div"].function(x, y), x / y
    assert torch.equal(ours[theirs.isfinite()], theirs[theirs.isfinite()])


@each_half
def test_every_denominator(route, dtype):
    op, y = OP["safe_div"], without_nan(dtype)
    x = shuffle(y, 3)
    value = route.value(op, [x, y])
    expected = oracle.expected_half(op, [x, y], {"fill": 0.0}, dtype)
    nan = expected.isnan()
    assert torch.equal(value[~nan], expected[~nan])
    assert value[nan].isnan().all()


@each_half
@pytest.mark.parametrize("options", [{"fill": 0.0}, {"eps": 1e-3}, {"eps": 1e-8}], ids=label)
def test_every_gradient_to_a_quotient(route, dtype, options):
    op, y = OP["safe_div"], without_nan(dtype)
    x, upstream = shuffle(y, 3), shuffle(y, 4)
    for index, gradient in enumerate(route.gradients(op, [x, y], upstream, **options)):
        errors = oracle.gradient_errors(op, index, [x, y], upstream, gradient, options)
        worst = errors.argmax()
        at = [t[worst] for t in (gradient, upstream, x, y)]
        assert errors[worst] <= op.half_ulp + 1e-6, (errors[worst], *at)
