"""The gradients of some parameters: one read, one decision, one write at most."""

from __future__ import annotations

import math
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import _queued, _ranks
from ._lots import Lots
from ._reports import ClipReport
from ._statistics import Row, joined, scaled

POLICIES = ("skip", "drop", "keep", "raise")


class NonFiniteGradientWarning(RuntimeWarning):
    """Gradients with NaN or infinities were skipped or dropped."""


class NonFiniteGradientError(RuntimeError):
    """Gradients hold NaN or infinities; `report` has the counts, and what was done about it."""

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
    if isinstance(given, nn.Module) and names is None:
        pairs = given.named_parameters
        return Listed(list(given.parameters()), lambda: [name for name, _ in pairs()])
    if isinstance(given, nn.Module):
        given = given.parameters()
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
        remedy = ": call it" if callable(given) else f": {given!r:.40}"
        raise TypeError(
            f"expected a tensor, an iterable of tensors or a module as {kind}, "
            f"got {type(given).__name__}{remedy}"
        )
    items = list(given.items() if isinstance(given, Mapping) else given)
    if isinstance(given, types.GeneratorType) and not items:
        warnings.warn(f"`{kind}` is an empty generator", stacklevel=user_level())
    return items


def user_level() -> int:
    """The stacklevel of the user's line for a warning: the first beyond safeops and torch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith(("safeops.", "torch.")):
        frame, level = frame.f_back, level + 1
    return level


def _split(pairs: list[Any], kind: str) -> tuple[list[str], list[Any]]:
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise TypeError(f"expected {kind} to be tensors or pairs of a name and a tensor")
    return [str(name) for name, _ in pairs], [tensor for _, tensor in pairs]


def check_tensors(tensors: list[Any], kind: str = "parameters") -> None:
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"expected a tensor at place {place} of the {kind}, got {type(tensor).__name__}"
            )


def number(name: str, value: Any) -> float:
    """What float() takes, but text: a float that is not NaN."""
    value = value.detach() if isinstance(value, Tensor) else value
    if isinstance(value, bool) or not hasattr(value, "__float__"):
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
    """Read once, by the p-norm. Of those that are `queued` on a GPU the host knows nothing yet."""

    def __init__(
        self, parameters: Listed, p: float = 2.0, group: Any = None, detailed: bool = False
    ):
        self.parameters, self.names = parameters
        self.lots = self._read(p, detailed)
        self.queued = (
            _queued.BUILT and group is None and _queued.possible(self.lots) and not self._meshes()
        )
        if not self.queued:
            self.total = self._over_ranks(group)

    def _read(self, p: float, detailed: bool) -> Lots:
        try:
            return Lots(self.parameters, True, p, detailed)
        except AttributeError:
            check_tensors(self.parameters)
            raise

    def check_missing(self) -> None:
        """A frozen parameter has no gradient and is passed over; other tensors are a mistake."""
        for place in self.lots.missing:
            if not self.parameters[place].is_leaf and not self.parameters[place].retains_grad:
                raise ValueError(
                    f"expected parameters, got the result of an operation ({self.names()[place]}), "
                    "which keeps no gradient: pass the model's parameters, not its loss or outputs"
                )
        fixed = [i for i in self.lots.missing if not self.parameters[i].requires_grad]
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

    @cached_property
    def total(self) -> Row:
        """That of all ranks that hold a part."""
        return self._over_ranks(None)

    def _over_ranks(self, group: Any) -> Row:
        lots = self.lots
        total = lots.total()
        if lots.parts or lots.missing:
            rows = [self._of_mesh(None), Row(bad=total.bad)]
            for mesh in self._meshes():
                rows.append(self._over_mesh(mesh, joined(rows, lots.p), group))
            total = joined(rows, lots.p)
        if group is None:
            return total
        return _ranks.joined_over_group(total, group, lots.p, self.device)

    def _over_mesh(self, mesh: Any, known: Row, group: Any) -> Row:
        """Of all ranks of the mesh, which a group counts once; all hear of what is bad so far."""
        local = joined([self._of_mesh(mesh), Row(bad=known.bad)], self.lots.p)
        total = _ranks.joined_over_mesh(local, mesh, self.lots.p)
        counted = group is None or _ranks.is_first(mesh, group)
        return total if counted else Row(bad=total.bad)

    def _meshes(self) -> list[Any]:
        """Of gradients, or of parameters that have none; in the order that all ranks share."""
        meshes = {part.place: part.mesh for part in self.lots.parts}
        for place in self.lots.missing:
            if _ranks.is_sharded(self.parameters[place]):
                meshes[place] = self.parameters[place].device_mesh
        return list(dict.fromkeys(meshes[place] for place in sorted(meshes) if meshes[place]))

    def _of_mesh(self, mesh: Any) -> Row:
        """What this rank holds of it."""
        totals = [(lot, lot.total(self.lots.p)) for lot in self.lots.lots if lot.mesh == mesh]
        return joined([t if lot.counted else Row(bad=t.bad) for lot, t in totals], self.lots.p)

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
        limit, shift = math.frexp(max_norm)
        return limit / norm, shift - exponent

    def scale(self, value: float, shift: float = 0) -> None:
        """Multiply by value * 2**shift in place; what is not finite becomes 0."""
        value, more = math.frexp(value)
        self.lots.write(lambda batch: batch.scale(value, int(shift) + more))
        self._assign()

    def clip(self, value: float) -> None:
        """Clip finite elements to +-value in place."""
        self.lots.write(lambda batch: batch.clip(-value, value, math.nan))
        self._assign()

    def _assign(self) -> None:
        for place, _, whole, *_ in self.lots.parts:
            given = self.parameters[place].grad
            for parameter in self.parameters if given is not whole else ():
                if parameter.grad is given:
                    parameter.grad = whole

    def release(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def norm(self, by: float = 1.0, finite: bool = False) -> Tensor:
        """by times the norm of all or of the finite elements; a finite one ends at the dtype's
        range."""
        dtype = torch.float64 if self.lots.any_double() else torch.float32
        value = self.total.total_norm
        if finite or not self.bad:
            value = scaled(self.total.norm * by, self.total.exponent)
            value = min(value, torch.finfo(dtype).max)
        return torch.scalar_tensor(value, dtype=dtype, device=self.device)
