"""Runs with bad steps for tests of what is told of them, and the warnings and lines that came."""

import json
import warnings
from contextlib import contextmanager

import torch
from torch import nn, optim

from safeops.guard import Guard, Policy

NAN, INF = float("nan"), float("inf")
X = torch.tensor([[0.5, -1.0], [1.0, 2.0], [-0.5, 0.25]])


def guarded(folder=None, policy=None, **options):
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    options = {"checkpoint_every": 5, "snapshot_every": 2, "policy": policy or Policy()} | options
    optimizer = optim.AdamW(model.named_parameters())
    return Guard(model, optimizer, 1.0, checkpoint_dir=folder, **options), model


def train(guard, model, story):
    """A step for each letter: o is good, n has a NaN, i an infinity, h is huge."""
    factors = {"o": 1.0, "n": NAN, "i": INF, "h": 1e25}
    for letter in story:
        x = X * factors[letter] if letter in "ni" else X
        factor = factors[letter] if letter == "h" else 1.0
        guard.run(lambda x=x, f=factor: model(x).square().mean() * f, batch=x)


@contextmanager
def recorded():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


def strictly(line):
    def refused(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(line, parse_constant=refused)


def lines(path):
    return [strictly(line) for line in path.read_text().splitlines()]
