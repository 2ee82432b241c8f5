"""Tensors of .safetensors files: 8 bytes with the length of a JSON header, the header, the data.

Source: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from .bytes import Part, ScanError
from .stored import Stored, as_shape, dtype_named, typed

HEADER = 8 << 20  # bytes; some 100 for a tensor
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
DAMAGED = "the file is damaged; copy it again"


def safetensors(file: Part) -> list[Stored]:
    """The tensors of the file.

    Raises:
        ScanError: a header that is damaged, or that does not fit the file.
    """
    length = int.from_bytes(file.head(8), "little")
    if length > HEADER:
        raise ScanError(f"expected a header of at most {HEADER} bytes, got {length}: {DAMAGED}")
    header = _parsed(file.part(8, length).head(length))
    data = file.part(8 + length, file.size - 8 - length)
    header.pop("__metadata__", None)
    ends = {name: _offsets(name, entry) for name, entry in header.items()}
    _check_filled(ends, data.size)
    return [_tensor(name, entry, data.part(*ends[name])) for name, entry in header.items()]


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ScanError(
            f"expected a JSON header, got one that breaks off ({error}): {DAMAGED}"
        ) from error
    if not isinstance(header, dict):
        raise ScanError(f"expected a JSON header with tensors, got {str(header)[:60]}: {DAMAGED}")
    return header


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ScanError(f"the header has {twice[:80]!r} twice: which one counts is not said")
    return found


def _offsets(name: str, entry: Any) -> tuple[int, int]:
    """Start and size of a tensor's bytes."""
    given = entry.get("data_offsets") if isinstance(entry, Mapping) else None
    start, end = as_shape(given, name) if isinstance(given, list) and len(given) == 2 else (1, 0)
    if end < start:
        raise ScanError(f"{name}: expected offsets of its data, got {str(given)[:60]}: {DAMAGED}")
    return start, end - start


def _check_filled(ends: Mapping[str, tuple[int, int]], size: int) -> None:
    """The tensors follow each other without overlap or gap, and fill the file."""
    at, before = 0, "the header"
    for start, name, count in sorted((start, name, count) for name, (start, count) in ends.items()):
        if start != at:
            fault = "overlaps with" if start < at else "leaves a gap after"
            raise ScanError(f"{name} at {start} {fault} {before}, which ends at {at}: {DAMAGED}")
        at, before = start + count, name
    if at != size:
        raise ScanError(
            f"expected {at} bytes of data, got {size}: the file was cut short or is damaged; copy "
            "it again"
        )


def _tensor(name: str, entry: Mapping[str, Any], part: Part) -> Stored:
    label, shape = str(entry.get("dtype")), as_shape(entry.get("shape"), name)
    dtype = dtype_named(DTYPES.get(label, ""))
    if dtype is None:
        return Stored(name, label[:40], shape, why="a dtype that is not known here")
    if math.prod(shape) * dtype.itemsize != part.size:
        raise ScanError(
            f"{name}: expected {math.prod(shape) * dtype.itemsize} bytes of {label} for the shape "
            f"{list(shape)}, got {part.size}: {DAMAGED}"
        )
    return Stored(
        *(name, DTYPES[label], shape, lambda: typed(part, 0, part.size, dtype)),
        key=(part.start, dtype),
        size=part.size,
    )
