"""The bytes of a file, as they are or inflated, in chunks: never more than a few in memory."""

from __future__ import annotations

import io
import mmap
import os
import stat
import struct
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

CHUNK = 4 << 20  # so that it stays in cache while it is looked at
SHRUNK = "the file became shorter while it was read: wait until it is written"
DIRECTORY = 16 << 20  # bytes of a zip's list of entries, some 100,000 of them
RATIO = 1032  # no deflated bytes give more
MEMBER = struct.Struct("<4s22xHH")  # of a zip: the mark, the lengths of name and extra field
METHODS = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma"}


class ScanError(ValueError):
    """A file that cannot be read: what was expected, what came, and what to do."""


class NoTensorFile(ScanError):
    """A file that is whole and holds something else, such as text or an image."""


class Bytes(Protocol):
    """Some bytes in a row."""

    size: int

    def head(self, count: int) -> bytes:
        """The first of them, fewer if there are fewer."""

    def chunks(self, start: int, count: int) -> Iterator[Tensor]:
        """All `count` of them from there on, as uint8; a chunk is gone when the next is asked for.

        Raises:
            ScanError: there are fewer.
        """


class Part:
    """A part of a file. Several threads may read it."""

    def __init__(self, file: io.FileIO, start: int, size: int, buffers: list[bytearray]):
        self.file, self.start, self.size = file, start, size
        self._buffers = buffers  # of the file, for chunks; new memory costs as much as reading

    def part(self, start: int, size: int) -> Part:
        if min(start, size) < 0 or start + size > self.size:
            raise ScanError(
                f"expected {size} bytes at {self.start + start}, got a file that ends at "
                f"{self.start + self.size}: it was cut short or is damaged; copy it again"
            )
        return Part(self.file, self.start + start, size, self._buffers)

    def head(self, count: int) -> bytes:
        self.file.seek(self.start)
        return io.FileIO.read(self.file, min(count, self.size)) or b""

    def chunks(self, start: int, count: int) -> Iterator[Tensor]:
        first = self.part(start, count).start
        buffer = self._buffers.pop() if self._buffers else bytearray(CHUNK)
        view, tensor = memoryview(buffer), torch.frombuffer(buffer, dtype=torch.uint8)
        for at in range(0, count, CHUNK):
            size = min(CHUNK, count - at)
            if read_at(self.file, first + at, view[:size]) < size:
                raise ScanError(SHRUNK)
            yield tensor[:size]
        self._buffers.append(buffer)

    def mapped(self, start: int, count: int) -> Tensor:
        """Some of the bytes as they lie in the file, mapped as long as the tensor lives."""
        first = self.start + start
        shift = first % mmap.ALLOCATIONGRANULARITY
        try:  # copy on write: torch takes no memory that it may not write
            window = mmap.mmap(
                self.file.fileno(), count + shift, access=mmap.ACCESS_COPY, offset=first - shift
            )
        except ValueError as error:
            raise ScanError(SHRUNK) from error
        return torch.frombuffer(window, dtype=torch.uint8, offset=shift, count=count)


_seeking = threading.Lock()


def read_at(file: io.FileIO, start: int, view: memoryview) -> int:
    """Fills the view as far as the file goes; how far that is."""
    got = 0
    while got < len(view) and (more := _read_some(file, start + got, view[got:])):
        got += more
    return got


def _read_some(file: io.FileIO, start: int, view: memoryview) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file.fileno(), [view], start)
    with _seeking:
        file.seek(start)
        return file.readinto(view)


class Careful(io.FileIO):
    """A file of which no one reads much at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = os.fstat(self.fileno()).st_size - self.tell()
        if size > DIRECTORY:
            raise ScanError(
                f"expected a zip with a directory of at most {DIRECTORY} bytes, got {size}: "
                "the file is damaged or no checkpoint"
            )
        return super().read(size) or b""


@contextmanager
def reading(path: Path) -> Iterator[Part]:
    """The file.

    Raises:
        ScanError: it is empty or no regular file. OSError: it cannot be opened.
    """
    try:
        mode = path.stat().st_mode
    except ValueError as error:
        raise ScanError(f"expected the path of a file, got {str(path)!r} ({error})") from error
    if stat.S_ISDIR(mode):
        raise ScanError("expected a file, got a directory: scan it by itself")
    if not stat.S_ISREG(mode):
        raise ScanError("expected a regular file, got a device, pipe or socket: copy it to a file")
    with Careful(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise NoTensorFile("expected a file with tensors, got an empty one: write it again")
        yield Part(file, 0, size, [])


class Deflated:
    """An entry of a zip that has to be inflated."""

    def __init__(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo):
        self.size = entry.file_size
        self._archive, self._entry = archive, entry

    def head(self, count: int) -> bytes:
        with zip_errors(), self._archive.open(self._entry) as stream:
            return stream.read(min(count, self.size))

    def chunks(self, start: int, count: int) -> Iterator[Tensor]:
        buffer = bytearray(min(CHUNK, max(start, count, 1)))
        view, tensor = memoryview(buffer), torch.frombuffer(buffer, dtype=torch.uint8)
        with zip_errors(), self._archive.open(self._entry) as stream:
            for at in range(0, start, CHUNK):
                self._fill(stream, view[: min(CHUNK, start - at)])
            for at in range(0, count, CHUNK):
                size = min(CHUNK, count - at)
                self._fill(stream, view[:size])
                yield tensor[:size]

    def _fill(self, stream: Any, view: memoryview) -> None:
        got = 0
        while got < len(view):
            more = stream.readinto(view[got : got + (1 << 20)])
            if not more:
                raise ScanError(
                    f"{self._entry.filename}: the entry ends before its {self.size} bytes: "
                    "the file is damaged; copy it again"
                )
            got += more


@contextmanager
def zip_errors() -> Iterator[None]:
    """What zipfile says of a damaged file, as a ScanError."""
    try:
        yield
    except ScanError:
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError),
        *(RuntimeError, ValueError, OSError, OverflowError, IndexError),
    ) as error:
        said = str(error)[:100]
        raise ScanError(f"a zip that cannot be read ({said}): copy it again") from error


class Archive:
    """A zip whose entries are Bytes."""

    def __init__(self, file: Part):
        self._file = file
        with zip_errors():
            self._zip = zipfile.ZipFile(file.file)
        self.entries = {entry.filename: entry for entry in self._zip.infolist()}
        if len(self.entries) < len(self._zip.infolist()):
            raise ScanError("a zip with several entries of one name: which one counts is not said")
        sizes = sum(entry.file_size for entry in self.entries.values())
        if sizes > RATIO * file.size:
            raise ScanError(
                f"a zip of {file.size} bytes that claims to hold {sizes}, which no zip can: "
                "it is damaged or meant to do harm; do not open it"
            )

    def open(self, name: str) -> Bytes:
        """The bytes of an entry.

        Raises:
            ScanError: there is none, or it is encrypted, damaged or compressed in a rare way.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise ScanError(f"expected an entry {name!r}, but the zip has none: it is damaged")
        if entry.flag_bits & 1:
            raise ScanError(f"{name}: the entry is encrypted; write it without a password")
        if entry.compress_type == zipfile.ZIP_DEFLATED:
            return Deflated(self._zip, entry)
        if entry.compress_type == zipfile.ZIP_STORED:
            return self._stored(entry)
        method = METHODS.get(entry.compress_type, f"method {entry.compress_type}")
        raise ScanError(f"{name}: compressed by {method}; only stored and deflated are read")

    def _stored(self, entry: zipfile.ZipInfo) -> Part:
        head = self._file.part(entry.header_offset, MEMBER.size).head(MEMBER.size)
        mark, name, extra = MEMBER.unpack_from(head)
        if mark != b"PK\3\4":
            raise ScanError(
                f"{entry.filename}: its bytes are not where the zip says: copy it again"
            )
        start = entry.header_offset + MEMBER.size + name + extra
        return self._file.part(start, entry.file_size)
