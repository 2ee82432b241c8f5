"""The figures of an audit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._report import new_figure
from .activations import Activation
from .weights import Gain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 40  # bars: those that are furthest from healthy
LETTERS = 42  # of a name; its end says more than its beginning
GOOD, BAD, BAND = "#0072b2", "#d55e00", "#009e7322"


def gains(layers: Sequence[Gain]) -> tuple[str, Figure]:
    """A bar for each layer, from 1 to its gain, on a logarithmic axis; one of 0 has all of it."""
    shown = _furthest(
        layers, [max(one.gain, 1 / one.gain) if one.gain else math.inf for one in layers]
    )
    low, high = layers[0].low, layers[0].high
    ends = (
        min(low, *(one.gain or low for one in shown)) / 2,
        max(high, *(g.gain for g in shown)) * 2,
    )
    lengths = [max(one.gain, ends[0]) - 1 for one in shown]
    colours = [GOOD if low <= one.gain <= high else BAD for one in shown]
    figure, axes = _bars([one.name for one in shown], lengths, colours, start=1)
    axes.set_xscale("log")
    axes.axvspan(low, high, color=BAND, zorder=0)
    axes.axvline(1, color="#444444", linewidth=0.8)
    axes.set_xlim(*ends)
    axes.set_xlabel("gain")
    caption = f"Gain rms(weight)·sqrt(fan) of each layer; the band, {low:.2g} to {high:.2g}, "
    return caption + f"is healthy{_of(shown, layers)}", figure


def shares(activations: Sequence[Activation], most: float) -> tuple[str, Figure]:
    """A bar for each call of a nonlinearity."""
    shown = _furthest(activations, [one.share for one in activations])
    colours = [GOOD if one.share < most else BAD for one in shown]
    names = [f"{one.where} · {one.kind}" for one in shown]
    figure, axes = _bars(names, [100 * one.share for one in shown], colours)
    axes.axvspan(0, 100 * most, color=BAND, zorder=0)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of units that are 0 over the batch (relu), % of outputs at the ends (other)")
    return f"Dead or saturated share of each nonlinearity{_of(shown, activations)}", figure


def _furthest(given: Sequence[Any], distances: Sequence[float]) -> list[Any]:
    """In their order."""
    places = sorted(range(len(given)), key=lambda place: -distances[place])[:SHOWN]
    return [given[place] for place in sorted(places)]


def _of(shown: Sequence[Any], given: Sequence[Any]) -> str:
    return f"; {len(shown)} of {len(given)} are shown" if len(shown) < len(given) else ""


def _bars(
    names: Sequence[str], lengths: Sequence[float], colours: Sequence[str], start: float = 0
) -> tuple[Figure, Any]:
    """The first on top."""
    figure = new_figure(8.0, 1.0 + 0.24 * len(names))
    axes = figure.subplots()
    axes.barh(range(len(names)), lengths, left=start, color=colours, height=0.7)
    labels = [name if len(name) <= LETTERS else f"…{name[1 - LETTERS :]}" for name in names]
    axes.set_yticks(range(len(names)), labels, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes
