"""Damaged checkpoints, and writes that fail: what was good before is read, and nothing else."""

import errno
import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from safeops.guard import _manifest, checkpoint
from safeops.guard.events import GuardWarning
from tests.checkpointed import FILE, Interrupting, assert_reads, names, small_files, written

# ---- damage


def changed(path, change):
    path.write_bytes(change(path.read_bytes()))


def rewritten(path, **entries):
    """The manifest with other entries, and a sum that fits."""
    body = json.loads((path / "manifest.json").read_text()) | entries
    del body["sha256"]
    text = json.dumps(body | {"sha256": _manifest._digest(body)})
    (path / "manifest.json").write_text(text)


def renamed(path, name):
    rewritten(path, files={name: _manifest.described(path, 2).files[FILE]._asdict()})


def as_file(path):
    shutil.rmtree(path)
    path.write_text("")


def without(path, name, instead=lambda path: None):
    (path / name).unlink()
    instead(path / name)


SUM = {"size": 1, "sha256": ""}
DAMAGE = {
    "folder empty": (lambda p: [each.unlink() for each in p.iterdir()], "manifest.json is missing"),
    "no folder": (as_file, "no folder"),
    "no file": (lambda p: without(p, FILE), f"{FILE} is missing"),
    "folder as file": (lambda p: without(p, FILE, Path.mkdir), f"{FILE} is no file"),
    "pipe as file": (lambda p: without(p, FILE, os.mkfifo), f"{FILE} is no file"),
    "pipe as manifest": (lambda p: without(p, "manifest.json", os.mkfifo), "is no file"),
    "link in a circle": (lambda p: without(p, FILE, lambda f: f.symlink_to(f)), "cannot be read"),
    "file longer": (lambda p: changed(p / FILE, lambda b: b + b"\0"), "bytes, expected"),
    "file empty": (lambda p: changed(p / FILE, lambda b: b""), "has 0 bytes, expected"),
    "other file": (lambda p: changed(p / FILE, lambda b: bytes(len(b))), "another sha256"),
    "no manifest": (lambda p: (p / "manifest.json").unlink(), "manifest.json is missing"),
    "manifest empty": (lambda p: changed(p / "manifest.json", lambda b: b""), "is damaged"),
    "garbage": (lambda p: changed(p / "manifest.json", lambda b: b"\xff\0{"), "is damaged"),
    "a list": (lambda p: changed(p / "manifest.json", lambda b: b"[1]"), "is damaged"),
    "deep": (lambda p: changed(p / "manifest.json", lambda b: b"[" * 10**6), "is damaged"),
    "other number": (
        lambda p: changed(p / "manifest.json", lambda b: b.replace(b'size": 1', b'size": 2')),
        "another sha256",
    ),
    "wrong size": (lambda p: rewritten(p, files={FILE: SUM}), "bytes, expected 1"),
    "wrong files": (lambda p: rewritten(p, files=[FILE]), "no sizes and sums"),
    "wrong sums": (lambda p: rewritten(p, files={FILE: 1}), "no sizes and sums"),
    "wrong step": (lambda p: rewritten(p, step=3), "of another checkpoint"),
    "wrong world": (lambda p: rewritten(p, world_size="1"), "of another checkpoint"),
    "above": (lambda p: renamed(p, "../step-00000001/" + FILE), "names a file"),
    "absolute": (lambda p: renamed(p, "/etc/rank-00000.pt"), "names a file"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage(tmp_path, name):
    """The older one is read, with a warning; and if there is none that is good, none is."""
    damage, reason = DAMAGE[name]
    good, bad = written(tmp_path, 1, 2)
    damage(bad)
    with pytest.warns(GuardWarning, match=f"{bad} is broken: .*{reason}.*{good.name} is read"):
        assert_reads(tmp_path, good)
    shutil.rmtree(good)
    with pytest.raises(RuntimeError, match=f"in {tmp_path}, .*{bad.name}: .*{reason}.*start anew"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize(("name", "stride"), [(FILE, 13), ("manifest.json", 1)])
def test_truncated_and_flipped(tmp_path, name, stride):
    """At many lengths and at many bits; of the manifest, each number is one that could mislead."""
    good, bad = written(tmp_path, 1, 2)
    data = (bad / name).read_bytes()
    changes = [data[:length] for length in range(0, len(data), stride)]
    changes += [flipped(data, bit) for bit in range(0, 8 * len(data), stride)]
    for change in changes:
        (bad / name).write_bytes(change)
        with pytest.warns(GuardWarning, match="is broken"):
            assert_reads(tmp_path, good)
    (bad / name).write_bytes(data)
    assert_reads(tmp_path, bad)


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_other_format(tmp_path):
    """Of a later version: an older checkpoint is not what its user wants."""
    rewritten(written(tmp_path, 1, 2)[1], format=2)
    with pytest.raises(ValueError, match="expected format 1, got 2"):
        checkpoint.read(tmp_path)


def test_other_names(tmp_path):
    """What is not called like a checkpoint is none, and is left alone."""
    for name in ("step-7", "step-0000000100", "step-00000100.01", ".step-00000100", "notes"):
        (tmp_path / name).mkdir()
    assert checkpoint.read(tmp_path) is None
    before = names(tmp_path)
    assert_reads(tmp_path, written(tmp_path, 1, 2, keep=1)[1])
    assert names(tmp_path) == sorted([*before, "step-00000002"])


# ---- what goes wrong in writing


def assert_written_before(directory, path):
    assert names(directory) == [path.name]
    assert_reads(directory, path)


@pytest.mark.parametrize("limit", [100, 1_000, 100_000])
def test_full_disk(tmp_path, limit):
    """In the middle of a tensor, and before."""
    [path] = written(tmp_path, 1)
    text = f"checkpoint {tmp_path}/step-00000002 was not written: File too large. Raise the limit"
    with small_files(limit), pytest.raises(OSError, match=text) as caught:
        checkpoint.write(tmp_path, 2, torch.ones(10**6))
    assert caught.value.errno == errno.EFBIG
    assert_written_before(tmp_path, path)


@pytest.mark.parametrize("call", range(4))
def test_failed_sync(tmp_path, monkeypatch, call):
    """Of the file, the manifest, the folder, and of the directory once the name is there."""
    [path] = written(tmp_path, 1)
    calls, real = iter(range(4)), os.fsync

    def failing(descriptor):
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match=r"was not written: No space left.*Make room") as caught:
        written(tmp_path, 2)
    assert caught.value.errno == errno.ENOSPC
    last = path if call < 3 else tmp_path / "step-00000002"
    assert names(tmp_path) == sorted({path.name, last.name})
    assert_reads(tmp_path, last)


UNWRITABLE = [
    (lambda: 0, RuntimeError, "checkpoint .*step-00000002 was not written: .*Keep plain values"),
    (Interrupting(), KeyboardInterrupt, None),
]


@pytest.mark.parametrize(("value", "kind", "text"), UNWRITABLE)
def test_unwritable(tmp_path, value, kind, text):
    [path] = written(tmp_path, 1)
    with pytest.raises(kind, match=text):
        checkpoint.write(tmp_path, 2, {"data": torch.ones(10), "value": value})
    assert_written_before(tmp_path, path)


WRONG = [
    ({"step": -1}, ValueError, "step >= 0"),
    ({"step": 1.0}, TypeError, "whole number for step"),
    ({"keep": 0}, ValueError, "keep >= 1"),
    ({"group": -100}, ValueError, "expected a torch.distributed.ProcessGroup"),
]


@pytest.mark.parametrize(("options", "kind", "text"), WRONG)
def test_wrong_arguments(tmp_path, options, kind, text):
    with pytest.raises(kind, match=text):
        checkpoint.write(**({"directory": tmp_path, "step": 1, "state": None} | options))
    assert names(tmp_path) == []


def test_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "folder"):
        for call in (checkpoint.check_directory, lambda path: written(path, 1), checkpoint.read):
            with pytest.raises(NotADirectoryError, match=str(path)):
                call(path)


@contextmanager
def nobody():
    """Root may write everywhere: it is somebody else for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_no_permission(tmp_path):
    tmp_path.chmod(0o500)
    with nobody(), pytest.raises(PermissionError, match="that this process can write to"):
        checkpoint.check_directory(tmp_path)
    tmp_path.chmod(0o700)


def test_check_directory(tmp_path):
    for _ in range(2):
        assert checkpoint.check_directory(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    assert names(tmp_path / "a" / "b") == []
