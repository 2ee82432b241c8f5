"""Timing that a noisy machine does not spoil.

Contenders take turns in one process, a block each a round, so that a slow phase of the machine
meets them all; ratios are taken within a round, and of the rounds the median.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]
Times = Mapping[str, list[float]]
BLOCK = 200e-6  # seconds that a timed block lasts at least
LONG = 5e-3  # a call from here on needs no untimed one before it: its caches are its own doing
MALLOC_LARGEST = 32 << 20  # bytes: glibc never raises its mmap threshold above this


@dataclass(frozen=True)
class Effort:
    """Rounds of a case: as many as fit into the seconds, within the limits."""

    seconds: float
    least: int
    most: int = 500


FULL = Effort(seconds=1.0, least=9)
QUICK = Effort(seconds=0.08, least=5)


class Block:
    """A call on a number of threads, repeated until it lasts long enough for the clock."""

    def __init__(self, call: Call, threads: int):
        self.call, self.threads = call, threads
        torch.set_num_threads(threads)
        call()
        once = elapsed(call, 1)
        if once < LONG:
            once = min(once, *(elapsed(call, 1) for _ in range(2)))
        self.repetitions = max(1, math.ceil(BLOCK / once))
        self.primed = once < LONG

    def __call__(self) -> float:
        """Seconds a call, with the caches as this contender leaves them."""
        torch.set_num_threads(self.threads)
        if self.primed:
            self.call()
        return elapsed(self.call, self.repetitions) / self.repetitions


def elapsed(call: Call, repetitions: int) -> float:
    start = time.perf_counter()
    for _ in itertools.repeat(None, repetitions):
        call()
    return time.perf_counter() - start


def turns(names: Sequence[str], number: int) -> list[str]:
    """The order of a round: rotated, and backwards in every other one."""
    first = number // 2 % len(names)
    order = [*names[first:], *names[:first]]
    return order[::-1] if number % 2 else order


def interleaved(blocks: Mapping[str, Callable[[], float]], effort: Effort, mend: Call) -> Times:
    """For each contender, its seconds a call in every round; mend() comes before each round."""
    times: dict[str, list[float]] = {name: [] for name in blocks}
    end = time.perf_counter() + effort.seconds
    for number in range(effort.most):
        if number >= effort.least and time.perf_counter() > end:
            break
        mend()
        for name in turns(list(blocks), number):
            times[name].append(blocks[name]())
    return times


@contextlib.contextmanager
def quiet(threads: int) -> Iterator[None]:
    """No garbage collection, this many threads, and an allocator that is past its youth."""
    collecting, before = gc.isenabled(), torch.get_num_threads()
    gc.collect()
    gc.disable()
    torch.set_num_threads(threads)
    settle_allocator()
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if collecting:
            gc.enable()


def settle_allocator() -> None:
    """glibc keeps freed memory up to the largest block that it has seen freed, so without this
    the first cases would pay page faults that the later ones do not."""
    torch.empty(MALLOC_LARGEST - (64 << 10), dtype=torch.uint8)


def speed(times: Times, name: str, against: str) -> float | None:
    """How many times as fast as another contender: the median over the rounds."""
    if name not in times or against not in times:
        return None
    pairs = zip(times[name], times[against], strict=True)
    return statistics.median(other / own for own, other in pairs)


def spread(times: Sequence[float]) -> tuple[float, float]:
    """The 20th and the 80th percentile."""
    fifths = statistics.quantiles(times, n=5, method="inclusive")
    return fifths[0], fifths[-1]
