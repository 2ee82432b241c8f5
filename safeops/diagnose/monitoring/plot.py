"""The heat map of a monitor: layer x step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._report import new_figure, plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = 60  # layers that are named at the axis
LOGARITHMIC = ("largest", "rms")
FINITE = (*LOGARITHMIC, "headroom")  # of finite elements; a tensor of zeros is off their scale
UNREAD, ZERO, BAD = range(3)  # what a cell without a value of its own can be
MARKS = {
    UNREAD: ("not read", "#aab0ba"),
    ZERO: ("all zero", "#ffffff"),
    BAD: ("nothing finite", "#f8bbd0"),
}
UNITS = {"zeros": " (share)", "subnormal": " (share)", "headroom": " (octaves to overflow)"}


def heat_map(
    values: Tensor, bad: Tensor, layers: Sequence[str], steps: Sequence[int], column: str, kind: str
) -> Figure:
    """values and bad are [layers x steps]; a cross where bad is not 0, and a colour outside of the
    scale where there is no finite value or, if the scale cannot show it, 0."""
    with plotting("Monitor.plot"):
        from matplotlib.ticker import FuncFormatter, MaxNLocator
    figure = new_figure(9.0, 1.6 + 0.2 * min(max(len(layers), 6), NAMES))
    axes = figure.subplots()
    if not steps:
        values = bad = values.new_full((len(layers), 1), math.nan)
    marks = _marks(values, bad, column)
    shown = values.masked_fill(~marks.isnan(), math.nan)
    how: Any = {"aspect": "auto", "interpolation": "nearest"}
    image = axes.imshow(shown.tolist(), cmap="viridis", norm=_norm(shown, column), **how)
    figure.colorbar(image, ax=axes, label=column + UNITS.get(column, ""))
    _mark(axes, marks, bad.nan_to_num(), how)
    name_layers(axes, layers)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: _step(steps, place)))
    axes.set(xlabel="step", ylabel="layer")
    axes.set_title(f"{kind}: {column}", loc="left")
    return figure


def _marks(values: Tensor, bad: Tensor, column: str) -> Tensor:
    """UNREAD, ZERO or BAD; NaN where the value itself is shown."""
    marks = torch.full_like(values, math.nan)
    marks[values.isnan()] = UNREAD
    marks[values.isnan() & (bad > 0)] = BAD
    marks[values.isinf() if column == "headroom" else (values == 0)] = ZERO
    return marks if column in FINITE else marks.masked_fill(marks == ZERO, math.nan)


def _mark(axes: Any, marks: Tensor, bad: Tensor, how: Any) -> None:
    """Draw them and the crosses, and name those that occur."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    colours = ListedColormap([colour for _, colour in MARKS.values()])
    axes.imshow(marks.tolist(), cmap=colours, vmin=UNREAD - 0.5, vmax=BAD + 0.5, **how)
    rows, places = bad.nonzero(as_tuple=True)
    cross: Any = {"color": "#d81b60", "markersize": 5, "rasterized": True}
    crosses = axes.plot(places, rows, "x", label="NaN or Inf", **cross) if len(rows) else []
    patches = [
        Patch(facecolor=colour, edgecolor="#5f6672", linewidth=0.5, label=label)
        for mark, (label, colour) in MARKS.items()
        if (marks == mark).any()
    ]
    if named := [*crosses, *patches]:
        place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": len(named)}
        axes.legend(handles=named, frameon=False, fontsize=8, borderpad=0, **place)


def _norm(values: Tensor, column: str) -> Any:
    """Over the finite values, logarithmic where they are magnitudes."""
    from matplotlib.colors import LogNorm, Normalize

    finite = values[values.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if len(finite) else (1.0, 1.0)
    if column not in LOGARITHMIC:
        return Normalize(low, high if high > low else low + 1)
    return LogNorm(low, high) if high > low else LogNorm(low / 2, low * 2)


def name_layers(axes: Any, layers: Sequence[str]) -> None:
    apart = -(-len(layers) // NAMES)
    places = range(0, len(layers), apart)
    axes.set_yticks(places, [layers[place] for place in places], fontsize=8)


def _step(steps: Sequence[int], place: float) -> str:
    return str(steps[round(place)]) if 0 <= round(place) < len(steps) else ""
