"""A Guard on several ranks: one rank alone is sick, and all decide alike; and all resume."""

import pytest

from tests import rank_guard, rank_guard_resume
from tests.ranks import run


@pytest.mark.parametrize("checks", [rank_guard, rank_guard_resume], ids=["faults", "checkpoints"])
def test_ranks(checks):
    run([check for name, check in vars(checks).items() if name.startswith("check_")], 2)
