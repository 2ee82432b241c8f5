"""Killed at any instant: the last checkpoint that was reported written is read, or a later one."""

import io
import multiprocessing
import os
import random
import signal
import sys
import time
import warnings
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path

import torch

from safeops.guard import _files, checkpoint
from tests.checkpointed import names

FORK = multiprocessing.get_context("forkserver")  # processes start where torch is imported
FORK.set_forkserver_preload([__name__])
PATIENCE = 60  # seconds
KEEP = 2


def state(number, size):
    """Of the number-th checkpoint that was written."""
    return {"number": number, "data": torch.full((size,), float(number))}


def number_of(directory):
    """The checkpoint that is read, once it is seen to be whole; -1 if there is none."""
    found = checkpoint.read(directory)
    if found is None:
        return -1
    number = found.own["number"]
    assert torch.equal(found.own["data"], state(number, found.own["data"].numel())["data"])
    return number


class Writer:
    """A process, and what it has reported so far."""

    def __init__(self, target, *arguments):
        self.pipe, theirs = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=target, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.reports = []

    def listen(self, seconds=PATIENCE):
        """For its next report; None if there is none in that time, or it has ended."""
        if wait([self.pipe], seconds):
            try:
                self.reports.append(self.pipe.recv())
                return self.reports[-1]
            except EOFError:
                pass
        return None

    def end(self):
        """All that it has reported, and how it ended."""
        while self.listen() is not None:
            pass
        self.process.join(PATIENCE)
        return self.reports, self.process.exitcode


# ---- at random instants

SIZE = 500_000  # elements: 2 MB
LONGEST = 0.1  # seconds from the first write until the kill: several checkpoints
KILLS = 100


def write_on(pipe, directory):
    """One after another, from the last one on."""
    warnings.simplefilter("error")
    for number in count(number_of(directory) + 1):
        pipe.send(number - 1)
        checkpoint.write(directory, number, state(number, SIZE), keep=KEEP)


def test_killed_at_random(tmp_path):
    """Each process goes on where the one before was killed."""
    last = -1
    for _ in range(KILLS):
        writer = Writer(write_on, tmp_path)
        assert writer.listen() == last
        end = time.monotonic() + random.uniform(0, LONGEST)
        while (left := end - time.monotonic()) > 0:
            writer.listen(left)
        writer.process.kill()
        reports, code = writer.end()
        assert code == -signal.SIGKILL
        last = number_of(tmp_path)
        assert last in (reports[-1], reports[-1] + 1)
    assert last >= KEEP
    written = [name for name in names(tmp_path) if name.startswith("step-")]
    assert KEEP <= len(written) <= KEEP + 1


# ---- at every operation

STEPS = (1, 2, 3, 2, 3, 4)  # training goes back once
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")


def hook(each):
    """Calls it before all that changes the disk, and in the middle of each write."""

    class Halting(io.FileIO):
        def write(self, data):
            each("write", self.name)
            half = super().write(data[: len(data) // 2])
            each("write", self.name)
            return half + super().write(data[half:])

    def fsync(descriptor):
        each("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    real, os.fsync = os.fsync, fsync
    _files.open = lambda path, mode: io.BufferedWriter(Halting(path, mode))
    sys.addaudithook(lambda event, told: event in EVENTS and each(event, *told[:2]))


def write_all(directory, done):
    for number, step in enumerate(STEPS):
        checkpoint.write(directory, step, state(number, 1000), keep=KEEP)
        done(number)


def write_until(pipe, directory, last):
    """Dies before an operation, the last-th."""
    operations = count()

    def each(*_):
        if next(operations) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    hook(each)
    write_all(directory, pipe.send)


def test_killed_at_every_operation(tmp_path):
    for last in count():
        directory = tmp_path / str(last)
        reports, code = Writer(write_until, directory, last).end()
        assert_recovers(directory, reports[-1] if reports else -1)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert last > 100


def assert_recovers(directory, done):
    """What is read; and the next write leaves nothing that is half done."""
    last = number_of(directory)
    assert last in (done, done + 1)
    checkpoint.write(directory, 9, state(9, 1000), keep=KEEP)
    assert number_of(directory) == 9
    assert len(names(directory)) == min(KEEP, last + 2)
    assert all(name.startswith("step-") for name in names(directory))


def write_traced(pipe, directory):
    hook(lambda *told: pipe.send([str(each) for each in told]))
    write_all(directory, lambda number: pipe.send(["done", number]))


def test_on_the_disk_before_it_counts(tmp_path):
    """Each file and its name are, before the folder gets its own; and that, before an older one
    goes or the caller hears of it."""
    operations, code = Writer(write_traced, tmp_path).end()
    assert code == 0
    loose, top = set(), str(tmp_path)  # what a power failure would lose
    for what, path, *to in operations:
        if what in ("write", "os.mkdir") and path != top:
            loose |= {path, str(Path(path).parent)}
        elif what == "fsync":
            loose.discard(path)
        elif what == "done" or (what == "os.rename" and to[0].endswith(".trash")):
            assert not loose, (what, path)
        elif what == "os.rename":
            assert loose <= {top}, path
            loose |= {top}
    assert [number for what, number, *_ in operations if what == "done"] == [*range(len(STEPS))]


# ---- several at once


def write_many(pipe, directory, most):
    warnings.simplefilter("error")
    for number in range(most):
        checkpoint.write(directory, number, state(number, 1000), keep=1)
        pipe.send(number)


def test_two_writers(tmp_path):
    """Of one directory, and a reader: there is always a good one, and in the end one alone."""
    writers = [Writer(write_many, tmp_path, 40) for _ in range(2)]
    assert [writer.listen() for writer in writers] == [0, 0]
    while wait([writer.process.sentinel for writer in writers], 0) == []:
        assert number_of(tmp_path) >= 0
    assert [writer.end() for writer in writers] == [([*range(40)], 0)] * 2
    assert len(names(tmp_path)) == 1
    assert number_of(tmp_path) >= 0
