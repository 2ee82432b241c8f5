"""The figure of a finding: the ranges of what went in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from .._report import new_figure
from .findings import Finding, TensorSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BAR, _BAD, _LIMIT = "#0072b2", "#d55e00", "#444444"


def ranges(finding: Finding) -> tuple[str, Figure]:
    """A bar from the least to the largest finite element of each input, on a symmetric logarithmic
    axis; orange where it also holds a NaN or an infinity; dotted: where its dtype overflows."""
    shown = [one for one in finding.inputs if math.isfinite(one.min)]
    figure = new_figure(8.0, 1.2 + 0.4 * len(shown))
    axes = figure.subplots()
    for place, one in enumerate(shown):
        colour = _BAD if one.nan + one.posinf + one.neginf else _BAR
        axes.plot([one.min, one.max], [place, place], color=colour, linewidth=9)
        axes.plot([one.min, one.max], [place, place], "|", color=colour, markersize=16)
        for limit in _limits(one):
            axes.plot([limit, limit], [place - 0.4, place + 0.4], ":", color=_LIMIT)
    axes.set_xscale("symlog", linthresh=1e-6)
    axes.set_xticks([-1e38, -1e12, -1, 0, 1, 1e12, 1e38], minor=False)
    axes.set_yticks(range(len(shown)), [one.name for one in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.3)
    return f"What went into {finding.op}: least to largest element; dotted, the dtype's end", figure


def _limits(one: TensorSummary) -> tuple[float, float]:
    most = torch.finfo(getattr(torch, one.dtype)).max
    return -most, most
