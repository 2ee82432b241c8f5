"""The search for the smallest set, against all subsets and by its number of tests."""

import random

import pytest

from safeops.diagnose.bisection.subsets import smallest


def solutions(minimal):
    return lambda chosen: any(chosen >= one for one in minimal)


@pytest.mark.parametrize("seed", range(40))
def test_the_smallest_set_is_found(seed):
    """Against all subsets, for any family of minimal sets."""
    rng = random.Random(seed)
    n = rng.randint(1, 9)
    family = [frozenset(rng.sample(range(n), rng.randint(1, n))) for _ in range(rng.randint(1, 4))]
    found = smallest(n, solutions(family))
    assert found.proven
    assert any(found.chosen >= one for one in family)
    assert len(found.chosen) == min(map(len, family))


def test_few_tests_of_many_candidates():
    for culprits, limit in (({417}, 30), ({1, 700, 998}, 90), ({3, 4, 5, 6}, 90)):
        tests = []

        def good(chosen, culprits=culprits, tests=tests):
            tests.append(chosen)
            return chosen >= culprits

        assert smallest(1000, good) == (culprits, True)
        assert len(tests) < limit


def test_what_follows_from_other_tests_is_not_tested():
    tests = []

    def good(chosen):
        tests.append(chosen)
        return len(chosen) >= 6

    assert len(smallest(12, good).chosen) == 6
    assert len(tests) < 1600  # of the 2510 sets of at most 6


def test_a_set_that_may_not_be_the_smallest_says_so():
    family = [frozenset({0, 1, 2}), frozenset({30, 31, 32, 33})]
    found = smallest(40, solutions(family))
    assert found.chosen in family
    assert not found.proven
    assert smallest(10, solutions([frozenset({0, 1}), frozenset({7, 8, 9})])).proven


@pytest.mark.parametrize("likely", [[2], [2, 3], [3, 2], [1, 2, 5], [2, 5], [4, 2]])
def test_likely_ones_are_preferred(likely):
    either = solutions([frozenset({2}), frozenset({5})])
    assert smallest(6, either, likely).chosen == {2}
    assert smallest(6, either, [5, 0]).chosen == {5}
