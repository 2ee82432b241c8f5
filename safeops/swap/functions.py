"""safe_mode: torch's functions, methods and operators go to their safe equivalents."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode

from .._route import function_modes, mode_count
from .calls import Function
from .table import IN_PYTHON, Options, Table, check_options, table_of

_PLAIN = {Tensor, torch.nn.Parameter}
_NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim"}
SAFE = table_of({})


class SafeMode(TorchFunctionMode):
    """What safe_mode enters."""

    def __init__(self, table: Table = SAFE):
        super().__init__()
        self.table = table

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        in_python = type(func) is FunctionType and is_compiling()
        target = self.traced(func) if in_python else self.table.get(func)
        if target is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        special = types and (len(types) > 1 or types[0] not in _PLAIN)
        if special and not all(issubclass(kind, Tensor) for kind in types):
            return func(*args, **(kwargs or {}))
        try:
            if mode_count() and not special and not is_compiling():
                with torch._C.DisableTorchFunction():  # an outer safe_mode has no say in here
                    return _call(target, args, kwargs or {})
            return _call(target, args, kwargs) if kwargs else target(*args)
        except (TypeError, RecursionError):
            # kinds of tensors that safeops does not take: torch does, or says why
            return func(*args, **(kwargs or {}))

    def traced(self, func: Any) -> Function | None:
        """The target, for a compiler that does not find methods written in Python by identity."""
        name = func.__name__
        return self.table.get(name if name in IN_PYTHON else func)


def _call(target: Function, args: tuple, kwargs: dict[str, Any]) -> Any:
    """With torch's keywords, which are not all ours."""
    named = {_NUMPY_NAMES.get(name, name): value for name, value in kwargs.items()}
    out = named.pop("out", None)
    if not args and "input" in named:
        args = (named.pop("input"),)
    if len(args) == 1 and "other" in named:
        args = (*args, named.pop("other"))
    result = target(*args, **named)
    return result if out is None else torch.mul(result, 1, out=out)


class safe_mode:
    r"""Within this context torch's functions, methods and operators are their safe equivalents.

    ``x / y``, ``x.log()``, ``torch.sqrt(x)``, ``F.softmax(x, -1)``, ``x.norm()`` and the like are
    guarded at the elements where torch's value or gradient is not finite, and stay as they are
    elsewhere, up to the last bit: ``safeops.swap.table.replaced_functions()`` has the list, and
    each equivalent says in its docstring what it does there. In-place and ``out=`` forms keep their
    meaning; integer and floor division, and tensors that safeops does not take (complex, sparse,
    quantized), are left to torch.

    It holds for the thread that entered it, for calls from Python, in eager mode and under
    ``torch.compile(fullgraph=True)``. Backward needs no context. Entered twice it works once. It
    is a decorator, too: of methods that are called from outside a swapped model's forward, and of
    functions and methods that are given to ``torch.utils.checkpoint``, which runs them again in
    backward, when no context is left.

    Args:
        options: keywords for single ops, such as ``{"safe_log": {"eps": 1e-6}}``.

    Raises:
        ValueError, TypeError: an op without options, or an option that it does not take.

    >>> with safe_mode():
    ...     torch.zeros(2) / torch.tensor([0.0, 2.0])
    tensor([0., 0.])

    Source: torch.overrides.TorchFunctionMode.
    """

    def __init__(self, options: Options | None = None):
        self.table = table_for(options)
        self._within: list[AbstractContextManager] = []

    def __enter__(self) -> None:
        mode = entered(self.table)
        self._within.append(mode)
        if isinstance(mode, SafeMode):  # a compiler cannot enter the other one by hand
            mode.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        mode = self._within.pop()
        if isinstance(mode, SafeMode):
            mode.__exit__(*error)  # type: ignore[no-untyped-call]

    def __call__(self, function: Function) -> Function:
        table = self.table

        @functools.wraps(function)
        def under_safe_mode(*args: Any, **kwargs: Any) -> Any:
            with entered(table):
                return function(*args, **kwargs)

        return under_safe_mode


def entered(table: Table) -> AbstractContextManager:
    """A context in which this table holds."""
    for mode in function_modes():
        counts = _watched is None or type(mode) is not SafeMode
        if isinstance(mode, SafeMode) and mode.table is table and counts:
            return contextlib.nullcontext()
    return SafeMode(table) if _watched is None or is_compiling() else _watched(table)


_watched: Callable[[Table], SafeMode] | None = None


def watch(mode: Callable[[Table], SafeMode] | None) -> None:
    """From now on a safe_mode is one of these."""
    global _watched
    if mode is not None and _watched is not None:
        raise RuntimeError("guarded: another report is counting; one at a time")
    _watched = mode


def table_for(options: Options | None) -> Table:
    """The table with these options, which are checked."""
    if not options:
        return SAFE
    check_options(options)
    return _table_of(tuple((name, tuple(given.items())) for name, given in options.items()))


@functools.cache
def _table_of(options: tuple) -> Table:
    """One table for the same options, so that nested contexts know each other."""
    return table_of({name: dict(given) for name, given in options})
