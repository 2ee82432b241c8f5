"""Singular points of losses and distances."""

import dataclasses
import math

import torch
import torch.nn.functional as F

import safeops.ops.cdist  # noqa: F401
from tests.function_table import BROAD, LARGEST, WIDE, Case, Function, fixed, raw

INF = math.inf
NARROW = (torch.float32, torch.float16, torch.bfloat16)
FLOAT = (torch.float32, torch.bfloat16)  # whose squares of 1e30 overflow
HALF = (torch.float16,)
ZERO = [[0.0, 0.0]]
HUGE = [[3e30, 4e30]]
IGNORED = [-100, -100]
MEAN, SUM, NONE = ({"reduction": word} for word in ("mean", "sum", "none"))
LOG2, LOG3 = math.log(2), math.log(3)
FLAT = [[0.0, 0.0, 0.0]]
UNIFORM = [-2 / 3, 1 / 3, 1 / 3]
NOTHING = [0.0, 0.0, 0.0]
NO_WEIGHT = fixed([0.0, 1.0, 1.0])
MASKED = [[-INF, 0.0, 0.0]]

CROSS_ENTROPY = (
    Case((FLAT * 2, IGNORED), 0.0, ([NOTHING] * 2,)),
    Case((FLAT, [0], NO_WEIGHT), 0.0, ([NOTHING],)),
    Case((FLAT, [-100]), 0.0, ([NOTHING],), {"label_smoothing": 0.1}),
    Case((MASKED, [[0.0, 0.5, 0.5]]), LOG2, ([NOTHING], [[0.0, LOG2, LOG2]]), atol=1),
    Case((MASKED, [1]), LOG2, ([[0.0, -0.5, 0.5]],), sick=False),
    Case((MASKED, [0]), INF, ([[-1.0, 0.5, 0.5]],)),
    Case(([[-INF] * 3, *FLAT], [-100, 0]), LOG3, ([NOTHING, UNIFORM],), atol=2),
    Case(([[-INF] * 3, *FLAT], [-100, 0]), [0.0, LOG3], ([NOTHING, UNIFORM],), NONE, atol=2),
    Case(([[LARGEST, -LARGEST]], [1]), LARGEST, ([[1.0, -1.0]],), dtypes=FLOAT),
    Case(([[LARGEST, -LARGEST]] * 2, [1, 1]), LARGEST, ([[1.0, -1.0]] * 2,), SUM, dtypes=BROAD),
    Case((FLAT, [0]), LOG3, ([UNIFORM],), sick=False, atol=2),
)
NLL = (
    Case((FLAT * 2, IGNORED), 0.0, ([NOTHING] * 2,)),
    Case((FLAT, [0], NO_WEIGHT), 0.0, ([NOTHING],)),
    Case(([[-INF, 0.0, 0.0]], [0], NO_WEIGHT), 0.0, ([NOTHING],), SUM),
    Case(([[-INF, 0.0, 0.0]], [0]), INF, ([[-1.0, 0.0, 0.0]],)),
)
CTC = (
    Case(
        ([[[-1.0, -1.0, -1.0]]], [[1, 2]], [1], [2]),
        0.0,
        ([[NOTHING]],),
    ),
    Case(
        ([[[0.0, -INF, -INF]], [[-INF, 0.0, -INF]]], [[1]], [2], [1]),
        0.0,
        ([[[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]],),
    ),
    Case(
        ([[[-1.0, -INF, -1.0]], [[-1.0, -INF, -1.0]]], [[1]], [2], [1]),
        [0.0],
        ([[NOTHING], [NOTHING]],),
        NONE,
    ),
)
CTC = tuple(dataclasses.replace(case, dtypes=WIDE) for case in CTC)
BCE = (
    Case(
        ([0.0, 1.0], [1.0, 0.0]),
        [100.0, 100.0],
        ([-1e12, 1e12], [100.0, -100.0]),
        NONE,
        dtypes=NARROW,
    ),
    Case(([0.0, 1.0], [0.0, 1.0]), 0.0, ([0.0, 0.0], [50.0, -50.0])),
    Case(([], []), 0.0, ([], [])),
)
KL = (
    Case(([-INF, 0.0], [0.0, 1.0]), 0.0, ([0.0, -1.0], [0.0, 1.0]), SUM),
    Case(([-1.0, 0.0], [0.0, 1.0]), 0.0, ([0.0, -1.0], [0.0, 1.0]), SUM),
    Case(([-INF], [-INF]), 0.0, ([0.0], [0.0]), {"reduction": "sum", "log_target": True}),
    Case(([-1.0], [-INF]), 0.0, ([0.0], [0.0]), {"reduction": "sum", "log_target": True}),
)
GAUSSIAN = (
    Case(([1e25], [0.0], [0.0]), LARGEST, ([1e31], [-1e31], [-LARGEST]), dtypes=FLOAT),
    Case(([1.0], [0.0], [0.0]), None, ([LARGEST], [-LARGEST], [-LARGEST]), dtypes=HALF),
    Case(([LARGEST], [-LARGEST], [1.0]), LARGEST, ([LARGEST], [-LARGEST], [-LARGEST])),
    Case(([1.0], [1.0], [0.0], raw(False), raw(0.0)), None, ([0.0], [0.0])),
    Case(([], [], []), 0.0, ([], [], [])),
)
POISSON = (
    Case(([1000.0], [0.0]), LARGEST, ([LARGEST], [-1000.0])),
    Case(([0.0], [0.0], raw(False), raw(False), raw(None), raw(0.0)), 0.0, ([1.0],)),
    Case(([-1.0], [0.0], raw(False)), -1.0, ([1.0],)),
    Case(([0.0], [1.0], raw(False)), -math.log(1e-8), ([-LARGEST], [-math.log(1e-8)]), dtypes=HALF),
    Case(([0.0], [0.0]), 1.0, ([1.0], [0.0]), {"full": True}),
    Case(([], []), 0.0, ([], [])),
)
COSINE_EMBEDDING = (
    Case((HUGE, HUGE, [1]), 0.0, dtypes=FLOAT, atol=2),
    Case((ZERO, [[1.0, 0.0]], [1]), 1.0, ([[-1e6, 0.0]], ZERO), dtypes=HALF),
    Case(([[300.0, 0.0]], [[300.0, 0.0]], [1]), 0.0, (ZERO, ZERO), dtypes=HALF),
)
TRIPLET = (
    Case((HUGE, HUGE, [[-3e30, -4e30]]), 0.0, (ZERO, ZERO, ZERO), sick=False, dtypes=FLOAT),
    Case((HUGE, ZERO, HUGE), 5e30, dtypes=FLOAT),
    Case((ZERO, ZERO, ZERO), 1.0, (ZERO, ZERO, ZERO), {"eps": 0.0}, sick=False),
)
COSINE = (
    Case((HUGE, [[-4e30, 3e30]]), [0.0], sick=False, dtypes=FLOAT, atol=2),
    Case((HUGE, HUGE), [1.0], sick=False, dtypes=FLOAT),
    Case((ZERO, [[3.0, 4.0]]), [0.0], ([[6e7, 8e7]], ZERO), sick=False, dtypes=BROAD),
    Case((ZERO, [[3.0, 4.0]]), [0.0], ([[6e7, 8e7]], ZERO), dtypes=HALF),
    Case((ZERO, [[3.0, 4.0]]), [0.0], (ZERO, ZERO), {"eps": 0.0}),
)
PAIRWISE = (
    Case((HUGE, ZERO), [5e30], ([[0.6, 0.8]], [[-0.6, -0.8]]), dtypes=FLOAT),
    Case((ZERO, ZERO), [0.0], (ZERO, ZERO), {"eps": 0.0}, sick=False),
    Case(([[LARGEST, 0.0]], [[-LARGEST, 0.0]]), [LARGEST], ([[1.0, 0.0]], [[-1.0, 0.0]]), atol=1),
)
CDIST = (
    Case((HUGE, ZERO), [[5e30]], ([[0.6, 0.8]], [[-0.6, -0.8]]), dtypes=(torch.float32,)),
    Case((HUGE, ZERO, raw(3.0)), [[91 ** (1 / 3) * 1e30]], dtypes=(torch.float32,)),
    Case(([[LARGEST, 0.0]], [[-LARGEST, 0.0]]), [[LARGEST]], ([[1.0, 0.0]], [[-1.0, 0.0]]),
         dtypes=WIDE),
    Case((ZERO, ZERO), [[0.0]], (ZERO, ZERO), sick=False, dtypes=WIDE),
)  # fmt: skip
NORMALIZE = (
    Case((HUGE,), [[0.6, 0.8]], sick=False, dtypes=FLOAT),
    Case((ZERO,), ZERO, ([[1e12, 1e12]],), sick=False, dtypes=BROAD),
    Case((ZERO,), ZERO, ([[1e12, 1e12]],), dtypes=HALF),
    Case((ZERO,), ZERO, (ZERO,), {"eps": 0.0}),
)


EMPTY = (Case(([], []), 0.0, ([], []), sick=True),)
MSE = (
    *EMPTY,
    Case(([1e30], [0.0]), LARGEST, ([2e30], [-2e30]), dtypes=FLOAT),
    Case(([300.0], [0.0]), LARGEST, ([600.0], [-600.0]), dtypes=HALF),
)
SOFT_MARGIN = (
    Case(([], fixed([])), 0.0, ([],)),
    Case(([-1000.0], fixed([1.0])), 1000.0, ([-1.0],)),
)


def functional(name, cases, **options):
    samples = ((f"nn.functional.{name}", ""),)
    return Function(f"nn.functional.{name}", getattr(F, name), samples, cases, **options)


LOSSES = (
    functional("cross_entropy", CROSS_ENTROPY),
    functional("nll_loss", NLL),
    functional("mse_loss", MSE),
    functional("l1_loss", EMPTY),
    functional("smooth_l1_loss", EMPTY),
    functional("huber_loss", EMPTY),
    functional("binary_cross_entropy_with_logits", EMPTY),
    Function("nn.functional.soft_margin_loss", F.soft_margin_loss, (), SOFT_MARGIN),
    functional("ctc_loss", CTC, twice=False, vmapped=False, compiled=False),
    functional("binary_cross_entropy", BCE),
    functional("kl_div", KL),
    functional("gaussian_nll_loss", GAUSSIAN),
    functional("poisson_nll_loss", POISSON),
    functional("cosine_embedding_loss", COSINE_EMBEDDING),
    functional("triplet_margin_loss", TRIPLET),
    functional("cosine_similarity", COSINE),
    functional("pairwise_distance", PAIRWISE),
    functional("normalize", NORMALIZE),
    Function("cdist", torch.cdist, (("cdist", ""),), CDIST, twice=False),
)
