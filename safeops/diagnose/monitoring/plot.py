"""The heat map of a monitor: layer x step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .._report import new_figure, plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = 60  # layers that are named at the axis
LOGARITHMIC = ("largest", "rms")
UNITS = {"zeros": " (share)", "subnormal": " (share)", "headroom": " (octaves to overflow)"}


def heat_map(
    values: Tensor, bad: Tensor, layers: Sequence[str], steps: Sequence[int], column: str, kind: str
) -> Figure:
    """values and bad are [layers x steps]; a cross where bad is not 0."""
    with plotting("Monitor.plot"):
        from matplotlib import colormaps
        from matplotlib.ticker import FuncFormatter, MaxNLocator
    figure = new_figure(9.0, 1.6 + 0.2 * min(max(len(layers), 6), NAMES))
    axes = figure.subplots()
    shown = values.clone() if steps else values.new_full((len(layers), 1), math.nan)
    norm = _norm(shown, column)
    image = axes.imshow(
        shown.tolist(),
        aspect="auto",
        interpolation="nearest",
        cmap=colormaps["viridis"].with_extremes(bad="#d9dce1"),
        norm=norm,
    )
    figure.colorbar(image, ax=axes, label=column + UNITS.get(column, ""))
    rows, places = bad.nonzero(as_tuple=True)
    if len(rows):
        axes.plot(
            places, rows, "x", color="#d81b60", markersize=5, label="NaN or Inf", rasterized=True
        )
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    name_layers(axes, layers)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: _step(steps, place)))
    axes.set(xlabel="step", ylabel="layer")
    axes.set_title(f"{kind}: {column}", loc="left")
    return figure


def _norm(values: Tensor, column: str) -> Any:
    """A logarithmic scale over the finite positive values; 0 is left grey there."""
    from matplotlib.colors import LogNorm, Normalize

    if column in LOGARITHMIC:
        values[values <= 0] = math.nan
    values[values.isinf()] = math.nan
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
