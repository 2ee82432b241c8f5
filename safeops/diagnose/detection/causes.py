"""Why an operation made a NaN or an infinity of finite numbers, and what prevents it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

DIVISION = "division by zero"
LOG = "log of a non-positive number"
SQRT = "square root of a negative number"
DOMAIN = "outside the domain"
SLOPE = "infinite slope"
OVERFLOW = "overflow"
HALF_OVERFLOW = "overflow in half precision"
EXPLODING = "exploding gradient"
MASKED = "fully masked softmax"
EMPTY = "empty selection"
SINGULAR = "singular matrix"
UNDEFINED = "inf - inf or 0 * inf"
INPUT = "bad input"
WEIGHT = "bad weight"
STATE = "bad optimizer state"
GRADIENT = "bad gradient"
CONSTANT = "constant that is not finite"
MEMORY = "uninitialised memory"
RANK = "bad gradient of another rank"

_GENERAL = {
    OVERFLOW: "scale what goes in, lower the learning rate, or clip: safeops.clip_grad_norm_",
    HALF_OVERFLOW: "keep this module in float32 or bfloat16: safeops.bisect_autocast names the set",
    EXPLODING: "clip: safeops.clip_grad_norm_(parameters, max_norm), or lower the learning rate",
    EMPTY: "leave out batches without elements",
    SINGULAR: "add a small multiple of the identity to the matrix",
    UNDEFINED: "keep infinities out of products and differences: mask with torch.where",
    INPUT: "clean the data: safeops.audit(model, batch=batch) says where",
    WEIGHT: "load or initialise it again; safeops.audit(model) lists all that are bad",
    STATE: "make the optimizer again; safeops.audit(model, optimizer) lists all that is bad",
    GRADIENT: "look at the hooks on this tensor, and at the gradient given to backward()",
    CONSTANT: "write a finite number; allow=(op,) if it is meant",
    MEMORY: "fill what torch.empty gives before it is read",
    RANK: "see the report of the other ranks",
}
CAUSES = (DIVISION, LOG, SQRT, DOMAIN, SLOPE, MASKED, *_GENERAL)

_SIGNS = {"div": "/", "pow": "**"}
_Inputs = Mapping[str, Any]
_Rule = tuple[str, Callable[[_Inputs], Any]]


def _at(name: str, bad: Callable[[Any], Any]) -> Callable[[_Inputs], Any]:
    """Whether some element of an input is bad."""
    return lambda inputs: _any(bad(inputs[name]))


def _any(found: Any) -> bool:
    return bool(found.any()) if isinstance(found, Tensor) else bool(found)


def _bad_power(inputs: _Inputs) -> bool:
    base, exponent = inputs["self"], inputs["exponent"]
    return _any((base < 0) & (exponent != _floor(exponent)))


def _floor(value: Any) -> Any:
    return value.floor() if isinstance(value, Tensor) else value // 1


def _zero_power(inputs: _Inputs) -> bool:
    return _any((inputs["self"] == 0) & (inputs["exponent"] < 0))


def _flat_power(inputs: _Inputs) -> bool:
    return _any((inputs["self"] == 0) & (inputs["exponent"] < 1))


def _hidden_row(inputs: _Inputs) -> bool:
    scores = inputs["self"]
    return _any((scores == -torch.inf).all(inputs.get("dim", -1)))


def _few(inputs: _Inputs) -> bool:
    """No elements to average, or one to take the variance of."""
    return inputs["self"].numel() < 2 * inputs["result"].numel()


_NOT_POSITIVE = (LOG, _at("self", lambda x: x <= 0))
_ZERO_DIVISOR = (DIVISION, _at("other", lambda y: y == 0))
_FLAT_AT_ZERO = (SLOPE, _at("result", lambda y: y == 0))
_BEYOND_ONE = (DOMAIN, _at("self", lambda x: abs(x) > 1))
_ONE = (SLOPE, _at("self", lambda x: abs(x) == 1))
_NOT_WITHIN_ONE = (DOMAIN, _at("self", lambda x: abs(x) >= 1))
_OUT_OF_UNIT = (DOMAIN, _at("self", lambda x: (x <= 0) | (x >= 1)))
_FEW = (EMPTY, _few)
_ZEROS = (SLOPE, lambda inputs: _any((inputs["self"] == 0) & (inputs["other"] == 0)))

_RULES: dict[str, tuple[_Rule, ...]] = {
    "div": (_ZERO_DIVISOR,),
    "remainder": (_ZERO_DIVISOR,),
    "fmod": (_ZERO_DIVISOR,),
    "addcdiv": ((DIVISION, _at("tensor2", lambda y: y == 0)),),
    "reciprocal": ((DIVISION, _at("self", lambda x: x == 0)),),
    "rsqrt": (
        (SQRT, _at("self", lambda x: x < 0)),
        (DIVISION, _at("self", lambda x: x == 0)),
    ),
    "log": (_NOT_POSITIVE,),
    "log2": (_NOT_POSITIVE,),
    "log10": (_NOT_POSITIVE,),
    "log1p": ((LOG, _at("self", lambda x: x <= -1)),),
    "xlogy": ((LOG, _at("other", lambda y: y <= 0)),),
    "xlog1py": ((LOG, _at("other", lambda y: y <= -1)),),
    "sqrt": ((SQRT, _at("self", lambda x: x < 0)), _FLAT_AT_ZERO),
    "pow": ((DIVISION, _zero_power), (DOMAIN, _bad_power), (SLOPE, _flat_power)),
    "acos": (_BEYOND_ONE, _ONE),
    "asin": (_BEYOND_ONE, _ONE),
    "acosh": ((DOMAIN, _at("self", lambda x: x < 1)), (SLOPE, _at("self", lambda x: x == 1))),
    "atanh": (_NOT_WITHIN_ONE,),
    "erfinv": (_NOT_WITHIN_ONE,),
    "logit": (_OUT_OF_UNIT,),
    "entr": ((SLOPE, _at("self", lambda x: x <= 0)),),
    "lgamma": ((DOMAIN, _at("self", lambda x: x <= 0)),),
    "digamma": ((DOMAIN, _at("self", lambda x: x <= 0)),),
    "atan2": (_ZEROS,),
    "hypot": (_ZEROS,),
    "softmax": ((MASKED, _hidden_row),),
    "log_softmax": ((MASKED, _hidden_row),),
    "logsumexp": ((MASKED, _hidden_row),),
    "norm": (_FLAT_AT_ZERO,),
    "linalg_vector_norm": (_FLAT_AT_ZERO,),
    "cdist": (_FLAT_AT_ZERO,),
    "std": (_FEW, _FLAT_AT_ZERO),
    "std_mean": (_FEW,),
    "var": (_FEW,),
    "var_mean": (_FEW,),
    "mean": (_FEW,),
    "mse_loss": (_FEW,),
    "l1_loss": (_FEW,),
    "smooth_l1_loss": (_FEW,),
    "huber_loss": (_FEW,),
    "binary_cross_entropy": (_FEW,),
    "nll_loss_forward": ((EMPTY, lambda inputs: True),),
    "nll_loss2d_forward": ((EMPTY, lambda inputs: True),),
    "nll_loss_nd": ((EMPTY, lambda inputs: True),),
    "nll_loss": ((EMPTY, lambda inputs: True),),
    "nll_loss2d": ((EMPTY, lambda inputs: True),),
    "ctc_loss": ((DOMAIN, lambda inputs: True),),
}


def forward_cause(op: str, inputs: _Inputs, result: Tensor) -> str | None:
    """Of an operation whose inputs were finite, or infinite on purpose; None if it overflowed.

    inputs: its arguments by name.
    """
    if any(isinstance(value, float) and not _is_finite(value) for value in inputs.values()):
        return CONSTANT
    found = cause_by_rule(op, {**inputs, "result": result})
    if found is not None:
        return found
    if op.startswith(("linalg_", "cholesky", "lu_", "inverse")):
        return SINGULAR
    return UNDEFINED if any(_is_infinite(value) for value in inputs.values()) else None


def backward_cause(op: str, saved: _Inputs) -> str | None:
    """Of a node of the graph that got finite gradients; saved: what the forward kept, if that can
    be seen."""
    rules = _RULES.get(op, ())
    return cause_by_rule(op, saved) if saved or not rules else rules[-1][0]


def overflow_of(dtype: torch.dtype, otherwise: str = OVERFLOW) -> str:
    return HALF_OVERFLOW if dtype.itemsize == 2 else otherwise


def cause_by_rule(op: str, inputs: _Inputs) -> str | None:
    for cause, holds in _RULES.get(op, ()):
        try:
            if holds(inputs):
                return cause
        except (KeyError, TypeError):  # this form of the operation has other arguments
            continue
    return None


def _is_finite(value: float) -> bool:
    return value - value == 0


def _is_infinite(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and _any(value.isinf())


def plain_name(op: str) -> str:
    """``_log_softmax.default``, ``DivBackward0`` and ``div_`` are log_softmax, div and div."""
    if "Backward" in op:
        stem = op.split("::")[-1].split("Backward")[0]
        op = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    op = op.removeprefix("_foreach").strip("_")
    return op.removeprefix("special_").removeprefix("native_").removeprefix("safe_")


def remedy_of(op: str, cause: str, line: str, within: Sequence[str] = ()) -> str:
    """What to do: the safe equivalent of the function that was called, or of the operation.

    within: the names of torch's functions that ran it, the outermost last.
    """
    if cause in _GENERAL and cause not in (OVERFLOW, EMPTY, UNDEFINED):
        return _GENERAL[cause]
    name = _safe_name(plain_name(op), line, within)
    if name is None:
        return _GENERAL.get(cause, "guard its input: torch.clamp, or safeops.swap_(model)")
    advice = f"{name} in its place, or safeops.swap_(model)"
    return f"{advice}; else {_GENERAL[cause]}" if cause in _GENERAL else advice


def _safe_name(op: str, line: str, within: Sequence[str]) -> str | None:
    """Of the function of torch's that was called; of the operation, if it is in the line; of a
    function in the line that is made of several operations."""
    names, called = _safe_names(), re.findall(r"(\w+)\(", line)
    whole = [name for name in called if names.get(name, "").startswith("safeops.nn.functional.")]
    alone = op in called or _SIGNS.get(op, "\n") in line
    wanted = [*reversed(within), *([op] if alone else [*whole, op, *called])]
    return next((names[name] for name in wanted if name in names), None)


@functools.cache
def _safe_names() -> dict[str, str]:
    """The last words of torch's names, and what safeops has for them."""
    from ...swap.table import replaced_functions

    names = {plain.split(".")[-1]: safe for plain, safe in replaced_functions().items()}
    names |= {"linalg_vector_norm": names["vector_norm"]}
    return {name: safe for name, safe in names.items() if not name.startswith("__")}
