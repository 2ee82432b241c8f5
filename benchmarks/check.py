"""Whether this machine sees the speeds that safeops promises."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from . import gpu_requirements, requirements
from .gpu import CPU
from .measure import Case, Record, Result
from .report import cores, figure, plain_table, ratio, size_name
from .requirements import Requirement
from .timing import Times, speed

REQUIREMENTS = (*requirements.REQUIREMENTS, *gpu_requirements.REQUIREMENTS)


@dataclass(frozen=True)
class Line:
    """One line of the check: the geometric mean over the cases, as a rule a single one.

    least is None where the speed is only shown, aim where there is none.
    """

    requirement: Requirement
    cases: Sequence[Case]
    least: float | None
    aim: float | None

    @property
    def layout(self) -> str:
        if len(self.cases) == 1:
            return self.cases[0].layout
        return f"geometric mean of {len(self.cases)}"


def lines_of(requirement: Requirement, threads: Sequence[int]) -> list[Line]:
    """What is judged; a mean is followed by its parts."""
    lines: list[Line] = []
    for group in requirement.groups(threads):
        mean = requirement.mean and len(group) > 1
        if mean:
            lines.append(Line(requirement, group, requirement.least, requirement.aim))
        least = requirement.floor if mean else requirement.least
        aim = None if mean else requirement.aim
        lines += [Line(requirement, [case], least, aim) for case in group]
    return lines


@dataclass(frozen=True)
class Verdict:
    """A line as measured; measured is None where a contender did not run."""

    line: Line
    measured: float | None
    gb_per_s: float | None = None
    yardstick: str | None = None
    share_of_yardstick: float | None = None
    agrees: bool = True
    busy: float | None = None
    waits: bool = False

    @property
    def word(self) -> str:
        least = self.line.least
        if self.measured is None:
            return "NOT RUN"
        if not self.agrees:
            return "WRONG"
        if self.waits and self.line.requirement.queued:
            return "WAITS"
        return "–" if least is None else "pass" if self.measured >= least else "MISS"

    @property
    def met(self) -> bool | None:
        """None where nothing is required."""
        return None if self.line.least is None else self.word == "pass"

    def record(self) -> Record:
        need, case = self.line.requirement, self.line.cases[0]
        return {
            "op": case.row.op,
            "layout": self.line.layout,
            "dtype": case.dtype_name,
            "direction": case.direction,
            "size": case.size if len(self.line.cases) == 1 else None,
            "threads": case.threads,
            "device": case.device,
            "singular": case.singular,
            "contender": need.contender,
            "against": need.against,
            "required": self.line.least,
            "aim": self.line.aim,
            "measured": self.measured,
            "verdict": self.word,
            "met": self.met,
            "gb_per_s": self.gb_per_s,
            "yardstick": self.yardstick,
            "share_of_yardstick": self.share_of_yardstick,
            "cores_busy_elsewhere": self.busy,
        }


def plan(
    ops: Sequence[str], threads: Sequence[int], compiled: bool, device: str = CPU
) -> tuple[list[Line], dict[Case, list[str]]]:
    """What is judged of these ops, and the contenders that each case needs for it."""
    required = [
        line
        for requirement in REQUIREMENTS
        if requirement.device == device and (compiled or not requirement.compiled)
        for line in lines_of(requirement, threads)
        if line.cases[0].row.op in ops
    ]
    needed: dict[Case, list[str]] = {}
    for line in required:
        need = line.requirement
        for case in line.cases:
            names = needed.setdefault(case, [])
            names += [name for name in need.rivals if name not in names]
    return required, needed


def judge(required: Iterable[Line], results: Iterable[Result]) -> list[Verdict]:
    found = {result.case: result for result in results}
    return [judged(line, [found[case] for case in line.cases]) for line in required]


def judged(line: Line, results: Sequence[Result]) -> Verdict:
    need = line.requirement
    records = [r for result in results for r in result.records if r["contender"] == need.contender]
    return Verdict(
        line,
        mean([speed(times_for(need, result), need.contender, need.against) for result in results]),
        mean([record["gb_per_s"] for record in records]),
        next((record["yardstick"] for record in records), None),
        mean([record["share_of_yardstick"] for record in records]),
        all(record["agrees_with_torch"] is not False for record in records),
        max((result.busy for result in results if result.busy is not None), default=None),
        any(record.get("waits_for_gpu") for record in records),
    )


def times_for(need: Requirement, result: Result) -> Times:
    """With those of a contender that always takes the longest time allowed."""
    if need.seconds is None:
        return result.times
    return {**result.times, need.against: [need.seconds] * len(result.times[need.contender])}


def mean(values: Sequence[float | None]) -> float | None:
    """The geometric mean; None where one is missing."""
    known = [value for value in values if value is not None]
    return statistics.geometric_mean(known) if known and len(known) == len(values) else None


# --- the table ---------------------------------------------------------------------------------

COLUMNS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(("op", "layout", "dtype", "direction", "contender", "against"), str),
    "size": size_name,
    "threads": str,
    "singular": "{:.3g}".format,
    "required": ratio,
    "aim": ratio,
    "measured": ratio,
    "verdict": str,
    "gb_per_s": figure,
    "share_of_yardstick": "{:.0%}".format,
    "yardstick": str,
    "cores_busy_elsewhere": cores,
}
LEGEND = (
    "Speeds: how many times as fast as what it is measured against (the median of the ratios "
    "within a round); – where nothing is required. GB/s of what must be moved once, and that as a "
    "share of a copy of as many bytes or, where nothing must be written, of the fastest read of "
    "them. A contender whose value is not torch's is WRONG; one that waits for the GPU though it "
    "should not WAITS."
)
HEADINGS = {
    "gb_per_s": "GB/s",
    "share_of_yardstick": "share",
    "yardstick": "of",
    "cores_busy_elsewhere": "busy",
}


def verdict_table(verdicts: Iterable[Verdict]) -> Table:
    table = plain_table("required and measured speed")
    for number, name in enumerate(COLUMNS):
        table.add_column(HEADINGS.get(name, name), justify="right" if number > 5 else "left")
    for verdict in verdicts:
        style = "bold red" if verdict.word.isupper() else None
        table.add_row(*_cells(verdict.record()), style=style)
    return table


def _cells(record: Record) -> list[str]:
    known = ((record[name], text) for name, text in COLUMNS.items())
    return ["–" if value is None else text(value) for value, text in known]
