"""What the row ops give exactly, row by row, written out by hand."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from tests.cases import DTYPES, tiny
from tests.row_cases import ROW_OP, ROW_OPS
from tests.samples import label

CASES = json.loads((Path(__file__).parent / "cases" / "ops.json").read_text())
CASES = [case for case in CASES if case["op"] in ROW_OP]

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=label)

# rows, an element in brackets is masked; softmax, log_softmax, logsumexp
VALUES = [
    ("-inf -inf", "0 0", "-inf -inf", "-inf"),
    ("-inf", "0", "-inf", "-inf"),
    ("[5]", "0", "-inf", "-inf"),
    ("[1] [nan] [inf]", "0 0 0", "-inf -inf -inf", "-inf"),
    ("-inf [3]", "0 0", "-inf -inf", "-inf"),
    ("inf", "1", "0", "inf"),
    ("inf 0", "1 0", "0 -inf", "inf"),
    ("inf max -inf", "1 0 0", "0 -inf -inf", "inf"),
    ("0 inf -inf inf", "0 0.5 0 0.5", "-inf -log2 -inf -log2", "inf"),
    ("inf inf inf inf", "0.25 0.25 0.25 0.25", "-log4 -log4 -log4 -log4", "inf"),
    ("inf [inf] 0", "1 0 0", "0 -inf -inf", "inf"),
    ("[inf] 0 0", "0 0.5 0.5", "-inf -log2 -log2", "log2"),
    ("nan", "nan", "nan", "nan"),
    ("nan 0 -inf", "nan nan nan", "nan nan nan", "nan"),
    ("inf nan", "nan nan", "nan nan", "nan"),
    ("nan [1] 2", "nan 0 nan", "nan -inf nan", "nan"),
    ("[nan] 1 [inf]", "0 1 0", "-inf 0 -inf", "1"),
    ("3", "1", "0", "3"),
    ("max", "1", "0", "max"),
    ("-max", "1", "0", "-max"),
    ("max -max", "1 0", "0 -max", "max"),
    ("max max", "0.5 0.5", "-log2 -log2", "max"),
    ("-max -max", "0.5 0.5", "-log2 -log2", "-max"),
    ("-max -inf", "1 0", "0 -inf", "-max"),
    ("max 0 -inf", "1 0 0", "0 -max -inf", "max"),
    ("0 0 0 0", "0.25 0.25 0.25 0.25", "-log4 -log4 -log4 -log4", "log4"),
    ("tiny -tiny", "0.5 0.5", "-log2 -log2", "log2"),
]

# rows; gradients of the three, upstream 1, 2, 3, 4
GRADIENTS = [
    ("-inf -inf", "0 0", "0 0", "0 0"),
    ("[7] [nan]", "0 0", "0 0", "0 0"),
    ("-inf [3]", "0 0", "0 0", "0 0"),
    ("3", "0", "0", "1"),
    ("0 0", "-0.25 0.25", "-0.5 0.5", "0.5 0.5"),
    ("0 -inf 0", "-0.5 0 0.5", "-2 2 0", "0.5 0 0.5"),
    ("0 [nan] 0", "-0.5 0 0.5", "-1 0 1", "0.5 0 0.5"),
    ("[inf] 5", "0 0", "0 0", "0 1"),
    ("max -max", "0 0", "-2 2", "1 0"),
    ("inf 0", "0 0", "-2 2", "1 0"),
    ("inf inf 0", "-0.25 0.25 0", "-2 -1 3", "0.5 0.5 0"),
    ("inf [inf] -inf inf", "-0.75 0 0 0.75", "-3 0 3 0", "0.5 0 0 0.5"),
    ("nan 0", "nan nan", "nan nan", "nan nan"),
    ("nan [0] 1", "nan 0 nan", "nan 0 nan", "nan 0 nan"),
]


def number(word, dtype):
    sign, word = (-1.0, word[1:]) if word.startswith("-") else (1.0, word)
    words = {"max": torch.finfo(dtype).max, "tiny": tiny(dtype)}
    words |= {"log2": math.log(2), "log4": math.log(4)}
    return sign * words[word] if word in words else sign * float(word)


def numbers(words, dtype):
    return torch.tensor([number(w.strip("[]"), dtype) for w in words.split()], dtype=dtype)


def masked(words):
    return torch.tensor([not word.startswith("[") for word in words.split()])


def mask_of(words):
    """None where nothing is masked."""
    return masked(words) if "[" in words else None


def assert_is(actual, expected, atol=0.0):
    """Within one unit; gradients are made of a rounded result, and cancel."""
    eps, expected = torch.finfo(actual.dtype).eps, expected.reshape(actual.shape)
    torch.testing.assert_close(actual, expected, rtol=eps, atol=atol * eps, equal_nan=True)


@pytest.mark.parametrize("row", VALUES, ids=lambda row: row[0])
def test_values_by_hand(any_route, row):
    words, *values = row
    for (op, value), dtype in itertools.product(zip(ROW_OPS, values, strict=True), DTYPES):
        actual = any_route.value(op, [numbers(words, dtype)], dim=0, mask=mask_of(words))
        assert_is(actual, numbers(value, dtype))


def derivative(op, row, words):
    """The composite has none at +inf but for logsumexp, and at NaN it is left open."""
    if not op.reduces and "inf" in [word for word in row.split() if word != "[inf]"]:
        return words.replace("-", "").translate(str.maketrans("123456789", "0" * 9))
    return words


@pytest.mark.parametrize("row", GRADIENTS, ids=lambda row: row[0])
@each_dtype
def test_gradients_by_hand(any_route, dtype, row):
    words, *gradients = row
    x = numbers(words, dtype)
    if any_route.name == "composite" and x[masked(words)].isnan().any():
        pytest.skip("left open")
    for op, gradient in zip(ROW_OPS, gradients, strict=True):
        upstream = torch.arange(1.0, len(x) + 1).to(dtype)
        upstream = upstream[0] if op.reduces else upstream
        (actual,) = any_route.gradients(op, [x], upstream, dim=0, mask=mask_of(words))
        gradient = derivative(op, words, gradient) if any_route.name == "composite" else gradient
        assert_is(actual, numbers(gradient, dtype), atol=4)


# x, upstream in units of finfo.max; gradients in the same units (None: not stated)
OVERFLOWING = [
    ("0 0", "1 -1", "0.5 -0.5", "1 -1", "0.5 0.5"),
    ("0 0", "1 1", "0 0", "0 0", "0.5 0.5"),
    ("0 0", "-1 -1", "0 0", "0 0", "-0.5 -0.5"),
    ("0 -1000", "1 -1", "0 0", "1 -1", "1 0"),
    ("0 -1000", "0.5 1", "0 0", "-1 1", "0.5 0"),
    ("0 -1000 -1000", "1 1 1", "0 0 0", "-1 1 1", "1 0 0"),
    ("0 0 0 0", "1 1 1 -1", "0.125 0.125 0.125 -0.375", "0.5 0.5 0.5 -1", "0.25 0.25 0.25 0.25"),
]


@pytest.mark.parametrize("row", OVERFLOWING, ids=lambda row: f"{row[0]}, {row[1]}")
@each_dtype
def test_overflow_on_the_way(route, dtype, row):
    """max + max and max - -max are no numbers, their halves are."""
    x, upstream, limit = numbers(row[0], dtype), numbers(row[1], dtype), torch.finfo(dtype).max
    for op, words in zip(ROW_OPS, row[2:], strict=True):
        given = upstream[0] if op.reduces else upstream
        (gradient,) = route.gradients(op, [x], given * limit, dim=0)
        assert_is(gradient / limit, numbers(words, dtype), atol=4)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(any_route, case):
    op, dtype = ROW_OP[case["op"]], getattr(torch, case["dtype"])
    words = lambda values: torch.tensor(torch.utils._pytree.tree_map(float, values), dtype=dtype)  # noqa: E731
    value, gradients = any_route.both(op, [words(case["inputs"][0])], **case["kwargs"])
    torch.testing.assert_close(value, words(case["value"]))
    torch.testing.assert_close(gradients[0], words(case["grads"][0]))
