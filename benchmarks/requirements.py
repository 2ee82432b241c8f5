"""The speeds that safeops promises, as data.

Every requirement is a ratio of speeds: 0.9 against torch means at least 0.9 times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .diagnose import EVERY_STEP, EVERY_TENTH, TRANSFORMER
from .elementwise import BROADCAST, SAME
from .gpu import CPU
from .gradients import CLIPPED, GPT2, IN_MODULE, MANY, ONE
from .measure import COMPILED, ONE_THREAD, SINGULAR, Case
from .rows import BACK, BOTH, NO_GRAD, ONE_WAY
from .softmax import ACROSS, FAMILY, LARGE, LAST, MASKED, Variant
from .suite import rows_on
from .swap import CALLS, MODEL, OTHER, TAKEN
from .yardsticks import READ, YARDSTICKS

K64, M1, M16 = 64 << 10, 1 << 20, 16 << 20
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
# Against the bare op also on healthy data, since torch.log takes three times as long at 1 % zeros;
# against double where also on a random half, since torch.where is a loop with a branch.
TORCH, WHERE = (SINGULAR, 0.0), (SINGULAR, 0.5)


@dataclass(frozen=True)
class Requirement:
    """contender is at least `least` times as fast as against, in all these cases.

    least   None: measured and shown, but not promised
    aim     what we would like; shown beside what is required
    mean    least is for the geometric mean over the layouts of an op
    floor   with mean: for each of the layouts
    sizes   empty: those of the row
    shares  of singular elements
    threads empty: all that are measured
    seconds that a call may take; against is then what that is called, not a contender
    queued  the contender must not wait for the GPU
    """

    ops: Sequence[str]
    sizes: Sequence[int]
    directions: Sequence[str]
    against: str
    least: float | None
    dtype: torch.dtype = F32
    layouts: Sequence[str] = (SAME,)
    contender: str = "safeops"
    shares: Sequence[float] = (0.0,)
    aim: float | None = None
    mean: bool = False
    floor: float | None = None
    threads: Sequence[int] = ()
    seconds: float | None = None
    device: str = CPU
    queued: bool = False

    def groups(self, threads: Sequence[int]) -> list[list[Case]]:
        """The cases, those together that differ in nothing but their layout."""
        return [
            [
                Case(row, size, self.dtype, count, direction, singular, self.device)
                for row in rows_on(self.device)
                if row.op == op and row.layout in self.layouts
                for size in self.sizes or row.sizes
            ]
            for count in threads
            if count in (self.threads or threads)
            if count > 1 or not self.against.startswith(ONE_THREAD)
            for op in self.ops
            for direction in self.directions
            for singular in self.shares
        ]

    @property
    def rivals(self) -> list[str]:
        """The contenders that must run."""
        other = [] if self.seconds or self.against in YARDSTICKS else [self.against]
        return [self.contender, *other]

    @property
    def compiled(self) -> bool:
        return self.contender.startswith(COMPILED) or self.against.startswith(COMPILED)


def of_rows(
    ops: Sequence[str],
    variants: Sequence[Variant],
    direction: str,
    least: float | None,
    aim: float | None = None,
    *,
    against: str = "torch",
    **more: Any,
) -> Requirement:
    """Of softmax and its family, at the sizes of the variants; one mean over several of them."""
    layouts = [variant.layout for variant in variants]
    more = {"layouts": layouts, "aim": aim, "mean": len(layouts) > 1} | more
    return Requirement(ops, (), (direction,), against, least, **more)


THREE = ("div", "log", "sqrt")
ELEMENTWISE: tuple[Requirement, ...] = (
    Requirement(THREE, (K64, M1), (ONE_WAY,), "torch", 0.9, shares=TORCH),
    Requirement(THREE, (K64, M1), (ONE_WAY,), "double where", 5.0, shares=WHERE),
    Requirement(THREE, (K64, M1), (BOTH,), "double where", 6.0, shares=WHERE),
    Requirement(("log",), (K64, M1), (BOTH,), "torch", 1.0, shares=TORCH),
    Requirement(("div", "sqrt"), (K64, M1), (BOTH,), "torch", 1.5, shares=TORCH),
    Requirement(("log",), (K64, M1), (ONE_WAY,), "torch", 1.8, BF16, shares=TORCH),
    Requirement(("div",), (K64, M1), (ONE_WAY,), "torch", 1.2, BF16, shares=TORCH),
    Requirement(THREE, (1 << 10,), (BOTH,), "torch", 1 / 1.6, shares=TORCH),
    Requirement(THREE, (1 << 10,), (BOTH,), "double where", 1.3, shares=WHERE),
    Requirement(("div",), (M1,), (ONE_WAY,), "torch", 1 / 1.1, layouts=BROADCAST, shares=TORCH),
    Requirement(THREE, (M16,), (ONE_WAY, BOTH), "torch", 0.97, shares=TORCH),
    Requirement(
        THREE,
        (M1,),
        (ONE_WAY, BOTH),
        COMPILED + "double where",
        1 / 1.1,
        contender=COMPILED + "safeops",
        shares=(SINGULAR,),
    ),
)

PAIR, SUM, ALL = ("softmax", "log_softmax"), ("logsumexp",), tuple(FAMILY)
ALONG, PLAIN = (*LAST, *LARGE), (*LAST, *LARGE, *ACROSS)
HALF: tuple[Requirement, ...] = tuple(
    requirement
    for dtype in (BF16, F16)
    for requirement in (
        of_rows(PAIR, ALONG, ONE_WAY, 1.5, 2.0, dtype=dtype),
        of_rows(SUM, ALONG, ONE_WAY, 3.5, 5.0, dtype=dtype),
        of_rows(ALL, ALONG, BACK, 1.2, 1.5, dtype=dtype),
    )
)
COMPARED: tuple[Requirement, ...] = tuple(
    requirement
    for direction in (ONE_WAY, BACK)
    for requirement in (
        of_rows(
            ALL, (*PLAIN, *MASKED), direction, 1.0, 2.0, against=COMPILED + "torch", mean=False
        ),
        of_rows(
            ALL,
            (*PLAIN, *MASKED),
            direction,
            None,
            against=COMPILED + "torch",
            contender=COMPILED + "safeops",
            mean=False,
        ),
    )
)
SOFTMAX: tuple[Requirement, ...] = (
    of_rows(("softmax",), LAST, ONE_WAY, 1.5, 1.9, floor=1.0),
    of_rows(("softmax",), LAST, BACK, 1.0, 1.2),
    of_rows(("log_softmax",), LAST, ONE_WAY, 1.4, 1.8),
    of_rows(("log_softmax",), LAST, BACK, 1.1, 1.4),
    of_rows(PAIR, LARGE, ONE_WAY, 1.1, 1.3),
    of_rows(PAIR, LARGE, BACK, 1.0),
    of_rows(SUM, ALONG, ONE_WAY, 4.0, 5.0),
    of_rows(SUM, ALONG, BACK, 2.5, 3.2),
    of_rows(PAIR, ACROSS, ONE_WAY, 2.0, 3.0),
    of_rows(PAIR, ACROSS, BACK, 1.0, 1.2),
    of_rows(SUM, ACROSS, ONE_WAY, 2.0, 4.0),
    of_rows(SUM, ACROSS, BACK, 1.5),
    *HALF,
    of_rows(ALL, MASKED, ONE_WAY, 2.5, mean=False),
    of_rows(ALL, MASKED, BACK, 1.5, mean=False),
    *COMPARED,
    of_rows(ALL, PLAIN, ONE_WAY, 1.7, against=ONE_THREAD + "safeops", mean=False),
)


def of_gradients(
    op: str,
    layouts: Sequence[str],
    least: float | None,
    aim: float | None = None,
    against: str = "torch",
    **more: Any,
) -> Requirement:
    return Requirement((op,), (), (NO_GRAD,), against, least, layouts=layouts, aim=aim, **more)


CLIP, CHECK, REPORT, INSIDE = "clip_grad_norm_", "check_finite", "clip_report", "GradNormClipper"
SETS = (GPT2, MANY)
GRADIENTS: tuple[Requirement, ...] = (
    of_gradients(CLIP, (GPT2,), 2.4, 2.7, threads=(1,)),
    of_gradients(CLIP, (GPT2,), 3.3, 4.0, threads=(2,)),
    of_gradients(CLIP, (GPT2,), 0.88, against=READ),
    of_gradients(CLIP, (GPT2 + CLIPPED,), 1.2, 1.33, threads=(1,)),
    of_gradients(CLIP, (GPT2 + CLIPPED,), 1.5, 1.7, threads=(2,)),
    of_gradients(CLIP, (MANY,), 20.0, 37.0),
    of_gradients(CLIP, (MANY,), 1.0, against="0.2 µs a tensor", seconds=1000 * 0.2e-6),
    of_gradients(CLIP, (MANY + CLIPPED,), None),
    *(
        of_gradients(CLIP, (layout,), None, dtype=dtype)
        for dtype in (BF16, F16)
        for layout in (GPT2, GPT2 + CLIPPED)
    ),
    of_gradients(INSIDE, (GPT2 + CLIPPED,), 0.95, 1.0, against="never clips"),
    of_gradients(INSIDE, (GPT2 + CLIPPED,), None),
    of_gradients(REPORT, SETS, 10.0),
    of_gradients(CHECK, SETS, 10.0),
    of_gradients(CHECK, [name + IN_MODULE for name in SETS], 10.0),
    of_gradients(CHECK, (ONE,), 10.0),
)
SWAP: tuple[Requirement, ...] = (
    of_gradients("safe_mode", (TAKEN,), 1.0, against="3 µs a call", seconds=CALLS * 3e-6),
    of_gradients("safe_mode", (OTHER,), 1.0, against="2 µs a call", seconds=CALLS * 2e-6),
    of_gradients("swap_", (MODEL,), 1 / 1.03),
)
DIAGNOSE: tuple[Requirement, ...] = (
    of_gradients("detect", (TRANSFORMER,), 1 / 2.5),
    of_gradients("monitor", (EVERY_STEP,), 1 / 1.05),
    of_gradients("monitor", (EVERY_TENTH,), 1 / 1.01),
)
GUARD: tuple[Requirement, ...] = (of_gradients("Guard", (MODEL,), 1 / 1.01),)
REQUIREMENTS: tuple[Requirement, ...] = (
    *ELEMENTWISE,
    *SOFTMAX,
    *GRADIENTS,
    *SWAP,
    *DIAGNOSE,
    *GUARD,
)
