"""safeops demo: one model, one training loop; plain torch dies of it, and three ways out.

Three places in it divide by zero, take log(0) or differentiate sqrt at 0, all of them in the data
or in the model and none of them staged:

- three pixels are empty in every training image, so their standard deviation is 0;
- a class probability underflows to 0 where an image lies far from the centre of its class;
- a digit that occurs once in a batch lies at distance 0 from the mean of its class, and one that
  does not occur has a mean of 0/0.

detect names the line, a guard leaves out the steps that are bad, a swap makes the operations safe.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .demo_model import BATCH, TRAINING, digits
from .demo_plot import save_plot
from .demo_runs import (
    DYING,
    RUNS,
    SURVIVING,
    SWAPPED,
    Outcome,
    culprit,
    train,
)
from .diagnose import Finding

PLOT = "safeops-demo.png"


@contextmanager
def one_thread() -> Iterator[None]:
    """The matrices are small: a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compare(console: Console, seed: int, epochs: int) -> list[Outcome]:
    """Every run, under a progress bar, or a line a run where there is no terminal."""
    steps, outcomes = epochs * (TRAINING // BATCH), []
    bar = Progress(console=console, disable=not console.is_terminal, transient=True)
    with bar as progress:
        for run in RUNS:
            if not console.is_terminal:
                console.print(f"training: {run.name}")
            task = progress.add_task(run.name, total=steps)
            outcomes.append(train(run, seed, epochs, functools.partial(progress.advance, task)))
    return outcomes


# --- what is shown -----------------------------------------------------------------------------


def story(outcomes: list[Outcome], found: Finding | None) -> Iterator[str]:
    """In its order: dies, is found, survives, is cured."""
    by_name = {run.name: run for run in outcomes}
    yield from dying(by_name[DYING.name], found)
    yield from surviving(by_name[SURVIVING.name])
    yield (
        f"4. safeops.swap_ makes the operations of {DYING.name} safe, its code as it is: "
        f"{by_name[SWAPPED.name].accuracy:.1%} right at the end."
    )


def dying(run: Outcome, found: Finding | None) -> Iterator[str]:
    if run.bad is not None:
        step, where = run.bad
        yield f"1. {run.name} dies in step {step}: {where}. Its last loss is {run.losses[-1]}."
    if found is not None:
        yield f"2. safeops.diagnose.detect names the operation and the line:\n{indented(found)}"


def surviving(run: Outcome) -> Iterator[str]:
    """A run of a few steps may have no bad one."""
    assert run.guard is not None
    yield (
        f"3. safeops.Guard leaves out bad steps, and stops a run in which all are, as those of "
        f"{DYING.name}.\n   {run.name}: {run.guard.summary().summary()}, "
        f"{run.accuracy:.1%} right at the end."
    )
    findings = [event.finding for event in run.events("skipped") if event.finding is not None]
    if findings:
        yield f"   The culprit that it names:\n{indented(findings[0])}"


def indented(finding: Finding) -> str:
    """Without the line that called the demo."""
    text = str(replace(finding, called_from=finding.source))
    return "\n".join(f"   {line}" for line in text.splitlines())


def table(outcomes: list[Outcome]) -> Table:
    title = "scikit-learn's digits, one model"
    result = Table("run", "first NaN or Inf", title=title, box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("skipped", "p = 0", "final\nloss", "test\naccuracy", "ms/step"):
        result.add_column(heading, justify="right")
    for run in outcomes:
        bad = "none" if run.bad is None else f"step {run.bad[0]}: {run.bad[1]}"
        skipped = "–" if run.guard is None else str(len(run.events("skipped")))
        speed = f"{1e3 * statistics.median(run.seconds):.2f}"
        loss = f"{run.losses[-1]:.3f}" + ("\n(dead)" if run.dead else "")
        zeros = "–" if run.dead else str(run.zeros)
        result.add_row(run.name, bad, skipped, zeros, loss, f"{run.accuracy:.1%}", speed)
    result.caption = (
        "skipped: steps that the guard left out. p = 0: how often the probability of the right "
        "class was exactly 0 in training. ms/step: median of forward, backward and optimizer."
    )
    return result


def unmet(output: Path | None) -> tuple[int, str] | None:
    """Exit status and sentence for what would make the run fail at its end."""
    try:
        digits()
        if output is not None:
            import matplotlib  # noqa: F401
    except ImportError as error:
        return 1, f"the demo needs {error.name}: pip install scikit-learn matplotlib"
    if output is not None and not (output.is_dir() and os.access(output, os.W_OK)):
        return 2, f"--output must be an existing directory that can be written to, got {output}"
    return None


def main(seed: int = 0, epochs: int = 30, output: Path | None = Path()) -> int:
    """Train, tell the story, show the table, and save the plot in ``output`` unless it is None."""
    problem = unmet(output)
    if problem:
        print(f"safeops demo: {problem[1]}", file=sys.stderr)
        return problem[0]
    console = Console()
    with one_thread():
        outcomes = compare(console, seed, epochs)
        found = culprit(DYING, seed)
    for part in story(outcomes, found):
        console.print(part, markup=False, highlight=False, soft_wrap=True)
    console.print(table(outcomes))
    if output is not None:
        console.print(f"loss curves: {save_plot(outcomes, output / PLOT)}", soft_wrap=True)
    return 0
