"""How a checkpoint is called, what it says of its files, and whether they are so."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from .._version import __version__
from ._files import PLAIN, Sum

NAME = "manifest.json"
FORMAT = 1
FOLDER = re.compile(r"step-(\d{8,})(?:\.(\d+))?")
FILE = re.compile(r"rank-\d{5,}\.pt")  # plain: no name leads out of the folder
DAMAGED = "is damaged: another sha256 than when it was written"
BLOCK = 1 << 20


class Broken(Exception):
    """Why a checkpoint is not as it was written."""


class Place(NamedTuple):
    """A name, and its place in the order of writing."""

    line: int  # how often training had gone back to an earlier step
    step: int

    @property
    def name(self) -> str:
        return f"step-{self.step:08d}" + f".{self.line}" * bool(self.line)


class Manifest(NamedTuple):
    world_size: int
    files: dict[str, Sum]


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def listed(directory: Path) -> list[Place]:
    """What is there, good or not, the newest first."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = ((name, FOLDER.fullmatch(name)) for name in names)
    places = {name: Place(int(match[2] or 0), int(match[1])) for name, match in found if match}
    return sorted((place for name, place in places.items() if name == place.name), reverse=True)


def newer(directory: Path, step: int) -> Path:
    """The name that makes a checkpoint of that step the newest."""
    last = max(listed(directory), default=Place(0, -1))
    return directory / Place(last.line + (step <= last.step), step).name


# --- the text ------------------------------------------------------------------------------------


def text_of(step: int, sums: Sequence[Sum | None]) -> bytes:
    """For a sum, or None, of each rank. It has a sum itself: a damaged number would mislead."""
    body = {
        "format": FORMAT,
        "step": step,
        "world_size": len(sums),
        "versions": {"safeops": __version__, "torch": str(torch.__version__)},
        "files": {file_name(rank): one._asdict() for rank, one in enumerate(sums) if one},
    }
    return json.dumps(body | {"sha256": _digest(body)}, indent=1).encode()


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def described(folder: Path, step: int) -> Manifest:
    """By its manifest.

    Raises:
        Broken: it has none that is whole and of this step. ValueError: a format of later versions.
    """
    if not folder.is_dir():
        raise Broken("it is no folder")
    body = _parsed(_bytes_of(folder / NAME))
    if body.get("format") != FORMAT:
        raise ValueError(
            f"checkpoint {folder} was not read: expected format {FORMAT}, got "
            f"{body.get('format')!r}. Read it with the version of safeops that wrote it"
        )
    if body.get("step") != step or not isinstance(body.get("world_size"), int):
        raise Broken(f"{NAME} is of another checkpoint")
    return Manifest(body["world_size"], _sums(body.get("files")))


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        body = json.loads(data)
        whole = body.pop("sha256") == _digest(body)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Broken(f"{NAME} is damaged: no text of a manifest") from error
    if not whole:
        raise Broken(f"{NAME} {DAMAGED}")
    return body


def _sums(files: Any) -> dict[str, Sum]:
    try:
        sums = {name: Sum(**one) for name, one in files.items()}
    except (TypeError, AttributeError) as error:
        raise Broken(f"{NAME} has no sizes and sums of files") from error
    for name in sums:
        if FILE.fullmatch(name) is None:
            raise Broken(f"{NAME} names a file {name!r}, expected such as {file_name(0)}")
    return sums


def looks_good(folder: Path, step: int) -> bool:
    """By manifest and sizes: nothing else is read."""
    try:
        files = described(folder, step).files
        return all((folder / name).stat().st_size == files[name].size for name in files)
    except (OSError, ValueError, Broken):
        return False


# --- the files -----------------------------------------------------------------------------------


def load(path: Path, wanted: Sum) -> Any:
    """By torch.load, once size and sum are as wanted.

    Raises:
        Broken: it is missing, cannot be read, or is another file. pickle.UnpicklingError: it is as
            it was written, and torch.load(weights_only=True) refuses what it holds.
    """
    try:
        with _opened(path) as file:
            _check(file, path.name, wanted)
            return torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    except OSError as error:
        raise _broken(path, error) from error
    except pickle.UnpicklingError as error:
        raise pickle.UnpicklingError(f"{path} was not read: {_refusal(path, error)}") from error


def _bytes_of(path: Path) -> bytes:
    try:
        with _opened(path) as file:
            return file.read()
    except OSError as error:
        raise _broken(path, error) from error


def _opened(path: Path) -> BinaryIO:
    if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for who writes to it
        raise Broken(f"{path.name} is no file")
    return open(path, "rb")


def _broken(path: Path, error: OSError) -> Broken:
    missing = isinstance(error, FileNotFoundError)
    return Broken(f"{path.name} {'is missing' if missing else f'cannot be read: {error.strerror}'}")


def _check(file: BinaryIO, name: str, wanted: Sum) -> None:
    size = os.fstat(file.fileno()).st_size
    if size != wanted.size:
        raise Broken(f"{name} has {size} bytes, expected {wanted.size}")
    digest = hashlib.sha256()
    while block := file.read(BLOCK):
        digest.update(block)
    if digest.hexdigest() != wanted.sha256:
        raise Broken(f"{name} {DAMAGED}")
    file.seek(0)


def check_loads(path: Path) -> None:
    """Refuse now what a resumed run could not read."""
    try:
        _try_to_load(path)
    except pickle.UnpicklingError as error:
        raise RuntimeError(_refusal(path, error)) from error


def _try_to_load(path: Path) -> None:
    options: dict[str, Any] = {"map_location": "cpu", "weights_only": True}
    try:
        torch.load(path, mmap=True, **options)  # reads no tensors
    except (OSError, RuntimeError):  # some file systems cannot map a file
        torch.load(path, mmap=False, **options)


def _refusal(path: Path, error: pickle.UnpicklingError) -> str:
    names = ", ".join(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)))
    why = names or str(error).rpartition("WeightsUnpickler error:")[2].strip().split("\n")[0]
    return (
        f"torch.load(weights_only=True) refuses {why}. {PLAIN}, or call "
        f"torch.serialization.add_safe_globals([{names}]) before"
    )
