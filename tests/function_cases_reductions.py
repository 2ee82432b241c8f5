"""Singular points of reductions."""

import math

import torch
import torch.nn.functional as F

from tests.function_table import BROAD, LARGEST, Case, Function, raw

INF = math.inf
ROOT = 0.5**0.5
THIRD = 1 / 3
FLOAT = (torch.float32, torch.bfloat16)  # whose squares of 1e30 overflow
ONE = ([2.0],)
FEW = ([[1.0], [2.0]],)
ZEROS = [0.0, 0.0, 0.0]
LARGE_AND_NOT = ([[LARGEST, LARGEST, -LARGEST, -LARGEST], [1.0, 2.0, 3.0, 6.0]],)
MIXED = ([[3.0, 3.0], [1.0, 3.0]], raw(1))
EQUAL = ([3.0, 3.0, 3.0],)
HUGE = ([1e30, -1e30],)
OPPOSITE = ([LARGEST, -LARGEST],)


STD = (
    Case(ONE, 0.0, ([0.0],)),
    Case((*FEW, raw(1)), [0.0, 0.0], ([[0.0], [0.0]],)),
    Case((*FEW, raw(-1), raw(True), raw(True)), [[0.0], [0.0]], ([[0.0], [0.0]],)),
    Case(([1.0, 2.0],), 0.0, ([0.0, 0.0],), kwargs={"correction": 2}),
    Case(([],), 0.0, ([],)),
    Case(EQUAL, 0.0, (ZEROS,), sick=False),
    Case(MIXED, [0.0, 2 * ROOT], ([[0.0, 0.0], [-ROOT, ROOT]],), sick=False),
    Case(HUGE, 2 * ROOT * 1e30, ([ROOT, -ROOT],), sick=False, dtypes=FLOAT),
    Case(([1e200, -1e200],), 2 * ROOT * 1e200, ([ROOT, -ROOT],), dtypes=(torch.float64,)),
    Case(OPPOSITE, LARGEST, ([ROOT, -ROOT],)),
)
VAR = (
    Case(ONE, 0.0, ([0.0],)),
    Case((*FEW, raw(1)), [0.0, 0.0], ([[0.0], [0.0]],)),
    Case(([1.0, 2.0],), 0.0, ([0.0, 0.0],), kwargs={"correction": 2}),
    Case(([],), 0.0, ([],)),
    Case(EQUAL, 0.0, (ZEROS,), sick=False),
    Case(([1e30, 1e30],), 0.0, ([0.0, 0.0],), sick=False, dtypes=FLOAT),
    Case(HUGE, LARGEST, ([2e30, -2e30],), dtypes=FLOAT),
    Case(OPPOSITE, LARGEST, ([LARGEST, -LARGEST],)),
)
STD_MEAN = (
    Case(ONE, (0.0, 2.0), ([1.0],)),
    Case(EQUAL, (0.0, 3.0), ([THIRD] * 3,), sick=False),
    Case(HUGE, (2 * ROOT * 1e30, 0.0), ([0.5 + ROOT, 0.5 - ROOT],), sick=False, dtypes=FLOAT),
)
VAR_MEAN = (
    Case(ONE, (0.0, 2.0), ([1.0],)),
    Case(EQUAL, (0.0, 3.0), ([THIRD] * 3,), sick=False),
    Case(HUGE, (LARGEST, 0.0), ([2e30, -2e30],), dtypes=FLOAT),
)
MEAN = (
    Case(([],), 0.0, ([],)),
    Case(([[], []], raw(1)), [0.0, 0.0], ([[], []],)),
    Case(([LARGEST, LARGEST, LARGEST],), LARGEST, ([THIRD, THIRD, THIRD],), dtypes=BROAD),
    Case((*LARGE_AND_NOT, raw(1)), [0.0, 3.0], ([[0.25] * 4] * 2,), dtypes=BROAD),
)
NORM = (
    Case(([3e30, 4e30],), 5e30, ([0.6, 0.8],), dtypes=FLOAT),
    Case((ZEROS,), 0.0, (ZEROS,), sick=False),
    Case(([[0.0, 0.0], [3.0, 4.0]],), [0.0, 5.0], ([[0.0, 0.0], [0.6, 0.8]],), {"dim": 1}, False),
    Case((OPPOSITE[0],), LARGEST, ([ROOT, -ROOT],)),
    Case(([3e200, 4e200],), 5e200, ([0.6, 0.8],), dtypes=(torch.float64,)),
)
TINY = Case(([3e-6, 4e-6],), 5e-6, ([0.6, 0.8],), sick=False, dtypes=(torch.float16,), atol=100)
ORDERS = (
    Case((OPPOSITE[0], raw(1)), LARGEST, ([1.0, -1.0],)),
    Case(([2e30, 2e30], raw(3)), 2e30 * 2 ** (1 / 3), ([2 ** (-2 / 3)] * 2,), dtypes=FLOAT),
    Case((ZEROS, raw(1.5)), 0.0, (ZEROS,), sick=False),
    Case(([0.0, 4.0], raw(0.5)), 4.0, ([0.0, 1.0],), sick=False),
    Case(([0.0, 4.0], raw(-1)), 0.0, ([0.0, 0.0],), sick=False),
    Case(([2e30, 2e30], raw(-1)), 1e30, ([0.25, 0.25],), dtypes=FLOAT),
    Case((ZEROS, raw(INF)), 0.0, (ZEROS,), sick=False),
    Case((ZEROS, raw(0)), 0.0, (ZEROS,), sick=False),
)

REDUCTIONS = (
    Function("std", torch.std, (("std", ""), ("std", "unbiased")), STD),
    Function("var", torch.var, (("var", ""), ("var", "unbiased")), VAR),
    Function("std_mean", torch.std_mean, (), STD_MEAN),
    Function("var_mean", torch.var_mean, (), VAR_MEAN),
    Function("mean", torch.mean, (("mean", ""),), MEAN),
    Function(
        "vector_norm",
        torch.linalg.vector_norm,
        (("linalg.vector_norm", ""),),
        (*NORM, TINY, *ORDERS),
    ),
    Function("norm", torch.norm, (("norm", ""), ("norm", "fro"), ("norm", "inf")), NORM),
    Function(
        "linalg_norm",
        torch.linalg.norm,
        (("linalg.norm", ""), ("linalg.norm", "subgradients_at_zero")),
        NORM,
    ),
    Function(
        "logcumsumexp",
        torch.logcumsumexp,
        (("logcumsumexp", ""),),
        (
            Case(([-INF, -INF, 1.0, 1.0], raw(0)), [-INF, -INF, 1.0, 1.0 + math.log(2)],
                 ([0.0, 0.0, 1.5, 0.5],)),
            Case(([-INF, -INF], raw(0)), [-INF, -INF], ([0.0, 0.0],)),
            Case(([1.0, -INF, 1.0], raw(0)), [1.0, 1.0, 1.0 + math.log(2)], ([2.5, 0.0, 0.5],),
                 sick=False),
        ),
    ),
    Function(
        "softmin",
        F.softmin,
        (("nn.functional.softmin", ""), ("nn.functional.softmin", "with_dtype")),
        (Case(([INF, INF], raw(0)), [0.0, 0.0], ([0.0, 0.0],)),),
        bits=False,
    ),
)  # fmt: skip
