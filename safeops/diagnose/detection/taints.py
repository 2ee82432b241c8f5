"""Which memory is known not to be finite, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import causes
from .operations import values_of

if TYPE_CHECKING:
    from .findings import Finding

_MANY = 10_000


@dataclass(frozen=True)
class Origin:
    """Where a NaN or an infinity comes from. cause, name: of what came from outside. finding: what
    to tell, once something is made of it. meant: infinities that were written, as in masks."""

    cause: str = ""
    name: str = ""
    finding: Finding | None = None
    meant: bool = False


TOLD = Origin()  # a finding says it, or one from which it follows
MEANT = Origin(meant=True)
RAW = Origin(causes.MEMORY)


class Taints:
    """The origins, by storage. A weak reference to it keeps its address from being used again."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[StorageWeakRef, Origin]] = {}

    def get(self, tensor: Tensor) -> Origin | None:
        found = self._of.get(address(tensor)) if self._of else None
        return found[1] if found else None

    def put(self, tensor: Tensor, origin: Origin) -> None:
        storage = storage_of(tensor)
        if storage is not None:
            self._of[storage._cdata] = StorageWeakRef(storage), origin  # type: ignore[no-untyped-call]
        if len(self._of) > _MANY:
            self._of = {key: pair for key, pair in self._of.items() if not _gone(pair[0])}

    def overwritten(self, tensor: Tensor) -> None:
        """It is finite now; so is its memory, if it is all of it."""
        storage = storage_of(tensor) if self._of else None
        if storage is not None and tensor.numel() * tensor.element_size() == storage.nbytes():
            self._of.pop(storage._cdata, None)


def _gone(storage: StorageWeakRef) -> bool:
    return bool(storage.expired())  # type: ignore[no-untyped-call]


def storage_of(tensor: Tensor) -> Any:
    try:
        return values_of(tensor).untyped_storage()
    except (RuntimeError, NotImplementedError):  # of layouts that have none
        return None


def address(tensor: Tensor) -> int:
    """Equal for tensors that share memory."""
    storage = storage_of(tensor)
    return 0 if storage is None else storage._cdata
