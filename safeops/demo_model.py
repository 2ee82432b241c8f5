"""What safeops demo trains: a classifier of digits, and the arithmetics that it is given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .ops.div import safe_div
from .ops.finite_clip import finite_clip
from .ops.log import safe_log
from .ops.sqrt import safe_sqrt

TRAINING, BATCH, FEATURES, CLASSES = 1437, 64, 256, 10


class Ops(NamedTuple):
    """All in which the runs differ."""

    div: Callable[[Tensor, Tensor], Tensor]
    log: Callable[[Tensor], Tensor]
    sqrt: Callable[[Tensor], Tensor]
    clip: Callable[[Tensor, float, float], Tensor]


PLAIN = Ops(torch.div, torch.log, torch.sqrt, torch.clamp)
PATCHED = Ops(
    lambda x, y: x / (y + 1e-8),
    lambda x: torch.log(x + 1e-8),
    lambda x: torch.sqrt(x + 1e-8),
    lambda x, low, high: torch.nan_to_num(x).clamp(low, high),
)
SAFE = Ops(safe_div, safe_log, safe_sqrt, finite_clip)


# --- the model ---------------------------------------------------------------------------------


def moments(ops: Ops, x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(0)
    return mean, ops.sqrt((x - mean).square().mean(0))


def standardise(ops: Ops, x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return ops.clip(ops.div(x - mean, deviation), -3.0, 3.0)


class Classifier(nn.Module):
    """Standardised ReLU features; the scores are minus squared distances to learned centres."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.hidden = nn.Linear(64, FEATURES)
        self.centres = nn.Parameter(torch.randn(CLASSES, FEATURES))

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.hidden(F.dropout(x, 0.3, self.training)))

    def probabilities(self, features: Tensor) -> Tensor:
        """softmax of minus the squared distances, without the part that is equal in a row."""
        scores = 2 * features @ self.centres.T - self.centres.square().sum(1)
        return torch.softmax(scores, 1)

    def spread(self, features: Tensor, y: Tensor) -> Tensor:
        """The mean distance to the mean of the class in this batch."""
        member = F.one_hot(y, CLASSES).to(features.dtype)
        means = self.ops.div(member.T @ features, member.sum(0)[:, None])
        return self.ops.sqrt((features - means[y]).square().sum(1)).mean()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features, probabilities of the right classes, loss."""
        raw = self.features(x)
        features = standardise(self.ops, raw, *moments(self.ops, raw))
        right = self.probabilities(features).gather(1, y[:, None])
        return features, right, -self.ops.log(right).mean() + 0.1 * self.spread(features, y)


# --- the data ----------------------------------------------------------------------------------


class Data(NamedTuple):
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def shuffled() -> Tensor:
    return torch.randperm(len(digits()[0]))


def split(ops: Ops, order: Tensor) -> Data:
    x, y = digits()
    known, held = order[:TRAINING], order[TRAINING:]
    scale = moments(ops, x[known])
    return Data(
        standardise(ops, x[known], *scale), y[known], standardise(ops, x[held], *scale), y[held]
    )


def batches(epochs: int) -> Iterator[Tensor]:
    for _ in range(epochs):
        yield from torch.randperm(TRAINING)[: TRAINING // BATCH * BATCH].view(-1, BATCH)


@torch.no_grad()
def accuracy(model: Classifier, data: Data) -> float:
    model.eval()
    known = moments(model.ops, model.features(data.x))
    features = standardise(model.ops, model.features(data.test_x), *known)
    return float((model.probabilities(features).argmax(1) == data.test_y).float().mean())
