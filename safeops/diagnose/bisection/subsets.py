"""The smallest set that makes a test pass, by few tests."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

Set = frozenset[int]
Test = Callable[[Set], bool]

FEW = 12  # of so many candidates every set may be tried
TRIES = 200  # of more, if that many sets are to be tried


class Smallest(NamedTuple):
    """The set; and whether none is smaller, given that a superset of a good set is good."""

    chosen: Set
    proven: bool


def smallest(count: int, good: Test, likely: Sequence[int] = ()) -> Smallest:
    """The smallest good subset of range(count), which is good itself.

    First one that cannot lose an element, by O(k log n) tests (Zeller and Hildebrandt, 2002,
    "Simplifying and isolating failure-inducing input": delta debugging's complements). An element
    is necessary if all others together are not good: then it is in every good set, so that a set
    of nothing but necessary ones is the only smallest. If it is not that, smaller sets are tried.

    Args:
        count: how many candidates there are.
        good: the test. It should remember what it has seen.
        likely: the candidates that are preferred where several sets are equally small.
    """
    test, everything = _Remembering(good), frozenset(range(count))
    last = list(reversed(likely))
    order = [*sorted(everything.difference(last)), *last]
    found = shrunk(last if test(frozenset(last)) else order, test)
    needed = frozenset(one for one in found if not test(everything - {one}))
    if needed == found:
        return Smallest(found, True)
    rest = [one for one in reversed(order) if one not in needed]
    sizes = range(len(found) - len(needed))
    if len(rest) > FEW and sum(math.comb(len(rest), size) for size in sizes) > TRIES:
        return Smallest(found, False)
    sets = (needed.union(more) for size in sizes for more in itertools.combinations(rest, size))
    return Smallest(next(filter(test.may_be, sets), found), True)


class _Remembering:
    """The test, and what follows from tests before: no subset of a bad set is good."""

    def __init__(self, good: Test):
        self.good = good
        self.bad: list[Set] = []

    def __call__(self, chosen: Set) -> bool:
        if self.good(chosen):
            return True
        self.bad.append(chosen)
        return False

    def may_be(self, chosen: Set) -> bool:
        return not any(chosen <= bad for bad in self.bad) and self(chosen)


def shrunk(order: Sequence[int], good: Test) -> Set:
    """A good subset that no chunk can be taken from; chunks are halved, down to one element."""
    left, size = list(order), len(order)
    while size := size // 2:
        left = _without_chunks(left, size, good)
    return frozenset(left)


def _without_chunks(left: list[int], size: int, good: Test) -> list[int]:
    start = 0
    while start < len(left):
        fewer = left[:start] + left[start + size :]
        if good(frozenset(fewer)):
            left = fewer
        else:
            start += size
    return left
