"""Report: what every diagnosis gives, as a table, as plain values and as a page."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

SHOWN = 40  # rows of a printed table; a page has all
NARROWEST = 100  # letters in a line of plain text
NARROW = 30  # letters of a cell that is not broken if there is room
NO_PLOTS = (
    "No plots: matplotlib is not installed. pip install safeops[plot], then write this page again."
)
STYLES = {"error": "bold red", "warning": "yellow"}  # of cells that say so
_RULE = "    \n    \n -- \n    \n    \n    \n    \n    \n"  # a line below the head, nothing else


class Report:
    """What was found: print it, look at it in a notebook or browser, or take it as plain values.

    A subclass gives title, summary(), columns(), rows(), to_dict() and, if it draws, figures().

    >>> class Sizes(Report):
    ...     title = "Sizes"
    ...     def summary(self): return "2 layers, the largest has 12 elements"
    ...     def columns(self): return "layer", "elements"
    ...     def rows(self): return [("first", 12), ("last", 3)]
    ...     def to_dict(self): return dict(self.rows())
    >>> print(Sizes())
    2 layers, the largest has 12 elements
    layer  elements
    ---------------
    first        12
    last          3
    """

    title = "Report"
    whole_from: int | None = None  # columns of a printed table from here on are never broken

    def summary(self) -> str:
        """One line: the verdict and the counts."""
        raise NotImplementedError

    def details(self) -> str:
        """Some lines between the summary and the table."""
        return ""

    def columns(self) -> Sequence[str]:
        """The head of the table."""
        raise NotImplementedError

    def printed(self) -> int | None:
        """How many rows of the table are printed; None for all."""
        return SHOWN

    def rows(self) -> Sequence[Sequence[object]]:
        """The table: str() of a cell is shown, numbers stand to the right."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Plain Python values that json.dumps takes."""
        raise NotImplementedError

    def figures(self) -> list[tuple[str, Figure]]:
        """Captions and matplotlib figures, made with new_figure."""
        return []

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write one page that needs no other file: summary, figures and the whole table. Without
        matplotlib there are no figures on it, and a line says how to get them.

        Args:
            path: the file, in a directory that exists; written whole or not at all.

        Raises:
            OSError: the file cannot be written; one that was there stays as it is.
        """
        from ._page import page

        try:
            figures, note = self.figures(), ""
        except ImportError as error:
            if not _is_matplotlib(error):
                raise
            figures, note = [], NO_PLOTS
        _write(Path(path), page(self, figures, note))

    def _repr_html_(self) -> str:
        """What a notebook shows: as print, with the table as one."""
        from ._page import fragment

        return fragment(self)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        rows, details = self.rows(), self.details()
        yield Text(self.summary())
        if details:
            yield Text(details)
        printed = rows[: self.printed()]
        if printed:
            yield _table(self.columns(), printed, options.max_width, self.whole_from)
        if len(rows) > len(printed):
            yield Text(f"... and {len(rows) - len(printed)} more")

    def __str__(self) -> str:
        from rich.console import Console

        width = max(NARROWEST, shutil.get_terminal_size().columns)
        console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], width: int, whole_from: int | None
) -> Table:
    """Cells are taken as they are: a name such as x[0] is no markup."""
    from rich.box import Box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=Box(_RULE, ascii=True), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    cells = [[str(cell) for cell in row] for row in rows]
    whole = _kept_whole(list(zip(columns, *cells, strict=True)), width)
    whole.update(() if whole_from is None else range(whole_from, len(columns)))
    for place, name in enumerate(columns):
        right = are_numbers([row[place] for row in rows])
        style: Any = {"justify": "right" if right else "left", "no_wrap": place in whole}
        table.add_column(Text(name), overflow="fold", **style)
    for line in cells:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in line))
    return table


def _kept_whole(columns: Sequence[Sequence[str]], width: int) -> set[int]:
    """The columns of which no cell is broken, the narrow ones, if that leaves a third
    of the width to the others."""
    widest = [max(map(len, column)) for column in columns]
    narrow = {place for place, one in enumerate(widest) if one <= NARROW}
    fits = sum(widest[place] + 2 for place in narrow)
    return narrow if fits <= width * (0.65 if len(narrow) < len(columns) else 1) else set()


def are_numbers(cells: Sequence[object]) -> bool:
    """Whether a column is one of numbers; "-" stands for one that there is not."""
    there = [cell for cell in cells if cell != "-"]
    return bool(there) and all(
        isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in there
    )


# --- figures -----------------------------------------------------------------------------------


@contextmanager
def plotting(what: str) -> Iterator[None]:
    """Where matplotlib is needed for `what`: if it is missing, the error says how to get it."""
    try:
        yield
    except ImportError as error:
        if not _is_matplotlib(error):
            raise
        raise ImportError(
            f"{what} draws with matplotlib, which is not installed: pip install safeops[plot]",
            name=error.name,
        ) from error


def _is_matplotlib(error: ImportError) -> bool:
    return (error.name or "").partition(".")[0] == "matplotlib"


def new_figure(width: float = 8.0, height: float = 4.0) -> Figure:
    """An empty figure of this size in inches; pyplot, and with it a user's backend, is not
    touched."""
    with plotting("this figure"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


# --- files -------------------------------------------------------------------------------------


def _write(path: Path, text: str) -> None:
    """Whole or not at all: written beside its place, then moved there."""
    path = path.resolve()
    if path.is_dir() or not path.parent.is_dir():
        error = IsADirectoryError if path.is_dir() else FileNotFoundError
        raise error(f"expected the path of a file in a directory that exists, got {path}")
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
