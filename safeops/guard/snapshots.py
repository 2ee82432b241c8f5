"""Copies of the state in memory: a ring of good ones, and the buffers before a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_flatten, tree_unflatten

from .._where import plain_path
from .tensors import local, put


class Snapshot(NamedTuple):
    """A state after `step` steps. lowered: how often the learning rates had been until then."""

    step: int
    form: Any
    state: Any
    lowered: int


class Ring:
    """The last snapshots; a new one takes the memory of the oldest.

    Args:
        size: how many.
        device: where they lie; None is where the tensors do.
    """

    def __init__(self, size: int, device: torch.device | None):
        self.size, self.device = size, device
        self._ring: deque[Snapshot] = deque()
        self._next = 1  # from the end: what is gone back to next

    def __len__(self) -> int:
        return len(self._ring)

    def clear(self) -> None:
        self._ring.clear()
        self._next = 1

    def take(self, step: int, form: Any, state: Any, lowered: int) -> None:
        """Those newer than the one that was gone back to are given up."""
        if not self.size:
            return
        given_up = [self._ring.pop() for _ in range(max(self._next - 2, 0))]
        if len(self._ring) >= self.size:
            given_up.append(self._ring.popleft())
        spare = given_up[-1].state if given_up else None
        self._ring.append(Snapshot(step, form, copied(state, spare, self.device), lowered))
        self._next = 1

    def last(self, form: Any) -> Snapshot | None:
        """The newest."""
        fits = bool(self._ring) and self._ring[-1].form == form
        return self._ring[-1] if fits else None

    def back(self, form: Any) -> Snapshot | None:
        """The next to go back to: the newest, and each time an older one until a new one is taken;
        the oldest as often as it takes."""
        fitting = [one for one in self._ring if one.form == form]
        if not fitting:
            return None
        found = fitting[-min(self._next, len(fitting))]
        self._next = min(self._next + 1, len(self._ring) + 1)
        return found


@torch.no_grad()
def copied(state: Any, onto: Any = None, device: torch.device | None = None) -> Any:
    """With copies of what this rank holds of the tensors, in the memory of `onto` where they fit;
    a tensor that comes twice is copied once."""
    leaves, form = tree_flatten(state)
    spare, old = tree_flatten(onto)
    spares = spare if old == form else [None] * len(leaves)
    known: dict[int, Tensor] = {}
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            if id(leaf) not in known:
                known[id(leaf)] = _copy(local(leaf), spares[place], device)
            leaves[place] = known[id(leaf)]
    return tree_unflatten(leaves, form)


def _copy(tensor: Tensor, spare: Any, device: torch.device | None) -> Tensor:
    """What lies on the CPU stays there, as the states of random numbers must."""
    where = tensor.device if device is None or tensor.device.type == "cpu" else device
    if not _fits(tensor, spare, where):
        pinned = where.type == "cpu" and tensor.is_cuda
        spare = torch.empty_like(tensor, device=where, pin_memory=pinned)
    return spare.copy_(tensor)


def _fits(tensor: Tensor, spare: Any, where: torch.device) -> bool:
    wanted = (tensor.shape, tensor.dtype, where.type)
    return isinstance(spare, Tensor) and (spare.shape, spare.dtype, spare.device.type) == wanted


def _copies(tensors: list[Tensor], spares: list[Any]) -> list[Tensor]:
    """Few calls for many small ones."""
    parts = [local(tensor) for tensor in tensors]
    pairs = zip(parts, spares, strict=True)
    made = [old if _fits(one, old, one.device) else torch.empty_like(one) for one, old in pairs]
    kinds: dict[Any, list[tuple[Tensor, Tensor]]] = {}
    for new, one in zip(made, parts, strict=True):
        kinds.setdefault((one.dtype, one.device), []).append((new, one))
    for alike in kinds.values():
        torch._foreach_copy_([new for new, _ in alike], [one for _, one in alike])
    return made


SMALL = 1 << 16  # bytes of a buffer of which a copy is always kept
_NO_STATE = nn.Module.get_extra_state


class _Entry(NamedTuple):
    table: dict[str, Any]
    name: str
    buffer: Any  # a tensor, or None
    version: int


class Buffers:
    """Those of some modules before a step: running statistics, which a forward changes. And their
    extra states.

    Copies are kept of those that have ever changed, and of small ones; of others, as masks and
    tables, only until a step has left them alone. Versions tell of changes, except of running
    statistics, which torch writes without counting. Weights that a forward renormalises
    (max_norm of an embedding) belong to them.
    """

    def __init__(self, modules: list[nn.Module]):
        named = {one: name for module in modules for name, one in module.named_modules()}
        every = list(named)
        self._paths = {id(one._buffers): plain_path(name) for one, name in named.items()}
        self._tables: list[Any] = [one._buffers for one in every]
        self._tables += [one._parameters for one in every if getattr(one, "max_norm", None)]
        self._with_extra = [one for one in every if type(one).get_extra_state is not _NO_STATE]
        self._extra: list[Any] = []
        self._running = {id(one._buffers) for one in every if isinstance(one, _NormBase)}
        self._entries: list[_Entry] = []
        self._copies: dict[int, Tensor] = {}
        self._still: dict[int, int] = {}  # version of those that have not changed so far
        self._moved: set[int] = set()  # those that have

    @torch.no_grad()
    def keep(self) -> None:
        self._extra = [deepcopy(one.get_extra_state()) for one in self._with_extra]
        self._entries = self._now()
        there = {id(entry.buffer): entry for entry in self._entries if entry.buffer is not None}
        self._copies = {key: copy for key, copy in self._copies.items() if key in there}
        self._still = {key: version for key, version in self._still.items() if key in there}
        self._moved &= there.keys()
        moving = [key for key, one in there.items() if self._still.get(key) != one.version]
        self._moved |= self._still.keys() & moving
        for key in moving:
            self._still.pop(key, None)
        copies = _copies([there[key].buffer for key in moving], [*map(self._copies.get, moving)])
        self._copies.update(zip(moving, copies, strict=True))

    def _now(self) -> list[_Entry]:
        return [
            _Entry(table, name, buffer, _version(buffer))
            for table in self._tables
            for name, buffer in table.items()
        ]

    def moving(self) -> list[tuple[str, Tensor, Tensor]]:
        """Running statistics, and those that change or were exchanged: now, and before."""
        return [
            (self._path(one), now, self._copies.get(id(one.buffer), one.buffer))
            for one in self._entries
            if one.buffer is not None and (now := one.table.get(one.name)) is not None
            if now is not one.buffer or self._moves(one)
        ]

    def _path(self, entry: _Entry) -> str:
        path = self._paths.get(id(entry.table), "")
        return f"{path}.{entry.name}" if path else entry.name

    def _moves(self, entry: _Entry) -> bool:
        return id(entry.table) in self._running or id(entry.buffer) in self._moved

    def forget(self) -> None:
        """What was before is not known."""
        self._entries, self._extra = [], []

    def settle(self) -> None:
        """After a good step."""
        for entry in self._entries:
            if _version(entry.buffer) != entry.version:
                self._moved.add(id(entry.buffer))
            copy = self._copies.get(id(entry.buffer))
            if copy is not None and self._is_still(entry, copy):
                self._still[id(entry.buffer)] = entry.version
                del self._copies[id(entry.buffer)]

    def _is_still(self, entry: _Entry, copy: Tensor) -> bool:
        if (
            self._moves(entry)
            or copy.nbytes <= SMALL
            or entry.version < 0
            or _version(entry.buffer) != entry.version
        ):
            return False
        return torch.equal(local(entry.buffer), copy)

    @torch.no_grad()
    def back(self) -> list[Tensor]:
        """As they were; those that have changed for the first time, of which there is no copy."""
        for one, state in zip(self._with_extra, self._extra, strict=False):
            one.set_extra_state(deepcopy(state))
        lost = []
        for entry in self._entries:
            entry.table[entry.name] = entry.buffer
            copy = self._copies.get(id(entry.buffer))
            if copy is not None:
                put(entry.buffer, copy)
            elif _version(entry.buffer) != entry.version:
                lost.append(entry.buffer)
        return lost

    @contextmanager
    def before(self) -> Iterator[None]:
        """In here they are as before the step."""
        now = [entry for entry in self._now() if entry.buffer is not None]
        values = _copies([entry.buffer for entry in now], [None] * len(now))
        self.back()
        yield
        for entry, value in zip(now, values, strict=True):
            entry.table[entry.name] = entry.buffer
            put(entry.buffer, value)


def _version(tensor: Tensor | None) -> int:
    """-1 where there is none."""
    return -1 if tensor is None or tensor.is_inference() else tensor._version
