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
        now = self._random()
        self._set_random(self._began)
        try:
            rest = iter(self.loader)
            for _ in islice(rest, self.position):
                pass
        finally:
            self._set_random(now)
        return rest

    def _random(self) -> dict[str, Any]:
        own = [generator.get_state() for generator in self._generators()]
        return random_state() | {"generators": own}

    def _set_random(self, state: dict[str, Any]) -> None:
        set_random_state(state)
        for generator, own in zip(self._generators(), state["generators"], strict=True):
            generator.set_state(own)

    def _generators(self) -> list[torch.Generator]:
        """Of the loader and its samplers."""
        batched = getattr(self.loader, "batch_sampler", None)
        samplers = (getattr(one, "sampler", None) for one in (self.loader, batched))
        owners = (self.loader, batched, *samplers)
        known = [getattr(one, "generator", None) for one in owners]
        found = [one for one in known if isinstance(one, torch.Generator)]
        return list({id(one): one for one in found}.values())

    def state_dict(self) -> dict[str, Any]:
        own = [generator.get_state() for generator in self._generators()]
        place = {"epoch": self.epoch, "position": self.position}
        return place | {"began": self._began, "generators": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        generators, own = self._generators(), state["generators"]
        if len(own) != len(generators):
            raise ValueError(
                f"expected the loader of this state: {len(own)} generators there, "
                f"{len(generators)} here. Make it as it was made then"
            )
        place = state["epoch"], state["position"], state["began"]
        (self.epoch, self.position, self._began), self._moved = place, True
        for generator, one in zip(generators, own, strict=True):
            generator.set_state(one)
