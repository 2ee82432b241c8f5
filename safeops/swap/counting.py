"""How many elements the ops of a swapped model guard: each call is compared with torch's own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .._route import transforms_active
from .._where import EAGERLY, RunningModule, user_frame
from . import functions
from ._text import columns
from .calls import Function
from .table import Table, public_name_of


@dataclass
class Guarded:
    """One op at one line of one module: how often it ran, on how many elements, and of how many
    it guarded the value or (of its inputs) the gradient."""

    op: str
    module: str
    source: str
    calls: int = 0
    elements: int = 0
    values: int = 0
    gradients: int = 0


class GuardedReport:
    """The ops that guarded something in a run, in the order of their first call.

    A sequence of rows (op, module, source, calls, elements, values, gradients); ``.calls`` has the
    ops that ran and guarded nothing, too. ``print`` gives a table.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], Guarded] = {}

    @property
    def calls(self) -> list[Guarded]:
        return list(self._rows.values())

    def __iter__(self) -> Iterator[Guarded]:
        return (row for row in self._rows.values() if row.values or row.gradients)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def add(self, op: str, module: str, source: str, counts: tuple[int, int, int]) -> None:
        """One call: its elements, and those of which value or gradient was guarded."""
        row = self._rows.setdefault((op, module, source), Guarded(op, module, source))
        row.calls += 1
        row.elements += counts[0]
        row.values += counts[1]
        row.gradients += counts[2]

    def to_dict(self) -> dict[str, Any]:
        return {"guarded": [vars(row).copy() for row in self]}

    def __str__(self) -> str:
        if not self._rows:
            return "guarded nothing: no call was taken (not swapped, or outside of safe_mode?)"
        if not len(self):
            return f"guarded nothing in {sum(row.calls for row in self.calls)} calls"
        titles = ("op", "module", "source", "calls", "elements", "values", "gradients")
        return columns(titles, [tuple(vars(row).values()) for row in self])

    __repr__ = __str__


@contextmanager
def counted(model: nn.Module) -> Iterator[GuardedReport]:
    """Every safe_mode that is entered in this block counts."""
    report, where = GuardedReport(), RunningModule(model)
    functions.watch(lambda table: _Counting(table, report, where))
    try:
        with where, EAGERLY:
            yield report
    finally:
        functions.watch(None)


class _Counting(functions.SafeMode):
    """safe_mode that compares."""

    def __init__(self, table: Table, report: GuardedReport, where: RunningModule):
        super().__init__(table)
        self.report, self.where = report, where

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in self.table or transforms_active():
            return super().__torch_function__(func, types, args, kwargs)
        given = {name: value for name, value in (kwargs or {}).items() if name != "out"}
        before = tree_map(_copy, (args, given))
        result = super().__torch_function__(func, types, args, kwargs)
        safe = super().__torch_function__
        try:
            with torch._C.DisableTorchFunction():
                counts = _compared(lambda *a, **k: safe(func, (), a, k), func, before)
        except (RuntimeError, NotImplementedError):  # of tensors without data, or nested
            counts = (0, 0, 0)
        op = public_name_of(func)
        self.report.add(op, self.where.name, _source(), counts)
        return result


def _copy(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(_floating(value) and value.requires_grad)


def _compared(safe: Function, plain: Function, inputs: Any) -> tuple[int, int, int]:
    """Elements, and those that torch has not finite and safeops has otherwise, in the values and
    in the gradients of the inputs."""
    ours = _outcome(safe, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = _outcome(plain, inputs)
    elements = sum(value.numel() for value in ours[0])
    values, gradients = (
        sum(_mended(*pair) for pair in zip(*both, strict=True))
        for both in zip(ours, theirs, strict=True)
    )
    return elements, values, gradients


def _mended(ours: Tensor, theirs: Tensor) -> int:
    same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
    return int((~theirs.isfinite() & ~same).sum())


def _outcome(call: Function, inputs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The floating results and the gradients of their sum to the floating inputs."""
    leaves = tree_map(_copy, inputs)
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        args, kwargs = tree_map(_twin, leaves)
        values = [value for value in tree_leaves(call(*args, **kwargs)) if _floating(value)]
        wanted = [leaf for leaf in tree_leaves(leaves) if _floating(leaf) and leaf.requires_grad]
        reached = [value.sum() for value in values if value.requires_grad]
        grads = torch.autograd.grad(sum(reached), wanted, allow_unused=True) if reached else ()
    return [value.detach() for value in values], [
        torch.zeros_like(leaf) if grad is None else grad
        for leaf, grad in zip(wanted, grads, strict=False)
    ]


def _floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _twin(value: Any) -> Any:
    """Not a leaf, so that it may be written."""
    return value.clone() if isinstance(value, Tensor) else value


def _source() -> str:
    """The line that called."""
    frame = user_frame()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""
