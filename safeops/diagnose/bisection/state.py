"""The state of training: take it once, put it back bit by bit as often as needed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..._arguments import check_other
from ..._random import random_numbers

Back = Callable[[], Any]  # gives the value back as it was: the same object where it can be changed
Known = set[int]  # ids of the tensors that are kept already


class TrainingState:
    """Parameters, buffers, gradients, flags and plain attributes of the modules, optimizers, random
    numbers of Python, numpy and torch, and whatever else has a state.

    Args:
        model: all of its modules.
        others: optimizers, schedulers, gradient scalers, modules, torch.Generators, and what has
            state_dict() and load_state_dict().

    Raises:
        TypeError: something in others whose state cannot be taken.
        ValueError: a lazy parameter that has no shape yet.
    """

    def __init__(self, model: nn.Module, others: Iterable[Any] = ()):
        self._known: Known = set()
        self._backs = [_module(model, self._known)]
        self._seen: list[Any] = []
        for other in others:
            self.add(other)
        self._random = random_numbers()

    def add(self, other: Any) -> None:
        """Take one more, unless it is there."""
        if not any(other is one for one in self._seen):
            self._seen.append(other)
            self._backs.append(_other(other, self._known))

    def restore(self) -> None:
        with torch.no_grad():
            for back in (*self._backs, self._random):
                back()


def _other(value: Any, known: Known) -> Back:
    if isinstance(value, nn.Module):
        return _module(value, known)
    if isinstance(value, torch.optim.Optimizer):
        return _all(kept(value.state, known), kept(value.param_groups, known))
    if isinstance(value, torch.amp.GradScaler):  # its state_dict has no stages of an iteration
        return kept(vars(value), known)
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state)
    check_other(value)
    saved = copy.deepcopy(value.state_dict())
    return lambda: value.load_state_dict(copy.deepcopy(saved))


def _all(*backs: Back) -> Back:
    return lambda: [back() for back in backs]


def kept(value: Any, known: Known) -> Back:
    """Nested containers in place, tensors in place, other objects as deep copies if they can be
    copied, else as they are."""
    if isinstance(value, Tensor):
        return _tensor(value, known)
    if isinstance(value, dict):
        return _dict(value, known)
    if isinstance(value, (list, tuple)):
        return _sequence(value, known)
    try:
        saved = copy.deepcopy(value)
    except Exception:  # whatever its __deepcopy__ or __reduce__ raise
        return lambda: value
    return lambda: copy.deepcopy(saved)


def _dict(value: dict, known: Known) -> Back:
    items = {key: kept(one, known) for key, one in value.items()}

    def back() -> dict:
        old = {key: one() for key, one in items.items()}
        value.clear()
        value.update(old)
        return value

    return back


def _sequence(value: Any, known: Known) -> Back:
    items = [kept(one, known) for one in value]

    def back() -> Any:
        old = [one() for one in items]
        if isinstance(value, list):
            value[:] = old
        return value

    return back


def _tensor(tensor: Tensor, known: Known) -> Back:
    if id(tensor) in known:
        return lambda: tensor
    if is_lazy(tensor):
        raise ValueError("expected parameters with a shape, got a lazy one: run one forward before")
    known.add(id(tensor))
    data, saved = tensor.data, tensor.detach().clone()

    def back() -> Tensor:
        if not _writable(data):
            tensor.data = saved.clone()
            return tensor
        data.copy_(saved)
        if not _aliases(tensor, data):  # someone has set .data
            tensor.data = data
        return tensor

    return back


def _writable(tensor: Tensor) -> bool:
    """Neither sparse nor expanded."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True) if _strided(tensor) else [(2, 0)]
    return all(stride or size < 2 for size, stride in pairs)


def _strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided


def _aliases(tensor: Tensor, data: Tensor) -> bool:
    if tensor.shape != data.shape or tensor.dtype != data.dtype:
        return False
    if type(data) is not Tensor:  # a subclass may have no address
        return True
    return tensor.stride() == data.stride() and tensor.data_ptr() == data.data_ptr()


# --- modules -------------------------------------------------------------------------------------


def _module(model: nn.Module, known: Known) -> Back:
    modules = list(model.modules())
    tables = [_table(table) for m in modules for table in (m._parameters, m._buffers)]
    parameters = list(model.parameters())
    tensors = [kept(tensor, known) for tensor in (*parameters, *model.buffers())]
    gradients = [_gradient(parameter, known) for parameter in parameters]
    return _all(*tables, *tensors, *gradients, *map(_attributes, modules))


def _table(table: dict[str, Any]) -> Back:
    """Which tensors the module has; a step may register others."""
    entries = dict(table)

    def back() -> None:
        table.clear()
        table.update(entries)

    return back


def _gradient(parameter: nn.Parameter, known: Known) -> Back:
    wanted, gradient = parameter.requires_grad, kept(parameter.grad, known)

    def back() -> None:
        parameter.requires_grad_(wanted)
        parameter.grad = gradient()

    return back


def _attributes(module: nn.Module) -> Back:
    """training, and counters that are plain numbers."""
    plain = (bool, int, float, str, type(None))
    values = {name: one for name, one in vars(module).items() if type(one) in plain}
    return lambda: vars(module).update(values)
