"""What the checks of clipping over several ranks have in common: bad gradients, and what to assert.

The checks are in the other rank_*.py, a module a question; test_gradients_ranks.py runs them.
"""

import math
from functools import partial

import pytest
import torch

import safeops
from safeops import _ranks
from tests.ranks import close, norm, whole

ORDERS = (1.0, 2.0, 3.0, math.inf)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}
POLICIES = ("skip", "keep", "raise", "drop")


def has_partial(placements):
    return any(placement.is_partial() for placement in placements)


def has_replica(mesh, placements):
    """Then the last rank holds a mere replica, which another rank counts."""
    sizes = zip(placements, mesh.shape, strict=True)
    return any(placement.is_replicate() and size > 1 for placement, size in sizes)


# ---- bad gradients


def poison(gradient, bad, here):
    with torch.no_grad():
        if here:
            part = gradient.to_local() if _ranks.is_sharded(gradient) else gradient
            part.view(-1)[-1:] = bad


def poisoned(case, bad, here, place=0, lone=False):
    """With a bad element in a gradient of one rank; lone: which nobody counts."""
    poison(case.parameters[place].grad, bad, here)
    if lone:
        return case
    return case._replace(everything=[whole(parameter.grad) for parameter in case.parameters])


# ---- one norm


def assert_clips(case, p, tolerance):
    """To the half of the norm, by an order p."""
    wanted = norm(case.everything, p)
    total = safeops.clip_grad_norm_(case.parameters, wanted / 2, p, **case.options)
    close(total, torch.tensor(wanted, dtype=torch.float64), tolerance)
    for parameter, gradient in zip(case.parameters, case.gradients, strict=True):
        close(whole(parameter.grad), gradient / 2, 2 * tolerance)
    return total.item()


# ---- one decision


def outcome(case, policy, max_norm):
    """What one rank hears of a clip: the norm, and the text of the warning or the error."""
    options = {"nonfinite": policy, **case.options}
    clip = partial(safeops.clip_grad_norm_, case.parameters, max_norm, **options)
    if policy == "keep":
        return clip().item(), ""
    if policy == "raise":
        with pytest.raises(safeops.NonFiniteGradientError) as error:
            clip()
        return error.value.report.total_norm.item(), str(error.value)
    with pytest.warns(safeops.NonFiniteGradientWarning) as caught:
        total = clip()
    return total.item(), str(caught[0].message)


def assert_decides_alike(make, bad, lone=False):
    """All policies for a bad element that one rank alone sees; returns what this rank hears.

    lone: the element is in a replica that this rank does not count, so that it knows no kind.
    """
    wanted = math.nan if lone else abs(bad)
    return {policy: assert_decides(make(bad), policy, wanted) for policy in POLICIES}


def assert_decides(case, policy, wanted):
    """One policy, which tells that norm or else that of the finite elements."""
    before = [whole(parameter.grad) for parameter in case.parameters]
    finite = norm(case.everything, 2.0)
    total, text = outcome(case, policy, finite / 2)
    assert total == pytest.approx(finite if policy == "drop" else wanted, nan_ok=True)
    assert_treated(case.parameters, before, policy)
    return text


def assert_treated(parameters, before, policy):
    if policy == "skip":
        assert [parameter.grad for parameter in parameters] == [None] * len(parameters)
        return
    for parameter, gradient in zip(parameters, before, strict=True):
        dropped = torch.where(gradient.isfinite(), gradient / 2, 0.0)
        expected = dropped if policy == "drop" else gradient
        close(whole(parameter.grad), expected, 2e-6, equal_nan=True)


def assert_hears(texts, bad, name, here):
    """One rank has it and names it; the others say that it isn't theirs."""
    for policy in ("skip", "drop", "raise"):
        named = f"{name} (1 {bad}" if here else "on another rank; those of this rank are finite"
        assert named in texts[policy], texts[policy]
