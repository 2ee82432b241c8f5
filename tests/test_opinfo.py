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


def opinfo(name, variant):
    (found,) = (op for op in op_db if (op.name, op.variant_test_name) == (name, variant))
    return found


def samples(info, dtype):
    """Samples as torch makes them; clamp's bounds, which are tensors there, as numbers."""
    made = info.sample_inputs("cpu", dtype, requires_grad=True)
    return [with_numbers(info, sample) for sample in itertools.islice(made, LIMIT)]


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


def results(function, sample):
    tensors = [a for a in (sample.input, *sample.args) if isinstance(a, torch.Tensor)]
    leaves = [t for t in tensors if t.requires_grad]
    value = function(sample.input, *sample.args, **sample.kwargs)
    return value.detach(), torch.autograd.grad(value, leaves, upstream_of(value))


@torchs_own
@pytest.mark.parametrize(("name", "variant", "function"), PAIRS, ids=label)
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_equals_torch(route, name, variant, function, dtype):
    info = opinfo(name, variant)
    tried = samples(info, dtype)
    assert tried
    for sample in tried:
        value, gradients = results(function, sample)
        expected, expected_gradients = results(info.op, sample)
        assert_equal_where_finite(value, expected)
        for ours, theirs in zip(gradients, expected_gradients, strict=True):
            if theirs.shape == expected.shape or dtype not in HALF:
                assert_equal_where_finite(ours, theirs)


def assert_equal_where_finite(ours, theirs):
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    finite = theirs.isfinite()
    loose = {"rtol": 8 * torch.finfo(ours.dtype).eps, "atol": 1e-5} if ours.dtype in HALF else {}
    torch.testing.assert_close(ours[finite], theirs[finite], **loose)


@torchs_own
def test_tensor_bounds_are_the_exception():
    """They would need a gradient of their own; the error says so."""
    sample = next(opinfo("clamp", "").sample_inputs("cpu", torch.float32))
    assert any(isinstance(bound, torch.Tensor) for bound in sample.args)
    with pytest.raises(TypeError, match="finite_clip"):
        safeops.finite_clip(sample.input, *sample.args)


@torchs_own
@pytest.mark.parametrize(("name", "variant", "function"), PAIRS[:4], ids=label)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=label)
def test_equals_torch_on_integers(name, variant, function, dtype):
    for sample in itertools.islice(opinfo(name, variant).sample_inputs("cpu", dtype), LIMIT):
        value = function(sample.input, *sample.args)
        assert_equal_where_finite(value, opinfo(name, variant).op(sample.input, *sample.args))
