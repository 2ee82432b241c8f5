"""Arrays of .npy and .npz files; NumPy is not needed.

Source: numpy/lib/format.py: a mark, a version, the length of a header, the header as a Python
literal, the elements.
"""

from __future__ import annotations

import ast
import math
import sys
import warnings
from typing import Any

import torch

from .bytes import Archive, Bytes, ScanError
from .stored import Stored, as_shape, name_of, typed

MARK = b"\x93NUMPY"
HEADER = 10_000  # characters, as NumPy has it: longer literals are no work for a parser
DTYPES = {
    "b1": torch.bool,
    "i1": torch.int8,
    "i2": torch.int16,
    "i4": torch.int32,
    "i8": torch.int64,
    "u1": torch.uint8,
    "u2": torch.uint16,
    "u4": torch.uint32,
    "u8": torch.uint64,
    "f2": torch.float16,
    "f4": torch.float32,
    "f8": torch.float64,
    "c8": torch.complex64,
    "c16": torch.complex128,
}
DEFECTS = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
FOREIGN = {"<": "big", ">": "little"}  # the byte order of a machine to which it is foreign


def npz(archive: Archive) -> list[Stored]:
    """Those of a zip; entries that are no arrays are named."""
    found = []
    for name in archive.entries:
        source, label = archive.open(name), name.removesuffix(".npy")
        if source.head(len(MARK)) == MARK:
            found.append(npy(source, label))
        else:
            found.append(Stored(name, "", (), why="an entry that is no array"))
    return found


def npy(source: Bytes, name: str) -> Stored:
    """The array of a .npy file or entry.

    Raises:
        ScanError: a damaged header, or other than the bytes that it wants.
    """
    head = source.head(12 + 4 * HEADER)
    wide = head[6:7] > b"\1"
    start = 12 if wide else 10
    length = int.from_bytes(head[8:start], "little")
    if not 1 <= int.from_bytes(head[6:7], "little") <= 3 or length > len(head) - start:
        raise ScanError(
            f"{name}: expected the header of an array, got a damaged one; copy it again"
        )
    header = _parsed(head[start : start + length], name)
    return _array(source, name, header, start + length)


def _parsed(text: bytes, name: str) -> dict[str, Any]:
    try:
        if len(text) > HEADER:
            raise ValueError(f"longer than {HEADER} bytes")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, about escapes in a damaged string
            header = ast.literal_eval(text.decode().strip())
        if isinstance(header, dict) and {"descr", "fortran_order", "shape"} <= header.keys():
            return header
        raise ValueError("no descr, fortran_order and shape")
    except DEFECTS as error:
        raise ScanError(
            f"{name}: expected the header of an array, got a damaged one "
            f"({str(error)[:80]}); copy it again"
        ) from error


def _array(source: Bytes, name: str, header: dict[str, Any], start: int) -> Stored:
    descr, shape = header["descr"], as_shape(header["shape"], name)
    if not isinstance(descr, str):
        return Stored(name, "structured", shape, why="an array of records; save its fields")
    if descr[1:2] == "O":
        return Stored(name, "object", shape, why="an array of objects is a pickle; save numbers")
    dtype = DTYPES.get(descr[1:])
    if dtype is None:
        return Stored(name, descr[:40], shape, why="no dtype of torch")
    size = math.prod(shape) * dtype.itemsize
    if source.size - start != size:
        raise ScanError(
            f"{name}: expected {size} bytes of {name_of(dtype)} for the shape {shape}, got "
            f"{source.size - start}: cut short or damaged; copy it again"
        )
    swapped = FOREIGN.get(descr[0]) == sys.byteorder
    return Stored(
        *(name, name_of(dtype), shape, lambda: typed(source, start, size, dtype, swapped)),
        key=name,
        size=size,
    )
