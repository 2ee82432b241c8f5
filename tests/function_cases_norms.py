"""Singular points of normalizations, attention and activations."""

import math

import torch.nn.functional as F

from tests.cases import DTYPES
from tests.function_table import BROAD, Case, Function, raw

INF = math.inf
BIG = [[1e30, -1e30, 1e30, -1e30]]
SIGNS = [[1.0, -1.0, 1.0, -1.0]]
FLAT, ZEROS = [[3.0, 3.0, 3.0, 3.0]], [[0.0, 0.0, 0.0, 0.0]]
SINGLE = BROAD[1:]  # of which 1e60 is no number
NO_EPS = {"eps": 0.0}
ONES = [1.0, 1.0, 1.0, 1.0]


def overflowing(*rest):
    """Squares that overflow. torch's result is finite, but 0."""
    return Case((BIG, *rest), SIGNS, (ZEROS,), sick=False, dtypes=SINGLE, atol=8)


LAYERS = (
    Function(
        name="nn.functional.layer_norm",
        torch=F.layer_norm,
        samples=(("nn.functional.layer_norm", ""),),
        cases=(
            overflowing(raw([4])),
            overflowing(raw([4]), ONES),
            Case((FLAT, raw([4])), ZEROS, (ZEROS,), NO_EPS),
            Case((FLAT, raw([4])), ZEROS, (ZEROS,), {"eps": 1e-50}, dtypes=DTYPES[1:]),
            Case((FLAT, raw([4]), ONES, ONES), [ONES], (ZEROS, ZEROS[0], ONES), NO_EPS),
            Case(([[2.0]], raw([1])), [[0.0]], ([[0.0]],), NO_EPS),
        ),
    ),
    Function(
        name="nn.functional.rms_norm",
        torch=F.rms_norm,
        samples=(("nn.functional.rms_norm", ""),),
        cases=(
            overflowing(raw([4])),
            overflowing(raw([4]), ONES),
            Case((ZEROS, raw([4])), ZEROS, (ZEROS,), NO_EPS),
            Case((ZEROS, raw([4]), ONES), ZEROS, (ZEROS, ZEROS[0]), NO_EPS),
        ),
    ),
    Function(
        name="nn.functional.group_norm",
        torch=F.group_norm,
        samples=(("nn.functional.group_norm", ""),),
        cases=(
            overflowing(raw(2)),
            Case((FLAT, raw(2)), ZEROS, (ZEROS,), NO_EPS),
            Case((FLAT, raw(2), ONES, ONES), [ONES], (ZEROS, ZEROS[0], ONES), NO_EPS),
            Case(
                ([[3.0, 3.0, 1.0, -1.0]], raw(2)),
                [[0.0, 0.0, 1.0, -1.0]],
                (ZEROS,),
                NO_EPS,
                dtypes=BROAD,
                atol=8,
            ),
        ),
    ),
)

BATCHES = (
    Function(
        name="nn.functional.batch_norm",
        torch=F.batch_norm,
        samples=(("nn.functional.batch_norm", ""), ("nn.functional.batch_norm", "without_cudnn")),
        cases=(
            Case(
                ([[3.0], [3.0]], raw(None), raw(None)),
                [[0.0], [0.0]],
                ([[0.0], [0.0]],),
                {"training": True, "eps": 1e-50},
                sick=False,
                dtypes=SINGLE,
            ),
        ),
        vmapped=False,
    ),
    Function(
        name="nn.functional.instance_norm",
        torch=F.instance_norm,
        samples=(("nn.functional.instance_norm", ""),),
        cases=(
            Case(([FLAT],), [ZEROS], ([ZEROS],), NO_EPS, sick=False),
            Case(
                ([FLAT], raw(None), raw(None), [2.0], [5.0]),
                [[[5.0, 5.0, 5.0, 5.0]]],
                ([ZEROS], [0.0], [4.0]),
                NO_EPS,
                sick=False,
            ),
        ),
    ),
)


Q = [[[1.0, 0.0], [0.0, 1.0]]]
KEYS = [[[1.0, 2.0], [3.0, 4.0]]]
MASK = [[True, False], [False, False]]
ADDED = [[0.0, -INF], [-INF, -INF]]
FIRST = [[[1.0, 2.0], [0.0, 0.0]]]
NONE = [[[0.0, 0.0], [0.0, 0.0]]]
ONE_READ = [[[1.0, 1.0], [0.0, 0.0]]]


ATTENTION = (
    Function(
        name="nn.functional.scaled_dot_product_attention",
        torch=F.scaled_dot_product_attention,
        samples=(),
        cases=(
            Case((Q, KEYS, KEYS, MASK), FIRST, (NONE, NONE, ONE_READ), sick=False),
            Case((Q, KEYS, KEYS, ADDED), FIRST, (NONE, NONE, ONE_READ), sick=False),
        ),
    ),
)

LIMITS = Case(([-INF, INF, 0.0],), [0.0, INF, 0.0], ([0.0, 1.0, 0.5],))
ACTIVATIONS = (
    Function(
        name="nn.functional.gelu",
        torch=F.gelu,
        samples=(("nn.functional.gelu", ""),),
        cases=(
            LIMITS,
            Case(LIMITS.inputs, LIMITS.value, LIMITS.gradients, {"approximate": "tanh"}),
            Case(
                ([1e30, -1e30],), [1e30, 0.0], ([1.0, 0.0],), {"approximate": "tanh"}, dtypes=SINGLE
            ),
        ),
    ),
    Function(
        name="nn.functional.silu",
        torch=F.silu,
        samples=(("nn.functional.silu", ""),),
        cases=(LIMITS,),
    ),
    Function(
        name="nn.functional.mish",
        torch=F.mish,
        samples=(("nn.functional.mish", ""),),
        cases=(Case(LIMITS.inputs, LIMITS.value, ([0.0, 1.0, 0.6],)),),
    ),
)

NORMS = LAYERS + BATCHES + ATTENTION + ACTIVATIONS
