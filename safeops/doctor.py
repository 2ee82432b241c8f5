"""safeops doctor: what is installed, which kernels run, and whether the ops keep their contract."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import safeops

from . import _extension
from ._facts import gpu, versions
from ._route import DTYPES

# --- the cases ---------------------------------------------------------------------------------

Row = tuple[Sequence[float], float, Sequence[float]]  # inputs, value, gradient to each input


class Limits(NamedTuple):
    """The numbers of a dtype that the contract speaks of."""

    max: float
    log_smallest: float
    two_of_1e4: float


class Case(NamedTuple):
    op: str
    options: dict[str, Any]
    rows: Callable[[Limits], list[Row]]


INF, NAN = float("inf"), float("nan")
SINGULAR = (
    Case("safe_div", {}, lambda of: [((1, 0), 0, (0, 0)), ((0, 0), 0, (0, 0))]),
    Case("safe_div", {"eps": 0.5}, lambda of: [((1, -0.0), -2, (-2, 0)), ((3, 0.25), 6, (2, 0))]),
    Case("safe_div", {"fill": 7.0}, lambda of: [((NAN, 0), NAN, (0, 0)), ((1, 0), 7, (0, 0))]),
    Case("safe_div", {}, lambda of: [((of.max, 0.5), of.max, (2, -of.max)), ((1, INF), 0, (0, 0))]),
    Case("safe_log", {}, lambda of: [((x,), of.log_smallest, (0,)) for x in (0, -1, -INF)]),
    Case("safe_log", {}, lambda of: [((INF,), INF, (0,)), ((NAN,), NAN, (NAN,))]),
    Case("safe_log", {"fill": 7.0}, lambda of: [((0,), 7, (0,))]),
    Case("safe_log", {"eps": 1.0, "extend": "linear"}, lambda of: [((-2,), -3, (1,))]),
    Case("safe_sqrt", {}, lambda of: [((x,), 0, (0,)) for x in (0, -0.0, -1, -INF)]),
    Case("safe_sqrt", {}, lambda of: [((INF,), INF, (0,)), ((NAN,), NAN, (NAN,))]),
    Case("safe_sqrt", {"eps": 4.0}, lambda of: [((1,), 2, (0,))]),
    Case("safe_sqrt", {"eps": 0.25, "extend": "linear"}, lambda of: [((0,), 0.25, (1,))]),
    Case("finite_clip", {}, lambda of: [((INF,), of.max, (0,)), ((-INF,), -of.max, (0,))]),
    Case("finite_clip", {}, lambda of: [((NAN,), NAN, (0,)), ((3,), 3, (1,))]),
    Case("finite_clip", {"min": -1.0, "max": 1.0, "nan": 0.5}, lambda of: [((NAN,), 0.5, (0,))]),
    Case("softmax", {}, lambda of: [((-INF, -INF), 0, (0, 0)), ((INF, 0), 1, (0, 0))]),
    Case("softmax", {}, lambda of: [((2, 2), 0.5, (0.25, -0.25)), ((NAN, 0), NAN, (NAN, NAN))]),
    Case("log_softmax", {}, lambda of: [((-INF, -INF), -INF, (0, 0)), ((3, -INF), 0, (0, 0))]),
    Case("log_softmax", {}, lambda of: [((-of.max, of.max), -of.max, (1, -1))]),
    Case("logsumexp", {}, lambda of: [((-INF, -INF), -INF, (0, 0)), ((INF, 0), INF, (1, 0))]),
    Case("logsumexp", {}, lambda of: [((1e4, 1e4), of.two_of_1e4, (0.5, 0.5))]),
)
ROWS = ("softmax", "log_softmax", "logsumexp")
CLIP = "clip_grad_norm_"
OPS = ("safe_div", "safe_log", "safe_sqrt", "finite_clip", *ROWS, CLIP)
POINTS = [-40.0, -3.0, -1.25, -0.1, 0.01, 0.3, 0.75, 1.0, 1.5, 2.0, 7.0, 40.0, 300.0]
FORMULAS: dict[str, tuple[Callable[..., Tensor], tuple[list[float], ...]]] = {
    "safe_div": (torch.div, (POINTS, POINTS[::-1])),
    "safe_log": (torch.log, (POINTS[4:],)),
    "safe_sqrt": (torch.sqrt, (POINTS[4:],)),
    "finite_clip": (torch.Tensor.clone, (POINTS,)),
}


# --- the checks --------------------------------------------------------------------------------


class _NoKernel(Tensor):
    """A subclass, for which every op takes its torch formulas."""


def _op(name: str) -> Callable[..., Tensor]:
    """The op as a function of its operands; a row op as the first result of rows of two."""
    op = getattr(safeops, name)
    if name not in ROWS:
        return op
    return lambda a, b: op(torch.stack((a, b)), 0).view(-1, a.numel())[0]


def _answers(op: Callable[..., Tensor], inputs: Sequence[Tensor], options: dict) -> list[Tensor]:
    """The value and the gradient to each input, for an upstream gradient of 1."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    value = op(*leaves, **options)
    gradients = torch.autograd.grad(value, leaves, torch.ones_like(value))
    return [value.detach(), *gradients]


def _wrong(got: Tensor, expected: Tensor) -> Tensor:
    """Where got is more than 4 units of its last place from expected (in float64)."""
    info = torch.finfo(got.dtype)
    expected = expected.double()
    slack = 4 * info.eps * expected.abs().clamp(min=info.smallest_normal)
    near = expected.isfinite() & ((got.double() - expected).abs() <= slack)
    return ~(near | (got.double() == expected) | (got.isnan() & expected.isnan()))


def _differences(
    what: str, inputs: Sequence[Tensor], got: Sequence[Tensor], expected: Sequence[Tensor]
) -> Iterator[str]:
    """A sentence for each answer that is wrong, with the first input where it is."""
    for index, (mine, right) in enumerate(zip(got, expected, strict=True)):
        bad = _wrong(mine, right).nonzero()
        if len(bad):
            at = int(bad[0])
            point = ", ".join(f"{tensor[at].item():g}" for tensor in inputs)
            name = "value" if index == 0 else f"gradient {index}"
            yield f"{what}: {name} at ({point}) is {mine[at]:g}, expected {right[at]:g}"


def _ordinary(name: str, dtype: torch.dtype) -> Iterator[str]:
    formula, columns = FORMULAS[name]
    inputs = [torch.tensor(column, dtype=torch.float64).to(dtype) for column in columns]
    expected = _answers(formula, [tensor.double() for tensor in inputs], {})
    got = _answers(getattr(safeops, name), inputs, {})
    yield from _differences(f"{dtype}", inputs, got, expected)


def _limits(dtype: torch.dtype) -> Limits:
    info = torch.finfo(dtype)
    smallest = torch.tensor(info.smallest_normal * info.eps, dtype=torch.float64)
    two = torch.tensor(1e4, dtype=dtype).double() + math.log(2)
    return Limits(info.max, float(smallest.log()), float(two.to(dtype)))


def _singular(case: Case, dtype: torch.dtype) -> Iterator[str]:
    rows = case.rows(_limits(dtype))
    table = torch.tensor([[*x, value, *grads] for x, value, grads in rows], dtype=torch.float64)
    inputs = table[:, : len(rows[0][0])].to(dtype).unbind(1)
    got = _answers(_op(case.op), inputs, case.options)
    options = "".join(f", {key}={value}" for key, value in case.options.items())
    yield from _differences(f"{dtype}{options}", inputs, got, table[:, len(inputs) :].unbind(1))


def _kernel_runs(dtype: torch.dtype, *inputs: Tensor) -> Iterator[str]:
    reason = safeops.why_not_kernel(*(inputs or (torch.ones(2, dtype=dtype),)))
    if reason is not None and torch.get_default_device().type in _extension.devices:
        yield f"{dtype}: the kernel does not run: {reason}"


def _routes(name: str, dtype: torch.dtype) -> Iterator[str]:
    """The kernel against the torch formulas, over many exponents and the special values."""
    magnitudes = torch.logspace(-30, 30, 1000, base=2.0, dtype=torch.float64)
    special = torch.tensor([0.0, -0.0, INF, -INF, NAN], dtype=torch.float64)
    x = torch.cat([magnitudes, -magnitudes, special]).to(dtype)
    inputs = [x, x.roll(7)] if name == "safe_div" else [x]
    yield from _kernel_runs(dtype, *inputs)
    op = getattr(safeops, name)
    expected = _answers(op, [tensor.as_subclass(_NoKernel) for tensor in inputs], {})
    plain = [tensor.as_subclass(Tensor) for tensor in expected]
    yield from _differences(f"{dtype}, kernel", inputs, _answers(op, inputs, {}), plain)


def _clips(dtype: torch.dtype) -> Iterator[str]:
    """[3, 4, NaN], and four numbers whose squares overflow."""
    half = torch.finfo(dtype).max / 2
    rows = (([3.0, 4.0, NAN], 5.0, [1.5, 2.0, 0.0]), ([half] * 4, 2 * half, [1.25] * 4))
    for values, norm, clipped in rows:
        parameter = torch.nn.Parameter(torch.zeros(len(values), dtype=dtype))
        parameter.grad = torch.tensor(values, dtype=dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", safeops.NonFiniteGradientWarning)
            total = safeops.clip_grad_norm_([parameter], 2.5, nonfinite="drop")
        got = torch.cat([total.view(1), parameter.grad.to(total.dtype)])
        expected = torch.tensor([norm, *clipped], dtype=torch.float64)
        yield from _differences(f"{dtype}", [got], [got], [expected])


def _checks(name: str, dtype: torch.dtype) -> Iterator[Callable[[], Iterator[str]]]:
    for case in SINGULAR:
        if case.op == name:
            yield partial(_singular, case, dtype)
    if name == CLIP:
        yield partial(_clips, dtype)
    elif name in ROWS:
        yield partial(_kernel_runs, dtype)
    else:
        yield from _elementwise_checks(name, dtype)


def _elementwise_checks(name: str, dtype: torch.dtype) -> Iterator[Callable[[], Iterator[str]]]:
    yield partial(_ordinary, name, dtype)
    if _extension.module is not None:
        yield partial(_routes, name, dtype)


def _findings(name: str) -> Iterator[str]:
    for dtype in DTYPES:
        for check in _checks(name, dtype):
            try:
                yield from check()
            except Exception as error:
                yield f"{dtype}: {type(error).__name__}: {error}"


def self_test(device: str = "cpu") -> dict[str, list[str]]:
    """What is wrong with each op on this device: nothing, if all is well."""
    with torch.device(device):
        return {name: list(_findings(name)) for name in OPS}


# --- what is shown -----------------------------------------------------------------------------


def _table(device: str, found: dict[str, list[str]]) -> Table:
    table = Table(f"op on {device}", "self-test", "finding")
    for name, findings in found.items():
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        verdict = "[red]failed" if findings else "[green]ok"
        table.add_row(name, verdict, findings[0] + more if findings else "")
    return table


def main() -> int:
    """Print the versions and the self-test; 0 if every op passed, else 1."""
    console = Console()
    facts = Table.grid(padding=(0, 2))
    for key, value in versions().items():
        facts.add_row(key, value)
    console.print(facts)
    found = {device: self_test(device) for device in ("cpu", *["cuda"] * (gpu() is not None))}
    for device, findings in found.items():
        console.print(_table(device, findings))
    return 1 if any(any(findings.values()) for findings in found.values()) else 0
