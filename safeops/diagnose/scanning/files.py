"""Which format a file has, by its first bytes, and the tensors in it."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import npy, pt, safetensors
from .bytes import Archive, NoTensorFile, Part, ScanError, reading
from .stored import Stored

READ = "expected a .pt, .safetensors, .npy or .npz file"
OTHER = {  # what lies beside checkpoints and never holds tensors
    b"\xff\xd8\xff": "a JPEG image",
    b"\x89PNG": "a PNG image",
    b"GIF8": "a GIF image",
    b"%PDF": "a PDF document",
    b"\n\x0e\n\5<unk>": "a vocabulary of SentencePiece",
    b"\n\x0c\n\5<pad>": "a vocabulary of SentencePiece",
}
FOREIGN = {
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
        NoTensorFile: it is text, an image or empty. ScanError: another format, or a damaged file.
        OSError: it cannot be opened.
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
    if head[8:9] == b"{" and 0 in head[:8]:  # a length; other JSON has no zero byte
        return "safetensors", safetensors.safetensors(file)
    if other := _other(head):
        raise NoTensorFile(f"{READ}, got {other}")
    raise ScanError(f"{READ}, got {_kind(head)}")


def _zipped(archive: Archive) -> tuple[str, list[Stored]]:
    pickles = [name for name in archive.entries if name.split("/")[1:] in ([], ["data.pkl"])]
    pickles = [name for name in pickles if name.endswith("data.pkl")]
    if pickles:
        return "torch", pt.zipped(archive, pickles[0].removesuffix("data.pkl"))
    if not archive.entries or any(name.endswith(".npy") for name in archive.entries):
        return "npz", npy.npz(archive)
    raise ScanError(f"{READ}, got a zip without tensors: unpack it, or save the weights alone")


def _other(head: bytes) -> str:
    """What a file without tensors is, by its first bytes; "" of what may have some."""
    kind = next((kind for mark, kind in OTHER.items() if head.startswith(mark)), "")
    if kind or 0 in head or _foreign(head):
        return kind
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # may end inside a character
    except UnicodeDecodeError:
        return ""
    return f"text that begins with {text[:24]!r}: name the file with the tensors"


def _foreign(head: bytes) -> str:
    marks = (mark for mark in FOREIGN if head.lower().startswith(mark.lower()))
    return next((FOREIGN[mark] for mark in marks), "")


def _kind(head: bytes) -> str:
    """What the first bytes look like."""
    if foreign := _foreign(head):
        return foreign
    if head[257:262] == b"ustar":
        return "a tar file: unpack it, or (torch before 0.1.10) load it and save it again"
    if head[:1] == b"\x80":
        return "a pickle that torch.save did not write: save tensors with torch.save"
    return f"bytes that begin with {head[:8].hex(' ')}: an unknown format, or damaged"
