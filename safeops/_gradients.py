"""The gradients of some parameters: one read, one decision, one write at most."""

from __future__ import annotations

import math
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import _ranks
from ._lots import Lots
from ._reports import ClipReport
from ._statistics import Row, joined, scaled

POLICIES = ("skip", "drop", "keep", "raise")


class NonFiniteGradientWarning(RuntimeWarning):
    """Gradients with NaN or infinities were skipped or dropped."""


class NonFiniteGradientError(RuntimeError):
    """Gradients hold NaN or infinities; `report` has the counts. None of them was changed."""

    def __init__(self, message: str, report: ClipReport | None = None):
        super().__init__(message)
        self.report = report


# --- arguments ---------------------------------------------------------------------------------


class Listed(NamedTuple):
    """Tensors and how to call them; names are made when somebody asks."""

    tensors: list[Any]
    names: Callable[[], Sequence[str]]


def listed(given: Any, names: Sequence[str] | None, kind: str = "parameters") -> Listed:
    """From a tensor, an iterable of tensors or of pairs with their names, a mapping or a module."""
    if isinstance(given, nn.Module):
        pairs = given.named_parameters
        return Listed(list(given.parameters()), lambda: [name for name, _ in pairs()])
    tensors = [given] if isinstance(given, Tensor) else _items(given, kind)
    if tensors and isinstance(tensors[0], tuple):
        names, tensors = _split(tensors, kind)
    if names is None:
        return Listed(tensors, lambda: [f"{kind}[{i}]" for i in range(len(tensors))])
    names = list(names)
    if len(names) != len(tensors):
        raise ValueError(f"expected a name for each of {len(tensors)} {kind}, got {len(names)}")
    return Listed(tensors, lambda: names)


def _items(given: Any, kind: str) -> list[Any]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(
            f"expected a tensor, an iterable of tensors or a module as {kind}, "
            f"got {type(given).__name__}: {given!r:.40}"
        )
    items = list(given.items() if isinstance(given, Mapping) else given)
    if isinstance(given, types.GeneratorType) and not items:
        warnings.warn(f"`{kind}` is an empty generator, nothing will be done", stacklevel=5)
    return items


def _split(pairs: list[Any], kind: str) -> tuple[list[str], list[Any]]:
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise TypeError(f"expected {kind} to be tensors or pairs of a name and a tensor")
    return [str(name) for name, _ in pairs], [tensor for _, tensor in pairs]


def check_tensors(tensors: list[Any], kind: str = "parameters") -> None:
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"expected tensors as {kind}, got {type(tensor).__name__} at place {place}: "
                f"{tensor!r:.40}"
            )


def number(name: str, value: Any) -> float:
    """A number or a tensor with one element as a float that is not NaN."""
    if isinstance(value, (bool, str)) or not isinstance(value, (Real, Tensor)):
        raise TypeError(f"expected a number as {name}, got {type(value).__name__}: {value!r:.40}")
    if math.isnan(converted := float(value)):
        raise ValueError(f"expected a number as {name}, got NaN")
    return converted


def limit(name: str, value: Any) -> float:
    """A number that is not negative."""
    if (converted := number(name, value)) < 0:
        raise ValueError(f"expected {name} >= 0, got {value!r}")
    return converted


def order(value: Any) -> float:
    """The order of a norm, as torch takes it."""
    if isinstance(value, str):
        if value.lower().lstrip("+-") not in ("inf", "infinity"):
            raise ValueError(f"expected a number or 'inf' as norm_type, got {value!r}")
        return float(value)
    return number("norm_type", value)


def policy(nonfinite: str, error_if_nonfinite: bool = False) -> str:
    if nonfinite not in POLICIES:
        raise ValueError(
            f"expected nonfinite to be one of {', '.join(POLICIES)}, got {nonfinite!r}"
        )
    return "raise" if error_if_nonfinite else nonfinite


# --- one read ----------------------------------------------------------------------------------


class Gradients:
    """Read once, by the p-norm. `total` is that of all ranks that hold a part."""

    def __init__(self, parameters: Listed, p: float = 2.0, group: Any = None):
        self.parameters, self.names = parameters
        self.lots = self._read(p)
        self._check_missing(self.lots.missing)
        self.total = self._over_ranks(group)

    def _read(self, p: float) -> Lots:
        try:
            return Lots(self.parameters, "grad", p)
        except AttributeError:
            check_tensors(self.parameters)
            raise

    def _check_missing(self, missing: list[int]) -> None:
        """A frozen parameter has no gradient and is passed over; other tensors are a mistake."""
        fixed = [place for place in missing if not self.parameters[place].requires_grad]
        for place in fixed:
            if not isinstance(self.parameters[place], nn.Parameter):
                raise ValueError(
                    f"expected parameters, got a tensor that neither requires grad nor has a .grad "
                    f"({self.names()[place]}): pass the parameters, not their gradients"
                )
        if fixed and len(fixed) == len(self.parameters):
            raise ValueError(
                "expected parameters to clip, got only frozen ones: none requires grad or has one"
            )

    def _over_ranks(self, group: Any) -> Row:
        lots = self.lots
        if lots.parts or lots.missing:
            total = joined([self._of_mesh(None), *map(self._of_mesh, self._meshes())], lots.p)
        else:
            total = lots.total()
        if group is None:
            return total
        return _ranks.joined_over_group(total, group, lots.p, self.device)

    def _meshes(self) -> list[Any]:
        """In the order of the parameters, which is the same on all ranks."""
        places = sorted([*self.lots.missing, *(part.place for part in self.lots.parts)])
        sharded = filter(_ranks.is_sharded, (self.parameters[place] for place in places))
        return list(dict.fromkeys(parameter.device_mesh for parameter in sharded))

    def _of_mesh(self, mesh: Any) -> Row:
        totals = [(lot, lot.total(self.lots.p)) for lot in self.lots.lots if lot.mesh == mesh]
        rows = [row if lot.counted else Row(bad=row.bad) for lot, row in totals]
        total = joined(rows, self.lots.p)
        return total if mesh is None else _ranks.joined_over_mesh(total, mesh, self.lots.p)

    @property
    def bad(self) -> bool:
        return self.total.bad > 0

    @property
    def device(self) -> torch.device:
        """That of the first gradient."""
        return self.lots.device

    def factor(self, max_norm: float, by: float = 1.0) -> tuple[float, float]:
        """by, or what brings by times the norm of the finite elements down to max_norm; as
        value * 2**shift."""
        norm, exponent = self.total.norm, self.total.exponent
        if norm == 0.0 or scaled(norm * by, exponent) <= max_norm:
            return by, 0
        return max_norm / norm, -exponent

    def scale(self, value: float, shift: float = 0) -> None:
        """Multiply by value * 2**shift in place; what is not finite becomes 0."""
        self.lots.write(lambda batch: batch.scale(value, int(shift)))
        self._assign()

    def clip(self, value: float) -> None:
        """Clip finite elements to +-value in place."""
        self.lots.write(lambda batch: batch.clip(-value, value, math.nan))
        self._assign()

    def _assign(self) -> None:
        for place, _, whole, *_ in self.lots.parts:
            if self.parameters[place].grad is not whole:
                self.parameters[place].grad = whole

    def release(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def norm(self, by: float = 1.0, finite: bool = False) -> Tensor:
        """by times the norm of all or of the finite elements; a finite one ends at the dtype's
        range."""
        dtype = torch.float64 if self.lots.any_double() else torch.float32
        value = by * (self.total.finite_norm if finite else self.total.total_norm)
        if finite or not self.bad:
            value = min(value, torch.finfo(dtype).max)
        return torch.tensor(value, dtype=dtype, device=self.device)
