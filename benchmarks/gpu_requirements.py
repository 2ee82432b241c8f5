"""The speeds that are wanted of a GPU, as shares of its own bandwidth and beside torch."""

from __future__ import annotations

from typing import Any

from .gpu import CUDA
from .gpu_rows import BEYOND_CACHES, KEEP, SHORT
from .gradients import CLIPPED, GPT2
from .measure import COMPILED
from .requirements import BF16, CLIP, F32, PAIR, SUM, THREE, Requirement, of_gradients, of_rows
from .rows import BACK, ONE_WAY
from .yardsticks import COPY, READ

SHARE = 0.85
HERE: dict[str, Any] = {"device": CUDA, "threads": (1,)}
ALONE: dict[str, Any] = {**HERE, "mean": False}
ELEMENTWISE = (*THREE, "finite_clip")

REQUIREMENTS: tuple[Requirement, ...] = (
    *(
        Requirement(ELEMENTWISE, (BEYOND_CACHES,), (ONE_WAY, BACK), COPY, SHARE, dtype, **HERE)
        for dtype in (F32, BF16)
    ),
    *(
        of_rows(PAIR, SHORT, direction, SHARE, against=COPY, dtype=dtype, **ALONE)
        for dtype in (F32, BF16)
        for direction in (ONE_WAY, BACK)
    ),
    *(
        of_rows(SUM, SHORT, ONE_WAY, SHARE, against=READ, dtype=dtype, **ALONE)
        for dtype in (F32, BF16)
    ),
    *(
        requirement
        for other in ("torch", COMPILED + "torch")
        for requirement in (
            Requirement(ELEMENTWISE, (BEYOND_CACHES,), (ONE_WAY,), other, None, **HERE),
            of_rows((*PAIR, *SUM), SHORT, ONE_WAY, None, against=other, **ALONE),
        )
    ),
    of_gradients(CLIP, (GPT2,), SHARE, against=READ, contender=KEEP, queued=True, **HERE),
    of_gradients(CLIP, (GPT2,), 2.0, contender=KEEP, queued=True, **HERE),
    of_gradients(CLIP, (GPT2 + CLIPPED,), 1.3, contender=KEEP, queued=True, **HERE),
    of_gradients(CLIP, (GPT2, GPT2 + CLIPPED), None, **HERE),
)
