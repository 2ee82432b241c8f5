"""One row a function that is not elementwise: where torch is sick, and what is expected there."""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

import safeops
from safeops import _route
from tests.cases import DTYPES

WIDE = (torch.float64, torch.float32)
BROAD = (torch.float64, torch.float32, torch.bfloat16)  # of which 1e30 is a number
LARGEST = sys.float_info.max  # in inputs and expected values: the dtype's own largest number


@dataclass(frozen=True)
class Case:
    """One singular point: called as function(*inputs, **kwargs).

    inputs: nested lists and floats become tensors of the dtype under test, ints int64 tensors,
        bools bool ones; fixed(x) is a tensor that wants no gradient, raw(x) is passed as it is.
    value: expected, a nested list, or a tuple of them if the function returns several.
    gradients: expected gradient of the sum of the value to each floating tensor input; None, and
        what is left out: any finite one.
    sick: torch's own value or gradient is not finite there.
    atol: what may differ besides a few ULP, in units of the dtype's eps.
    """

    inputs: tuple
    value: object
    gradients: tuple = ()
    kwargs: dict = field(default_factory=dict)
    sick: bool = True
    dtypes: tuple = DTYPES
    atol: float = 0.0


@dataclass(frozen=True)
class Function:
    """name: dotted below safeops.
    samples: OpInfo (name, variant).
    bits: the value has torch's, where that is regular (no kernel of ours computes it).
    twice: torch's own op has a second derivative. vmapped, compiled: and works under vmap,
        in one graph of torch.compile.
    """

    name: str
    torch: Callable
    samples: tuple
    cases: tuple
    bits: bool = True
    twice: bool = True
    vmapped: bool = True
    compiled: bool = True

    @property
    def function(self):
        return resolved(self.name)


@dataclass(frozen=True)
class raw:
    """An input that is no tensor."""

    value: object


@dataclass(frozen=True)
class fixed:
    """An input that is a tensor without a gradient."""

    value: object


def resolved(name):
    """The public function, or the one in the file that has it."""
    *path, last = name.split(".")
    home = importlib.import_module(".".join(["safeops", *path]))
    found = getattr(home, last, None)
    if callable(found):
        return found
    files = safeops.ops if home is safeops else home
    for file in pkgutil.iter_modules(files.__path__, f"{files.__name__}."):
        found = getattr(importlib.import_module(file.name), last, None)
        if callable(found) and found.__module__ == file.name:
            return found
    raise AttributeError(f"safeops has no {name}")


def tensor(value, dtype):
    """A nested list as a tensor: numbers with a point in dtype, at most its largest."""
    if isinstance(value, raw):
        return value.value
    value = value.value if isinstance(value, fixed) else value
    made = torch.tensor(value, dtype=None if is_whole(value) else torch.float64)
    return within(made, dtype) if made.is_floating_point() else made


def is_whole(value):
    return not torch.tensor(value).is_floating_point()


def within(made, dtype):
    limit = torch.finfo(dtype).max
    return torch.where(made.isinf(), made, made.clamp(-limit, limit)).to(dtype)


def is_leaf(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def nobody_looks(monkeypatch):
    """No function looks at values, as under a compiler."""
    monkeypatch.setattr(_route, "is_compiling", lambda: True)


def outputs(result):
    """The floating tensors of a result."""
    many = result if isinstance(result, tuple | list) else (result,)
    return [one for one in many if is_leaf(one)]


def total(result):
    return sum(one.sum() for one in outputs(result))
