"""Every error names the op, what was expected, what came, and what to do."""

import re

import pytest
import torch

from safeops import finite_clip, safe_div, safe_log, safe_sqrt
from tests.cases import HALF, OP, OPS
from tests.kernelless_cases import EVERY_OP
from tests.samples import label

each_op = pytest.mark.parametrize("op", EVERY_OP, ids=label)


def quantized():
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


def nested():
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


# a tensor the ops do not take, how the error calls it, and what it says to do
WRONG = {
    "complex64": (lambda: torch.ones(2, dtype=torch.complex64), "complex64", "convert"),
    "complex128": (lambda: torch.ones(2, dtype=torch.complex128), "complex128", "convert"),
    "float8": (lambda: torch.ones(2).to(torch.float8_e4m3fn), "float8_e4m3fn", "convert"),
    "sparse_coo": (lambda: torch.eye(2).to_sparse(), "sparse_coo", "to_dense"),
    "sparse_csr": (lambda: torch.eye(2).to_sparse_csr(), "sparse_csr", "to_dense"),
    "quantized": (quantized, "quantized", "dequantize"),
    "nested": (nested, "nested", "to_padded_tensor"),
    "list": (lambda: [1.0], "list", "as_tensor"),
    "string": (lambda: "1", "str", "as_tensor"),
    "none": (lambda: None, "NoneType", "as_tensor"),
}
torchs_own = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@torchs_own
@each_op
@pytest.mark.parametrize("kind", WRONG)
def test_tensors_that_are_not_taken(route, op, kind):
    make, came, advice = WRONG[kind]
    for position in range(op.arity):
        inputs = [torch.ones(2) for _ in range(op.arity)]
        inputs[position] = make()
        with pytest.raises(TypeError) as error, route.runs():
            op.function(*inputs)
        assert str(error.value).startswith(f"{op.public}: ")
        assert came in str(error.value)
        assert advice in str(error.value) or (op.arity == 2 and "Python number" in str(error.value))


@pytest.mark.parametrize("op", [op for op in EVERY_OP if op.arity == 1], ids=label)
def test_a_python_number_is_no_tensor(op):
    with pytest.raises(TypeError, match=rf"{op.public}: .*float.*as_tensor"):
        op.function(1.0)


def test_two_python_numbers():
    with pytest.raises(TypeError, match=r"safe_div: .*float"):
        safe_div(1.0, 2.0)


@pytest.mark.parametrize("pair", [("cpu", "meta"), ("meta", "cpu")], ids=str)
def test_devices_that_do_not_mix(route, pair):
    with pytest.raises((TypeError, RuntimeError)) as error:
        safe_div(*[torch.ones(2, device=device) for device in pair])
    assert "safe_div" in str(error.value)
    assert "cpu" in str(error.value)
    assert "meta" in str(error.value)


TORCHS_OWN = ("safe_logit", "safe_pow")  # arguments that are positional in torch
BAD_EPS = [0, 0.0, -1.0, -1e-8, float("nan"), float("inf"), 10**400]


@pytest.mark.parametrize("op", [op for op in OPS if op.name != "finite_clip"], ids=label)
@pytest.mark.parametrize("eps", BAD_EPS, ids=lambda eps: str(eps)[:5])
def test_eps_is_positive_and_finite(op, eps):
    with pytest.raises(ValueError, match=rf"{op.name}: eps must be positive and finite") as error:
        op.function(*[torch.ones(2)] * op.arity, eps=eps)
    assert "torch.float32" in str(error.value)
    assert repr(eps)[:20] in str(error.value)


@pytest.mark.parametrize("op", [op for op in OPS if op.name != "finite_clip"], ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=label)
@pytest.mark.parametrize("eps", [1e-46, 1e-300, 1e39], ids=str)
def test_eps_has_a_place_in_the_compute_type(op, dtype, eps):
    with pytest.raises(ValueError, match=rf"{op.name}: eps .*float32.*{re.escape(str(eps))}"):
        op.function(*[torch.ones(2, dtype=dtype)] * op.arity, eps=eps)
    assert op.function(*[torch.ones(2, dtype=torch.float64)] * op.arity, eps=eps).isfinite().all()


@pytest.mark.parametrize("dtype", HALF, ids=label)
def test_small_eps_works_in_half_types(route, dtype):
    value = route.value(OP["safe_log"], [torch.zeros(2, dtype=dtype)], eps=1e-8)
    torch.testing.assert_close(value.float(), torch.full((2,), -18.42), rtol=1e-2, atol=0)


WRONG_OPTIONS = [
    (safe_log, {"eps": "1"}, TypeError, "eps.*str"),
    (safe_log, {"eps": torch.tensor(1.0)}, TypeError, "eps.*Tensor"),
    (safe_log, {"eps": 1j}, TypeError, "eps.*complex"),
    (safe_log, {"fill": "0"}, TypeError, "fill.*str"),
    (safe_log, {"fill": float("inf")}, ValueError, "fill.*finite.*inf"),
    (safe_log, {"fill": float("nan")}, ValueError, "fill.*finite.*nan"),
    (safe_log, {"extend": "cubic"}, ValueError, "extend.*'clamp' or 'linear'.*'cubic'"),
    (safe_log, {"extend": None}, ValueError, "extend.*'clamp' or 'linear'.*None"),
    (safe_log, {"extend": "linear"}, ValueError, "linear.*needs eps"),
    (safe_log, {"extend": "linear", "eps": 1.0, "fill": 0.0}, ValueError, "fill.*linear.*one"),
    (safe_log, {"extend": "linear", "fill": 0.0}, ValueError, "linear"),
    (safe_sqrt, {"eps": "1"}, TypeError, "eps.*str"),
    (safe_sqrt, {"fill": torch.zeros(1)}, TypeError, "fill.*Tensor"),
    (safe_sqrt, {"fill": float("-inf")}, ValueError, "fill.*finite.*inf"),
    (safe_sqrt, {"extend": "linear"}, ValueError, "linear.*needs eps"),
    (safe_sqrt, {"extend": "linear", "eps": 1.0, "fill": 0.0}, ValueError, "fill.*linear.*one"),
    (safe_sqrt, {"extend": "linear", "fill": 0.0}, ValueError, "linear"),
    (safe_sqrt, {"extend": "Clamp"}, ValueError, "extend.*'clamp' or 'linear'"),
    (safe_div, {"eps": "1"}, TypeError, "eps.*str"),
    (safe_div, {"eps": torch.tensor(1.0)}, TypeError, "eps.*Tensor"),
    (safe_div, {"fill": "0"}, TypeError, "fill.*str"),
    (safe_div, {"fill": float("nan")}, ValueError, "fill.*finite.*nan"),
    (safe_div, {"fill": None}, ValueError, "fill=None.*give eps"),
    (finite_clip, {"min": 2.0, "max": 1.0}, ValueError, "min <= max.*2.0.*1.0"),
    (finite_clip, {"min": float("nan")}, ValueError, "min.*nan"),
    (finite_clip, {"max": float("nan")}, ValueError, "max.*nan"),
    (finite_clip, {"nan": float("nan")}, ValueError, "nan"),
    (finite_clip, {"nan": float("inf")}, ValueError, "nan.*finite.*inf"),
    (finite_clip, {"min": "0"}, TypeError, "min.*str"),
    (finite_clip, {"min": torch.zeros(2)}, TypeError, "min.*Tensor"),
    (finite_clip, {"max": torch.tensor(1.0)}, TypeError, "max.*Tensor"),
    (finite_clip, {"max": 1j}, TypeError, "max.*complex"),
    (finite_clip, {"nan": "0"}, TypeError, "nan.*str"),
]


@pytest.mark.parametrize(("function", "options", "kind", "match"), WRONG_OPTIONS, ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=label)
def test_wrong_options(function, options, kind, match, dtype):
    arguments = [torch.ones(2, dtype=dtype)] * OP[function.__name__].arity
    with pytest.raises(kind) as error:
        function(*arguments, **options)
    assert re.search(f"^{function.__name__}: .*{match}", str(error.value)), str(error.value)


def test_bounds_that_meet_after_rounding_are_allowed():
    third = finite_clip(torch.ones(1, dtype=torch.float16), 0.3333, 0.33331)
    assert third == torch.tensor(0.3333, dtype=torch.float16)


@pytest.mark.parametrize("op", [op for op in EVERY_OP if op.public not in TORCHS_OWN], ids=label)
def test_options_are_keyword_only(op):
    arguments = [torch.ones(2)] * op.arity + ([0.0, 1.0] if op.name == "finite_clip" else [])
    with pytest.raises(TypeError, match="positional"):
        op.function(*arguments, 1e-3)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1j, "1", None], ids=str)
def test_operands_that_are_no_numbers(number):
    """A number that is infinite or NaN is still one: it behaves as the tensor would."""
    if isinstance(number, float):
        expected = torch.ones(2) / number
        torch.testing.assert_close(safe_div(torch.ones(2), number), expected, equal_nan=True)
    else:
        with pytest.raises(TypeError, match="safe_div: "):
            safe_div(torch.ones(2), number)
