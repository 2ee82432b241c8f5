"""The loss curves of safeops demo."""

from __future__ import annotations

import math
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .demo_runs import Outcome

COLOURS = ("#444444", "#e69f00", "#d55e00", "#0072b2", "#009e73", "#882255")
LINES = ("-", "-", "-", "-", "-", ":")  # the last two have one curve for long


def smooth(losses: list[float], width: int = 15) -> list[float]:
    """The mean of the last ``width`` losses."""
    windows = (losses[max(0, i + 1 - width) : i + 1] for i in range(len(losses)))
    return [statistics.fmean(window) for window in windows]


def draw(axes: Any, run: Outcome, colour: str, line: str, top: float) -> None:
    """The curve, and a cross where it died; at the top if there never was a finite loss."""
    label = f"{run.name}, {run.accuracy:.1%} right"
    if run.guard is not None:
        label += f" ({len(run.events('skipped'))} skipped)"
    if run.bad is None or not run.dead:
        axes.plot(smooth(run.losses), line, color=colour, label=label, linewidth=1.6)
        return
    died = run.bad[0]
    finite = smooth([loss for loss in run.losses[: died + 1] if math.isfinite(loss)]) or [top]
    cross = {"marker": "x", "markevery": [-1], "markersize": 11, "markeredgewidth": 2.5}
    label += f" (dead at step {died})"
    axes.plot(finite, "--", color=colour, label=label, linewidth=1.6, zorder=3, **cross)


def figure(outcomes: list[Outcome]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    result = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(result)
    axes = result.subplots()
    first = [run.losses[0] for run in outcomes if math.isfinite(run.losses[0])]
    for run, colour, line in zip(outcomes, COLOURS, LINES, strict=True):
        draw(axes, run, colour, line, max(first, default=1.0))
    axes.set(
        xlabel="step (logarithmic above 10)",
        ylabel="training loss (mean of 15 steps)",
        yscale="log",
    )
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlim(left=-1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(3, 1)))
    axes.set_title("Digits: one model, one seed, four arithmetics, a guard, a swap", loc="left")
    axes.grid(alpha=0.3)
    axes.legend(title="× = first NaN or Inf", alignment="left", fontsize="small")
    return result


def save_plot(outcomes: list[Outcome], path: Path) -> Path:
    """Whole or not at all: written beside its place, then moved there."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        figure(outcomes).savefig(partial, format="png")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path
