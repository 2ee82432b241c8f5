"""Tensors of any kind, in lots that are read as one: from gradients to what the kernels take."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _multi_tensor, _ranks
from ._formulas import Formulas, overlaps
from ._statistics import Row, joined

CPU = torch.device("cpu")


class Part(NamedTuple):
    """What is read and written for a tensor that is not a plain one."""

    place: int
    tensor: Tensor
    whole: Tensor  # the tensor itself, or what must take its place once `tensor` is written
    counted: bool = True  # False on a rank that holds a mere replica
    mesh: Any = None


def part_of(place: int, whole: Any) -> Part:
    if not isinstance(whole, Tensor):
        raise TypeError(f"expected a tensor, got {type(whole).__name__} at place {place}")
    if _ranks.is_sharded(whole):
        part = _ranks.local(whole)  # type: ignore[arg-type]
        rest = {"whole": part.gradient, "counted": part.counted, "mesh": part.mesh}
        return part_of(place, part.tensor)._replace(**rest)
    if whole.is_nested:
        raise TypeError("expected dense or sparse tensors, got a nested one: pass its values()")
    if whole.layout is torch.strided:
        expanded = overlaps(whole)
        return part_of(place, whole.clone()) if expanded else Part(place, whole, whole)
    if whole.layout is torch.sparse_coo:
        whole = whole.coalesce()
    return Part(place, whole.values().detach(), whole)


Label = tuple[int, str, Sequence[int], torch.dtype]  # place, name, shape, dtype
Found = tuple[Any, Sequence[Label]]  # what was read, without the tensors, which may change
ONE: Sequence[Label] = ()  # the label of a tensor that was read alone is with its readings


class Lot(NamedTuple):
    """Tensors that were read together; `of` are their parts, None if they are the objects."""

    batch: Any
    readings: Any
    of: list[Part] | None = None

    @property
    def places(self) -> list[int]:
        return self.batch.places if self.of is None else [part.place for part in self.of]

    @property
    def wholes(self) -> list[Tensor]:
        return self.batch.tensors if self.of is None else [part.whole for part in self.of]

    @property
    def device(self) -> torch.device:
        """That of the first tensor."""
        on_cpu = not (self.readings.on_gpu or isinstance(self.batch, Formulas))
        return CPU if on_cpu else self.batch.device

    @property
    def counted(self) -> bool:
        return self.of is None or self.of[0].counted

    @property
    def mesh(self) -> Any:
        return None if self.of is None else self.of[0].mesh

    def total(self, p: float) -> Row:
        return _multi_tensor.row_of(self.readings.total(), p)

    def found(self, names: Sequence[str]) -> Found:
        pairs = zip(self.places, self.wholes, strict=True)
        return self.readings, [(i, names[i], t.shape, t.dtype) for i, t in pairs]


class Lots:
    """One read of the tensors, or of the gradients of the objects, by the p-norm; of everything
    that a report shows only if it is detailed."""

    def __init__(
        self,
        objects: list[Any],
        gradients: bool = False,
        p: float = 2.0,
        detailed: bool = False,
    ):
        self.p, self.detailed = p, detailed
        self.lots: list[Lot] = []
        self.parts: list[Part] = []
        batch = _multi_tensor.gather(objects, gradients, p)
        self.missing: list[int] = batch.missing
        if len(batch):
            self._add(batch)
        if batch.others:
            self.parts = [part_of(place, tensor) for place, tensor in batch.others]
            self._add_parts()

    def _add(self, batch: Any, of: list[Part] | None = None) -> None:
        self.lots.append(Lot(batch, _multi_tensor.read(batch, self.p, self.detailed), of))

    def _add_parts(self) -> None:
        """A lot for each mesh, and each way to read."""
        kinds: dict[tuple[bool, Any], list[Part]] = {}
        for part in self.parts:
            kinds.setdefault((part.counted, part.mesh), []).append(part)
        for alike in kinds.values():
            for batch, places in _multi_tensor.batches([part.tensor for part in alike], self.p):
                self._add(batch, [alike[i] for i in places])

    def total(self) -> Row:
        """Of what this rank holds."""
        totals = [lot.total(self.p) for lot in self.lots]
        return totals[0] if len(totals) == 1 else joined(totals, self.p)

    def found(self, names: Sequence[str]) -> list[Found]:
        """For a report; if the read was not detailed, by another one."""
        if not self.detailed:
            detailed = [_multi_tensor.read(lot.batch, self.p, True) for lot in self.lots]
            pairs = zip(self.lots, detailed, strict=True)
            self.lots = [lot._replace(readings=readings) for lot, readings in pairs]
            self.detailed = True
        return [lot.found(names) for lot in self.lots]

    def write(self, change: Callable[[Any], None]) -> None:
        """change(batch) for all, in place."""
        for lot in self.lots:
            _multi_tensor.changed(lot.batch, change)

    def tensors(self) -> dict[int, Tensor]:
        """What is read and written, by place."""
        return self._by_place(lambda lot: lot.batch.tensors)

    def wholes(self) -> dict[int, Tensor]:
        """The tensors themselves, by place."""
        return self._by_place(lambda lot: lot.wholes)

    def _by_place(self, of: Callable[[Lot], list[Tensor]]) -> dict[int, Tensor]:
        pairs = [zip(lot.places, of(lot), strict=True) for lot in self.lots]
        return dict(sorted(itertools.chain(*pairs), key=lambda pair: pair[0]))

    @property
    def device(self) -> torch.device:
        """That of the first tensor."""
        if len(self.lots) < 2:
            return self.lots[0].device if self.lots else CPU
        return min(self.lots, key=lambda lot: min(lot.places)).device

    def any_double(self) -> bool:
        return any(lot.batch.any_double for lot in self.lots)
