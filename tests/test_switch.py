"""What each op gives exactly at its switch points and one number to either side."""

import math

import pytest
import torch

from tests import oracle
from tests.cases import DTYPES, tiny
from tests.kernelless_cases import NAMED as OP
from tests.samples import label

# op, options, inputs, value, gradients; in words: max, tiny (the smallest positive number),
# log_tiny, e (eps, rounded) and the numbers next to it
ROWS = [
    ("safe_log", {}, ["0"], "log_tiny", ["0"]),
    ("safe_log", {}, ["-0"], "log_tiny", ["0"]),
    ("safe_log", {}, ["-tiny"], "log_tiny", ["0"]),
    ("safe_log", {}, ["-inf"], "log_tiny", ["0"]),
    ("safe_log", {}, ["tiny"], "log_tiny", ["max"]),
    ("safe_log", {}, ["1"], "0", ["1"]),
    ("safe_log", {}, ["inf"], "inf", ["0"]),
    ("safe_log", {}, ["nan"], "nan", ["nan"]),
    ("safe_log", {"eps": 0.25}, ["e"], "log_e", ["4"]),
    ("safe_log", {"eps": 0.25}, ["below_e"], "log_e", ["0"]),
    ("safe_log", {"eps": 0.25}, ["-inf"], "log_e", ["0"]),
    ("safe_log", {"eps": 0.25, "fill": 9.0}, ["e"], "log_e", ["4"]),
    ("safe_log", {"eps": 0.25, "fill": 9.0}, ["below_e"], "9", ["0"]),
    ("safe_log", {"fill": 9.0}, ["0"], "9", ["0"]),
    ("safe_log", {"fill": 9.0}, ["tiny"], "log_tiny", ["max"]),
    ("safe_log", {"eps": 1.0, "extend": "linear"}, ["0"], "-1", ["1"]),
    ("safe_log", {"eps": 1.0, "extend": "linear"}, ["1"], "0", ["1"]),
    ("safe_log", {"eps": 0.25, "extend": "linear"}, ["-max"], "-max", ["4"]),
    ("safe_log", {"eps": 0.25, "extend": "linear"}, ["-inf"], "-inf", ["4"]),
    ("safe_sqrt", {}, ["0"], "0", ["0"]),
    ("safe_sqrt", {}, ["-0"], "0", ["0"]),
    ("safe_sqrt", {}, ["-1"], "0", ["0"]),
    ("safe_sqrt", {}, ["-inf"], "0", ["0"]),
    ("safe_sqrt", {}, ["4"], "2", ["0.25"]),
    ("safe_sqrt", {}, ["inf"], "inf", ["0"]),
    ("safe_sqrt", {}, ["nan"], "nan", ["nan"]),
    ("safe_sqrt", {"eps": 0.25}, ["e"], "0.5", ["1"]),
    ("safe_sqrt", {"eps": 0.25}, ["below_e"], "0.5", ["0"]),
    ("safe_sqrt", {"eps": 0.25}, ["0"], "0.5", ["0"]),
    ("safe_sqrt", {"fill": 0.0}, ["-4"], "0", ["0"]),
    ("safe_sqrt", {"fill": 9.0}, ["0"], "9", ["0"]),
    ("safe_sqrt", {"eps": 0.25, "fill": 9.0}, ["below_e"], "9", ["0"]),
    ("safe_sqrt", {"eps": 0.25, "extend": "linear"}, ["0"], "0.25", ["1"]),
    ("safe_sqrt", {"eps": 0.25, "extend": "linear"}, ["-inf"], "-inf", ["1"]),
    ("safe_div", {}, ["1", "0"], "0", ["0", "0"]),
    ("safe_div", {}, ["inf", "0"], "0", ["0", "0"]),
    ("safe_div", {}, ["nan", "0"], "nan", ["0", "0"]),
    ("safe_div", {}, ["1", "nan"], "nan", ["nan", "nan"]),
    ("safe_div", {}, ["1", "tiny"], "max", ["max", "-max"]),
    ("safe_div", {}, ["1", "-tiny"], "-max", ["-max", "-max"]),
    ("safe_div", {}, ["inf", "2"], "inf", ["0.5", "-inf"]),
    ("safe_div", {}, ["1", "inf"], "0", ["0", "0"]),
    ("safe_div", {}, ["1", "-inf"], "-0", ["0", "0"]),
    ("safe_div", {}, ["inf", "inf"], "nan", ["0", "nan"]),
    ("safe_div", {"fill": 9.0}, ["-inf", "-0"], "9", ["0", "0"]),
    ("safe_div", {"eps": 0.25, "fill": 9.0}, ["1", "below_e"], "9", ["0", "0"]),
    ("safe_div", {"eps": 0.25, "fill": 9.0}, ["1", "e"], "4", ["4", "-16"]),
    ("safe_div", {"eps": 0.25}, ["1", "0"], "4", ["4", "0"]),
    ("safe_div", {"eps": 0.25}, ["1", "-0"], "-4", ["-4", "0"]),
    ("safe_div", {"eps": 0.25}, ["1", "-below_e"], "-4", ["-4", "0"]),
    ("safe_div", {"eps": 0.25}, ["1", "-e"], "-4", ["-4", "-16"]),
    ("safe_div", {"eps": 0.25}, ["-inf", "0"], "-inf", ["4", "0"]),
    ("safe_div", {"eps": 0.25}, ["nan", "0"], "nan", ["4", "0"]),
    ("finite_clip", {}, ["inf"], "max", ["0"]),
    ("finite_clip", {}, ["-inf"], "-max", ["0"]),
    ("finite_clip", {}, ["max"], "max", ["1"]),
    ("finite_clip", {}, ["nan"], "nan", ["0"]),
    ("finite_clip", {"nan": 9.0}, ["nan"], "9", ["0"]),
    ("finite_clip", {"min": -math.inf, "max": math.inf}, ["-inf"], "-max", ["0"]),
    ("finite_clip", {"max": math.inf}, ["max"], "max", ["1"]),
    ("finite_clip", {"min": 0.25, "max": 0.25}, ["0.25"], "0.25", ["1"]),
    ("finite_clip", {"min": 0.25, "max": 4.0}, ["below_e"], "0.25", ["0"]),
    ("finite_clip", {"min": 0.25, "max": 4.0}, ["4"], "4", ["1"]),
]

# the same, of ops without a kernel; in words also: below_1 and above_1, pi, nan
KERNELLESS = [
    ("safe_log2", {}, ["0"], "log2_tiny", ["0"]),
    ("safe_log2", {}, ["8"], "3", None),
    ("safe_log2", {"eps": 0.25}, ["e"], "-2", None),
    ("safe_log2", {"eps": 0.25}, ["below_e"], "-2", ["0"]),
    ("safe_log10", {}, ["-inf"], "log10_tiny", ["0"]),
    ("safe_log10", {"fill": 9.0}, ["0"], "9", ["0"]),
    ("safe_log10", {}, ["inf"], "inf", ["0"]),
    ("safe_log1p", {}, ["-1"], "log_beside_0", ["0"]),
    ("safe_log1p", {}, ["-inf"], "log_beside_0", ["0"]),
    ("safe_log1p", {}, ["-below_1"], "log_beside_0", None),
    ("safe_log1p", {"eps": 0.25}, ["-1"], "log_e", ["0"]),
    ("safe_log1p", {"eps": 0.25}, ["-0.75"], "log_e", ["4"]),
    ("safe_log1p", {"eps": 0.25, "extend": "linear"}, ["-inf"], "-inf", ["4"]),
    ("safe_rsqrt", {}, ["0"], "0", ["0"]),
    ("safe_rsqrt", {}, ["-1"], "0", ["0"]),
    ("safe_rsqrt", {}, ["inf"], "0", ["0"]),
    ("safe_rsqrt", {}, ["4"], "0.5", ["-0.0625"]),
    ("safe_rsqrt", {"eps": 0.25}, ["0"], "2", ["0"]),
    ("safe_rsqrt", {"eps": 0.25}, ["e"], "2", ["-4"]),
    ("safe_pow(2)", {}, ["0"], "0", ["0"]),
    ("safe_pow(2)", {}, ["max"], "max", ["max"]),
    ("safe_pow(2)", {}, ["-3"], "9", ["-6"]),
    ("safe_pow(3)", {}, ["-inf"], "-inf", None),
    ("safe_pow(-1)", {}, ["0"], "0", ["0"]),
    ("safe_pow(-1)", {}, ["-0"], "0", ["0"]),
    ("safe_pow(-1)", {}, ["-2"], "-0.5", ["-0.25"]),
    ("safe_pow(0.5)", {}, ["0"], "0", ["0"]),
    ("safe_pow(0.5)", {}, ["-4"], "0", ["0"]),
    ("safe_pow(0.5)", {}, ["4"], "2", ["0.25"]),
    ("safe_pow(-0.5)", {}, ["0"], "0", ["0"]),
    ("safe_pow(-0.5)", {}, ["-4"], "0", ["0"]),
    ("safe_pow(1.5)", {}, ["0"], "0", ["0"]),
    ("safe_pow(1.5)", {}, ["-4"], "0", ["0"]),
    ("safe_pow", {}, ["0", "0"], "1", ["0", "0"]),
    ("safe_pow", {}, ["0", "1"], "0", ["1", "0"]),
    ("safe_pow", {}, ["0", "0.5"], "0", ["0", "0"]),
    ("safe_pow", {}, ["0", "-2"], "0", ["0", "0"]),
    ("safe_pow", {}, ["-2", "3"], "-8", ["12", "0"]),
    ("safe_pow", {}, ["-2", "0.5"], "0", ["0", "0"]),
    ("safe_pow", {}, ["-2", "-0.5"], "0", ["0", "0"]),
    ("safe_pow", {}, ["-2", "nan"], "nan", None),
    ("safe_pow", {}, ["2", "inf"], "inf", None),
    ("safe_exp", {}, ["max"], "max", ["max"]),
    ("safe_exp", {}, ["inf"], "inf", None),
    ("safe_exp", {}, ["-inf"], "0", ["0"]),
    ("safe_expm1", {}, ["max"], "max", ["max"]),
    ("safe_expm1", {}, ["-inf"], "-1", ["0"]),
    ("safe_acos", {}, ["1"], "0", ["0"]),
    ("safe_acos", {}, ["above_1"], "0", ["0"]),
    ("safe_acos", {}, ["-inf"], "log_pi", ["0"]),
    ("safe_acos", {"fill": 9.0}, ["-1"], "9", ["0"]),
    ("safe_acos", {}, ["0"], "log_pi/2", ["-1"]),
    ("safe_asin", {}, ["above_1"], "log_pi/2", ["0"]),
    ("safe_asin", {}, ["-1"], "-log_pi/2", ["0"]),
    ("safe_asin", {}, ["0"], "0", ["1"]),
    ("safe_atanh", {}, ["1"], "log_atanh", ["0"]),
    ("safe_atanh", {}, ["-inf"], "-log_atanh", ["0"]),
    ("safe_atanh", {}, ["below_1"], "log_atanh", None),
    ("safe_acosh", {}, ["1"], "0", ["0"]),
    ("safe_acosh", {}, ["-inf"], "0", ["0"]),
    ("safe_acosh", {}, ["inf"], "inf", ["0"]),
    ("safe_logit", {}, ["0"], "log_tiny", ["0"]),
    ("safe_logit", {}, ["-1"], "log_tiny", ["0"]),
    ("safe_logit", {}, ["1"], "log_below_1", ["0"]),
    ("safe_logit", {}, ["inf"], "log_below_1", ["0"]),
    ("safe_logit", {}, ["0.5"], "0", ["4"]),
    ("safe_logit", {"eps": 0.5}, ["0.25"], "0", ["0"]),
    ("safe_logit", {"eps": 0.0}, ["-1"], "log_tiny", ["0"]),
    ("safe_entr", {}, ["0"], "0", ["0"]),
    ("safe_entr", {}, ["-1"], "0", ["0"]),
    ("safe_entr", {}, ["1"], "-0", ["-1"]),
    ("safe_entr", {}, ["inf"], "-inf", None),
    ("safe_atan2", {}, ["0", "0"], "0", ["0", "0"]),
    ("safe_atan2", {}, ["1", "0"], "log_pi/2", ["0", "-1"]),
    ("safe_atan2", {}, ["0", "2"], "0", ["0.5", "0"]),
    ("safe_hypot", {}, ["0", "-0"], "0", ["0", "0"]),
    ("safe_hypot", {}, ["3", "-4"], "5", None),
    ("safe_hypot", {}, ["max", "0"], "max", ["1", "0"]),
    ("safe_hypot", {}, ["inf", "1"], "inf", None),
    ("safe_xlogy", {}, ["0", "0"], "0", ["0", "0"]),
    ("safe_xlogy", {}, ["0", "-1"], "0", ["0", "0"]),
    ("safe_xlogy", {}, ["1", "0"], "log_tiny", [None, "0"]),
    ("safe_xlogy", {}, ["0", "nan"], "nan", None),
    ("safe_xlogy", {}, ["0", "1"], "0", ["0", "0"]),
    ("safe_xlog1py", {}, ["0", "-1"], "0", ["0", "0"]),
    ("safe_xlog1py", {}, ["1", "-2"], "log_beside_0", [None, "0"]),
    ("safe_logaddexp", {}, ["-inf", "-inf"], "-inf", ["0", "0"]),
    ("safe_logaddexp", {}, ["inf", "0"], "inf", ["1", "0"]),
    ("safe_logaddexp", {}, ["max", "max"], "max", ["0.5", "0.5"]),
    ("safe_logaddexp", {}, ["-inf", "2"], "2", ["0", "1"]),
    ("safe_logaddexp2", {}, ["-inf", "-inf"], "-inf", ["0", "0"]),
    ("safe_logaddexp2", {}, ["2", "2"], "3", ["0.5", "0.5"]),
]


ROWS = [(OP[name], *rest) for name, *rest in ROWS + KERNELLESS]


def number(word, dtype):
    """The number of a word; e is 0.25 in every row that names it."""
    sign, word = (-1.0, word[1:]) if word.startswith("-") else (1.0, word)
    below = torch.nextafter(torch.tensor(0.25, dtype=dtype), torch.tensor(0.0, dtype=dtype)).item()
    words = {"max": torch.finfo(dtype).max, "tiny": tiny(dtype), "e": 0.25, "below_e": below}
    words |= {"log_tiny": math.log(tiny(dtype)), "log_e": math.log(0.25)}
    words |= {"log2_tiny": math.log2(tiny(dtype)), "log10_tiny": math.log10(tiny(dtype))}
    half = torch.finfo(dtype).eps / 2
    words |= {"below_1": 1 - half, "above_1": 1 + 2 * half, "log_beside_0": math.log(half)}
    words |= {"log_below_1": math.log1p(-half) - math.log(half)}
    words |= {"log_atanh": 0.5 * (math.log(2 - half) - math.log(half))}
    words |= {"log_pi": math.pi, "log_pi/2": math.pi / 2}
    return sign * words[word] if word in words else sign * float(word)


@pytest.mark.parametrize(("op", "options", "inputs", "value", "gradients"), ROWS, ids=label)
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_switch_point(any_route, dtype, op, options, inputs, value, gradients):
    tensors = [torch.tensor([number(word, dtype)], dtype=dtype) for word in inputs]
    actual = any_route.both(op, tensors, **options)
    assert_is(actual[0], number(value, dtype), exact="log" not in value)
    if value in ("0", "-0"):
        assert actual[0].signbit().item() == (value == "-0")
    for index, (gradient, word) in enumerate(zip(actual[1], gradients or (), strict=False)):
        if word is None:
            continue
        if any_route.name == "composite":
            gradient = oracle.saturated(gradient, dtype, oracle.finite(*tensors))
            word = "0" if without_derivative(inputs, index) else word
        assert_is(gradient, number(word, dtype), exact=True)


def without_derivative(inputs, index):
    """A NaN input has none in the composite, and an infinity leaves none to the denominator, or
    a zero upstream gradient would become NaN."""
    return "nan" in inputs or (index == 1 and inputs[0] in ("inf", "-inf"))


def assert_is(actual, expected, exact):
    """The number itself, or within one unit of a logarithm."""
    wanted = torch.tensor([expected], dtype=torch.float64)
    if exact:
        torch.testing.assert_close(actual.double(), wanted, rtol=0, atol=0, equal_nan=True)
    assert oracle.ulp_distance(actual, wanted) <= 1


@pytest.mark.parametrize("name", ["safe_log", "safe_sqrt", "safe_div"])
def test_a_negative_zero_fill_is_zero(route, name):
    """0.0 == -0.0, so that a cache of options cannot tell them apart: both are +0.0."""
    op, zeros = OP[name], [torch.zeros(1)] * OP[name].arity
    assert not route.value(op, zeros, fill=0.0).signbit()
    assert not route.value(op, zeros, fill=-0.0).signbit()
