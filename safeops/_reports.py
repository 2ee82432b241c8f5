"""What a check or a clip found, tensor by tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._lots import Found, Label
from ._multi_tensor import Copied, row_of
from ._statistics import Row, joined

SHOWN = 20  # rows of a printed report


class TensorStats(NamedTuple):
    """One tensor: norm and largest magnitude of its finite elements, and what else it holds."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    norm: float
    largest: float
    nan: int
    posinf: int
    neginf: int
    zeros: int
    subnormal: int
    numel: int

    @property
    def bad(self) -> int:
        """How many elements are NaN or infinite."""
        return self.nan + self.posinf + self.neginf


def stats(name: str, shape: Sequence[int], dtype: torch.dtype | None, row: Row) -> TensorStats:
    counts = (int(count) for count in row[3:9])
    return TensorStats(name, tuple(shape), dtype, row.finite_norm, row.largest, *counts)


class FiniteReport:
    """What one read of some tensors found; true if every element is finite.

    A sequence of TensorStats, in the order of the tensors. On a GPU nothing is copied to the host
    before something is looked at.
    """

    def __init__(self, found: Sequence[Found], p: float = 2.0):
        self._found, self._p = found, p

    @cached_property
    def _rows(self) -> list[TensorStats]:
        pairs: list[tuple[Label, Row]] = []
        for readings, labels in self._found:
            rows = (row_of(row, self._p) for row in readings.rows())
            pairs += zip(labels or [_label(readings)], rows, strict=True)
        pairs.sort(key=lambda pair: pair[0][0])
        return [stats(name, shape, dtype, row) for (_, name, shape, dtype), row in pairs]

    @cached_property
    def total(self) -> TensorStats:
        """All tensors as one."""
        return stats("total", (), None, self._total)

    @cached_property
    def _total(self) -> Row:
        totals = [row_of(readings.total(), self._p) for readings, _ in self._found]
        return totals[0] if len(totals) == 1 else joined(totals, self._p)

    @property
    def finite(self) -> bool:
        return not any(readings.bad for readings, _ in self._found)

    @property
    def bad(self) -> list[TensorStats]:
        """The tensors that hold a NaN or an infinity."""
        return [] if self.finite else [row for row in self if row.bad]

    def __bool__(self) -> bool:
        for found in self._found:  # noqa: SIM110 - in a check of a small tensor every call shows
            if found[0].bad:
                return False
        return True

    def __getstate__(self) -> dict[str, Any]:
        found = [
            (Copied(readings), labels or [_label(readings)]) for readings, labels in self._found
        ]
        return {**self.__dict__, "_found": found}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[TensorStats]:
        return iter(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def sorted_by(self, column: str, reverse: bool = True) -> list[TensorStats]:
        """The rows by a column, the largest first.

        Raises:
            ValueError: a column that TensorStats does not have.
        """
        if column not in TensorStats._fields or column in ("shape", "dtype"):
            known = ", ".join(
                name for name in TensorStats._fields if name not in ("shape", "dtype")
            )
            raise ValueError(f"expected one of {known} to sort by, got {column!r}")
        return sorted(self, key=lambda row: getattr(row, column), reverse=reverse)

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values, for JSON; NaN and infinities stay floats."""
        return {
            "finite": self.finite,
            "total": _plain(self.total),
            "tensors": [_plain(row) for row in self],
        }

    def _summary(self) -> str:
        tensors = f"{len(self)} tensor{'s' * (len(self) != 1)}"
        if self.finite:
            return f"{tensors}, {self.total.numel} elements, all finite"
        if not self.bad:
            return f"not finite on another rank; {tensors} here, finite"
        return f"{len(self.bad)} of {tensors} not finite: {counts_of(self.total)}"

    def __str__(self) -> str:
        rows = sorted(self, key=lambda row: not row.bad)
        more = [f"... and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
        return "\n".join([self._summary(), *_table(rows[:SHOWN]), *more])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"


class ClipReport(FiniteReport):
    """What a clip found and did; true if every gradient is finite.

    total_norm: the norm before, a 0-dim tensor. factor: what the gradients were multiplied by.
    verdict: "ok", "clipped", "skipped", "dropped" or "kept". Rows and `total` are those
    of this rank.
    """

    def __init__(self, found: Sequence[Found], p: float, bad: bool, outcome: Any, max_norm: float):
        super().__init__(found, p)
        self._bad_somewhere = bad
        self.total_norm: Tensor = outcome.total_norm
        self.max_norm = max_norm
        self.norm_type = p
        self.factor: float = outcome.factor
        self.verdict: str = outcome.verdict

    @property
    def finite(self) -> bool:
        """Of all ranks."""
        return not self._bad_somewhere

    def __bool__(self) -> bool:
        return self.finite

    @property
    def clipped(self) -> bool:
        return self.factor != 1.0

    def to_dict(self) -> dict[str, Any]:
        names = ("max_norm", "norm_type", "factor", "verdict")
        facts = {name: getattr(self, name) for name in names}
        return {"total_norm": self.total_norm.item(), **facts, **super().to_dict()}

    def _summary(self) -> str:
        norm = f"{self.verdict}, norm {self.total_norm.item():.6g}, factor {self.factor:.6g}"
        return f"{norm}; {super()._summary()}"


def _label(readings: Any) -> Label:
    """Of a tensor that was read alone."""
    return 0, "tensors[0]", readings.shape, getattr(torch, readings.dtype)


def counts_of(row: TensorStats) -> str:
    """As in "2 nan, 1 inf"."""
    return in_words(row.nan, row.posinf, row.neginf)


def in_words(nan: int, posinf: int, neginf: int) -> str:
    counts = (nan, "nan"), (posinf, "inf"), (neginf, "-inf")
    return ", ".join(f"{count} {name}" for count, name in counts if count)


def for_json(value: Any) -> Any:
    """Nested plain values with NaN and infinities as text, which JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: for_json(one) for key, one in value.items()}
    return [for_json(one) for one in value] if isinstance(value, (list, tuple)) else value


def _plain(row: TensorStats) -> dict[str, Any]:
    dtype = None if row.dtype is None else str(row.dtype).removeprefix("torch.")
    return row._asdict() | {"shape": list(row.shape), "dtype": dtype}


def _table(rows: Sequence[TensorStats]) -> list[str]:
    columns = ("norm", "largest", "nan", "posinf", "neginf", "zeros", "subnormal", "numel")
    width = max((len(row.name) for row in rows), default=4)
    lines = [f"{'name':{width}}" + "".join(f"{column:>12}" for column in columns)]
    for row in rows:
        cells = "".join(f"{getattr(row, column):>12.5g}" for column in columns[:2])
        cells += "".join(f"{getattr(row, column):>12d}" for column in columns[2:])
        lines.append(f"{row.name:{width}}{cells}")
    return lines
