"""Small training runs for tests of resuming: thrown away, built anew, and compared bit by bit."""

import hashlib
import random
from functools import partial

import numpy as np
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as lr
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils._pytree import keystr, tree_flatten_with_path
from torch.utils.data import DataLoader

import safeops
from safeops._random import random_state
from safeops.guard import Batches

NAN, INF = float("nan"), float("inf")


def bits(tree):
    """Every number of it, by its path; of tensors a hash of what lies in memory."""
    pairs, form = tree_flatten_with_path(tree)
    return {keystr(path): _bits(leaf) for path, leaf in pairs} | {"form": str(form)}


def _bits(leaf):
    if not isinstance(leaf, (torch.Tensor, np.ndarray)):
        return f"{type(leaf).__name__} {leaf!r}"
    tensor = torch.as_tensor(leaf).detach()
    tensor = tensor.to_dense() if tensor.is_sparse else tensor.contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(data).hexdigest()[:16]}"


def state_of(value):
    """Of a guard without the counts of events: a run that was resumed has others."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, safeops.Guard):
        return {name: one for name, one in value.state_dict().items() if name != "counts"}
    if isinstance(value, nn.Module):
        return dict(value.named_parameters()), dict(value.named_buffers()), value.state_dict()
    return value.state_dict()


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def everything(run):
    """Of a run, with gradients and the events that were told."""
    grads = [parameter.grad for parameter in run.model.parameters()]
    return run.bits() | bits({"grads": grads, "events": len(run.guard.events)})


def seeded(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


# ---- models


class Model(nn.Module):
    """Normalised and dropped out; one buffer is in no state_dict, and a count is in it alone."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 4)
        )
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
        return self.layers(x - self.mean) / (1 + self.calls)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("same", self.mask)

    def forward(self, x):
        return self.last(self.first(x).tanh()) @ (self.mask + self.same).softmax(-1)


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4, sparse=True)

    def forward(self, x):
        return self.table((x.abs() * 3).long().clamp(max=9))


# ---- runs


class Run:
    """All that a training script makes, with random batches of its own or those of a loader."""

    def __init__(self, folder, seed=0, model=Model, optimizer=None, scheduler=None, **options):
        seeded(seed)
        self.model = model()
        make = optimizer or partial(optim.AdamW, lr=0.01)
        self.optimizer = make(self.model.parameters())
        self.scheduler = scheduler(self.optimizer) if scheduler else None
        self.others = [make(self) for make in options.pop("others", ())]
        for name in {"data", "scaler"} & options.keys():
            options[name] = options[name]()
        self.data, self.scaler = options.get("data"), options.get("scaler")
        options = {"checkpoint_every": 1000, "snapshot_every": 4, "replay": False} | options
        self.guard = safeops.Guard(
            self.model, self.optimizer, 1.0, self.scheduler, checkpoint_dir=folder,
            others=self.others, **options,
        )  # fmt: skip
        self.batches = self.epochs()

    def epochs(self):
        dtype = next(self.model.parameters()).dtype
        while True:
            if self.data is None:
                yield torch.randn(8, 4, dtype=dtype)
            else:
                yield from self.data

    def train(self, steps, bad=()):
        """Losses of that many steps; a bad one is NaN."""
        return [self.step(place in bad) for place in range(steps)]

    def step(self, bad=False):
        for other in self.others:
            if isinstance(other, lr.ReduceLROnPlateau):
                other.step(1.0)
        x = next(self.batches) * (float("nan") if bad else 1.0)
        result = self.guard.run(lambda: self.model(x).square().mean())
        return result.loss.hex(), result.norm.hex(), result.verdict

    def bits(self):
        names = ("model", "optimizer", "scheduler", "scaler", "data", "guard")
        parts = {name: getattr(self, name) for name in names} | dict(enumerate(self.others))
        states = {name: state_of(part) for name, part in parts.items() if part is not None}
        return bits(states | {"random": random_state()})

    def close(self):
        """The workers of a loader end here, and not when the next ones begin."""
        self.batches.close()


def assert_resumes(folder, every=3, steps=8, bad=(), **options):
    """Thrown away a step after the last checkpoint, and built anew from other random numbers."""
    whole = Run(folder / "whole", **options)
    losses = whole.train(steps, bad)
    whole.close()
    stopped = Run(folder / "stopped", checkpoint_every=every, **options)
    assert stopped.train(every + 1, bad) == losses[: every + 1]
    stopped.close()
    again = Run(folder / "stopped", seed=1, checkpoint_every=1000, **options)
    assert again.bits() != whole.bits()
    assert again.guard.resume() == every
    assert again.train(steps - every, [one - every for one in bad]) == losses[every:]
    assert again.bits() == whole.bits()
    again.close()


def of(run):
    return run.model(torch.randn(6, 4))


def spoilt(module, name, value=NAN):
    with torch.no_grad():
        module.get_parameter(name).view(-1)[0] = value
    return module


# ---- optimizers


def lbfgs(params):
    return optim.LBFGS(params, lr=0.1, max_iter=3, history_size=4, line_search_fn="strong_wolfe")


def grouped(params):
    first, *rest = params
    return optim.AdamW([{"params": [first], "lr": 0.1}, {"params": rest, "weight_decay": 0.0}])


# ---- schedulers, scalers, others and data


def cyclic(optimizer):
    return lr.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3, mode="exp_range", gamma=0.9)


def chained(optimizer):
    return lr.ChainedScheduler([lr.ConstantLR(optimizer, 0.5, 4), lr.ExponentialLR(optimizer, 0.9)])


def in_sequence(optimizer):
    parts = [lr.LinearLR(optimizer, 0.1, total_iters=4), lr.CosineAnnealingLR(optimizer, 6)]
    return lr.SequentialLR(optimizer, parts, milestones=[4])


SCHEDULERS = {
    "Lambda": partial(lr.LambdaLR, lr_lambda=lambda step: 0.9**step),
    "Multiplicative": partial(lr.MultiplicativeLR, lr_lambda=lambda step: 0.9),
    "Step": partial(lr.StepLR, step_size=2),
    "MultiStep": partial(lr.MultiStepLR, milestones=[2, 5]),
    "Polynomial": partial(lr.PolynomialLR, total_iters=7),
    "OneCycle": partial(lr.OneCycleLR, max_lr=0.1, total_steps=20),
    "Cyclic": cyclic,
    "WarmRestarts": partial(lr.CosineAnnealingWarmRestarts, T_0=3, T_mult=2),
    "SWA": partial(SWALR, swa_lr=0.05, anneal_epochs=5),
    "Chained": chained,
    "Sequential": in_sequence,
}


SCALERS = {
    "torch": partial(torch.amp.GradScaler, "cpu", init_scale=2.0**10, growth_interval=2),
    "ours": partial(safeops.amp.GradScaler, "cpu", init_scale=2.0**10, growth_interval=2),
    "ours, fused": partial(safeops.amp.GradScaler, "cpu", init_scale=2.0**10, growth_interval=2),
    "off": partial(torch.amp.GradScaler, "cpu", enabled=False),
}


def average(run):
    """Updated as part of the step, so that a checkpoint has both."""
    averaged = AveragedModel(run.model, use_buffers=True)
    run.optimizer.register_step_post_hook(lambda *_: averaged.update_parameters(run.model))
    return averaged


def plateau(run):
    return lr.ReduceLROnPlateau(run.optimizer, patience=1)


OTHERS = {
    "average": average,
    "plateau": plateau,
    "generator": lambda run: torch.Generator().manual_seed(torch.initial_seed()),
    "module": lambda run: nn.BatchNorm1d(int(torch.randint(4, 5, ()))),
}


def shuffled():
    return Batches(DataLoader(torch.arange(80.0).view(20, 4) / 40, 4, shuffle=True))
