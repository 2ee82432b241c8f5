"""Checks of checkpoints that several ranks write together; test_checkpoint.py runs them."""

import errno
import os
import re
import shutil
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from safeops.guard import checkpoint
from safeops.guard.events import GuardWarning
from tests.checkpointed import Interrupting, small_files

NAMES = ["step-00000001", "step-00000002"]


@contextmanager
def shared_folder(rank):
    """One for all ranks, until the last is done with it."""
    told = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(told)
    yield Path(told[0])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(told[0])


def group():
    return dist.group.WORLD


def state(rank, step):
    """Rank 1 has nothing to keep at odd steps."""
    return None if rank == 1 and step % 2 else {"step": step, "data": torch.full((99,), rank)}


def write(folder, rank, *steps, **options):
    return [
        checkpoint.write(folder, step, state(rank, step), group=group(), **options)
        for step in steps
    ]


def assert_reads(folder, rank, step):
    found = checkpoint.read(folder, group=group())
    assert found.step == step
    for read, wanted in ((found.first, state(0, step)), (found.own, state(rank, step))):
        torch.testing.assert_close(read, wanted, rtol=0, atol=0)
    return found.path.name


def check_round_trip(rank, ranks):
    with shared_folder(rank) as folder:
        assert checkpoint.read(folder, group=group()) is None
        paths = write(folder, rank, 1, 2, 3, 2, keep=2)
        assert [*map(Path.exists, paths)] == [False, False, True, True]
        assert_reads(folder, rank, 2)
        files = sorted(os.listdir(paths[-1]))
        assert files == ["manifest.json", *(f"rank-{each:05d}.pt" for each in range(ranks))]
        assert "rank-00001.pt" not in os.listdir(paths[2])
        return [path.name for path in paths]


def check_part_of_the_ranks(rank, ranks):
    """Who is in no group cannot write; a group of one is one process."""
    one = dist.new_group([1])
    with shared_folder(rank) as folder:
        if rank == 1:
            checkpoint.write(folder, 7, "own", group=one)
            assert checkpoint.read(folder) == (folder / "step-00000007", 7, "own", "own")
        else:
            with pytest.raises(ValueError, match="that this rank is part of"):
                checkpoint.write(folder, 7, "own", group=one)


FAILURES = [
    (torch.ones(10**6), OSError, "was not written: File too large. Raise"),
    (lambda: 0, RuntimeError, "was not written: .*Keep plain values"),
    (re.compile("a"), RuntimeError, r"was not written: .*add_safe_globals"),
    (Interrupting(), KeyboardInterrupt, None),
]


def check_one_fails(rank, ranks):
    """All hear of it, whoever it is, and nothing of the checkpoint is left."""
    with shared_folder(rank) as folder:
        write(folder, rank, 1)
        for bad in (0, ranks - 1):
            for value, kind, text in FAILURES:
                _assert_fails(folder, rank, bad, value, kind, text)
                assert os.listdir(folder) == NAMES[:1]
                assert_reads(folder, rank, 1)


def _assert_fails(folder, rank, bad, value, kind, text):
    if rank != bad:
        value, text = 1, f"step-00000002 was not written: rank {bad} failed: "
        kind = RuntimeError
    with small_files(100_000), pytest.raises(kind, match=text) as caught:
        checkpoint.write(folder, 2, value, group=group())
    assert kind is not OSError or caught.value.errno == errno.EFBIG


def check_first_fails(rank, ranks):
    """Where there can be no folder."""
    with shared_folder(rank) as folder:
        (folder / "file").touch()
        kind = RuntimeError if rank else NotADirectoryError
        with pytest.raises(kind, match=r"was not written: .*Not a directory"):
            checkpoint.write(folder / "file", 1, None, group=group())
        with pytest.raises(kind, match="Not a directory"):
            checkpoint.read(folder / "file", group=group())


def check_broken_for_one(rank, ranks):
    """Then all read the older one; the first rank says why."""
    with shared_folder(rank) as folder:
        write(folder, rank, 2, 4)
        dist.barrier()
        if rank == 1:
            (folder / "step-00000004" / "rank-00001.pt").write_bytes(b"")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            name = assert_reads(folder, rank, 2)
        texts = [str(each.message) for each in caught if each.category is GuardWarning]
        assert len(texts) == (rank == 0)
        assert all(re.search("00000004 is broken: .*1.pt has 0 bytes.*rank 1", t) for t in texts)
        return name


def check_none_good(rank, ranks):
    with shared_folder(rank) as folder:
        [path] = write(folder, rank, 1)
        dist.barrier()
        if rank == 0:
            (path / "manifest.json").unlink()
        dist.barrier()
        with pytest.raises(RuntimeError, match="step-00000001: manifest") as caught:
            checkpoint.read(folder, group=group())
        return str(caught.value)


def check_other_world(rank, ranks):
    with shared_folder(rank) as folder:
        write(folder, rank, 1)
        with pytest.raises(ValueError, match=f"by {ranks} processes, and there are 1"):
            checkpoint.read(folder)
        dist.barrier()
        if rank == 0:
            checkpoint.write(folder, 2, "alone")
        dist.barrier()
        with pytest.raises(ValueError, match=f"by 1 processes, and there are {ranks}"):
            checkpoint.read(folder, group=group())
