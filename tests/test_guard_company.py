"""A Guard beside what people have in their training: several optimizers, scalers in every state,
hooks that raise, buffers and weights of odd kinds, compiled models."""

import copy

import pytest
import torch
from torch import nn

import safeops
from safeops.guard import GuardWarning
from tests.guard_runs import assert_same, told

SCALERS = [torch.amp.GradScaler, safeops.amp.GradScaler]
EXACT = {"check_every": 1, "snapshot_every": 1}


def bad(loss):
    return loss * torch.nan


def state_of(*parts):
    return copy.deepcopy([part.state_dict() for part in parts] + [torch.get_rng_state()])


def skipped(guard, closure):
    with pytest.warns(GuardWarning):
        return guard.run(closure).verdict == "skipped"


# ---- optimizers and scalers


@pytest.mark.parametrize("scaler", [None, *SCALERS])
def test_two_optimizers_skip_together(scaler):
    """The gradients of the first are good: it does not step alone."""
    a, b = nn.Linear(2, 1), nn.Linear(2, 1)
    model = nn.ModuleList([a, b])
    optimizers = [torch.optim.Adam(a.parameters()), torch.optim.SGD(b.parameters(), lr=0.1)]
    made = scaler and scaler("cpu", init_scale=8.0)
    guard = safeops.Guard(model, optimizers, scaler=made)
    x = torch.ones(3, 2)
    guard.run(lambda: (a(x) + b(x)).mean())
    before = state_of(model, *optimizers)

    def half():
        y = b(x).mean()
        y.register_hook(lambda g: g * torch.inf)
        return a(x).mean() + y

    with told(guard):
        assert guard.run(half).verdict == "skipped"
    assert_same(state_of(model, *optimizers), before)
    assert guard.events[-1].kind == ("overflow" if scaler else "skipped")
    assert guard.run(lambda: (a(x) + b(x)).mean()).verdict == "ok"


@pytest.mark.parametrize("make", SCALERS)
def test_scaler_that_is_not_enabled(make):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = safeops.Guard(model, optimizer, scaler=make("cpu", enabled=False))
    x = torch.ones(3, 2)
    assert skipped(guard, lambda: bad(model(x).mean()))
    assert guard.run(lambda: model(x).mean()).verdict == "ok"


@pytest.mark.parametrize("make", SCALERS)
def test_scale_at_the_end_of_the_range(make):
    """2**127 overflows until it has been halved often enough; no roll-back comes of it."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = safeops.Guard(model, optimizer, scaler=make("cpu", init_scale=2.0**127))
    x = 30 * torch.ones(3, 2)
    verdicts = [guard.run(lambda: model(x).square().mean()).verdict for _ in range(20)]
    overflows = verdicts.count("skipped")
    assert 5 < overflows < 20
    assert verdicts == ["skipped"] * overflows + ["ok"] * (20 - overflows)
    assert [event.kind for event in guard.events] == ["overflow"] * overflows


def test_scaler_that_gives_up_goes_up_the_ladder():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = safeops.amp.GradScaler("cpu", init_scale=2.0**60, patience=3)
    guard = safeops.Guard(model, optimizer, scaler=scaler)

    def exploding():
        y = model(torch.ones(3, 2)).mean()
        y.register_hook(lambda g: g * torch.inf)
        return y

    def until_the_end():
        for _ in range(100):
            guard.run(exploding)

    with pytest.warns(GuardWarning), pytest.raises(safeops.TrainingDiverged):
        until_the_end()
    kinds = [event.kind for event in guard.events]
    assert kinds[:4] == ["overflow", "overflow", "skipped", "skipped"]
    assert kinds.count("rolled_back") == 3


# ---- exceptions


@pytest.mark.parametrize("snapshots", [0, 1])
@pytest.mark.parametrize("make", [None, *SCALERS])
def test_hook_of_the_optimizer_raises(make, snapshots):
    """With a snapshot of just before, nothing has happened; the next step is right in any case."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = make and make("cpu", init_scale=1024.0)
    guard = safeops.Guard(
        model, optimizer, None, scaler=scaler, snapshots=snapshots, snapshot_every=1
    )
    x = torch.randn(8, 2)
    handle = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    before = state_of(model, optimizer)
    with pytest.raises(ZeroDivisionError):
        guard.run(lambda: model(x).mean())
    handle.remove()
    assert guard.steps == 1 - snapshots
    if snapshots:
        assert_same(state_of(model, optimizer), before)
    assert guard.run(lambda: model(x).mean()).norm < 10
    assert guard.events == []


def test_scheduler_that_ends():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2)
    guard = safeops.Guard(model, optimizer, scheduler=scheduler, **EXACT)
    x = torch.ones(3, 2)
    assert [guard.run(lambda: model(x).mean()).verdict for _ in range(2)] == ["ok", "ok"]
    before = state_of(model, optimizer)
    for _ in range(2):
        with pytest.raises(ValueError, match="Tried to step"):
            guard.run(lambda: model(x).mean())
    assert guard.steps == 2
    assert_same(state_of(model, optimizer), before)


# ---- buffers and weights


class Odd(nn.Module):
    """A forward that changes what a forward rarely does."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3, max_norm=0.1)
        self.last = nn.Linear(3, 1)
        self.register_buffer("wide", torch.ones(4, 1).expand(4, 4))
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("mask", None)
        self.calls = 0

    def forward(self, index):
        self.calls += 1
        if self.mask is None:
            self.mask = torch.full((3, 3), -torch.inf).triu(1)
        x = self.table(index)
        if self.calls > 4:
            self.average.data.add_(x.detach().mean(0))  # uncounted
            self.wide[:, :1].add_(1)
        return self.last(x).mean()


@pytest.mark.parametrize("given", [False, True], ids=["run", "step"])
def test_odd_buffers(given):
    """Rows that are renormalised, an expanded buffer, one that is written uncounted after a quiet
    start, and a mask that is made late."""
    torch.manual_seed(0)
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    guard = safeops.Guard(model, optimizer, replay=False, **EXACT)

    def step(index, change=lambda loss: loss):
        if not given:
            return guard.run(lambda: change(model(torch.tensor(index)))).verdict
        loss = change(model(torch.tensor(index)))
        loss.backward()
        return guard.step(loss).verdict

    assert [step([0, 1]) for _ in range(6)] == ["ok"] * 6
    before = state_of(model)
    with told(guard):
        assert step([2, 3], bad) == "skipped"
    assert_same(state_of(model), before)
    assert step([2, 3]) == "ok"
    assert not torch.equal(model.table.weight[2], before[0]["table.weight"][2])


def test_outlier_that_only_running_statistics_show():
    """Loss and gradients are finite; the running variance would never be again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = safeops.Guard(model, optimizer)
    x = torch.randn(8, 2)
    guard.run(lambda: model(x).square().mean())
    before = state_of(model, optimizer)
    x[3, 1] = 1e30
    with told(guard):
        assert guard.run(lambda: model(x).square().mean()).verdict == "skipped"
    assert_same(state_of(model, optimizer), before)
    assert guard.events[0].reason == "running statistics: 0.running_var (1 inf)"
    assert guard.events[0].finding.module == "0"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(backend):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    model = torch.compile(plain, backend=backend)
    optimizer = torch.optim.AdamW(model.parameters())
    guard = safeops.Guard(model, optimizer)
    x = torch.randn(8, 2)
    guard.run(lambda: model(x).mean())
    before = state_of(plain, optimizer)
    with told(guard):
        assert guard.run(lambda: model(x).log().mean()).verdict == "skipped"
    assert_same(state_of(plain, optimizer), before)
    assert guard.events[0].finding.op == "log"
    assert guard.run(lambda: model(x).mean()).verdict == "ok"
