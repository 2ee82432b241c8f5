"""The contract of every op, V1-V4 and G1-G5, on every route: rows are in cases.py."""

import json
import math
from pathlib import Path

import pytest
import torch

from tests import oracle
from tests.cases import DTYPES, HALF, OP, OPS, tiny
from tests.kernelless_cases import EVERY_OP
from tests.samples import label, specials, sweep, upstreams

CASES = json.loads((Path(__file__).parent / "cases" / "ops.json").read_text())
CASES = [case for case in CASES if case["op"] in OP]

each_op = pytest.mark.parametrize("op", EVERY_OP, ids=label)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)
each_variant = pytest.mark.parametrize(
    ("op", "options"),
    [(op, options) for op in EVERY_OP for options in op.options],
    ids=label,
)


def value_bound(op, route, dtype):
    bound = op.value_ulp[0 if route.name == "kernel" else 1]
    return 1.0 if dtype in HALF and math.isfinite(bound) else bound


def gradient_bound(op, index, dtype, options):
    bound = op.half_ulp if dtype in HALF else op.gradient_ulp[index]
    return bound + 0.5 if options.get("extend") == "linear" else bound


def within(errors, bound, *tensors):
    """Fails with the worst elements: error, actual, inputs."""
    assert_nowhere(~(errors <= bound), errors, *tensors)


def assert_nowhere(bad, *tensors):
    rows = sorted(zip(*(tensor[bad].tolist() for tensor in tensors), strict=True))
    if rows:
        pytest.fail(f"{len(rows)} of {bad.numel()} elements, among them {rows[-3:]}")


@each_variant
@each_dtype
def test_value(any_route, op, dtype, options):
    inputs = sweep(op, dtype)
    value = any_route.value(op, inputs, **options)
    errors = oracle.value_errors(op, inputs, value, options)
    bound = value_bound(op, any_route, dtype) + 1e-6
    if options.get("extend") == "linear":
        errors = errors * ~op.guard(oracle.Options(dtype, **options), *inputs)
    within(errors, bound, value, *inputs)


@pytest.mark.parametrize("options", [v for v in OP["safe_log"].options if "extend" in v], ids=label)
@pytest.mark.parametrize("op", [OP["safe_log"], OP["safe_sqrt"]], ids=label)
@each_dtype
def test_value_of_the_linear_extension(any_route, op, dtype, options):
    """Its two terms may cancel, so the error is measured against the larger one."""
    (x,) = sweep(op, dtype)
    o = oracle.Options(dtype, **options)
    x = x[op.guard(o, x.double())]
    value = any_route.value(op, [x], **options).double()
    expected = oracle.saturated(op.outside(o, x.double()), dtype, x.isfinite())
    largest = torch.maximum(expected.abs(), op.outside(o, x.double() * 0).abs())
    close = (value - expected).abs() <= 2 * torch.finfo(dtype).eps * largest
    assert_nowhere(~close & (value != expected), value, expected, x)


@each_op
@each_dtype
def test_value_is_torchs(any_route, op, dtype):
    inputs = sweep(op, dtype)
    theirs = op.torch(*inputs)
    regular = theirs.isfinite() & ~op.guard(oracle.Options(dtype), *inputs)
    assert regular.sum() > 100
    inputs = [tensor[regular] for tensor in inputs]
    distance = oracle.ulp_distance(any_route.value(op, inputs), op.torch(*inputs))
    assert distance.max() <= bound_to_torch(op, any_route, dtype)


def bound_to_torch(op, route, dtype):
    if op.raw is None and dtype in HALF and route.name != "torch":
        return op.torch_half_ulp
    inexact = route.name == "kernel" or dtype in HALF  # torch's half types take another way
    same_bits = op.bitwise and not (op.torch_is_inexact and inexact)
    return 0 if same_bits or route.name == "torch" else 1 if dtype in HALF else 2


@each_variant
@each_dtype
def test_finite_in_gives_finite_out(any_route, op, dtype, options):
    inputs = sweep(op, dtype)
    value = any_route.value(op, inputs, **options)
    assert_nowhere(oracle.finite(*inputs) & ~value.isfinite(), value, *inputs)


@each_variant
@each_dtype
def test_nan_in_gives_nan_out(any_route, op, dtype, options):
    inputs = sweep(op, dtype)
    nan = torch.stack(inputs).isnan().any(0)
    value = any_route.value(op, inputs, **options)
    nan &= ~nan_is_settled(op, *inputs)
    if op.name == "safe_div" and options.get("fill") is not None:
        nan &= ~((inputs[1].abs() < options.get("eps", 0)) | (inputs[1] == 0)) | inputs[0].isnan()
    kept = value.isnan() if "nan" not in options else value == options["nan"]
    assert_nowhere(nan & ~kept, value, *inputs)


def nan_is_settled(op, *inputs):
    """Where the other operand alone decides, in torch as in IEEE 754: x ** 0, 1 ** p, a leg of
    infinite length."""
    by_torch = op.public in ("safe_pow", "safe_hypot")
    return ~op.torch(*inputs).isnan() & by_torch


@each_variant
@each_dtype
@pytest.mark.parametrize("kind", range(3), ids=["ones", "ordinary", "wild"])
def test_gradient(route, op, dtype, options, kind):
    inputs = sweep(op, dtype, 300)
    upstream = upstreams(inputs[0])[kind]
    gradients = route.gradients(op, inputs, upstream, **options)
    for index, gradient in enumerate(gradients):
        errors = oracle.gradient_errors(op, index, inputs, upstream, gradient, options)
        bound = gradient_bound(op, index, dtype, options) + 1e-6
        within(errors, bound, gradient, upstream, *inputs)


@pytest.mark.parametrize(
    ("op", "options"), [(op, options) for op in OPS for options in op.options], ids=label
)
@each_dtype
def test_gradient_of_the_composite(composite, op, dtype, options):
    """The true derivative may overflow there; elsewhere the bounds hold, one unit wider. A NaN
    has no derivative there, and an infinity leaves none to the other operand, or a zero upstream
    gradient would become NaN."""
    inputs = sweep(op, dtype, 300)
    kept = oracle.finite(*inputs) if op.arity == 2 else ~inputs[0].isnan()
    inputs = [tensor[kept] for tensor in inputs]
    for upstream in upstreams(inputs[0])[:2]:
        for index, gradient in enumerate(composite.gradients(op, inputs, upstream, **options)):
            gradient = oracle.saturated(gradient, dtype, oracle.finite(upstream, *inputs))
            errors = oracle.gradient_errors(op, index, inputs, upstream, gradient, options)
            bound = gradient_bound(op, index, dtype, options) + 1
            if op.raw == "div":
                errors = errors.masked_fill(beyond_range(index, *inputs), 0)
            within(errors, bound, gradient, upstream, *inputs)


def beyond_range(index, x, y):
    """Where 1 / y or x / y**2 itself overflows: the composite limits it to finfo.max."""
    log_x, log_y = x.double().abs().log2(), y.double().abs().log2()
    size = log_x - 2 * log_y if index else -log_y
    return size >= math.log2(torch.finfo(x.dtype).max)


@each_variant
@each_dtype
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_upstream_gives_zero(any_route, op, dtype, options, zero):
    inputs = specials(op, dtype)
    upstream = torch.full_like(inputs[0], zero)
    for gradient in any_route.gradients(op, inputs, upstream, **options):
        assert_nowhere(gradient != 0, gradient, *inputs)


@each_variant
@each_dtype
def test_finite_upstream_gives_finite_gradients(route, op, dtype, options):
    inputs = specials(op, dtype, only_finite=True)
    limit = torch.finfo(dtype).max
    for upstream in (1.0, -1.0, limit, -limit, tiny(dtype)):
        upstream = torch.full_like(inputs[0], upstream)
        for gradient in route.gradients(op, inputs, upstream, **options):
            assert_nowhere(~gradient.isfinite(), gradient, upstream, *inputs)


@each_variant
@each_dtype
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_bad_upstream_passes_where_nothing_is_guarded(any_route, op, dtype, options, bad):
    inputs = specials(op, dtype, only_finite=True)
    upstream = torch.full_like(inputs[0], bad)
    guarded = op.guard(oracle.Options(dtype, **options), *[t.double() for t in inputs])
    for gradient in any_route.gradients(op, inputs, upstream, **options):
        flat = (op.public == "safe_pow") & (gradient == 0)  # to x where p == 0, to p where x <= 0
        assert_nowhere(~guarded & gradient.isfinite() & ~flat, gradient, *inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=label)
def test_tangent_steeper_than_the_dtype(any_route, dtype):
    """1 / eps is beyond the range, upstream / eps is not."""
    eps, upstream = 2.0**-130, torch.tensor([2.0**-100], dtype=dtype)
    value, (gradient,) = any_route.both(
        OP["safe_log"], [torch.zeros(1, dtype=dtype)], upstream, eps=eps, extend="linear"
    )
    assert gradient == 2.0**30
    torch.testing.assert_close(value, torch.tensor([math.log(eps) - 1], dtype=dtype))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(any_route, case):
    op, dtype = OP[case["op"]], getattr(torch, case["dtype"])
    inputs = [as_tensor(values, dtype) for values in case["inputs"]]
    upstream = as_tensor(case["upstream"], dtype) if "upstream" in case else None
    value, gradients = any_route.both(op, inputs, upstream, **case.get("kwargs", {}))
    pairs = [(value, case["value"]), *zip(gradients, case["grads"] or [], strict=False)]
    for actual, expected in pairs:
        if expected is not None:
            actual = oracle.saturated(actual, dtype, torch.stack(inputs).isfinite().all(0))
            torch.testing.assert_close(actual, as_tensor(expected, dtype), equal_nan=True)


def as_tensor(values, dtype):
    words = {"max": torch.finfo(dtype).max, "log_tiny": math.log(tiny(dtype))}
    return torch.tensor([float(words.get(value, value)) for value in values], dtype=dtype)
