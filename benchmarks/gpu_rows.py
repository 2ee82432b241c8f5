"""The rows of a GPU: those of the CPU, larger, with the forms that only a GPU has.

liger and apex are liger-kernel and NVIDIA's apex; without them their columns are empty.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from safeops import clip_grad_norm_

from . import elementwise, gradients, softmax
from .gradients import CLIPPED, NEVER, Step
from .rows import Form, Row
from .softmax import Variant

KEEP, LIGER, APEX = "safeops keep", "liger", "apex"  # keep: the policy that never waits
BEYOND_CACHES = 64 << 20  # elements: 256 MB of float32, more than the caches of any GPU
SIZES = (64 << 10, 1 << 20, BEYOND_CACHES)
COLUMNS = (64, 1024, 4096, 8192, 16384, 32768, 131072)
WIDE = tuple(Variant((BEYOND_CACHES // n, n)) for n in COLUMNS)
SHORT = tuple(variant for variant in WIDE if variant.shape[1] <= 32768)


def optional(module: str, name: str) -> Any:
    """None where it is not installed, or does not load beside this torch."""
    try:
        return getattr(importlib.import_module(module), name)
    except Exception:
        return None


def softmax_of_others(layout: str) -> Mapping[str, Form]:
    liger = optional("liger_kernel.ops.softmax", "LigerSoftmaxFunction")
    along = layout in {variant.layout for variant in WIDE}
    return {LIGER: lambda x: liger.apply(x)} if liger and along else {}


def clips(layout: str) -> Mapping[str, Form]:
    """Ours that never waits, and apex's."""
    apex = optional("apex.contrib.clip_grad", "clip_grad_norm_")
    limit = Step.lower if layout.endswith(CLIPPED) else never
    forms: dict[str, Form] = {
        KEEP: lambda step: clip_grad_norm_(step.parameters, limit(step), nonfinite="keep")
    }
    if apex:
        forms[APEX] = lambda step: apex(step.parameters, limit(step))
    return forms


def never(step: Step) -> float:
    return NEVER


def on_gpu(row: Row, **changes: Any) -> Row:
    """The row with its further forms."""
    more = {"softmax": softmax_of_others, "clip_grad_norm_": clips}.get(row.op)
    return replace(row, forms={**row.forms, **(more(row.layout) if more else {})}, **changes)


@functools.cache
def rows() -> tuple[Row, ...]:
    """A wide layout takes the place of the CPU's of that name."""
    wide = tuple(variant.row(op) for op in softmax.FAMILY for variant in WIDE)
    found = {(row.op, row.layout): on_gpu(row, sizes=SIZES) for row in elementwise.ROWS}
    found |= {(row.op, row.layout): on_gpu(row) for row in (*softmax.ROWS, *wide)}
    found |= {(row.op, row.layout): on_gpu(row) for row in gradients.ROWS}
    return tuple(found.values())
