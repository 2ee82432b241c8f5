"""Which elements of a storage a tensor is: a run of bytes, or some of a larger range."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .bytes import CHUNK, Bytes, Part, ScanError
from .stored import as_dtype, typed


class View(NamedTuple):
    """The elements at offset + Σ index·stride, the largest stride first, each `copies` times."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    copies: int

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def span(self) -> int:
        """From the first element to the last."""
        reach = zip(self.sizes, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in reach) if self.numel else 0

    @property
    def dense(self) -> bool:
        return self.span == self.numel

    @property
    def overlaps(self) -> bool:
        """Whether it may have an element twice."""
        return any(
            stride < View(0, self.sizes[i + 1 :], self.strides[i + 1 :], 1).span
            for i, stride in enumerate(self.strides)
        )


def view_of(
    name: str, offset: object, sizes: tuple[int, ...], strides: tuple[int, ...], room: int
) -> View:
    """The view that a file describes, of a storage of `room` elements.

    Raises:
        ScanError: it has elements that the storage does not have.
    """
    if type(offset) is not int or offset < 0 or len(sizes) != len(strides):
        raise ScanError(f"{name}: an offset, sizes and strides that make no tensor")
    if 0 in sizes:
        return View(0, (0,), (1,), 1)
    pairs = [pair for pair in zip(strides, sizes, strict=True) if pair[1] != 1]
    copies = math.prod(size for stride, size in pairs if not stride)
    pairs = sorted((pair for pair in pairs if pair[0]), reverse=True)
    view = View(offset, tuple(s for _, s in pairs), tuple(s for s, _ in pairs), copies)
    if offset + view.span > room:
        raise ScanError(
            f"{name}: elements up to {offset + view.span} of a storage that has {room}: the file "
            "is damaged or meant to do harm"
        )
    return view


def elements(source: Bytes, view: View, dtype: torch.dtype, swapped: bool) -> Iterator[Tensor]:
    """Each element of the view once, in flat chunks; the bytes need no alignment."""
    start, count = view.offset * dtype.itemsize, view.span * dtype.itemsize
    if view.dense:
        yield from typed(source, start, count, dtype, swapped)
    elif isinstance(source, Part):
        strides = (stride * dtype.itemsize for stride in view.strides)
        sizes = *view.sizes, dtype.itemsize
        for raw in pieces(source.mapped(start, count).as_strided(sizes, (*strides, 1))):
            yield as_dtype(raw, dtype, swapped)


def pieces(x: Tensor) -> Iterator[Tensor]:
    """The bytes x in flat parts of a chunk or less."""
    row = x[0].numel()
    if row > CHUNK:
        for part in x:
            yield from pieces(part)
    else:
        rows = max(1, CHUNK // row)
        for at in range(0, len(x), rows):
            yield x[at : at + rows].flatten().contiguous()
