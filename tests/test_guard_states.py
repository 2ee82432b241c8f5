"""What a bad step and a roll-back put back beside weights: buffers, other states, generators."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import safeops
from safeops.guard import GuardWarning, Policy
from tests.guard_resumed import OTHERS, Run, bits


def test_average_beside_the_step():
    """One that is updated after step() counts the good steps, also where a bad one follows."""
    run = Run(None)
    averaged = AveragedModel(run.model)
    guard = safeops.Guard(run.model, run.optimizer, others=[averaged])
    for factor in (1.0, 1.0, float("nan"), 1.0):
        run.optimizer.zero_grad()
        loss = run.model(torch.randn(8, 4)).mean() * factor
        loss.backward()
        with nullcontext() if factor == 1.0 else pytest.warns(GuardWarning):
            if guard.step(loss).verdict == "ok":
                averaged.update_parameters(run.model)
    assert averaged.n_averaged == 3


def test_generator_in_a_bad_step():
    """Its numbers come again, as those of torch do."""

    def losses(factors):
        run = Run(None, others=[OTHERS["generator"]])
        [generator] = run.others

        def loss(factor):
            return run.model(torch.randn(8, 4, generator=generator)).square().mean() * factor

        results = [run.guard.run(partial(loss, factor)) for factor in factors]
        return [result.loss for result in results if result.verdict == "ok"]

    with pytest.warns(GuardWarning, match="skipped"):
        assert losses([1.0, float("nan"), 1.0, 1.0]) == losses([1.0, 1.0, 1.0])


@pytest.mark.parametrize("rewind", [True, False])
def test_generator_rolled_back(rewind):
    """With the data it goes back, too; else it goes on."""
    policy = Policy(skips=0, rewind=rewind)
    run = Run(None, others=[OTHERS["generator"]], policy=policy, snapshot_every=2)
    [generator] = run.others

    def draw(factor=1.0):
        numbers = torch.randn(8, 4, generator=generator)
        run.guard.run(lambda: run.model(numbers).square().mean() * factor)
        return numbers.tolist()

    first, *rest = [draw() for _ in range(5)][2:]
    state = generator.get_state()
    with pytest.warns(GuardWarning, match="rolled back to step 4"):
        run.guard.run(lambda: run.model(torch.full((8, 4), torch.nan)).sum())
    assert first not in rest
    assert torch.equal(generator.get_state(), state) != rewind
    assert (draw() == rest[1]) == rewind


def test_average_in_a_bad_step():
    """A skip leaves it as it is, also if it was updated since the step before."""
    run = Run(None, others=[lambda run: AveragedModel(run.model, use_buffers=True)])
    [averaged] = run.others
    run.train(2)
    averaged.update_parameters(run.model)
    before = bits(averaged.state_dict())
    with pytest.warns(GuardWarning, match="skipped"):
        run.train(1, bad=(0,))
    assert bits(averaged.state_dict()) == before


# ---- extra states


class Counting(nn.Module):
    """Its count, which is no tensor, is part of the loss."""

    def __init__(self):
        super().__init__()
        self.layer, self.seen = nn.Linear(4, 4), {"calls": [0]}

    def forward(self, x):
        self.seen["calls"][0] += 1
        return self.layer(x) / self.seen["calls"][0]

    def get_extra_state(self):
        return self.seen

    def set_extra_state(self, state):
        self.seen = state


def given(guard, loss):
    """In place of guard.run."""
    loss = loss()
    loss.backward()
    return guard.step(loss)


WAYS = {"run": safeops.Guard.run, "step": given}


@pytest.mark.parametrize("beside", [False, True], ids=["model", "other"])
@pytest.mark.parametrize("name", WAYS)
def test_extra_state_in_a_bad_step(name, beside):
    """As if it had never been; also of a module beside the model."""

    def losses(factors):
        run = Run(None, model=Counting, others=[lambda run: Counting()], replay=True)
        one = run.others[0] if beside else run.model
        told = []
        for factor in factors:
            run.optimizer.zero_grad()
            x = torch.full((2, 4), factor)
            told += [WAYS[name](run.guard, lambda x=x: run.model(one(x)).square().mean())]
        return [result.loss for result in told if result.verdict == "ok"], one.seen

    with pytest.warns(GuardWarning, match="skipped"):
        assert losses([1.0, torch.nan, torch.nan, 1.0, 1.0]) == losses([1.0, 1.0, 1.0])


def test_extra_state_rolled_back():
    """As often as it takes, and what comes after does not reach into the snapshot."""
    run = Run(None, model=Counting, policy=Policy(skips=0), snapshot_every=5, snapshots=1)
    run.train(5)
    for _ in range(2):
        run.train(1)
        assert run.model.seen == {"calls": [6]}
        with pytest.warns(GuardWarning, match="rolled back to step 5"):
            run.train(1, bad=(0,))
        assert run.model.seen == {"calls": [5]}


# ---- buffers that a forward makes


class Late(nn.Module):
    """The first batch makes the buffer, longer ones make it longer."""

    def __init__(self, first):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("table", first, persistent=False)

    def forward(self, x):
        if self.table is None or len(self.table) < len(x):
            self.table = torch.arange(float(len(x))) + x.mean().detach()
        return self.layer(x) + self.table[: len(x), None]


@pytest.mark.parametrize("first", [None, torch.zeros(2)], ids=["none", "short"])
def test_made_buffers(tmp_path, first):
    """They are unmade with a bad step, a roll-back and a resume."""
    run = Run(tmp_path, model=partial(Late, first), snapshot_every=1)
    with pytest.warns(GuardWarning, match="skipped"):
        run.guard.run(lambda: run.model(torch.full((3, 4), torch.nan)).sum())
    assert run.model.table is first or torch.equal(run.model.table, first)
    run.guard.run(lambda: run.model(torch.ones(3, 4)).sum())
    run.guard.checkpoint()
    before = run.bits()
    again = Run(tmp_path, seed=1, model=partial(Late, first))
    assert again.guard.resume() == 2
    assert again.bits() == before


def test_grown_buffer_rolled_back():
    run = Run(None, model=partial(Late, torch.zeros(2)), policy=Policy(skips=0), snapshot_every=2)
    for size in (3, 3, 5):
        run.guard.run(lambda size=size: run.model(torch.ones(size, 4)).sum())
    with pytest.warns(GuardWarning, match="rolled back to step 2"):
        run.guard.run(lambda: run.model(torch.full((3, 4), torch.nan)).sum())
    assert torch.equal(run.model.table, torch.arange(3.0) + 1)
