"""Checkpoints: folders that are complete or not there, killed at any instant, of all ranks.

DIRECTORY/step-00000100/ holds rank-00000.pt, one such file for each rank that has something to
keep, and manifest.json with their sizes and sums. The names tell the order of writing:
step-00000090.1 was written after a return to an earlier step, and is newer than all without .1.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from .._arguments import check_whole
from .._gradients import user_level
from . import _files, _manifest
from ._files import Sum, check_directory, write_file
from ._manifest import Broken, Place, file_name
from .events import GuardWarning

__all__ = ["Checkpoint", "check_directory", "every", "read", "write", "write_file"]


class Checkpoint(NamedTuple):
    """What a rank reads. first: what rank 0 wrote; own: what this rank wrote, None if nothing."""

    path: Path
    step: int
    first: Any
    own: Any


class Team:
    """The ranks of a group, in step; None is this process alone."""

    def __init__(self, group: Any):
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise ValueError(
                "group: expected a torch.distributed.ProcessGroup that this rank is part of, got "
                f"{group!r}. Pass each rank the group that holds it"
            )
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def all(self, act: Callable[[], Any]) -> list[Any]:
        """What it returns on each rank. If it fails on one, all raise: that one its own error."""
        if self.group is None:
            return [act()]
        value, error = _tried(act)
        text = None if error is None else f"{type(error).__name__}: {error}"
        told: list[Any] = [None] * self.size
        dist.all_gather_object(told, (value, text), self.group)
        if error is not None:
            raise error
        for rank, (_, text) in enumerate(told):
            if text is not None:
                raise RuntimeError(f"rank {rank} failed: {text}")
        return [value for value, _ in told]

    def first(self, act: Callable[[], Any]) -> Any:
        """What it returns on rank 0; on the others it does not run."""
        return self.all(act if self.rank == 0 else lambda: None)[0]


def _tried(act: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Also an interrupt is told before it ends this rank: the others wait to hear of it."""
    try:
        return act(), None
    except BaseException as error:
        return None, error


# --- writing -------------------------------------------------------------------------------------


def every(directory: Path) -> list[Path]:
    """All that are there, good or not, the newest first."""
    return [directory / place.name for place in _manifest.listed(directory)]


def write(
    directory: str | Path, step: int, state: Any, *, keep: int = 3, group: Any = None
) -> Path:
    """A new checkpoint, on the disk when this returns; then all but the newest `keep` are removed.

    Args:
        directory: made if it is missing.
        step: how many steps were done.
        state: tensors and plain values; None if this rank has nothing to keep.
        keep: at least 1. Broken ones do not count, and go with the good ones of their age.
        group: the ranks that write together, each its own state, and all call this; None is this
            process alone.

    Raises:
        OSError: the disk is full, for example. RuntimeError: torch.load(weights_only=True) would
            refuse the state, or another rank failed. What was there before is there still.
    """
    check_whole("step", step, 0)
    check_whole("keep", keep, 1)
    directory, team = Path(directory), Team(group)
    try:
        path = _written(directory, step, state, team)
    except Exception as error:
        what = f"checkpoint {directory / Place(0, step).name}"
        raise _files.not_written(what, error) from error
    team.first(lambda: _rotate(directory, keep))
    return path


def _written(directory: Path, step: int, state: Any, team: Team) -> Path:
    with _files.Partial(directory / Place(0, step).name) as own:
        folder = team.first(lambda: _begun(own))
        try:
            sums = team.all(lambda: _saved(folder / file_name(team.rank), state))
            return team.first(lambda: _finished(folder, step, sums))
        except BaseException:
            team.first(lambda: _files.remove(folder))  # gone before any rank raises
            raise


def _begun(folder: Path) -> Path:
    _files.make(folder.parent)
    _files.sweep(folder.parent)
    folder.mkdir()
    return folder


def _saved(path: Path, state: Any) -> Sum | None:
    if state is None:
        return None
    found = _files.save(path, state)
    _manifest.check_loads(path)
    return found


def _finished(folder: Path, step: int, sums: list[Sum | None]) -> Path:
    _files.save_bytes(folder / _manifest.NAME, _manifest.text_of(step, sums))
    _files.sync_folder(folder)
    path = _renamed(folder, step)
    _files.sync_folder(folder.parent)
    return path


def _renamed(folder: Path, step: int) -> Path:
    while True:
        path = _manifest.newer(folder.parent, step)
        try:
            return folder.rename(path)
        except OSError:
            if not os.path.lexists(path):  # else another process has just taken the name
                raise


def _rotate(directory: Path, keep: int) -> None:
    """Only sizes are looked at: the newest is the one just written, and is never removed."""
    good = 0
    for place in _manifest.listed(directory):
        if good >= keep:
            _files.discard(directory / place.name)
        else:
            good += _manifest.looks_good(directory / place.name, place.step)


# --- reading -------------------------------------------------------------------------------------


def read(directory: str | Path, *, group: Any = None) -> Checkpoint | None:
    """The newest good checkpoint; None if there are none, or no such directory.

    Every byte is checked before it is used; tensors come on the CPU. Broken checkpoints are passed
    over with a GuardWarning. All ranks of the group call this, and get the same one: the newest
    that is good on each of them.

    Raises:
        RuntimeError: there are checkpoints, and all are broken. ValueError: the newest was written
            by another number of processes, or a later version. pickle.UnpicklingError: it holds
            what torch.load(weights_only=True) refuses.
    """
    directory, team = Path(directory), Team(group)
    places: list[Place] = []
    while True:
        before, places = places, team.first(lambda: _manifest.listed(directory))
        found, broken = _newest(directory, places, team)
        if found or not places:
            return found
        if places == before:  # else another process has written and removed some meanwhile
            raise RuntimeError(_none_good(directory, broken))


def _newest(
    directory: Path, places: list[Place], team: Team
) -> tuple[Checkpoint | None, dict[Path, str]]:
    """And those before it that are broken: why."""
    broken: dict[Path, str] = {}
    for place in places:
        path = directory / place.name
        found, reason = _try(path, place.step, team)
        if found:
            _warn_of(broken if team.rank == 0 else {}, path)
            return found, broken
        broken[path] = reason
    return None, broken


def _try(path: Path, step: int, team: Team) -> tuple[Checkpoint | None, str]:
    """Or why it is broken, for one of the ranks."""
    found = None

    def reason() -> str:
        nonlocal found
        try:
            found = _loaded(path, step, team)
        except Broken as error:
            return str(error)
        return ""

    for rank, text in enumerate(team.all(reason)):
        if text:
            return None, text + f" (on rank {rank})" * (team.size > 1)
    return found, ""


def _loaded(path: Path, step: int, team: Team) -> Checkpoint:
    size, sums = _manifest.described(path, step)
    if size != team.size:
        raise ValueError(
            f"checkpoint {path} was not read: it was written by {size} processes, and there are "
            f"{team.size}. Start as many, or give another directory"
        )
    first, own = file_name(0), file_name(team.rank)
    states = {name: _manifest.load(path / name, sums[name]) for name in {first, own} & sums.keys()}
    return Checkpoint(path, step, states.get(first), states.get(own))


def _warn_of(broken: dict[Path, str], instead: Path) -> None:
    for path, reason in broken.items():
        if os.path.lexists(path):  # else another process has removed it meanwhile
            text = f"checkpoint {path} is broken: {reason}. {instead.name} is read in its place"
            warnings.warn(f"safeops.Guard: {text}", GuardWarning, stacklevel=user_level())


def _none_good(directory: Path, broken: dict[Path, str]) -> str:
    reasons = "; ".join(f"{path.name}: {reason}" for path, reason in broken.items())
    return (
        f"expected a good checkpoint in {directory}, and all {len(broken)} are broken: {reasons}. "
        "Bring a good one back, or start anew in another directory"
    )
