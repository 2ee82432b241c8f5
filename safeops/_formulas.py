"""Lists of tensors in torch operations, on any device: what the kernels do, where they cannot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ._ranks import is_sharded
from ._route import DTYPES
from ._statistics import Row, joined

_QUICK_NORMS = (2.0, 1.0, math.inf)
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes
_SAFE = (1e-140, 1e140)  # norms of which no square leaves the range of a double


class Formulas:
    """The tensors, or the gradients of the objects (each once)."""

    def __init__(self, objects: Sequence[Any], gradients: bool = False):
        found = [(i, o.grad if gradients else o) for i, o in enumerate(objects)]
        self.missing = [place for place, tensor in found if tensor is None]
        if gradients:
            found = list({id(t): (place, t) for place, t in reversed(found)}.values())[::-1]
        found = [(place, tensor) for place, tensor in found if tensor is not None]
        taken = [(place, tensor) for place, tensor in found if _takes(tensor)]
        self.others = [(place, tensor) for place, tensor in found if not _takes(tensor)]
        self.places = [place for place, _ in taken]
        self.tensors = [tensor for _, tensor in taken]

    def __len__(self) -> int:
        return len(self.places)

    @property
    def device(self) -> torch.device:
        """That of the first tensor."""
        return self.tensors[0].device

    @property
    def any_double(self) -> bool:
        return any(t.dtype in (torch.float64, torch.complex128) for t in self.tensors)

    def scale(self, value: float, shift: int) -> None:
        factors = math.ldexp(value, shift // 2), math.ldexp(1.0, shift - shift // 2)
        for tensor in self.tensors:
            product = _wide(tensor) * factors[0] * factors[1]
            tensor.copy_(torch.where(tensor.isfinite(), product, 0.0))

    def clip(self, min: float, max: float, nan: float) -> None:
        for tensor in self.tensors:
            replaced = tensor.nan_to_num(nan, math.inf, -math.inf)
            tensor.copy_(torch.where(tensor.isnan(), replaced, tensor.clamp(min, max)))


def _takes(tensor: Any) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and (tensor.dtype in DTYPES or tensor.is_complex())
        and not is_sharded(tensor)
        and not overlaps(tensor)
    )


def overlaps(tensor: Tensor) -> bool:
    """Whether it is expanded, so that it cannot be written in place."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in pairs)


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in double precision, where the device has it."""
    if tensor.device.type == "mps":
        return tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


class Table:
    """What a read gives; copied to the host when it is looked at."""

    on_gpu = False  # where a clip could be decided without the host

    def __init__(self, tensors: list[Tensor], p: float, detailed: bool):
        self._tensors, self._p = tensors, p
        if detailed:
            _ = self._lines  # read now, since the tensors may change
            self._tensors = []

    @cached_property
    def _lines(self) -> list[Tensor]:
        return [_line(tensor.detach(), self._p) for tensor in self._tensors]

    @cached_property
    def _host(self) -> list[list[float]]:
        return [_numbers(line) for line in self._lines]

    @property
    def bad(self) -> bool:
        return any(row[-1] for row in self._host)

    def rows(self) -> list[list[float]]:
        return self._host

    def total(self) -> Sequence[float]:
        return _quick_total(self._tensors, self._p) or joined(
            [Row(*row) for row in self._host], self._p
        )


def _quick_total(tensors: list[Tensor], p: float) -> Row | None:
    """The total by torch's own norms, if that is safe: all finite, no square out of range."""
    tensors = [tensor for tensor in tensors if tensor.numel()]
    if not tensors or p not in _QUICK_NORMS or any(t.is_complex() for t in tensors):
        return None
    wide = _wide(tensors[0].new_empty(0)).dtype
    device = tensors[0].device
    norms = torch.stack([n.to(device, wide) for n in torch._foreach_norm(tensors, p, dtype=wide)])
    norm = torch.linalg.vector_norm(norms, p).item()
    if not _SAFE[0] < norm < _SAFE[1]:
        return None
    largest = norm if math.isinf(p) else 0.0
    return Row(*math.frexp(norm), largest, numel=sum(tensor.numel() for tensor in tensors))


def _numbers(line: Tensor) -> list[float]:
    """In one copy, but for subclasses that forbid it."""
    return line.tolist() if type(line) is Tensor else [column.item() for column in line]


def _line(x: Tensor, p: float) -> Tensor:
    """The columns of a Row, of one tensor."""
    finite = x.isfinite()
    size = _wide(torch.where(finite, x, 0.0)).abs()
    size = size.clamp(max=torch.finfo(size.dtype).max)
    infinite, negative = x.isinf() & ~x.isnan(), torch.real(x) < 0
    counts = [x.isnan(), infinite & ~negative, infinite & negative, *_small(x)]
    beside = 0.0 if p >= 0 else torch.finfo(size.dtype).max  # what adds nothing to the norm
    norm = _norm(torch.where(finite, size, beside), p)
    columns = [*norm, _largest(size), *(count.sum() for count in counts)]
    columns += [size.new_full((), x.numel()), ~finite.all()]
    return torch.stack([column.to(size.dtype) for column in columns])


def _small(x: Tensor) -> tuple[Tensor, Tensor]:
    """Where x is 0 and where it is subnormal, complex numbers by their larger part. By their bits:
    floats that the processor flushes compare as 0."""
    parts = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).resolve_neg()
    integer = _INTEGERS[parts.element_size()]
    bits = parts.view(integer) & torch.iinfo(integer).max
    bits = bits.amax(-1) if x.is_complex() else bits
    least_normal = int(1 / torch.finfo(x.dtype).eps)  # the bits of finfo.tiny
    return bits == 0, (bits > 0) & (bits < least_normal)


def _largest(size: Tensor) -> Tensor:
    return size.amax() if size.numel() else size.new_zeros(())


def _norm(size: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """The p-norm of magnitudes as norm * 2**exponent, in units of the one that matters most."""
    if not size.numel() or p == 0:
        norm, exponent = torch.frexp(size.count_nonzero().to(size.dtype))
        return norm, exponent
    unit, exponent = torch.frexp(size.amax() if p > 0 else size.amin())
    unit = torch.where(unit == 0, 1.0, unit)
    half = torch.div(exponent, 2, rounding_mode="floor")
    by = torch.exp2(-half.to(size.dtype)), torch.exp2((half - exponent).to(size.dtype))
    norm = torch.linalg.vector_norm(size * by[0] * by[1] / unit, p) * unit
    norm, shift = torch.frexp(norm.clamp(max=torch.finfo(size.dtype).max))
    return norm, exponent + shift
