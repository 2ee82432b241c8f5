"""One case, a row at a size, dtype, direction and number of threads: from tensors to records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from safeops import why_not_kernel

from .gpu import CPU, CUDA, Launches, waits
from .machine import Clock, elsewhere, why_no_list_kernels
from .rows import BACK, BOTH, NO_GRAD, ONE_WAY, Form, Row
from .timing import Block, Call, Effort, Times, interleaved, quiet, speed, spread
from .yardsticks import COPY, READ, YARDSTICKS

COMPILED, ONE_THREAD = "compiled ", "one thread "  # before the name of a form
MAY_FAIL = (COMPILED, "liger", "apex")  # forms that do begin so
REFERENCES = ("torch", "double where", COMPILED + "torch", COMPILED + "double where")
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
    device: str = CPU

    @property
    def backward(self) -> bool:
        return self.direction in (BOTH, BACK)

    @property
    def yardstick(self) -> str:
        """What the machine does with as many bytes: where nothing must be written, a read."""
        reads = self.device == CUDA and self.row.reduces and self.direction == ONE_WAY
        return READ if reads or self.direction == NO_GRAD else COPY

    @property
    def layout(self) -> str:
        return self.row.layout_at(self.size)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def title(self) -> str:
        """What the table of this case is called."""
        return f"{self.row.op}, {self.direction}, {self.dtype_name}, {self.singular:.3g} singular"


@dataclass(frozen=True)
class Result:
    case: Case
    times: Times
    failed: dict[str, str]
    records: list[Record]
    busy: float | None  # cores that other processes kept busy meanwhile


def contenders(row: Row, compiled: bool) -> list[str]:
    """All of the row, the compiled ones if asked."""
    return [*row.forms, *(COMPILED + name for name in row.compiled if compiled)]


def form_name(name: str) -> str:
    return name.removeprefix(ONE_THREAD).removeprefix(COMPILED)


def is_ours(name: str) -> bool:
    return form_name(name).startswith("safeops")


def form_of(case: Case, name: str) -> Form:
    """The row's function, or torch.compile of it."""
    form = case.row.forms[form_name(name)]
    if not name.startswith(COMPILED):
        return form
    # Inductor writes the number of threads into its code; given as an option it is also part of
    # the key under which the code is cached.
    options = {"cpp.threads": case.threads} if case.device == CPU else None
    return torch.compile(form, fullgraph=True, dynamic=False, options=options)


def call_of(form: Form, direction: str, inputs: Sequence[Any], upstream: Tensor | None) -> Call:
    """The op alone, the op and its backward, or the backward of a value that is there already."""
    if direction in (ONE_WAY, NO_GRAD):
        return lambda: form(*inputs)
    leaves = [x for x in inputs if x.requires_grad]
    if direction == BOTH:
        return lambda: torch.autograd.grad(form(*inputs), leaves, upstream)
    value = form(*inputs)
    return lambda: torch.autograd.grad(value, leaves, upstream, retain_graph=True)


def inputs_of(case: Case) -> tuple[tuple[Any, ...], Tensor | None]:
    """The inputs, and an upstream gradient of the result's shape if it can have one."""
    tensors = case.row.tensors(case.size, case.dtype, case.singular)
    inputs = case.row.given(*(tensor.to(case.device) for tensor in tensors))
    if case.direction == NO_GRAD:
        return inputs, None
    shape = case.row.forms["torch"](*inputs).shape
    generator = torch.Generator().manual_seed(case.size + 1)
    upstream = torch.randn(shape, generator=generator).to(case.device, case.dtype)
    for x in inputs:
        x.requires_grad_(case.backward and x.is_floating_point())
    return inputs, upstream


def bytes_moved(inputs: Sequence[Tensor], result: Tensor, direction: str) -> int:
    """What the op must read and write, each element once.

    Forward: the inputs and the result. Backward: the upstream gradient, the inputs again (or a
    saved result of their size) and a gradient for each that has one.
    """
    read, leaves = sum(x.nbytes for x in inputs), [x for x in inputs if x.is_floating_point()]
    forward = read + result.nbytes
    backward = result.nbytes + read + sum(x.nbytes for x in leaves)
    return {ONE_WAY: forward, BACK: backward, BOTH: forward + backward}[direction]


def bytes_of(case: Case, inputs: Sequence[Any], upstream: Tensor | None) -> int:
    """The same for a case; of what has no gradient, one read of its tensors."""
    if upstream is None:
        return case.row.elements(case.size) * case.dtype.itemsize
    return bytes_moved(inputs, upstream, case.direction)


def prepared(
    case: Case, names: Collection[str], inputs: Sequence[Any], upstream: Tensor | None
) -> tuple[dict[str, Call], dict[str, str]]:
    """The contenders that run, and why the others do not; compiles those to be compiled."""
    calls: dict[str, Call] = {}
    failed: dict[str, str] = {}
    if any(name.startswith(COMPILED) for name in names):
        torch.compiler.reset()
    for name in names:
        try:
            call = call_of(form_of(case, name), case.direction, inputs, upstream)
            call()
        except Exception as error:
            if not name.startswith(MAY_FAIL):
                raise
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            calls[name] = call
    return calls, failed


def measure(case: Case, names: Collection[str], effort: Effort) -> Result:
    """Times and records of these contenders."""
    inputs, upstream = inputs_of(case)
    moved, mend = bytes_of(case, inputs, upstream), partial(case.row.mend, *inputs)
    with quiet(case.threads):
        calls, failed = prepared(case, names, inputs, upstream)
        agreeing = {name: agrees(case, calls, name, mend) for name in calls}
        waiting = {name: waits(call) for name, call in calls.items() if case.device == CUDA}
        start = Clock.now()
        standards = YARDSTICKS[case.yardstick](moved, case.device)
        times, best = timed(case, calls, standards, effort, mend)
        more = {"yardstick": best, "cores_busy_elsewhere": elsewhere(start, Clock.now())}
    listed = upstream is None
    reason = why_no_list_kernels(case.device) if listed else why_not_kernel(*inputs)
    records = [
        record(case, times, name, moved, reason)
        | {"agrees_with_torch": agreeing[name], "waits_for_gpu": waiting.get(name), **more}
        for name in calls
    ]
    return Result(case, times, failed, records, more["cores_busy_elsewhere"])


def block_of(case: Case, name: str, call: Call) -> Callable[[], float]:
    return Launches(call) if case.device == CUDA else Block(call, threads_of(case, name))


def timed(
    case: Case, calls: Mapping[str, Call], standards: Mapping[str, Call], effort: Effort, mend: Call
) -> tuple[Times, str]:
    """The times of the contenders and of the fastest yardstick, and which that is."""
    blocks = {n: block_of(case, n, call) for n, call in {**calls, **standards}.items()}
    times = interleaved(blocks, effort, mend)
    best = min(standards, key=lambda name: statistics.median(times[name]))
    return {name: times[name] for name in calls} | {case.yardstick: times[best]}, best


def agrees(case: Case, calls: Mapping[str, Call], name: str, mend: Call) -> bool | None:
    """Whether safeops' value is torch's wherever that is finite, so that no speed is one of wrong
    numbers; None for the other forms, which make no such promise, and for gradients of an op."""
    if case.backward or not is_ours(name) or "torch" not in calls:
        return None
    expected, value = (fresh_value(calls[form], mend) for form in ("torch", name))
    expected, value = (torch.where(expected.isfinite(), t, 0.0) for t in (expected, value))
    tolerance = max(case.row.tolerance, 2 * torch.finfo(expected.dtype).eps)
    largest = expected.abs().max().item()
    return torch.allclose(value.to(expected), expected, rtol=tolerance, atol=tolerance * largest)


def fresh_value(call: Call, mend: Call) -> Tensor:
    """That of a second call, which sees what the first has written, and nobody else."""
    mend()
    call()
    return torch.as_tensor(call())


def threads_of(case: Case, name: str) -> int:
    return 1 if name.startswith(ONE_THREAD) else case.threads


def route(name: str, reason: str | None) -> str:
    """The way a contender's numbers came about."""
    if name.startswith(COMPILED):
        return "compiled"
    return "eager" if not is_ours(name) else "kernel" if reason is None else "formulas"


def record(case: Case, times: Times, name: str, moved: int, reason: str | None) -> Record:
    median = statistics.median(times[name])
    p20, p80 = spread(times[name])
    return {
        "op": case.row.op,
        "layout": case.layout,
        "dtype": case.dtype_name,
        "direction": case.direction,
        "size": case.size,
        "threads": case.threads,
        "device": case.device,
        "singular": case.singular,
        "contender": name,
        "route": route(name, reason),
        "median_us": median * 1e6,
        "p20_us": p20 * 1e6,
        "p80_us": p80 * 1e6,
        "rounds": len(times[name]),
        "bytes": moved,
        "gb_per_s": moved / median / 1e9,
        "share_of_yardstick": speed(times, name, case.yardstick),
    } | {f"speed_vs_{other.replace(' ', '_')}": speed(times, name, other) for other in REFERENCES}
