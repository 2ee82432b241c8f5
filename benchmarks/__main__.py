"""python -m benchmarks: times safeops beside torch and the hand-written forms.

python -m benchmarks --check measures only what is promised, and exits with 1 on a miss.
python -m benchmarks.scan is on its own: a scan of a checkpoint beside a read of its bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from . import check, gpu, machine, report
from .measure import SINGULAR, Case, Result, contenders, measure
from .rows import DIRECTIONS, NO_GRAD, Row
from .suite import OPS, rows_on
from .timing import FULL, QUICK, Effort

DTYPES = ("float32", "bfloat16", "float16", "float64")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
QUICK_LARGEST = 1 << 20
CHECK_FIXES = ("size", "dtype", "direction", "singular")


def size(text: str) -> int:
    """64K, 1M or a plain number."""
    match = re.fullmatch(r"([1-9]\d*)([KM]?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"expected a number such as 1000, 64K or 1M, got {text!r}")
    return int(match[1]) * UNITS[match[2]]


def thread_count(text: str) -> int:
    most = machine.cores()
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(
            f"expected 1 to {most}, the cores this process may use, got {text!r}"
        )
    return int(text)


def share(text: str) -> float:
    if not re.fullmatch(r"0|1|[01]?\.\d+", text) or float(text) > 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return float(text)


def output_file(text: str) -> Path:
    path = Path(text)
    if path.suffix != ".json":
        raise argparse.ArgumentTypeError(f"expected a file name that ends in .json, got {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}; make it first")
    return path


def parser() -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    many = {"action": "extend", "nargs": "+"}
    parse.add_argument("--op", choices=OPS, help="default: all", **many)
    parse.add_argument("--size", type=size, help="elements; default: those of the row", **many)
    parse.add_argument("--dtype", choices=DTYPES, help="default: float32 bfloat16", **many)
    parse.add_argument("--device", choices=(gpu.CPU, gpu.CUDA), default=gpu.CPU)
    parse.add_argument("--threads", type=thread_count, help="default: 1 2", **many)
    parse.add_argument("--direction", choices=DIRECTIONS, help="default: those of the row", **many)
    parse.add_argument(
        "--singular", type=share, help="share of singular elements; default: 0.01", **many
    )
    parse.add_argument(
        "--quick",
        action="store_true",
        help="few rounds; unless asked for only float32, the most threads, at most 1M elements and "
        "nothing compiled",
    )
    parse.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="with torch.compile, or without"
    )
    parse.add_argument("--output", type=output_file, help="results.json; a .csv comes beside it")
    parse.add_argument("--check", action="store_true", help="the promised speeds only")
    parse.add_argument(
        "--allow-formulas",
        action="store_true",
        help="check, or write results, also where the kernels do not run",
    )
    return parse


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed options; exits with 2 and a message where they make no sense."""
    parse = parser()
    chosen = parse.parse_args(argv)
    if chosen.check and any(getattr(chosen, name) for name in CHECK_FIXES):
        parse.error(f"--check has its own: leave out --{', --'.join(CHECK_FIXES)}")
    if chosen.device == gpu.CUDA:
        refuse_without_gpu(parse, chosen)
    reason = machine.why_no_kernels(chosen.device)
    if (chosen.check or chosen.output) and reason is not None and not chosen.allow_formulas:
        parse.error(
            f"these would be numbers of the torch formulas, not of the kernels: {reason}. "
            "--allow-formulas if that is what you want"
        )
    chosen.op = chosen.op or OPS
    chosen.threads = chosen.threads or usual_threads(chosen)
    chosen.compile = not chosen.quick if chosen.compile is None else chosen.compile
    if not chosen.check and not cases(chosen):
        parse.error(f"no row of {', '.join(chosen.op)} has that --direction: leave it out")
    return chosen


def refuse_without_gpu(parse: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    reason = gpu.why_none()
    if reason is not None:
        parse.error(f"--device cuda: {reason}; leave it out to measure on the CPU")
    if chosen.threads:
        parse.error("--threads are those of the CPU: leave them out with --device cuda")


def usual_threads(chosen: argparse.Namespace) -> Sequence[int]:
    most = min(2, machine.cores()) if chosen.device == gpu.CPU else 1
    return range(most if chosen.quick else 1, most + 1)


def cases(chosen: argparse.Namespace) -> list[Case]:
    usual = DTYPES[: 1 if chosen.quick else 2]
    dtypes = [getattr(torch, name) for name in dict.fromkeys(chosen.dtype or usual)]
    return [
        Case(row, size, dtype, threads, direction, singular, chosen.device)
        for row in rows_on(chosen.device)
        if row.op in chosen.op
        for direction in dict.fromkeys(chosen.direction or row.directions)
        if row.takes(direction)
        for dtype in dtypes
        for singular in shares(chosen.singular, direction)
        for size in dict.fromkeys(chosen.size or sizes(row, chosen.quick))
        for threads in dict.fromkeys(chosen.threads)
    ]


def shares(chosen: Sequence[float] | None, direction: str) -> list[float]:
    """Of singular elements: none in gradients, since a clip would do nothing but say so."""
    return [0.0] if direction == NO_GRAD else list(dict.fromkeys(chosen or (SINGULAR,)))


def sizes(row: Row, quick: bool) -> list[int]:
    return [min(size, QUICK_LARGEST) for size in row.sizes] if quick else list(row.sizes)


def measure_all(
    needed: Mapping[Case, Collection[str]], effort: Effort, out: Console
) -> list[Result]:
    results = []
    with report.progress(out) as bar:
        task = bar.add_task("", total=len(needed))
        for case, names in needed.items():
            bar.update(task, description=report.case_name(case))
            results.append(measure(case, names, effort))
            bar.advance(task)
    return results


def run_table(chosen: argparse.Namespace, effort: Effort, out: Console) -> int:
    """The whole comparison."""
    about = machine.describe(chosen.device)
    report.header(out, about)
    needed = {case: contenders(case.row, chosen.compile) for case in cases(chosen)}
    results = measure_all(needed, effort, out)
    for table in report.tables(results):
        out.print(table)
    out.print(report.LEGEND)
    finish(results, out)
    if chosen.output:
        report.write(chosen.output, about, results)
    return 0


def run_check(chosen: argparse.Namespace, effort: Effort, out: Console) -> int:
    """The requirements: 1 if one is missed."""
    about = machine.describe(chosen.device)
    report.header(out, about)
    required, needed = check.plan(chosen.op, chosen.threads, chosen.compile, chosen.device)
    results = measure_all(needed, effort, out)
    verdicts = check.judge(required, results)
    out.print(check.verdict_table(verdicts))
    out.print(check.LEGEND)
    finish(results, out)
    judged = [verdict.met for verdict in verdicts if verdict.met is not None]
    out.print(f"{sum(judged)} of {len(judged)} requirements met")
    if not chosen.compile:
        out.print("not measured: the compiled forms (--compile)")
    if chosen.output:
        records = [verdict.record() for verdict in verdicts]
        report.write(chosen.output, about, results, verdicts=records)
    return 0 if all(judged) else 1


def finish(results: Sequence[Result], out: Console) -> None:
    for line in (*report.failures(results), *report.disturbances(results)):
        out.print(line, style="red", markup=False)


def main(argv: Sequence[str] | None = None) -> int:
    chosen = options(argv)
    run = run_check if chosen.check else run_table
    return run(chosen, QUICK if chosen.quick else FULL, report.console())


if __name__ == "__main__":
    sys.exit(main())
