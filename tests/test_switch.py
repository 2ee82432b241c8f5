"""What each op gives exactly at its switch points and one number to either side."""

import math

import pytest
import torch

from tests import oracle
from tests.cases import DTYPES, OP, tiny
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


def number(word, dtype):
    """The number of a word; e is 0.25 in every row that names it."""
    sign, word = (-1.0, word[1:]) if word.startswith("-") else (1.0, word)
    below = torch.nextafter(torch.tensor(0.25, dtype=dtype), torch.tensor(0.0, dtype=dtype)).item()
    words = {"max": torch.finfo(dtype).max, "tiny": tiny(dtype), "e": 0.25, "below_e": below}
    words |= {"log_tiny": math.log(tiny(dtype)), "log_e": math.log(0.25)}
    return sign * words[word] if word in words else sign * float(word)


@pytest.mark.parametrize(("name", "options", "inputs", "value", "gradients"), ROWS, ids=label)
@pytest.mark.parametrize("dtype", DTYPES, ids=label)
def test_switch_point(any_route, dtype, name, options, inputs, value, gradients):
    op = OP[name]
    tensors = [torch.tensor([number(word, dtype)], dtype=dtype) for word in inputs]
    actual = any_route.both(op, tensors, **options)
    assert_is(actual[0], number(value, dtype), exact=not value.startswith("log"))
    if value in ("0", "-0"):
        assert actual[0].signbit().item() == (value == "-0")
    for index, (gradient, word) in enumerate(zip(actual[1], gradients, strict=True)):
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
