"""What a swap did, and what its ops guarded in a run."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn

from ._text import columns
from .counting import GuardedReport, counted
from .table import Options, replaced_functions

_SHOWN = 6
UNDER_SAFE_MODE = "the same, under safe_mode"


class Entry(NamedTuple):
    """One module: its dotted name, its class before and after ("" if it was left), and why."""

    name: str
    was: str
    now: str
    why: str


class SwapReport:
    """What swap_ did to a model.

    replaced   entries of the modules that became their safeops.nn equivalents
    forwards   entries of the modules whose forward runs under safe_mode
    functions  torch's functions that safe_mode takes in there, by name, and their equivalents
    left       entries of what was left alone though it may matter, and why
    options    the keywords that single ops got

    ``print`` gives a table, ``to_json`` what ``swap_(model, report=...)`` takes to do the same to
    another copy of the model. With ``dry_run`` it is what would have been done.
    """

    def __init__(
        self,
        changed: Sequence[Entry],
        left: Sequence[Entry],
        options: Options,
        model: nn.Module | None = None,
    ):
        self.changed, self.left = tuple(changed), tuple(left)
        self.options = {name: dict(given) for name, given in options.items()}
        self._model = None if model is None else weakref.ref(model)

    def __getstate__(self) -> dict[str, Any]:
        """Without the model."""
        return {**vars(self), "_model": None}

    @classmethod
    def of(cls, report: SwapReport | str | Mapping[str, Any]) -> SwapReport:
        """A report, or one from its JSON."""
        if isinstance(report, SwapReport):
            return report
        try:
            read = json.loads(report) if isinstance(report, str) else report
            changed, left = ([Entry(**row) for row in read[key]] for key in ("changed", "left"))
            return cls(changed, left, read["options"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                "swap_: report must be a SwapReport or the text that its to_json() gave (not a "
                f"path: read the file first); this cannot be read: {error!r}"
            ) from error

    @property
    def replaced(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.changed if entry.now != UNDER_SAFE_MODE)

    @property
    def forwards(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.changed if entry.now == UNDER_SAFE_MODE)

    @property
    def functions(self) -> dict[str, str]:
        return replaced_functions() if self.forwards else {}

    def to_json(self) -> str:
        """A text from which swap_(model, report=...) does the same again."""
        rows = {
            key: [entry._asdict() for entry in getattr(self, key)] for key in ("changed", "left")
        }
        return json.dumps({**rows, "options": self.options}, indent=1)

    @contextmanager
    def guarded(self) -> Iterator[GuardedReport]:
        """Count what the ops guard while the block runs.

        Every call that safe_mode takes is compared with torch's own on the same input: slow, and
        only in here; outside, counting costs nothing. Compiled models run eagerly in here.

        ``values`` counts elements of the result, ``gradients`` elements of the inputs, of which a
        call may have several, at which torch is not finite and safeops is otherwise.

        >>> import torch, safeops
        >>> model = torch.nn.Softmax(-1)
        >>> with safeops.swap_(model).guarded() as counts:
        ...     _ = model(torch.tensor([[0.0, 0.0], [-torch.inf, -torch.inf]]))
        >>> [(row.op, row.values) for row in counts]
        [('safeops.nn.functional.softmax', 2)]
        """
        model = None if self._model is None else self._model()
        if model is None:
            raise RuntimeError(
                "guarded: this report belongs to no model (it was read from JSON, or the model is "
                "gone); take the report that swap_ returned"
            )
        with counted(model) as report:
            yield report

    def __str__(self) -> str:
        parts = [self._summary()]
        if self.replaced:
            parts.append(columns(("module", "was", "now", "why"), self.replaced))
        if self.forwards:
            parts.append(f"safe_mode in the forward of: {_few(self.forwards)}")
        if self.left:
            parts.append("left as they are:")
            parts.append(columns(("module", "class", "why"), _left(self.left)))
        return "\n".join(parts)

    def _summary(self) -> str:
        if not self.changed:
            return "swap: nothing was changed"
        taken = f"; {len(self.functions)} functions of torch are safe" if self.forwards else ""
        return (
            f"swap: {_count(self.replaced, 'module')} replaced, "
            f"{_count(self.forwards, 'forward')} under safe_mode{taken}"
        )

    __repr__ = __str__


def _count(entries: Sequence[Entry], noun: str) -> str:
    return f"{len(entries)} {noun}{'s' * (len(entries) != 1)}"


def _few(entries: Sequence[Entry]) -> str:
    """The first names, and how many more."""
    names = [entry.name or f"the model ({entry.was})" for entry in entries[:_SHOWN]]
    more = len(entries) - len(names)
    return ", ".join(names) + f" and {more} more" * (more > 0)


def _left(entries: Sequence[Entry]) -> list[tuple[str, str, str]]:
    return [(entry.name, entry.was, entry.why) for entry in entries]


def dotted(cls: type) -> str:
    """A class by name; torch.nn's by the name that people know."""
    module = cls.__module__
    for package in ("torch.nn.modules", "safeops.nn"):
        if module.startswith(f"{package}."):
            module = package.removesuffix(".modules")
    return f"{module}.{cls.__qualname__}"
