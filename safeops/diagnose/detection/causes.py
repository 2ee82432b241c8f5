"""Why an operation made a NaN or an infinity of finite numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .operations import values_of

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
BROKEN = "undefined gradient"
INPUT = "bad input"
WEIGHT = "bad weight"
STATE = "bad optimizer state"
GRADIENT = "bad gradient"
CONSTANT = "constant that is not finite"
MEMORY = "uninitialised memory"
RANK = "bad gradient of another rank"

CAUSES = (
    *(DIVISION, LOG, SQRT, DOMAIN, SLOPE, MASKED, EMPTY, SINGULAR, OVERFLOW, HALF_OVERFLOW),
    *(EXPLODING, UNDEFINED, BROKEN, INPUT, WEIGHT, STATE, GRADIENT, RANK, CONSTANT, MEMORY),
)

_FACTORS = ("inv", "solve", "chol", "lu_factor", "eig", "svd", "qr", "ldl")
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
_STEEP = (SLOPE, _at("self", lambda x: 0 < x.min() < torch.finfo(x.dtype).tiny))
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
    "log": (_STEEP, _NOT_POSITIVE),
    "log2": (_STEEP, _NOT_POSITIVE),
    "log10": (_STEEP, _NOT_POSITIVE),
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
    "linalg_svd": ((SLOPE, lambda saved: True),),
    "linalg_eigh": ((SLOPE, lambda saved: True),),
    "ctc_loss": ((DOMAIN, lambda inputs: True),),
}


def forward_cause(op: str, inputs: _Inputs, result: Tensor) -> str | None:
    """Of an operation whose inputs were finite, or infinite on purpose; None if it overflowed.

    inputs: its arguments by name.
    """
    if has_constant(inputs):
        return CONSTANT
    found = cause_by_rule(op, {**inputs, "result": result})
    if found is not None:
        return found
    if any(word in op for word in _FACTORS):
        return SINGULAR
    infinite = any(_is_infinite(value) for value in inputs.values())
    return UNDEFINED if infinite and _any(result.isnan()) else None


def backward_cause(
    op: str, saved: _Inputs, gradients: Sequence[Tensor], dtype: torch.dtype
) -> str | None:
    """Of a node of the graph that got finite gradients; None if it overflowed.

    saved: what the forward kept, if that can be seen. gradients: those that came in. dtype: of
    what it gave.
    """
    rules = _RULES.get(op, ())
    if rules and not saved:
        return rules[-1][0]
    if any(_is_infinite(value) for value in saved.values()):
        return cause_by_rule(op, saved) or UNDEFINED
    overflows = dtype.itemsize == 2 or _any_large(saved, gradients)
    return cause_by_rule(op, saved) or (None if overflows else BROKEN)


def _any_large(saved: _Inputs, gradients: Sequence[Tensor]) -> bool:
    """Whether a product of some of these can overflow."""
    kept = (value for value in saved.values() if isinstance(value, Tensor))
    values = [values_of(value).detach() for value in (*gradients, *kept)]
    return any(
        float(value.abs().max()) > torch.finfo(value.dtype).max ** 0.25
        for value in values
        if value.is_floating_point() and value.numel()
    )


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


def has_constant(inputs: _Inputs) -> bool:
    """Whether a number that is given is not finite."""
    numbers = (value for value in inputs.values() if isinstance(value, float))
    return not all(map(math.isfinite, numbers))


def _is_infinite(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and _any(value.isinf())


def plain_name(op: str) -> str:
    """``_log_softmax.default``, ``DivBackward0`` and ``div_`` are log_softmax, div and div."""
    if "Backward" in op:
        stem = op.split("::")[-1].split("Backward")[0]
        op = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()
    op = op.removeprefix("_foreach").strip("_")
    return op.removeprefix("special_").removeprefix("native_").removeprefix("safe_")
