"""Containers in states keep their kind, and rates that groups share are lowered once."""

from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial

import pytest
import torch
from torch import optim

from safeops.guard import GuardWarning, Policy
from tests.guard_resumed import Run

# ---- kinds of containers


def kinds():
    return {
        "list": defaultdict(list),
        "none": defaultdict(None, a=1),
        "count": Counter(),
        "order": OrderedDict(b=1, a=2),
        "deque": deque([1], maxlen=3),
    }


def counted(state, step):
    state["list"]["a"].append(step)
    state["count"]["steps"] += 1
    state["order"][f"{step}"] = torch.tensor(step)
    state["deque"].append(step)


class Kinds(optim.SGD):
    """With states of all kinds, of a parameter and of itself."""

    def step(self, closure=None):
        super().step(closure)
        first = self.param_groups[0]["params"][0]
        for key in (first, "all"):
            if "list" not in self.state[key]:
                self.state[key].update(kinds())
            counted(self.state[key], self.state[key]["count"]["steps"])

    def told(self):
        return [self.state[key] for key in (self.param_groups[0]["params"][0], "all")]


class Keeper:
    """In others."""

    def __init__(self):
        self.state = kinds()

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def kinds_in(run):
    """Values, in the order in which they lie, and what is made where one is missing."""
    states = [*run.optimizer.told(), run.others[0].state]
    made = [[getattr(one, "default_factory", "") for one in state.values()] for state in states]
    return repr(states), made, [list(map(type, state.values())) for state in states]


def with_kinds(folder, **options):
    others = [lambda run: Keeper()]
    return Run(folder, optimizer=partial(Kinds, lr=0.1), others=others, **options)


def trained(run, steps):
    for step in range(steps):
        run.train(1)
        counted(run.others[0].state, step)


def test_kinds_rolled_back():
    """Twice, as what comes after does not reach into the snapshot."""
    run = with_kinds(None, policy=Policy(skips=0), snapshots=1, snapshot_every=5)
    trained(run, 4)
    run.train(1)
    before = kinds_in(run)
    for _ in range(2):
        trained(run, 1)
        assert kinds_in(run) != before
        with pytest.warns(GuardWarning, match="rolled back to step 5"):
            run.train(1, bad=(0,))
        assert kinds_in(run) == before


def test_kinds_resumed(tmp_path):
    run = with_kinds(tmp_path)
    trained(run, 3)
    run.guard.checkpoint()
    before = kinds_in(run)
    trained(run, 2)
    again = with_kinds(tmp_path, seed=1)
    assert again.guard.resume() == 3
    assert kinds_in(again) == before
    trained(again, 2)
    assert again.optimizer.told()[1]["list"] == run.optimizer.told()[1]["list"]


# ---- rates


@pytest.mark.parametrize("rate", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_shared_rate(rate):
    """A tensor that two groups share is lowered once for each roll-back."""
    rate = rate.clone() if isinstance(rate, torch.Tensor) else rate

    def optimizer(params):
        first, *rest = params
        groups = [{"params": [first]}, {"params": rest}]
        return optim.SGD(groups, lr=rate, foreach=False)

    run = Run(None, optimizer=optimizer, policy=Policy(skips=0, lr_factor=0.5))
    run.train(1)
    for lowered in (0.25, 0.125):
        with pytest.warns(GuardWarning, match="rolled back to step 0"):
            run.train(1, bad=(0,))
        assert [float(group["lr"]) for group in run.optimizer.param_groups] == [lowered] * 2
