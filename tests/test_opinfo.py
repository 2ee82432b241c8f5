"""torch's own samples of its ops: safeops equals torch wherever torch is finite.

torch's gradients of half types round at every step, and broadcast ones sum in the half type: the
bounds are wide there, and the sums are left out.
"""

import itertools
import warnings

import pytest
import torch

import safeops
from tests.cases import DTYPES, HALF
from tests.samples import label

with warnings.catch_warnings():  # it misses packages that are not needed here
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

torchs_own = pytest.mark.filterwarnings("ignore")
LIMIT = 40


def clip_like_nan_to_num(x, nan=0.0, posinf=None, neginf=None):
    return safeops.finite_clip(x, neginf, posinf, nan=nan)


# torch's op, its variant, and the safeops function of the same arguments
PAIRS = [
    ("log", "", safeops.safe_log),
    ("sqrt", "", safeops.safe_sqrt),
    ("div", "no_rounding_mode", safeops.safe_div),
    ("true_divide", "", safeops.safe_div),
    ("clamp", "", safeops.finite_clip),
    ("nan_to_num", "", clip_like_nan_to_num),
]
KERNELLESS = [
    ("log2", "", safeops.safe_log2),
    ("log10", "", safeops.safe_log10),
    ("log1p", "", safeops.safe_log1p),
    ("rsqrt", "", safeops.safe_rsqrt),
    ("pow", "", safeops.safe_pow),
    ("exp", "", safeops.safe_exp),
    ("expm1", "", safeops.safe_expm1),
    ("acos", "", safeops.safe_acos),
    ("asin", "", safeops.safe_asin),
    ("atanh", "", safeops.safe_atanh),
    ("acosh", "", safeops.safe_acosh),
    ("atan2", "", safeops.safe_atan2),
    ("hypot", "", safeops.safe_hypot),
    ("logit", "", safeops.safe_logit),
    ("xlogy", "", safeops.safe_xlogy),
    ("special.xlog1py", "", safeops.safe_xlog1py),
    ("special.entr", "", safeops.safe_entr),
    ("logaddexp", "", safeops.safe_logaddexp),
    ("logaddexp2", "", safeops.safe_logaddexp2),
]


def softmin(x, dim, dtype=None, mask=None):
    return safeops.softmax(-x, dim, mask=mask, dtype=dtype)


def like_masked_logsumexp(x, dim=None, *, keepdim=False, mask=None):
    """torch.masked takes no dims, and all of them by default."""
    dim = tuple(range(x.dim())) or 0 if dim in (None, ()) else dim
    return safeops.logsumexp(x, dim, keepdim, mask=mask)


ROW_PAIRS = [
    ("softmax", "", safeops.softmax),
    ("softmax", "with_dtype", safeops.softmax),
    ("log_softmax", "", safeops.log_softmax),
    ("log_softmax", "with_dtype", safeops.log_softmax),
    ("logsumexp", "", safeops.logsumexp),
    ("nn.functional.softmin", "", softmin),
    ("nn.functional.softmin", "with_dtype", softmin),
    ("masked.softmax", "", safeops.softmax),
    ("masked.log_softmax", "", safeops.log_softmax),
    ("masked.softmin", "", softmin),
    ("masked.logsumexp", "", like_masked_logsumexp),
]


def opinfo(name, variant):
    (found,) = (op for op in op_db if (op.name, op.variant_test_name) == (name, variant))
    return found


def samples(info, dtype, limit=LIMIT):
    """Samples as torch makes them; clamp's bounds, which are tensors there, as numbers."""
    made = info.sample_inputs("cpu", dtype, requires_grad=True)
    return [with_numbers(info, sample) for sample in itertools.islice(made, limit)]


def with_numbers(info, sample):
    if info.name == "clamp":
        bounds = [a if a is None else a.double().mean().item() for a in sample.args]
        sample.args = tuple(bounds if None in bounds else sorted(bounds))
    return sample


def upstream_of(value):
    return (
        torch.linspace(-2.0, 2.0, max(value.numel(), 1))
        .to(value.dtype)[: value.numel()]
        .view_as(value)
    )


def results(function, sample, upstream=upstream_of):
    tensors = [a for a in (sample.input, *sample.args) if isinstance(a, torch.Tensor)]
    leaves = [t for t in tensors if t.requires_grad]
    value = function(sample.input, *sample.args, **sample.kwargs)
    return value.detach(), torch.autograd.grad(value, leaves, upstream(value))


@torchs_own
@pytest.mark.parametrize(("name", "variant", "function"), PAIRS + KERNELLESS, ids=label)
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_equals_torch(route, name, variant, function, dtype):
    info = opinfo(name, variant)
    tried = samples(info, dtype)
    assert tried
    for sample in tried:
        value, gradients = results(function, sample)
        expected, expected_gradients = results(info.op, sample)
        kernelless = (name, variant, function) in KERNELLESS
        assert_equal_where_finite(value, expected, 8 * kernelless)
        for ours, theirs in zip(gradients, expected_gradients, strict=True):
            if theirs.shape == expected.shape or dtype not in HALF:
                close = assert_close_to_rounded if kernelless else assert_equal_where_finite
                close(ours, theirs)


def assert_close_to_rounded(ours, theirs):
    """torch takes the gradient of expm1 from the result + 1, and those of asin, acos and atanh from
    1 - x², which leaves few digits near -inf and near ±1."""
    finite, eps = theirs.isfinite(), torch.finfo(ours.dtype).eps
    torch.testing.assert_close(ours[finite], theirs[finite], rtol=64 * eps, atol=8 * eps)


@torchs_own
@pytest.mark.parametrize(("name", "variant", "function"), ROW_PAIRS, ids=label)
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_rows_equal_torch(route, name, variant, function, dtype):
    """Of many samples every second. Upstream is 0 where torch's value is not finite: there
    torch.masked lets the gradient of what is masked take part. torch's half log_softmax is a few
    units off near 0."""
    info = opinfo(name, variant)
    tried = samples(info, dtype, limit=None)
    assert len(tried) >= 5
    tried = tried[:: 1 + (len(tried) > LIMIT)]
    for sample in tried:
        expected, expected_gradients = results(info.op, sample, only_finite)
        value, gradients = results(function, sample, lambda _: only_finite(expected))  # noqa: B023
        assert_equal_where_finite(value, expected, atol=8)
        assert_equal_where_finite(gradients[0], expected_gradients[0], atol=8)


def only_finite(value):
    return torch.where(value.isfinite(), upstream_of(value), 0.0)


def assert_equal_where_finite(ours, theirs, atol=0):
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    finite = theirs.isfinite()
    eps = torch.finfo(ours.dtype).eps if ours.is_floating_point() else 0
    loose = {"rtol": 8 * eps, "atol": atol * eps or 1e-5} if ours.dtype in HALF else {}
    torch.testing.assert_close(ours[finite], theirs[finite], **loose)


@torchs_own
def test_tensor_bounds_are_the_exception():
    """They would need a gradient of their own; the error says so."""
    sample = next(opinfo("clamp", "").sample_inputs("cpu", torch.float32))
    assert any(isinstance(bound, torch.Tensor) for bound in sample.args)
    with pytest.raises(TypeError, match="finite_clip"):
        safeops.finite_clip(sample.input, *sample.args)


ON_INTEGERS = [
    (*pair, dtype)
    for pair in PAIRS[:4] + KERNELLESS
    for dtype in (torch.int64, torch.uint8, torch.bool)
    if dtype in opinfo(*pair[:2]).dtypes  # torch's own op takes it
]


@torchs_own
@pytest.mark.parametrize(("name", "variant", "function", "dtype"), ON_INTEGERS, ids=label)
def test_equals_torch_on_integers(name, variant, function, dtype):
    for sample in itertools.islice(opinfo(name, variant).sample_inputs("cpu", dtype), LIMIT):
        value = function(sample.input, *sample.args)
        assert_equal_where_finite(value, opinfo(name, variant).op(sample.input, *sample.args))
