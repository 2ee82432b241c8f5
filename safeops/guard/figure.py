"""The figure of a guarded run: loss and norm of the good steps, and where something happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..diagnose._report import new_figure
from .events import Event

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINE = "#0072b2"
_COLOURS = {"skipped": "#e69f00", "rolled_back": "#d55e00", "stopped": "#000000"}


def curves(
    curve: Sequence[tuple[int, float, float]], events: Sequence[Event]
) -> tuple[str, Figure]:
    """Loss above, norm below, on one axis of steps."""
    figure = new_figure(8.0, 4.5)
    axes = figure.subplots(2, 1, sharex=True)
    steps, *values = zip(*curve, strict=True)
    for one, name, numbers in zip(axes, ("loss", "norm"), values, strict=True):
        one.plot(steps, numbers, color=_LINE, linewidth=1.0)
        one.set_ylabel(name)
        one.grid(alpha=0.3)
        _mark(one, [event for event in events if event.step >= steps[0]])
    if any(norm > 0 for norm in values[1]):
        axes[1].set_yscale("log", nonpositive="mask")
    axes[1].set_xlabel("step")
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(loc="upper right")
    return f"The last {len(curve)} good steps; norm before the clip", figure


def _mark(axes: Any, events: Sequence[Event]) -> None:
    for kind, colour in _COLOURS.items():
        places = [event.step for event in events if event.kind == kind]
        for number, place in enumerate(places):
            label = {} if number else {"label": f"{kind.replace('_', ' ')} ({len(places)})"}
            axes.axvline(place, color=colour, linewidth=1.2, alpha=0.8, **label)
