"""The ranges of the tensors of a scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .._report import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .report import ScanTensor

HEALTHY, BAD = "#0072b2", "#d55e00"


def ranges(tensors: Sequence[ScanTensor]) -> Figure:
    """A line from min to max for each tensor, numbered from 1, and a cross for each that holds NaN
    or infinities."""
    figure = new_figure(8.0, 3.6)
    from matplotlib.ticker import MaxNLocator  # after new_figure, which says if it is missing

    axes = figure.subplots()
    drawn = [(i, t.min, t.max, t.bad) for i, t in enumerate(tensors, 1) if t.min is not None]
    places, low, high, bad = zip(*drawn, strict=True) if drawn else ((), (), (), ())
    colours = [BAD if count else HEALTHY for count in bad]
    axes.vlines(places, low, high, colors=colours, linewidth=max(0.5, min(6.0, 300 / len(tensors))))
    crossed = [i for i, tensor in enumerate(tensors, 1) if tensor.bad]
    heights = [tensors[i - 1].max or 0.0 for i in crossed]
    axes.plot(crossed, heights, "x", color=BAD, label="NaN or Inf", linestyle="none")
    axes.set(xlabel="number of the tensor, in the order of --all", ylabel="value")
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if crossed:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    return figure
