"""Buffers that a bad step has changed: they are as before, or the event names them."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from safeops.guard import Guard, GuardWarning
from tests.guard_runs import ALWAYS, bits, told

LARGE = 1 << 15  # numbers, of more than 64 KiB


class Broken(Exception):
    pass


class Counting(nn.Linear):
    """A buffer that changes where the input is positive."""

    def __init__(self, size=1):
        super().__init__(4, 1)
        self.register_buffer("positive", torch.zeros(size))

    def forward(self, x):
        if x.sum() > 0:
            self.positive += 1
        return super().forward(x)


def trained(model, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Guard(model, optimizer, **ALWAYS | settings)


def loss_of(model, at, positive, bad):
    return model(torch.full((2, 4), 1.0 if at in positive else -1.0)).square().mean() / (at != bad)


@pytest.mark.parametrize("how", ["bad", "raises"])
@pytest.mark.parametrize("snapshots", [0, 1])
@pytest.mark.parametrize("changes", [(5,), (2, 5)])
@pytest.mark.parametrize("beside", [False, True])
def test_changes_rarely(how, snapshots, changes, beside):
    """Its first change in a long time is in a step that never was. beside: the model."""
    model = Counting()
    main = nn.Linear(1, 1) if beside else model
    guard = trained(main, snapshots=snapshots, others=[model] if beside else [])

    def loss(at):
        value = model(torch.full((2, 4), 1.0 if at in changes else -1.0))
        value = (main(value) if beside else value).square().mean()
        if at == 5 and how == "raises":
            raise Broken
        return value / (at != 5)

    for at in range(6):
        with told(guard), pytest.raises(Broken) if (at, how) == (5, "raises") else nullcontext():
            guard.run(partial(loss, at))
    assert model.positive.item() == len(changes) - 1


STAYS = "; without a snapshot these buffers stay changed: positive"
SIZES = [  # size, snapshots, steps in which it changes, value after the bad step 5, reason
    (LARGE, 1, (5,), 0.0, ""),
    (LARGE, 0, (5,), 1.0, STAYS),
    (LARGE, 0, (0, 5), 1.0, ""),
    (LARGE // 2, 0, (5,), 0.0, ""),
    (LARGE // 2 + 1, 0, (5,), 1.0, STAYS),
]


@pytest.mark.parametrize(("size", "snapshots", "positive", "value", "reason"), SIZES)
def test_large(size, snapshots, positive, value, reason):
    """Of small ones there is a copy, of large ones where they have changed before."""
    model = Counting(size)
    guard = trained(model, snapshots=snapshots, replay=False)
    for at in range(6):
        with told(guard):
            guard.run(partial(loss_of, model, at, positive, bad=5))
    assert [event.reason for event in guard.events] == [f"the loss is inf{reason}"]
    assert model.positive.unique().tolist() == [value]


class Averaging(nn.Linear):
    """A buffer that follows the input and is not that of a BatchNorm. exchanged: by a new one."""

    def __init__(self, exchanged):
        super().__init__(4, 1)
        self.exchanged = exchanged
        self.register_buffer("square", torch.ones(4))

    def forward(self, x):
        now = x.detach().square().mean(0)
        if self.exchanged:
            self.square = 0.5 * self.square + 0.5 * now
        else:
            self.square.lerp_(now, 0.5)
        return super().forward(x / x.detach().abs().max())


NORMS = {
    "BatchNorm": lambda: nn.BatchNorm1d(4),
    "in place": partial(Averaging, exchanged=False),
    "exchanged": partial(Averaging, exchanged=True),
}


def squared(model, x):
    return model(x).square().mean()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("how", ["run", "step"])
def test_outlier(norm, how):
    """Loss and gradients are finite; without a read of buffers with every step it would be found
    at the 100th, when no good state is left."""
    torch.manual_seed(0)
    model = nn.Sequential(NORMS[norm](), nn.LazyLinear(1))
    x = torch.randn(8, 4)
    model(x)
    guard = trained(model, check_every=100, snapshot_every=100)

    def step(x):
        if how == "run":
            return guard.run(partial(squared, model, x)).verdict
        model.zero_grad()
        loss = squared(model, x)
        loss.backward()
        return guard.step(loss).verdict

    assert [step(x) for _ in range(3)] == ["ok"] * 3
    before = {name: bits(one) for name, one in model.state_dict().items()}
    with told(guard):
        assert step(torch.cat([x[:7], torch.full((1, 4), 1e30)])) == "skipped"
    assert {name: bits(one) for name, one in model.state_dict().items()} == before
    [event] = guard.events
    assert event.reason.startswith("running statistics: ")
    assert (event.finding is None) == (how == "step")
    assert step(x) == "ok"


class Wrong(nn.Linear):
    """It makes a buffer, late."""

    def __init__(self, value):
        super().__init__(4, 1)
        self.value, self.calls = value, 0
        self.register_buffer("made", None)

    def forward(self, x):
        self.calls += 1
        if self.calls == 3:
            self.made = torch.tensor([0.0, self.value])
        return super().forward(x)


@pytest.mark.parametrize(("value", "verdict"), [(-torch.inf, "ok"), (torch.nan, "rolled_back")])
def test_made_late(value, verdict):
    """With infinities it is a mask; a NaN is never meant."""
    model = Wrong(value)
    guard = trained(model, replay=False)
    x = torch.ones(2, 4)
    with nullcontext() if verdict == "ok" else pytest.warns(GuardWarning, match=r"made \(1 nan\)"):
        verdicts = [guard.run(partial(squared, model, x)).verdict for _ in range(4)]
    assert verdicts == ["ok", "ok", verdict, "ok"]
    assert (model.made is None) == (verdict != "ok")


class Filled(nn.Linear):
    """A mask that is -inf but in one place, which counts calls from the nth on."""

    def __init__(self, size, first):
        super().__init__(4, 1)
        self.first, self.calls = first, 0
        self.register_buffer("mask", torch.full((size,), -torch.inf))

    def forward(self, x):
        self.calls += 1
        if self.calls >= self.first:
            self.mask[0] = self.calls
        return super().forward(x)


@pytest.mark.parametrize("size", [4, LARGE])
@pytest.mark.parametrize("first", [1, 4])
def test_mask_that_changes(size, first):
    """What was infinite before the step is meant so, and no reason to refuse it."""
    model = Filled(size, first)
    guard = trained(model)
    x = torch.ones(2, 4)
    assert [guard.run(partial(squared, model, x)).verdict for _ in range(8)] == ["ok"] * 8
    assert guard.events == []
