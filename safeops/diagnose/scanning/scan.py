"""NaN, infinities, subnormals and extremes in files of tensors, without unpickling any code."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from .bytes import NoTensorFile, ScanError
from .elements import Elements, elements_of
from .files import opened
from .paths import as_path, meant, promises_tensors
from .progress import Bar, progress_bar
from .report import ScanFile, ScanFinding, ScanReport, ScanTensor
from .stored import Stored, printable

__all__ = ["ScanError", "ScanFile", "ScanFinding", "ScanReport", "ScanTensor", "scan"]

READERS = 4  # threads at most
COUNTS = ("nan", "posinf", "neginf", "subnormal", "zeros")


def scan(*paths: str | os.PathLike[str], progress: bool | None = None) -> ScanReport:
    """isnan, isinf, counts of subnormals and zeros, min and max of every tensor in the files.

    The files are read in chunks, so that a checkpoint may be larger than the memory. A pickle is
    read as data: no class or function that it names is imported or called, and a file that names
    one such as os.system is refused. What a file holds besides tensors is left out.

    Args:
        paths: .pt, .pth and .bin as torch.save writes them (also before torch 1.6) and TorchScript;
            .safetensors; .npy; .npz. What counts is what is in a file, not how it is called. Of
            an index (``*.index.json``) the files that it names. Of a directory, but not of those
            in it, the files called .pt, .pth, .bin, .ckpt, .safetensors, .npy or .npz, and their
            indexes. A file that is meant twice is read once. Text and images that have no such
            name, as config.json, are skipped: the report says so, and it is no error.
        progress: show a progress bar on stderr; by default if that is a terminal.

    Returns:
        A ScanReport: true if every file could be read, every element is finite, and there was
        something to read; ``finite`` is None if there was not. A tensor has its extremes over the
        finite elements; integers have no other column, complex numbers count by real and imaginary
        part. Quantized and sparse tensors, arrays of objects and unknown dtypes are listed with the
        reason why they were not read; a file that holds nothing else counts as unreadable.

    Raises:
        TypeError: what is no path, as a list of them. ValueError: no paths. A file that cannot be
            read raises nothing: the others are scanned, and the report has the reason.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"weight": torch.tensor([1.0, float("nan"), -3.0])}, f"{folder}/model.pt")
    ...     report = scan(f"{folder}/model.pt")
    >>> bool(report), report.bad[0].name, report.bad[0].nan, report.bad[0].min
    (False, 'weight', 1, -3.0)
    """
    if not paths:
        raise ValueError("expected the paths of files to scan, got none")
    given = [as_path(path) for path in paths]
    shown = sys.stderr.isatty() if progress is None else progress
    with _readers() as pool, progress_bar(shown) as bar:
        return _scanned_all(given, pool, bar)


@contextmanager
def _readers() -> Iterator[ThreadPoolExecutor]:
    """Threads that read a tensor each. torch's own would wait for each other at every chunk, so
    that it has one meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(min(threads, READERS))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def _scanned_all(given: Sequence[Path], pool: ThreadPoolExecutor, bar: Bar) -> ScanReport:
    files: list[ScanFile] = []
    skipped: list[str] = []
    for path, error in meant(given):
        try:
            files.append(_failed(path, error) if error else _scanned(path, pool, bar))
        except NoTensorFile as other:
            if promises_tensors(path):
                files.append(_failed(path, other))
            else:
                skipped.append(printable(str(path)))
    return ScanReport(files, skipped=skipped)


def _scanned(path: Path, pool: ThreadPoolExecutor, bar: Bar) -> ScanFile:
    """The file; of several tensors with the same elements, one is read.

    Raises:
        NoTensorFile: what it holds is something else.
    """
    try:
        with opened(path) as (kind, tensors):
            once = {tensor.key: tensor for tensor in tensors if tensor.chunks is not None}
            bar.start(path, sum(tensor.size for tensor in once.values()))
            read = pool.map(lambda tensor: elements_of(bar.watched(tensor.chunks())), once.values())
            found = dict(zip(once, read, strict=True))
            rows = [_row(tensor, found) for tensor in tensors]
            return ScanFile(printable(str(path)), kind, rows, _nothing_read(rows))
    except NoTensorFile:
        raise
    except (ScanError, OSError, MemoryError) as error:
        return _failed(path, error)


def _nothing_read(rows: Sequence[ScanTensor]) -> str:
    """The error of a file with tensors of which none is read; ""."""
    if not rows or not all(row.why for row in rows):
        return ""
    return f"expected numbers, got only what is not read, as {rows[0].name} ({rows[0].why})"


def _failed(path: Path, error: Exception) -> ScanFile:
    return ScanFile(printable(str(path)), error=printable(_reason(error)))


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "expected a file, got a path where there is none: is it spelled right?"
    if isinstance(error, PermissionError):
        return "expected a file that may be read, got no permission: see chmod"
    if isinstance(error, OSError):
        return f"the system cannot read it: {error.strerror or error}"
    return str(error) or type(error).__name__


def _row(tensor: Stored, read: Mapping[Hashable, Elements]) -> ScanTensor:
    words = printable(tensor.name), printable(tensor.dtype)
    row = ScanTensor(*words, tensor.shape, math.prod(tensor.shape))
    if tensor.chunks is None:
        return row._replace(why=tensor.why)
    found = read[tensor.key]
    if found.min <= found.max:
        row = row._replace(min=found.min, max=found.max)
    if found.integers:
        return row
    return row._replace(**{name: tensor.copies * getattr(found, name) for name in COUNTS})
