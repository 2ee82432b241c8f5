"""Small training runs, guarded and in torch alone, with faults in some steps; and what they have in
common, bit by bit."""

import warnings
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path

import safeops
from safeops.diagnose import inject
from safeops.guard import Guard, GuardWarning, TrainingDiverged
from safeops.guard.events import QUIET

STEPS, AT = 7, "hidden"
KINDS = ("nan", "inf", "huge")
PLACES = ("forward", "backward", "weight", "optimizer", "batch")
GRID = [(place, kind) for place in PLACES for kind in KINDS]
ALWAYS = {"check_every": 1, "snapshot_every": 1, "max_norm": None}


class Net(nn.Module):
    """Running statistics and random numbers come before the place of the fault; nothing after it
    swallows a large number."""

    def __init__(self, dropout=0.25):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(dropout)
        self.hidden, self.act, self.last = nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.act(self.hidden(self.drop(self.norm(self.first(x))))))


OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "amsgrad": partial(torch.optim.AdamW, lr=0.01, amsgrad=True, foreach=False),
    "foreach": partial(torch.optim.AdamW, lr=0.01, foreach=True),
    "fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
}
SCALERS = {"torch": torch.amp.GradScaler, "safeops": safeops.amp.GradScaler}


class Setup(NamedTuple):
    """What a run is made of. scaler: of whom, with autocast; parts: batches of a step."""

    optimizer: str = "adamw"
    scaler: str = ""
    parts: int = 1
    dropout: float = 0.25
    scale: float = 2.0**16


class Training(NamedTuple):
    """model is what is called, perhaps a DDP model; the faults go there, too."""

    setup: Setup
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: Any

    def loss(self, batch):
        x, y = batch
        with torch.autocast("cpu", torch.bfloat16, enabled=self.scaler is not None):
            predicted = self.model(x)
        return nn.functional.mse_loss(predicted.float(), y)

    def state(self):
        """All that a step may change."""
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        parts |= {"scaler": self.scaler} if self.scaler else {}
        states = {name: part.state_dict() for name, part in parts.items()}
        return states | {"random": torch.get_rng_state()}


def training(setup, wrap=lambda model: model):
    torch.manual_seed(1)
    model = wrap(Net(setup.dropout))
    optimizer = OPTIMIZERS[setup.optimizer](model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=100)
    scaler = SCALERS[setup.scaler]("cpu", setup.scale) if setup.scaler else None
    torch.manual_seed(2)
    return Training(setup, model, optimizer, scheduler, scaler)


def data(steps=STEPS, parts=1, seed=3):
    """A list of batches for each step."""
    generator = torch.Generator().manual_seed(seed)
    make = partial(torch.randn, generator=generator)
    return [[(make(6, 4) + 1, make(6, 1)) for _ in range(parts)] for _ in range(steps)]


# ---- torch alone


def plain(run, steps, max_norm=None):
    return [_plain_step(run, batches, max_norm) for batches in steps]


def _plain_step(run, batches, max_norm):
    run.optimizer.zero_grad()
    losses = []
    for i, batch in enumerate(batches, 1):
        synchronised = i == len(batches) or not hasattr(run.model, "no_sync")
        with nullcontext() if synchronised else run.model.no_sync():
            losses.append(_backward(run, batch, len(batches)))
    if max_norm is not None:
        safeops.clip_grad_norm_(run.model.parameters(), max_norm)
    if run.scaler is None:
        run.optimizer.step()
    else:
        run.scaler.step(run.optimizer)
        run.scaler.update()
    run.scheduler.step()
    return sum(losses) / len(losses)


def _backward(run, batch, parts):
    loss = run.loss(batch)
    part = loss / parts if parts > 1 else loss
    (part if run.scaler is None else run.scaler.scale(part)).backward()
    return loss.item()


# ---- guarded


class Fault(NamedTuple):
    """In one step; replayed: it comes again when the guard tries the step again, as far as it does
    not stay there anyway. part: of which batch of the step."""

    place: str
    kind: str = "nan"
    replayed: bool = True
    part: int = 0
    rank: int | None = None

    @contextmanager
    def on(self, run):
        with ExitStack() as stack:
            made = [stack.enter_context(one) for one in self._injections(run)]
            yield
        if self.rank is None:
            assert all(one.fired is not None for one in made), made

    def _injections(self, run):
        steps = [0, 1] if self.place == "optimizer" else [self.part, self.part + run.setup.parts]
        steps = steps[:1] if self.place == "weight" or not self.replayed else steps
        at = place_of(run.model)
        for step in steps:
            yield inject(run.model, at, step, self.kind, self.place, rank=self.rank)


def place_of(model):
    return next(name for name, _ in model.named_modules() if name.split(".")[-1] == AT)


class Outcome(NamedTuple):
    guard: Guard
    results: list

    @property
    def losses(self):
        return [result.loss for result in self.results if result.verdict == "ok"]

    @property
    def verdicts(self):
        return [result.verdict for result in self.results]


def guarded(run, steps, faults=(), **settings):
    """faults: of some steps, by number. A run that stops has fewer results."""
    faults, settings = dict(faults), ALWAYS | {"accumulate": run.setup.parts} | settings
    guard = Guard(run.model, run.optimizer, scheduler=run.scheduler, scaler=run.scaler, **settings)
    outcome = Outcome(guard, [])
    with told(guard), suppress(TrainingDiverged):
        for i, batches in enumerate(steps):
            outcome.results.append(_step(guard, run, batches, faults.get(i)))
    return outcome


def _step(guard, run, batches, fault):
    with fault.on(run) if fault else nullcontext():
        return [guard.run(partial(run.loss, batch), batch=batch) for batch in batches][-1]


@contextmanager
def told(guard):
    """A GuardWarning for each event that is not quiet, and no other."""
    before = len(guard.events)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    loud = [event for event in guard.events[before:] if event.kind not in (*QUIET, "stopped")]
    assert [str(each.message) for each in caught] == [f"safeops.Guard: {event}" for event in loud]
    assert all(each.category is GuardWarning for each in caught)


# ---- alike


def bits(value):
    if isinstance(value, torch.Tensor):
        local = value.to_local() if hasattr(value, "to_local") else value
        return local.detach().reshape(-1).view(torch.uint8).tolist()
    return repr(value)


def assert_same(actual, expected):
    """Bit by bit."""
    (left, form), (right, other) = map(tree_flatten_with_path, (actual, expected))
    assert form == other
    pairs = zip(left, right, strict=True)
    differing = [keystr(path) for (path, a), (_, b) in pairs if bits(a) != bits(b)]
    assert not differing, differing


def without(steps, left_out):
    return [batches for i, batches in enumerate(steps) if i not in left_out]


def assert_as_if_never(run, outcome, steps, left_out, wrap=lambda model: model, changed=()):
    """Losses and states are those of torch alone without these steps. changed: parts of the state
    that are not."""
    state = run.state()
    reference = training(run.setup, wrap)
    assert outcome.losses == plain(reference, without(steps, left_out))
    expected = reference.state()
    assert_same(*({k: v for k, v in one.items() if k not in changed} for one in (state, expected)))
