"""The classes of swapped modules, of torch and of the user: their forward runs under safe_mode."""

from __future__ import annotations

import copyreg
import functools
import inspect
from typing import Any

from torch import nn

from .. import nn as safe_nn
from .functions import entered, table_for
from .report import UNDER_SAFE_MODE, Entry, dotted
from .table import Options

COUNTERPARTS: dict[type, type] = {
    getattr(nn, name): getattr(safe_nn, name) for name in safe_nn.MODULES
}
RECORD = "_safeops_swap"  # in the __dict__ of a module whose class was changed


class Record:
    """What a swapped module remembers: its own class, and the options of its safe_mode."""

    def __init__(self, original: type, options: Options):
        self.original, self.options = original, options
        self.table = table_for(options)

    def __reduce__(self) -> tuple:
        return Record, (self.original, self.options)

    def __deepcopy__(self, memo: Any) -> Record:
        return self


@functools.cache
def guarded_class(cls: type) -> type:
    """A class like this one, whose forward runs under safe_mode."""

    plain = cls.forward  # type: ignore[attr-defined]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with entered(self._safeops_swap.table):
            return super(guarded, self).forward(*args, **kwargs)

    same = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    forward = functools.wraps(plain)(forward) if inspect.isfunction(plain) else forward
    own = {"forward": forward, "__reduce_ex__": _reduced, RECORD: Record(cls, {})}
    guarded: Any = type(cls)(cls.__name__, (cls,), {**same, **own})
    return guarded


def _reduced(self: Any, protocol: Any) -> Any:
    """For pickle and deepcopy, which find the class by the one it was made from."""
    original = self._safeops_swap.original
    above: Any = super(guarded_class(original), self)
    make, args, *rest = above.__reduce_ex__(max(protocol, 2))
    if make in (copyreg.__newobj__, copyreg.__newobj_ex__):  # type: ignore[attr-defined]
        make, args = _renewed, (make, original, *args[1:])
    elif make is guarded_class(original):
        make, args = _made, (original, *args)
    return make, args, *rest


def _renewed(make: Any, original: type, *args: Any) -> Any:
    return make(guarded_class(original), *args)


def _made(original: type, *args: Any) -> Any:
    return guarded_class(original)(*args)


def change(module: nn.Module, entry: Entry, options: Options) -> None:
    """Give the module the class that its entry says."""
    original: Any = type(module)
    under = entry.now == UNDER_SAFE_MODE
    module.__dict__[RECORD] = Record(original, options)
    _set_class(module, guarded_class(original) if under else COUNTERPARTS[original])


def restore(module: nn.Module) -> None:
    """Give it back its own, if it has another."""
    record = record_of(module)
    module.__dict__.pop(RECORD, None)
    if record is not None:
        _set_class(module, record.original)


def _set_class(module: nn.Module, cls: type) -> None:
    """Past a __setattr__ of the module's own."""
    object.__setattr__(module, "__class__", cls)


def record_of(module: nn.Module) -> Record | None:
    """Its own, or that of its class if it was made as one of a guarded class; none if something
    gave the module its plain class again."""
    record = module.__dict__.get(RECORD)
    if record is not None and type(module) is not record.original:
        return record
    return vars(type(module)).get(RECORD)


def is_swapped(module: nn.Module) -> bool:
    return record_of(module) is not None


def check_class(name: str, module: nn.Module) -> None:
    """A clear error for a swapped module whose class somebody has changed since."""
    original: Any = record_of(module).original  # type: ignore[union-attr]
    if type(module) not in (COUNTERPARTS.get(original), guarded_class(original)):
        raise RuntimeError(
            f"unswap_: {name!r} became {dotted(type(module))} after the swap (by fully_shard, or a "
            "parametrization); undo that first. Nothing was changed"
        )
