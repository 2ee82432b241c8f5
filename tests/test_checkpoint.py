"""Checkpoints are read as they were written, or not at all; none is lost to a later one."""

import os
import subprocess
from collections import Counter, OrderedDict, deque
from pathlib import Path
from pickle import UnpicklingError

import pytest
import torch

from safeops.guard import _files, _manifest, checkpoint
from safeops.guard.events import GuardWarning
from tests import rank_checkpoints
from tests.checkpointed import FILE, assert_reads, names, small_files, state, written
from tests.ranks import run

CHECKS = [check for name, check in vars(rank_checkpoints).items() if name.startswith("check_")]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks(ranks):
    run(CHECKS, ranks)


# ---- round trips


def test_round_trip(tmp_path):
    folder = tmp_path / "a" / "b"
    assert checkpoint.read(folder) is None
    [path] = written(folder, 100)
    assert path == folder / "step-00000100"
    assert names(path) == ["manifest.json", FILE]
    assert_reads(str(folder), path)


def test_none(tmp_path):
    """A state of nothing is a checkpoint; a directory without any has none."""
    assert checkpoint.read(tmp_path) is None
    path = checkpoint.write(tmp_path, 0, None)
    assert checkpoint.read(tmp_path) == (path, 0, None, None)


VALUES = [
    {"a": [1, 2.5, None, True, 2**80], "b": ("text", b"bytes", {1, 2})},
    OrderedDict(a=torch.Size([1]), b=torch.float16, c=torch.device("cpu")),
    torch.nn.Parameter(torch.ones(2)),
    torch.ones(3, dtype=torch.complex64),
    torch.get_rng_state(),
    Counter("abc"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values(tmp_path, value):
    checkpoint.write(tmp_path, 1, value)
    read = checkpoint.read(tmp_path).own
    assert type(read) is type(value)
    assert torch.equal(read, value) if isinstance(value, torch.Tensor) else read == value


def test_shared_tensors_stay_shared(tmp_path):
    tensor = torch.ones(4)
    checkpoint.write(tmp_path, 1, [tensor, tensor])
    first, second = checkpoint.read(tmp_path).own
    assert first.data_ptr() == second.data_ptr()


def test_refused_globals(tmp_path):
    """By the writer; and by a reader that does not allow what the writer did."""
    with pytest.raises(RuntimeError, match=r"was not written: .*add_safe_globals\(\[collections"):
        checkpoint.write(tmp_path, 1, {"a": deque([1])})
    assert names(tmp_path) == []
    text = r"was not written: .*refuses Can only append"
    with torch.serialization.safe_globals([deque]), pytest.raises(RuntimeError, match=text):
        checkpoint.write(tmp_path, 1, {"a": deque([1])})
    with torch.serialization.safe_globals([Path, type(tmp_path)]):
        checkpoint.write(tmp_path, 1, tmp_path)
        assert checkpoint.read(tmp_path).own == tmp_path
    with pytest.raises(UnpicklingError, match=r"was not read: .*add_safe_globals\(\[pathlib"):
        checkpoint.read(tmp_path)


# ---- rotation


@pytest.mark.parametrize(
    ("steps", "keep", "left"),
    [
        ((1, 2, 3, 4), 3, ["2", "3", "4"]),
        ((1, 2, 3, 4), 1, ["4"]),
        ((9, 10, 123456789), 2, ["10", "123456789"]),
        ((5, 5, 5), 2, ["5.1", "5.2"]),
        ((10, 20, 15, 20, 30), 3, ["15.1", "20.1", "30.1"]),
        ((10, 20, 5), 2, ["20", "5.1"]),
    ],
)
def test_rotation(tmp_path, steps, keep, left):
    """The last ones are kept, also where training went back; the last is the one that is read."""
    paths = written(tmp_path, *steps, keep=keep)
    there = [name.removeprefix("step-").lstrip("0") for name in names(tmp_path)]
    assert sorted(there) == sorted(left)
    assert_reads(tmp_path, paths[-1])


def test_broken_ones_do_not_count(tmp_path):
    """They go with those of their age."""
    paths = written(tmp_path, 1, 2, 3, 4)
    for path in paths[1:]:
        (path / FILE).write_bytes(b"")
    with pytest.warns(GuardWarning):
        assert_reads(tmp_path, paths[0])
    written(tmp_path, 5, keep=2)
    assert [int(name[-1]) for name in names(tmp_path)] == [1, 2, 3, 4, 5]
    written(tmp_path, 6, keep=2)
    assert [int(name[-1]) for name in names(tmp_path)] == [5, 6]


def test_removal_follows_no_link(tmp_path):
    """A checkpoint may be a link to another disk."""
    [path] = written(tmp_path / "there", 1)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / path.name).symlink_to(path)
    assert checkpoint.read(tmp_path / "here").step == 1
    written(tmp_path / "here", 2, keep=1)
    assert names(tmp_path / "here") == ["step-00000002"]
    assert_reads(tmp_path / "there", path)


# ---- what others do meanwhile


def before_next(monkeypatch, name, act):
    """The next call in _manifest of that name comes after the act."""
    real = getattr(_manifest, name)

    def late(*arguments):
        value = real(*arguments) if name == "newer" else None
        monkeypatch.undo()
        act()
        return value or real(*arguments)

    monkeypatch.setattr(_manifest, name, late)


def test_name_taken(tmp_path, monkeypatch):
    before_next(monkeypatch, "newer", lambda: written(tmp_path, 5))
    assert_reads(tmp_path, written(tmp_path, 5)[0])
    assert names(tmp_path) == ["step-00000005", "step-00000005.1"]


def test_read_while_others_write(tmp_path, monkeypatch):
    """What is gone is not broken; what was not there yet is found."""
    paths = written(tmp_path, 1, 2)
    before_next(monkeypatch, "described", lambda: _files.discard(paths[1]))
    assert_reads(tmp_path, paths[0])
    before_next(monkeypatch, "described", lambda: written(tmp_path, 3, keep=1))
    assert_reads(tmp_path, tmp_path / "step-00000003")


# ---- single files


def test_write_file(tmp_path):
    path = tmp_path / "dump.pt"
    for value in (deque([1]), [torch.ones(2)]):
        checkpoint.write_file(path, value)
        assert str(torch.load(path, weights_only=False)) == str(value)
    with small_files(100), pytest.raises(OSError, match=f"{path} was not written: File too large"):
        checkpoint.write_file(str(path), torch.ones(1000))
    assert str(torch.load(path)) == str([torch.ones(2)])
    assert names(tmp_path) == ["dump.pt"]
    with pytest.raises(FileNotFoundError, match=r"was not written: No such file .*must be there"):
        checkpoint.write_file(tmp_path / "none" / "dump.pt", 1)


# ---- what others have left there


def test_left_overs(tmp_path):
    """Of dead processes of this host they go; so do those of an earlier life with this number."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    host = _files._host()
    stay = [f".x.{host}-{os.getppid()}-0.partial", f".x.other-{dead.pid}-0.trash", ".x.partial"]
    go = [f".step-00000001.1.{host}-{pid}-0.{kind}" for pid in (dead.pid, os.getpid())
          for kind in ("partial", "trash")]  # fmt: skip
    for write in (lambda: written(tmp_path, 1), lambda: checkpoint.write_file(tmp_path / "f", 1)):
        for name in (*stay, *go):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / FILE).write_text("")
        write()
        assert [name for name in names(tmp_path) if name[0] == "."] == sorted(stay)


class Writing:
    """A value that writes a checkpoint while it is written, as a handler of a signal may."""

    def __init__(self, directory):
        self.directory = directory

    def __reduce__(self):
        checkpoint.write(self.directory, 2, state(2))
        return OrderedDict, ()


def test_write_within_a_write(tmp_path):
    checkpoint.write(tmp_path, 2, {"step": 2, "value": Writing(tmp_path)})
    assert names(tmp_path) == ["step-00000002", "step-00000002.1"]
    assert checkpoint.read(tmp_path).own == {"step": 2, "value": {}}
