"""A dump of a bad step that cannot be written, whatever the reason."""

import re

import pytest
import torch

from safeops._random import random_state
from safeops.guard import GuardWarning
from tests.guard_resumed import Run, bits


class Unsaid:
    """What a batch is made of."""

    def __repr__(self):
        raise LookupError("no name")


def in_the_way(folder):
    (folder / "dumps").write_text("")


DUMPS = {
    "batch": (lambda folder: None, Unsaid(), "no name"),
    "directory": (in_the_way, None, "dumps"),
}


@pytest.mark.parametrize("name", DUMPS)
def test_failing_dump(tmp_path, name):
    """It is said, and the run goes on."""
    prepare, batch, text = DUMPS[name]
    losses = (whole := Run(None)).train(3)
    run = Run(tmp_path)
    assert run.train(2) == losses[:2]
    prepare(tmp_path)
    numbers = random_state()
    with pytest.warns(GuardWarning) as caught:
        run.guard.run(lambda: run.model(torch.full((8, 4), torch.nan)).sum(), batch=batch)
    assert bits(random_state()) == bits(numbers)
    told = [str(one.message) for one in caught]
    assert len(told) == 2
    assert re.search(f"no dump of step 2: .*{text}", told[0])
    assert "step 2: skipped" in told[1]
    assert run.guard.events[0].path == ""
    assert run.train(1) == losses[2:]
    assert bits(run.model.state_dict()) == bits(whole.model.state_dict())
