"""A loader that knows where it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from .._random import random_state, set_random_state


class Batches:
    """for batch in loader, epoch after epoch; and it can go on in the middle of one.

    As ``data=`` of a Guard, its position is part of snapshots and checkpoints. A resumed one begins
    its epoch with the random numbers of then, so that the order is the same, and passes over the
    batches that were used: they are loaded once more, and not given.

    Args:
        loader: an iterable that gives the same batches for the same random numbers of Python, NumPy
            and torch, as a torch DataLoader does.

    Attributes:
        epoch: how many have ended. position: how many batches of this one were given.

    Raises:
        TypeError: the loader is no iterable, or can be iterated over only once.

    >>> batches = Batches([10, 11, 12])
    >>> for batch in batches:
    ...     if batch == 11:
    ...         state = batches.state_dict()
    >>> other = Batches([10, 11, 12])
    >>> other.load_state_dict(state)
    >>> list(other), other.epoch
    ([12], 1)
    """

    def __init__(self, loader: Iterable[Any]):
        if not isinstance(loader, Iterable) or isinstance(loader, Iterator):
            raise TypeError(
                "expected a loader that can be iterated over again, such as a DataLoader, got "
                f"{type(loader).__name__}"
            )
        self.loader = loader
        self.epoch = self.position = 0
        self._began: dict[str, Any] | None = None  # the random numbers at the start of this epoch
        self._moved = False  # a state was loaded that the running iteration does not know of

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        more = True
        while more:
            more = False
            for batch in self._started():
                self.position += 1
                yield batch
                if self._moved:
                    more = True
                    break
        self.epoch, self.position, self._began = self.epoch + 1, 0, None

    def _started(self) -> Iterator[Any]:
        """From the position on; the random numbers of now go on."""
        if not self._moved or self._began is None:
            self._moved, self.position = False, 0
            self._began = self._random()
            return iter(self.loader)
        self._moved = False
        now = random_state()
        self._set_random(self._began)
        rest = islice(iter(self.loader), self.position, None)
        first = list(islice(rest, 1))
        set_random_state(now)
        return _chained(first, rest)

    def _random(self) -> dict[str, Any]:
        own = [generator.get_state() for generator in self._generators()]
        return random_state() | {"generators": own}

    def _set_random(self, state: dict[str, Any]) -> None:
        set_random_state(state)
        for generator, own in zip(self._generators(), state["generators"], strict=True):
            generator.set_state(own)

    def _generators(self) -> list[torch.Generator]:
        """Of the loader and its sampler."""
        sampler = getattr(self.loader, "sampler", None)
        owners = (getattr(one, "generator", None) for one in (self.loader, sampler))
        found = [one for one in owners if isinstance(one, torch.Generator)]
        return list({id(one): one for one in found}.values())

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position, "began": self._began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]
        self._began, self._moved = state["began"], True


def _chained(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    yield from first
    yield from rest
