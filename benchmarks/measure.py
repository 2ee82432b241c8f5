"""One case, a row at a size, dtype, direction and number of threads: from tensors to records."""

from __future__ import annotations

import statistics
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from safeops import why_not_kernel

from .machine import Clock, elsewhere
from .rows import SAME, Form, Row
from .timing import Call, Effort, Times, copy_of, interleaved, quiet, speed, spread

DIRECTIONS = ("forward", "forward+backward")
COMPILED = "compiled "
COPY = "copy"
SINGULAR = 0.01  # share of singular elements by default
Record = dict[str, Any]


@dataclass(frozen=True)
class Case:
    row: Row
    size: int
    dtype: torch.dtype
    threads: int
    direction: str
    singular: float = SINGULAR

    @property
    def backward(self) -> bool:
        return self.direction != "forward"

    def title(self) -> str:
        """What the table of this case is called."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.row.op}, {self.direction}, {dtype}, {self.singular:.3g} singular"


@dataclass(frozen=True)
class Result:
    case: Case
    times: Times
    failed: dict[str, str]
    records: list[Record]
    busy: float | None  # cores that other processes kept busy meanwhile


def contenders(row: Row, compiled: bool) -> list[str]:
    """All of the row; compiled ones too, if asked, on the contiguous layout."""
    names = list(row.forms)
    compiled = compiled and row.layout == SAME
    return names + [COMPILED + name for name in names] if compiled else names


def form_of(case: Case, name: str) -> Form:
    """The row's function, or torch.compile of it."""
    form = case.row.forms[name.removeprefix(COMPILED)]
    if not name.startswith(COMPILED):
        return form
    # Inductor writes the number of threads into its code; given as an option it is also part of
    # the key under which the code is cached.
    options = {"cpp.threads": case.threads}
    return torch.compile(form, fullgraph=True, dynamic=False, options=options)


def call_of(form: Form, inputs: Sequence[Tensor], upstream: Tensor | None) -> Call:
    """The op alone, or the op and its backward from a gradient that is there already."""
    if upstream is None:
        return lambda: form(*inputs)
    return lambda: torch.autograd.grad(form(*inputs), inputs, upstream)


def inputs_of(case: Case) -> tuple[tuple[Tensor, ...], Tensor]:
    """The inputs, and an upstream gradient of the result's shape."""
    inputs = case.row.tensors(case.size, case.dtype, case.singular)
    shape = torch.broadcast_shapes(*(x.shape for x in inputs))
    generator = torch.Generator().manual_seed(case.size + 1)
    upstream = torch.randn(shape, generator=generator).to(case.dtype)
    return tuple(x.requires_grad_(case.backward) for x in inputs), upstream


def bytes_moved(inputs: Sequence[Tensor], result: Tensor, backward: bool) -> int:
    """What the op must read and write, each element once.

    Forward: the inputs and the result. Backward: the upstream gradient, the inputs again (or a
    saved result of their size) and a gradient for each.
    """
    read = sum(x.numel() for x in inputs)
    elements = read + result.numel()
    return inputs[0].element_size() * (elements + (result.numel() + 2 * read) * backward)


def prepared(
    case: Case, names: Sequence[str], inputs: Sequence[Tensor], upstream: Tensor
) -> tuple[dict[str, Call], dict[str, str]]:
    """The contenders that run, and why the others do not; compiles those to be compiled."""
    calls: dict[str, Call] = {}
    failed: dict[str, str] = {}
    if any(name.startswith(COMPILED) for name in names):
        torch.compiler.reset()
    for name in names:
        call = call_of(form_of(case, name), inputs, upstream if case.backward else None)
        try:
            call()
        except Exception as error:
            if not name.startswith(COMPILED):
                raise
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            calls[name] = call
    return calls, failed


def measure(case: Case, names: Container[str], effort: Effort) -> Result:
    """Times and records of those of the row's contenders that are in names."""
    chosen = [name for name in contenders(case.row, True) if name in names]
    inputs, upstream = inputs_of(case)
    moved = bytes_moved(inputs, upstream, case.backward)
    with quiet(case.threads):
        calls, failed = prepared(case, chosen, inputs, upstream)
        start = Clock.now()
        times = interleaved({**calls, COPY: copy_of(moved)}, effort)
        busy = elsewhere(start, Clock.now())
    reason = why_not_kernel(*inputs)
    more = {"cores_busy_elsewhere": busy}
    records = [record(case, times, name, moved, reason) | more for name in calls]
    return Result(case, times, failed, records, busy)


def route(name: str, reason: str | None) -> str:
    """The way a contender's numbers came about."""
    if name.startswith(COMPILED):
        return "compiled"
    return "eager" if name != "safeops" else "kernel" if reason is None else "formulas"


def record(case: Case, times: Times, name: str, moved: int, reason: str | None) -> Record:
    median = statistics.median(times[name])
    p20, p80 = spread(times[name])
    return {
        "op": case.row.op,
        "layout": case.row.layout,
        "dtype": str(case.dtype).removeprefix("torch."),
        "direction": case.direction,
        "size": case.size,
        "threads": case.threads,
        "singular": case.singular,
        "contender": name,
        "route": route(name, reason),
        "median_us": median * 1e6,
        "p20_us": p20 * 1e6,
        "p80_us": p80 * 1e6,
        "rounds": len(times[name]),
        "bytes": moved,
        "gb_per_s": moved / median / 1e9,
        "share_of_copy": speed(times, name, COPY),
        "speed_vs_torch": speed(times, name, "torch"),
        "speed_vs_double_where": speed(times, name, "double where"),
        "speed_vs_compiled_double_where": speed(times, name, COMPILED + "double where"),
    }
