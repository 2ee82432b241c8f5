"""A tensor in a file, and how its bytes become tensors of torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .bytes import Bytes, ScanError

READ = {
    *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "complex32", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
}


@dataclass(frozen=True)
class Stored:
    """One tensor of a file.

    chunks  gives its elements, flat and in any order; None where it is not read
    why     the reason for that
    key     those with the same key hold the same elements
    copies  how often it has each of them, as an expanded tensor
    size    the bytes that chunks reads
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[Tensor]] | None = None
    why: str = ""
    key: Hashable = None
    copies: int = 1
    size: int = 0


def printable(text: str) -> str:
    """The text without what a terminal obeys and what no encoding has: those as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def dtype_named(name: str) -> torch.dtype | None:
    """torch's dtype of that name if it is read, and if this torch has it."""
    return getattr(torch, name, None) if name in READ else None


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def as_shape(value: object, what: str) -> tuple[int, ...]:
    """A list of sizes from a file.

    Raises:
        ScanError: it is none.
    """
    sizes = tuple(value) if isinstance(value, (list, tuple)) else (-1,)
    if len(sizes) > 64 or not all(type(size) is int and 0 <= size < 1 << 63 for size in sizes):
        raise ScanError(f"{what}: expected at most 64 whole numbers, got {str(value)[:60]}")
    return sizes


def typed(
    source: Bytes, start: int, count: int, dtype: torch.dtype, swapped: bool = False
) -> Iterator[Tensor]:
    """`count` bytes from `start` on as elements of that dtype; swapped: of the other byte order."""
    for raw in source.chunks(start, count):
        yield as_dtype(raw, dtype, swapped)


def as_dtype(raw: Tensor, dtype: torch.dtype, swapped: bool) -> Tensor:
    if swapped:
        unit = dtype.itemsize // (1 + dtype.is_complex)
        raw = raw.view(-1, unit).flip(1).flatten()
    elif raw.data_ptr() % dtype.itemsize:
        raw = raw.clone()
    return raw.view(dtype)
