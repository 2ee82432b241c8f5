"""What the tests of checkpoints have in common: states, what is read of them, and failures."""

import os
import resource
import signal
from contextlib import contextmanager

import torch

from safeops.guard import checkpoint

FILE = "rank-00000.pt"


def state(step):
    return {"step": step, "data": torch.full((64,), float(step))}


def written(directory, *steps, keep=10):
    return [checkpoint.write(directory, step, state(step), keep=keep) for step in steps]


def names(directory):
    return sorted(os.listdir(directory))


def assert_reads(directory, path):
    """That one, with what belongs to it."""
    found = checkpoint.read(directory)
    assert found.path == path
    assert found.own is found.first
    torch.testing.assert_close(found.own, state(found.step), rtol=0, atol=0)


@contextmanager
def small_files(limit):
    """Python ignores SIGXFSZ, so that a write beyond the limit is an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Interrupting:
    def __reduce__(self):
        signal.raise_signal(signal.SIGINT)
