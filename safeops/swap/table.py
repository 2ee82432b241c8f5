"""Which of torch's functions, methods and operators safeops takes, and what takes their calls."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from ..nn import functional
from ..ops import cdist, logcumsumexp, mean, std, vector_norm
from ..ops.acos import safe_acos
from ..ops.acosh import safe_acosh
from ..ops.asin import safe_asin
from ..ops.atan2 import safe_atan2
from ..ops.atanh import safe_atanh
from ..ops.cosh import safe_cosh
from ..ops.div import safe_div
from ..ops.entr import safe_entr
from ..ops.exp import safe_exp
from ..ops.expm1 import safe_expm1
from ..ops.hypot import safe_hypot
from ..ops.log import safe_log
from ..ops.log1p import safe_log1p
from ..ops.log2 import safe_log2
from ..ops.log10 import safe_log10
from ..ops.log_softmax import log_softmax
from ..ops.logaddexp import safe_logaddexp
from ..ops.logaddexp2 import safe_logaddexp2
from ..ops.logit import safe_logit
from ..ops.logsumexp import logsumexp
from ..ops.pow import safe_pow
from ..ops.rsqrt import safe_rsqrt
from ..ops.sinh import safe_sinh
from ..ops.softmax import softmax
from ..ops.sqrt import safe_sqrt
from ..ops.xlog1py import safe_xlog1py
from ..ops.xlogy import safe_xlogy
from .calls import Function, InPlace, Wide

Options = Mapping[str, Mapping[str, Any]]
Table = Mapping[Any, Function]


def _div(input: Any, other: Any, *, rounding_mode: str | None = None, **options: Any) -> Tensor:
    """torch.div. A number of 1 or more in size can neither divide by zero nor overflow."""
    if rounding_mode is not None:
        return torch.div(input, other, rounding_mode=rounding_mode)
    if type(other) in (int, float) and abs(other) >= 1 and not options:
        return torch.div(input, other)
    return safe_div(input, other, **options)


def _reciprocal(input: Tensor, **options: Any) -> Tensor:
    return safe_div(1.0, input, **options)


def _rdiv(input: Tensor, other: Any, **options: Any) -> Tensor:
    return safe_div(other, input, **options)


def _rpow(input: Tensor, other: Any) -> Tensor:
    return safe_pow(other, input)


def _softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return softmax(input, dim, dtype=dtype)


def _log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return log_softmax(input, dim, dtype=dtype)


# torch's names, without their namespace, and what takes their calls. The namespaces that have a
# name share its meaning, but for those that follow.
POINTWISE: dict[str, Function] = {
    **dict.fromkeys(("div", "divide", "true_divide"), _div),
    "reciprocal": _reciprocal,
    "log": safe_log,
    "log2": safe_log2,
    "log10": safe_log10,
    "log1p": safe_log1p,
    "sqrt": safe_sqrt,
    "rsqrt": safe_rsqrt,
    "pow": safe_pow,
    "exp": safe_exp,
    "expm1": safe_expm1,
    "cosh": safe_cosh,
    "sinh": safe_sinh,
    **dict.fromkeys(("acos", "arccos"), safe_acos),
    **dict.fromkeys(("asin", "arcsin"), safe_asin),
    **dict.fromkeys(("atanh", "arctanh"), safe_atanh),
    **dict.fromkeys(("acosh", "arccosh"), safe_acosh),
    **dict.fromkeys(("atan2", "arctan2"), safe_atan2),
    "hypot": safe_hypot,
    "logit": safe_logit,
    "xlogy": safe_xlogy,
    "xlog1py": safe_xlog1py,
    "entr": safe_entr,
    "logaddexp": safe_logaddexp,
    "logaddexp2": safe_logaddexp2,
}
REDUCTIONS: dict[str, Function] = {
    "mean": mean.mean,
    "std": std.std,
    "var": std.var,
    "std_mean": std.std_mean,
    "var_mean": std.var_mean,
    "norm": vector_norm.norm,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "logsumexp": logsumexp,
    "logcumsumexp": logcumsumexp.logcumsumexp,
    "cdist": cdist.cdist,
}
# Methods that torch wrote in Python, by the __name__ that they have.
IN_PYTHON: dict[str, Function] = {
    "norm": Tensor.norm,
    "__rdiv__": Tensor.__rdiv__,
    "__rpow__": Tensor.__rpow__,
    "pow": Tensor.__pow__,
    "pow_": Tensor.__ipow__,
}
_OF_OPERATORS: dict[Function, Function] = {
    Tensor.__rdiv__: _rdiv,
    Tensor.__rpow__: _rpow,
    Tensor.__pow__: safe_pow,
    operator.truediv: _div,  # what a strict export calls `/`
    operator.pow: safe_pow,
}
_OF_INPLACE_OPERATORS: dict[Function, Function] = {
    Tensor.__ipow__: safe_pow,
    operator.itruediv: _div,
    operator.ipow: safe_pow,
}
_LINALG: dict[Function, Function] = {
    torch.linalg.norm: vector_norm.linalg_norm,
    torch.linalg.vector_norm: vector_norm.vector_norm,
}
_PUBLIC: dict[Function, Function] = {
    _div: safe_div,
    _reciprocal: safe_div,
    _rdiv: safe_div,
    _rpow: safe_pow,
    _softmax: softmax,
    _log_softmax: log_softmax,
    vector_norm.norm: vector_norm.vector_norm,
    vector_norm.linalg_norm: vector_norm.vector_norm,
}
# autocast gives these float32 on GPUs; where torch's own op is no part of ours it must be told
_WIDE_UNDER_AUTOCAST = {
    *("reciprocal", "log", "log2", "log10", "log1p", "rsqrt", "pow", "exp", "expm1"),
    *("cosh", "sinh", "acos"),
    *("arccos", "asin", "arcsin", "softmax", "log_softmax", "logsumexp", "__rdiv__", "__rpow__"),
}


def _named(name: str) -> Iterator[Function]:
    """torch's functions and methods of this name."""
    spaces = (torch, Tensor, torch.special)
    return (getattr(space, name) for space in spaces if hasattr(space, name))


def _pairs() -> Iterator[tuple[Function, str, Function, bool]]:
    """torch's function, its name, what takes its calls, and whether it works in place."""
    for name, target in {**POINTWISE, **REDUCTIONS}.items():
        yield from ((plain, name, target, False) for plain in _named(name))
    for name, target in POINTWISE.items():
        yield from ((plain, name, target, True) for plain in _named(f"{name}_"))
    for plain, target in {**_OF_OPERATORS, **_LINALG}.items():
        yield plain, plain.__name__, target, False
    for plain, target in _OF_INPLACE_OPERATORS.items():
        yield plain, plain.__name__, target, True
    for name in functional.__all__:
        yield getattr(torch_functional, name), name, getattr(functional, name), False


def table_of(options: Options) -> Table:
    """From each of torch's functions to what takes its calls; from those that a compiler does not
    find by identity by name, too."""
    table: dict[Function | str, Function] = {}
    for plain, name, target, in_place in _pairs():
        given = options.get(_public(target).__name__)
        call = functools.partial(target, **given) if given else target
        call = Wide(call) if name in _WIDE_UNDER_AUTOCAST else call
        table[plain] = InPlace(plain, call) if in_place else call
    return {**table, **{name: table[plain] for name, plain in IN_PYTHON.items()}}


def replaced_functions() -> dict[str, str]:
    """The names of torch's functions that safe_mode takes, and of what takes their calls."""
    return {
        torch.overrides.resolve_name(plain) or f"operator.{plain.__name__}": public
        for plain, public in _targets().items()
    }


@functools.cache
def _targets() -> dict[Function, str]:
    return {plain: public_name(target) for plain, _, target, _ in _pairs()}


def public_name_of(plain: Function) -> str:
    """The dotted name of what takes the calls of one of torch's functions."""
    return _targets()[plain]


def public_name(target: Function) -> str:
    """The dotted name of what takes a call."""
    public = _public(target)
    functional_too = public.__module__.startswith("safeops.nn.")
    return f"safeops.{'nn.functional.' * functional_too}{public.__name__}"


def _public(target: Function) -> Function:
    return _PUBLIC.get(target, target)


def check_options(options: Any) -> None:
    """A clear error for an op or a keyword that there is not, or a value that an op refuses."""
    if not isinstance(options, Mapping):
        raise TypeError(
            "options: expected a dict such as {'safe_log': {'eps': 1e-6}}, got "
            f"{type(options).__name__}; the decorator is @safe_mode(), with parentheses"
        )
    for name, given in options.items():
        keywords = _keywords().get(name)
        if keywords is None:
            known = ", ".join(_keywords())
            raise ValueError(f"options: {name!r} takes none; the ops that do are {known}")
        if not isinstance(given, Mapping) or not set(given) <= set(keywords):
            raise ValueError(f"options: {name} takes {', '.join(keywords)}; got {given!r}")
        _try(name, given)


def _try(name: str, given: Mapping[str, Any]) -> None:
    """The op's own look at its options."""
    op = next(op for op in map(_public, POINTWISE.values()) if op.__name__ == name)
    op(*[torch.ones(())] * (2 if op is safe_div else 1), **given)


@functools.cache
def _keywords() -> dict[str, list[str]]:
    """The keyword-only options of the ops that have some."""
    found = {}
    for op in map(_public, POINTWISE.values()):
        parameters = inspect.signature(op).parameters.values()
        found[op.__name__] = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return {name: keywords for name, keywords in found.items() if keywords}
