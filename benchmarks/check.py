"""The speeds that safeops promises, as data, and whether this machine sees them.

Every requirement is a ratio of speeds: 0.9 against torch means at least 0.9 times as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table

from .measure import COMPILED, SINGULAR, Case, Result
from .report import cores, plain_table, ratio, size_name
from .rows import ROWS, SAME
from .timing import speed

K64, M1, M16 = 64 << 10, 1 << 20, 16 << 20
F32, BF16 = torch.float32, torch.bfloat16
CONTIGUOUS = (SAME,)
BROADCAST = tuple(r.layout for r in ROWS if r.layout.startswith(("[N,1024]", "[N,256]", "x /")))
THREE = ("div", "log", "sqrt")
ONE_WAY, BOTH = ("forward",), ("forward+backward",)


@dataclass(frozen=True)
class Requirement:
    """contender is at least `least` times as fast as against, in all these cases.

    Against the bare op also on healthy data, since torch.log takes three times as long at 1 %
    zeros; against double where also on a random half, since torch.where is a loop with a branch.
    """

    ops: Sequence[str]
    sizes: Sequence[int]
    directions: Sequence[str]
    against: str
    least: float
    dtype: torch.dtype = F32
    layouts: Sequence[str] = CONTIGUOUS
    contender: str = "safeops"

    def cases(self, threads: Sequence[int]) -> list[Case]:
        rows = [row for row in ROWS if row.op in self.ops and row.layout in self.layouts]
        return [
            Case(row, size, self.dtype, count, direction, singular)
            for count in threads
            for row in rows
            for size in self.sizes
            for direction in self.directions
            for singular in self.shares
        ]

    @property
    def shares(self) -> Sequence[float]:
        return {"torch": (SINGULAR, 0.0), "double where": (SINGULAR, 0.5)}.get(
            self.against, (SINGULAR,)
        )

    @property
    def compiled(self) -> bool:
        return self.contender.startswith(COMPILED)


REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement(THREE, (K64, M1), ONE_WAY, "torch", 0.9),
    Requirement(THREE, (K64, M1), ONE_WAY, "double where", 5.0),
    Requirement(THREE, (K64, M1), BOTH, "double where", 6.0),
    Requirement(("log",), (K64, M1), BOTH, "torch", 1.0),
    Requirement(("div", "sqrt"), (K64, M1), BOTH, "torch", 1.5),
    Requirement(("log",), (K64, M1), ONE_WAY, "torch", 1.8, BF16),
    Requirement(("div",), (K64, M1), ONE_WAY, "torch", 1.2, BF16),
    Requirement(THREE, (1 << 10,), BOTH, "torch", 1 / 1.6),
    Requirement(THREE, (1 << 10,), BOTH, "double where", 1.3),
    Requirement(("div",), (M1,), ONE_WAY, "torch", 1 / 1.1, layouts=BROADCAST),
    Requirement(THREE, (M16,), ONE_WAY + BOTH, "torch", 0.97),
    Requirement(
        THREE,
        (M1,),
        ONE_WAY + BOTH,
        COMPILED + "double where",
        1 / 1.1,
        contender=COMPILED + "safeops",
    ),
)


@dataclass(frozen=True)
class Verdict:
    """A requirement in one case; measured is None where a contender did not run."""

    requirement: Requirement
    case: Case
    measured: float | None
    busy: float | None = None

    @property
    def met(self) -> bool:
        return self.measured is not None and self.measured >= self.requirement.least

    def record(self) -> dict[str, Any]:
        return {
            "op": self.case.row.op,
            "layout": self.case.row.layout,
            "dtype": str(self.case.dtype).removeprefix("torch."),
            "direction": self.case.direction,
            "size": self.case.size,
            "threads": self.case.threads,
            "singular": self.case.singular,
            "contender": self.requirement.contender,
            "against": self.requirement.against,
            "required": self.requirement.least,
            "measured": self.measured,
            "met": self.met,
            "cores_busy_elsewhere": self.busy,
        }


def plan(
    ops: Sequence[str], threads: Sequence[int], compiled: bool
) -> tuple[list[tuple[Requirement, Case]], dict[Case, set[str]]]:
    """What is required, and the contenders that each case needs for it."""
    required = [
        (requirement, case)
        for requirement in REQUIREMENTS
        if compiled or not requirement.compiled
        for case in requirement.cases(threads)
        if case.row.op in ops
    ]
    needed: dict[Case, set[str]] = {}
    for requirement, case in required:
        needed.setdefault(case, set()).update({requirement.contender, requirement.against})
    return required, needed


def judge(required: Iterable[tuple[Requirement, Case]], results: Iterable[Result]) -> list[Verdict]:
    found = {result.case: result for result in results}
    return [
        Verdict(
            need, case, speed(found[case].times, need.contender, need.against), found[case].busy
        )
        for need, case in required
    ]


def verdict_table(verdicts: Iterable[Verdict]) -> Table:
    table = plain_table("required and measured speed")
    for heading in ("op", "layout", "dtype", "direction", "contender", "against"):
        table.add_column(heading)
    for heading in ("size", "threads", "singular", "required", "measured", "verdict", "busy"):
        table.add_column(heading, justify="right")
    for verdict in verdicts:
        table.add_row(*_cells(verdict), style=None if verdict.met else "bold red")
    return table


def _cells(verdict: Verdict) -> list[str]:
    row = verdict.record()
    names = ("op", "layout", "dtype", "direction", "contender", "against")
    word = "pass" if verdict.met else "MISS" if verdict.measured is not None else "NOT RUN"
    setting = [size_name(row["size"]), str(row["threads"]), f"{row['singular']:.3g}"]
    figures = [ratio(row["required"]), ratio(row["measured"]), word, cores(verdict.busy)]
    return [*(row[name] for name in names), *setting, *figures]
