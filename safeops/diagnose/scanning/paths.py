"""Which files are meant by the paths that were given: those of directories and indexes, once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .bytes import ScanError, reading

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".npy", ".npz")
INDEX = ".index.json"
INDEX_SIZE = 32 << 20


def as_path(path: Any) -> Path:
    """The path; a TypeError for what is none."""
    if isinstance(path, (str, os.PathLike)) and isinstance(text := os.fspath(path), str):
        return Path(text)
    kind = type(path).__name__
    if isinstance(path, Iterable) and not isinstance(path, (bytes, bytearray)):
        raise TypeError(f"expected paths one by one, got a {kind} of them: write scan(*files)")
    raise TypeError(f"expected a path as str or pathlib.Path, got {kind}: see os.fsdecode")


def promises_tensors(path: Path) -> bool:
    """By its suffix."""
    return path.suffix.lower() in SUFFIXES


def meant(paths: Sequence[Path]) -> Iterator[tuple[Path, Exception | None]]:
    """Each file once, as it was spelled first, whether it was given, or is one of a directory or
    an index; and what could not be listed, with the reason."""
    seen: set[str] = set()
    left = list(reversed(paths))
    while left:
        path = left.pop()
        if (real := _real(path)) in seen:
            continue
        seen.add(real)
        try:
            inside = _inside(path)
        except (ScanError, OSError) as error:
            yield path, error
            continue
        if inside is None:
            yield path, None
        else:
            left += reversed(inside)


def _real(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except (ValueError, OSError):  # a null byte, or a name that is too long
        return str(path)


def _inside(path: Path) -> list[Path] | None:
    """None of a file that is no index."""
    if path.is_dir():
        return _of_directory(path)
    return _of_index(path) if path.name.endswith(INDEX) else None


def _of_directory(path: Path) -> list[Path]:
    """Its files with tensors and their indexes, by suffix; not those of directories in it.

    Raises:
        ScanError: there are none. OSError: it cannot be listed.
    """
    found = [
        one
        for one in sorted(path.iterdir())
        if promises_tensors(one.with_name(one.name.removesuffix(INDEX) or one.name))
        and not one.is_dir()
    ]
    if not found:
        raise ScanError(
            f"expected a directory with files called *{', *'.join(SUFFIXES)}, got one without: "
            "name the files, or a directory in it, which is not searched by itself"
        )
    return found


def _of_index(path: Path) -> list[Path]:
    """The files that it names.

    Raises:
        ScanError: no index, or one that names files outside its directory. OSError: unreadable.
    """
    with reading(path) as file:
        if file.size > INDEX_SIZE:
            raise ScanError(f"expected an index of at most {INDEX_SIZE} bytes, got {file.size}")
        names = _named(file.head(file.size))
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ScanError(f"an index that names {name[:80]!r}, outside its directory: damaged")
    return [path.parent / name for name in names]


def _named(text: bytes) -> list[str]:
    try:
        names = json.loads(text)["weight_map"].values()
        return sorted({name for name in names if isinstance(name, str)})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ScanError('expected an index with a "weight_map", got other JSON or text') from error
