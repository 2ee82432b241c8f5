"""Which format a file has, by its first bytes, and the tensors in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import npy, pt, safetensors
from .bytes import Archive, Part, ScanError, reading
from .stored import Stored

INDEX = ".index.json"
INDEX_SIZE = 32 << 20
READ = "expected a .pt, .safetensors, .npy or .npz file"
FOREIGN = {
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"\x89HDF": "an HDF5 file: open it with h5py and save its arrays",
    b"\x1f\x8b": "a gzip file: unpack it first",
    b"\x28\xb5\x2f\xfd": "a zstd file: unpack it first",
    b"BZh": "a bzip2 file: unpack it first",
    b"\xfd7zXZ": "an xz file: unpack it first",
    b"7z\xbc\xaf": "a 7z file: unpack it first",
    b"GGUF": "a GGUF file: scan what it was made from",
    b"version https://git-lfs": "a pointer of Git LFS: fetch the file with git lfs pull",
    b"<!DOCTYPE": "a web page: the download went wrong",
    b"<html": "a web page: the download went wrong",
}


@contextmanager
def opened(path: Path) -> Iterator[tuple[str, list[Stored]]]:
    """The format of the file and its tensors, which can be read in this block.

    Raises:
        ScanError: another format, or a damaged file. OSError: it cannot be opened.
    """
    with reading(path) as file:
        yield _tensors(file, file.head(1024))


def _tensors(file: Part, head: bytes) -> tuple[str, list[Stored]]:
    if head.startswith(b"PK"):
        return _zipped(Archive(file))
    if head.startswith(npy.MARK):
        return "npy", [npy.npy(file, "array")]
    if head.startswith(pt.LEGACY):
        return "torch before 1.6", pt.legacy(file)
    if head[8:9] == b"{":
        return "safetensors", safetensors.safetensors(file)
    raise ScanError(f"{READ}, got {_kind(head)}")


def _zipped(archive: Archive) -> tuple[str, list[Stored]]:
    pickles = [name for name in archive.entries if name.split("/")[1:] in ([], ["data.pkl"])]
    pickles = [name for name in pickles if name.endswith("data.pkl")]
    if pickles:
        return "torch", pt.zipped(archive, pickles[0].removesuffix("data.pkl"))
    if not archive.entries or any(name.endswith(".npy") for name in archive.entries):
        return "npz", npy.npz(archive)
    raise ScanError(f"{READ}, got a zip without tensors: unpack it, or save the weights alone")


def _kind(head: bytes) -> str:
    """What the first bytes look like."""
    for mark, kind in FOREIGN.items():
        if head.lower().startswith(mark.lower()):
            return kind
    if head[257:262] == b"ustar":
        return "a tar file: unpack it, or (torch before 0.1.10) load it and save it again"
    if head[:1] == b"\x80":
        return "a pickle that torch.save did not write: save tensors with torch.save"
    try:
        return f"text that begins with {head[:24].decode()!r}: name the file with the tensors"
    except UnicodeDecodeError:
        return f"bytes that begin with {head[:8].hex(' ')}: an unknown format, or damaged"


def expanded(path: Path) -> list[Path]:
    """The file; or, of an index such as model.safetensors.index.json, the files that it names.

    Raises:
        ScanError: no index, or one that names files outside its directory. OSError: unreadable.
    """
    if not path.name.endswith(INDEX):
        return [path]
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
