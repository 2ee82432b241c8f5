"""What a tensor is to a model and its optimizers, by the memory that it shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..._where import plain_path
from .operations import values_of
from .taints import address


class Known(NamedTuple):
    """kind: "parameter", "buffer", "gradient" or "state". name: of the parameter or buffer, and
    the word of the state."""

    kind: str
    name: str
    state: str = ""

    def __str__(self) -> str:
        gradient = "gradient of " * (self.kind == "gradient")
        return f"{gradient}{self.name}" + f" {self.state}" * bool(self.state)


class Names:
    """Of the parameters, gradients and buffers of a model, and of the state of optimizers."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.optimizers: list[torch.optim.Optimizer] = []

    def look_up(self) -> Callable[[Tensor], Known | None]:
        """What a tensor is now; of several in one storage the one that it lies in."""
        found: dict[int, list[tuple[range, Known]]] = {}
        for tensor, known in self._all():
            found.setdefault(address(tensor), []).append((_extent(tensor), known))

        def what_is(tensor: Tensor) -> Known | None:
            beside = found.get(address(tensor), [])
            start = values_of(tensor).storage_offset() if beside else 0
            return next((known for extent, known in beside if start in extent), None)

        return what_is

    def _all(self) -> Iterator[tuple[Tensor, Known]]:
        named = {plain_path(name): one for name, one in self.model.named_parameters()}
        for name, buffer in self.model.named_buffers():
            yield buffer, Known("buffer", plain_path(name))
        names = {parameter: name for name, parameter in named.items()}
        for optimizer in self.optimizers:
            yield from _states(optimizer, names)
        for name, parameter in named.items():
            if parameter.grad is not None:
                yield parameter.grad, Known("gradient", name)
            yield parameter, Known("parameter", name)


def _extent(tensor: Tensor) -> range:
    """The places of its elements in its storage."""
    tensor = values_of(tensor)
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(tensor.storage_offset(), tensor.storage_offset() + last + 1)


def _states(
    optimizer: torch.optim.Optimizer, names: dict[Any, str]
) -> Iterator[tuple[Tensor, Known]]:
    for parameter, state in optimizer.state.items():
        for word, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, Tensor):
                yield value, Known("state", names.get(parameter, ""), word)
