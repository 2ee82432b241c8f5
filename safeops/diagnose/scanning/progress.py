"""The progress bar of a scan, on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor


class Bar:
    """A bar that is not shown."""

    def start(self, path: Path, size: int) -> None:
        """A file with so many bytes to read."""

    def advance(self, size: int) -> None:
        """So many of them are read."""

    def watched(self, chunks: Iterable[Tensor]) -> Iterator[Tensor]:
        for chunk in chunks:
            yield chunk
            self.advance(chunk.nbytes)


class _Shown(Bar):
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        text = TextColumn("{task.description}", markup=False)
        columns = text, BarColumn(), DownloadColumn(), TimeRemainingColumn()
        self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self.task = self.progress.add_task("")

    def start(self, path: Path, size: int) -> None:
        self.progress.reset(self.task, description=path.name, total=size)

    def advance(self, size: int) -> None:
        self.progress.advance(self.task, size)


@contextmanager
def progress_bar(shown: bool) -> Iterator[Bar]:
    if not shown:
        yield Bar()
        return
    bar = _Shown()
    with bar.progress:
        yield bar
