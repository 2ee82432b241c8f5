"""Results as tables for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeRemaining
from rich.table import Table

from .machine import DISTURBED
from .measure import Case, Record, Result

NARROW = 190  # columns of a page that is no terminal
UNITS = ((1 << 20, "M"), (1 << 10, "K"))
LEGEND = (
    "Times: median µs a call; backward alone is that of a value computed before. The columns under "
    "safeops: how many times as fast it is as the bare torch op and as double where (the median of "
    "the ratios within a round); its GB/s, and that as a share of a copy of as many bytes between "
    "two tensors that exist already, or of the fastest read of as many bytes of one tensor; and "
    "the cores that other processes kept busy meanwhile."
)


def console() -> Console:
    out = Console()
    return out if out.is_terminal else Console(width=max(NARROW, out.width))


def size_name(size: int) -> str:
    for unit, name in UNITS:
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def case_name(case: Case) -> str:
    return f"{case.title()}, {case.layout}, {size_name(case.size)}, threads {case.threads}"


def progress(out: Console) -> Progress:
    bar = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemaining())
    return Progress(
        *bar,
        TextColumn("{task.description}"),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )


# --- tables ------------------------------------------------------------------------------------


def header(out: Console, machine: dict[str, Any]) -> None:
    out.print(f"[bold]safeops {machine['safeops']}: {machine['safeops_route']}", highlight=False)
    load = machine["load_average"]
    if machine["gpu"]:
        out.print(
            f"{machine['gpu']}, {machine['gpu_memory_gb']} GB, CUDA {machine['cuda']}, "
            f"driver {machine['driver'] or 'unknown'}",
            highlight=False,
        )
    out.print(
        f"torch {machine['torch']} ({machine['torch_cpu_capability']}), {machine['cpu']}, "
        f"{machine['cores']} cores, {', '.join(machine['caches'])}; load average {load}; "
        f"{machine['date']}\n",
        highlight=False,
    )


def tables(results: Iterable[Result]) -> list[Table]:
    """One for each op, direction, dtype and share of singular elements."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.case.title(), []).append(result)
    return [_table(title, group) for title, group in groups.items()]


def plain_table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    return table


def _table(title: str, group: Sequence[Result]) -> Table:
    yardstick = group[0].case.yardstick
    names = list(dict.fromkeys(name for r in group for name in (*r.times, *r.failed)))
    names.remove(yardstick)
    table = plain_table(title)
    for heading in ("layout", "size", "threads", *names):
        justify = "left" if heading == "layout" else "right"
        table.add_column(heading.replace(" ", "\n"), justify=justify, no_wrap=True)
    share = f"of {yardstick}"
    for heading in ("safeops\nvs torch", "vs double\nwhere", "GB/s", share, "busy\nelsewhere"):
        table.add_column(heading, justify="right", style="bold", no_wrap=True)
    for result in group:
        table.add_row(*_cells(result, names))
    return table


def _cells(result: Result, names: Sequence[str]) -> list[str]:
    case = result.case
    records = {record["contender"]: record for record in result.records}
    own = records["safeops"]
    return [
        case.layout,
        size_name(case.size),
        str(case.threads),
        *(_time(name, records, result.failed) for name in names),
        ratio(own["speed_vs_torch"]),
        ratio(own["speed_vs_double_where"]),
        f"{own['gb_per_s']:.1f}",
        f"{own['share_of_yardstick']:.0%}",
        cores(result.busy),
    ]


def _time(name: str, records: dict[str, Record], failed: dict[str, str]) -> str:
    if name in records:
        return figure(records[name]["median_us"])
    return "failed" if name in failed else "–"


def figure(value: float) -> str:
    """Three digits, or all those before the point."""
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def cores(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}x"


def disturbances(results: Sequence[Result]) -> list[str]:
    """A warning if other processes took part of the machine."""
    count = sum(result.busy is not None and result.busy > DISTURBED for result in results)
    if not count:
        return []
    return [
        f"{count} of {len(results)} cases were measured while other processes kept more than "
        f"{DISTURBED} cores busy: repeat them on a quiet machine before you trust them, those "
        "with several threads above all"
    ]


def failures(results: Sequence[Result]) -> list[str]:
    """The contenders that did not run, and those that ran and are wrong."""
    broken = [
        (result.case, f"{name} did not run: {why}")
        for result in results
        for name, why in result.failed.items()
    ]
    wrong = [
        (result.case, f"{record['contender']} differs from torch where that is finite")
        for result in results
        for record in result.records
        if record["agrees_with_torch"] is False
    ]
    return [f"{case_name(case)}: {what}" for case, what in (*broken, *wrong)]


# --- files -------------------------------------------------------------------------------------


def write(output: Path, machine: dict[str, Any], results: Sequence[Result], **more: Any) -> None:
    """The JSON file, and beside it the same records as CSV."""
    records = [record for result in results for record in result.records]
    whole = {"machine": machine, "records": records, "failed": failures(results), **more}
    output.write_text(json.dumps(whole, indent=1) + "\n")
    with output.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*records[0], *CSV_MACHINE])
        writer.writeheader()
        writer.writerows({**record, **_machine_columns(machine)} for record in records)


CSV_MACHINE = ("cpu", "gpu", "driver", "cuda", "torch", "safeops", "safeops_level", "date")


def _machine_columns(machine: dict[str, Any]) -> dict[str, Any]:
    return {name: machine[name] for name in CSV_MACHINE}
