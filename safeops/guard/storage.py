"""The files of a run: checkpoints, and dumps of bad steps."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .._ranks import is_sharded, own_rank
from .._version import __version__
from . import checkpoint
from .attempt import Attempt
from .company import Company
from .packing import packed, unpacked
from .state import Parts, State, buffers_of

FORMAT = 1
DUMP = "dump of a safeops.Guard"


class Storage:
    """Of a run; directories that are None get no files.

    Ranks that hold the same weights write them once: the others store what is their own.
    """

    def __init__(
        self, directory: Any, dumps: Any, keep: int, most_dumps: int, parts: Parts, company: Company
    ):
        self.directory = None if directory is None else checkpoint.check_directory(directory)
        self._dumps = None if dumps is None else checkpoint.check_directory(dumps)
        if dumps is None and self.directory is not None:
            self._dumps = self.directory / "dumps"
        self._keep, self._left, self._parts, self._company = keep, most_dumps, parts, company
        self._known: set[Path] = set()  # checkpoints of this run
        self._own = any(map(is_sharded, parts.model.parameters())) or not own_rank()

    # --- checkpoints -----------------------------------------------------------------------------

    def write(self, step: int, state: State) -> Path:
        """Of a state that has been looked at; all ranks together."""
        if self.directory is None:
            raise ValueError("expected a directory for checkpoints: Guard(..., checkpoint_dir=...)")
        if not self._own and self._company.group is not None:
            state = state | {"model": buffers_of(self._parts.model), "optimizers": []}
        self.check_own()
        plain = self._packed(state)
        path = checkpoint.write(
            self.directory, step, plain, keep=self._keep, group=self._company.group
        )
        self._known.add(path)
        return path

    def adopt(self) -> None:
        """What is there belongs to this run."""
        if self.directory is not None:
            self._known.update(checkpoint.every(self.directory))

    def is_own(self, directory: Any) -> bool:
        return self.directory is not None and Path(directory).resolve() == self.directory.resolve()

    def check_own(self) -> None:
        """Two runs in one directory would remove each other's."""
        there = set() if self.directory is None else set(checkpoint.every(self.directory))
        strangers = there - self._known
        if self._company.worst(int(bool(strangers))):
            names = ", ".join(sorted(path.name for path in strangers)) or "those of another rank"
            raise FileExistsError(
                f"expected a directory for this run alone, got {self.directory} with those of "
                f"another one ({names}): call guard.resume() first, or give another directory"
            )

    def read_own(self) -> tuple[Path, int, State] | None:
        """Of this run, if there is a good one."""
        try:
            found = self.read() if self._known else None
        except (RuntimeError, ValueError):
            return None
        return None if found is None or found[0] not in self._known else found

    def _packed(self, state: State) -> State:
        """If it fails on one rank, all raise: none waits for the others."""
        try:
            plain, error = packed(state), None
        except TypeError as refused:
            plain, error = None, refused
        if self._company.worst(int(error is not None)):
            raise error or TypeError("the state of another rank cannot be written")
        return plain

    def read(self, directory: Any = None) -> tuple[Path, int, State] | None:
        """The newest good one; None if there is none."""
        where = self.directory if directory is None else Path(directory)
        found = None if where is None else checkpoint.read(where, group=self._company.group)
        if found is None:
            return None
        path, step, first, own = found
        state = own if own["optimizers"] or not first["optimizers"] else _joined(first, own)
        return path, step, unpacked(state)

    # --- dumps -----------------------------------------------------------------------------------

    def dump(self, step: int, reason: str, attempt: Attempt | None, state: State) -> str:
        """The path; "" where none is wanted."""
        if self._dumps is None or not self._left:
            return ""
        self._left -= 1
        path = self._dumps / f"step-{step:08d}-rank-{own_rank() or 0:05d}.pt"
        self._dumps.mkdir(exist_ok=True)
        checkpoint.write_file(path, packed(_told(step, reason, attempt) | {"state": state}))
        return str(path)


def _joined(first: State, own: State) -> State:
    return (
        first
        | own
        | {
            "model": first["model"] | own["model"],
            "optimizers": first["optimizers"],
        }
    )


def _told(step: int, reason: str, attempt: Attempt | None) -> State:
    return {
        "kind": DUMP,
        "format": FORMAT,
        "step": step,
        "reason": reason,
        "batches": [] if attempt is None else [plain_batch(one) for one in attempt.batches],
        "random": None if attempt is None else attempt.random,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    return {
        "safeops": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "machine": platform.platform(),
    }


def plain_batch(batch: Any) -> Any:
    """Mappings as dicts; what is neither a tensor nor plain as text: a replay may not need it."""
    return tree_map(_or_text, dict(batch) if isinstance(batch, Mapping) else batch)


def _or_text(value: Any) -> Any:
    try:
        packed(value)
    except TypeError:
        return repr(value)
    return value
