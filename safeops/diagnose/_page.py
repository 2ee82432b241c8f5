"""A report as one HTML page that loads nothing: styles and figures are inside."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import torch

from .._version import __version__
from ._report import SHOWN, STYLES, are_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ._report import Report

# On a narrow screen every row of the table becomes a card with a line for each cell, and figures
# keep a width at which their letters can be read: they scroll, and the caption says so as soon as
# a figure of 36rem does not fit between the paddings.
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1c1e21; --soft: #5f6672; --line: #dde1e6;
  --head: #f5f6f8; --error: #b3261e; --warning: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --ink: #e6e8eb; --soft: #9aa2ad;
  --line: #343941; --head: #20242a; --error: #ff8a80; --warning: #f2c14e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 1.5rem; background: var(--page);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; }
.summary { font-size: 1.1rem; margin: .3rem 0 1.5rem; overflow-wrap: anywhere; }
pre { background: var(--head); border-radius: 8px; padding: .7rem 1rem; font-size: .85rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: 0 0 1.5rem; }
figcaption { color: var(--soft); margin-bottom: .4rem; }
.drawing { overflow-x: auto; max-width: 63rem; background: #fff; border: 1px solid var(--line);
  border-radius: 8px; padding: .5rem; }
.drawing svg { display: block; width: 100%; min-width: 36rem; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .6rem;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
th { position: sticky; top: 0; background: var(--head); overflow-wrap: normal; }
.number { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
.error { color: var(--error); font-weight: 600; overflow-wrap: normal; }
.warning { color: var(--warning); font-weight: 600; overflow-wrap: normal; }
footer { color: var(--soft); font-size: .85rem; margin-top: 1.5rem; }
@media (max-width: 60rem) {
  body { padding: 1rem; }
  thead { display: none; }
  table, tbody, tr, td { display: block; }
  tr { border: 1px solid var(--line); border-radius: 8px; margin-bottom: .7rem;
    padding: .3rem .7rem; }
  td { display: grid; grid-template-columns: 6.5rem 1fr; border: 0; padding: .15rem 0; }
  td::before { content: attr(data-column); color: var(--soft); font-weight: 400; }
  .number { text-align: left; }
}
@media (max-width: 39.1rem) {
  figcaption::after { content: " \\2194\\00a0 scroll it sideways"; color: var(--warning); }
}
"""

_CELLS = """
.safeops th, .safeops td { text-align: left; vertical-align: top; overflow-wrap: anywhere; }
.safeops .number { text-align: right; font-variant-numeric: tabular-nums; }
.safeops .error { color: #d33a2c; font-weight: 600; }
.safeops .warning { color: #b07500; font-weight: 600; }
.safeops pre { white-space: pre-wrap; }
"""


def page(report: Report, figures: Sequence[tuple[str, Figure]], note: str = "") -> str:
    """The text of the page; the note stands in place of figures that are missing."""
    drawings = [
        f'<figure><figcaption>{escape(caption)}</figcaption><div class="drawing" role="img" '
        f'aria-label="{escape(caption)}">{_svg(figure, place)}</div></figure>'
        for place, (caption, figure) in enumerate(figures)
    ]
    title = escape(report.title)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        *_said(report),
        *drawings,
        f'<p class="warning">{escape(note)}</p>' if note else "",
        *_table(report.columns(), report.rows()),
        f"<footer>safeops {escape(__version__)}, torch {escape(torch.__version__)}</footer>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def fragment(report: Report) -> str:
    """For a notebook: no figures, and no more of the table than is printed."""
    rows = report.rows()
    parts = [
        f'<div class="safeops"><style>{_CELLS}</style>',
        *_said(report),
        *_table(report.columns(), rows[:SHOWN]),
        f"<p>... and {len(rows) - SHOWN} more</p>" if len(rows) > SHOWN else "",
        "</div>",
    ]
    return "\n".join(parts)


def _said(report: Report) -> list[str]:
    details = report.details()
    summary = f'<p class="summary">{escape(report.summary())}</p>'
    return [summary, f"<pre>{escape(details)}</pre>" if details else ""]


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    if not rows:
        return []
    numbers = [are_numbers([row[place] for row in rows]) for place in range(len(columns))]
    kinds = ["number" if number else "" for number in numbers]
    head = "".join(
        f'<th class="{kind}">{escape(name)}</th>' for name, kind in zip(columns, kinds, strict=True)
    )
    return [
        f"<table><thead><tr>{head}</tr></thead><tbody>",
        *(f"<tr>{_cells(columns, row, kinds)}</tr>" for row in rows),
        "</tbody></table>",
    ]


def _cells(columns: Sequence[str], row: Sequence[object], kinds: Sequence[str]) -> str:
    cells = []
    for name, cell, kind in zip(columns, row, kinds, strict=True):
        text = str(cell)
        style = text if text in STYLES else kind
        cells.append(f'<td class="{style}" data-column="{escape(name)}">{escape(text)}</td>')
    return "".join(cells)


def _svg(figure: Figure, place: int) -> str:
    """Without the XML head; the names inside are unique on the page and always the same."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": f"safeops {place}", "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
