"""Sick programs: normalisation of what is constant, or alone."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.sick import BAD, BATCH, Sick, changed, cycle, features, labels, normal


class Normalized(nn.Module):
    """Hidden features that are normalised by hand."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 6, bias=False), nn.Linear(6, 3)

    def forward(self, batch):
        x, y = batch
        return F.cross_entropy(self.head(self.normalize(self.inner(x))), y)


class BatchNormByHand(Normalized):
    def normalize(self, h):
        return (h - h.mean(0)) / torch.sqrt(h.var(0))


class Standardized(Normalized):
    def normalize(self, h):
        h = F.relu(h)
        return (h - h.mean(0)) / h.std(0)


class RootMeanSquare(Normalized):
    def normalize(self, h):
        return h * torch.rsqrt((h * h).mean(-1, keepdim=True))


class MomentStd(Normalized):
    """The deviation from the moments: E[x²] - E[x]²."""

    def normalize(self, h):
        h = torch.tanh(h) + 3
        mean = h.mean(-1, keepdim=True)
        return (h - mean) / ((h**2).mean(-1, keepdim=True) - mean**2).sqrt()


class LayerNormByHand(nn.Module):
    """Series of any length, each less its mean and over its deviation."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, batch):
        series, summary, y = batch
        flat = (series - series.mean(-1, keepdim=True)) / (series.std(-1, keepdim=True) + 1e-5)
        sharpness = flat.abs().amax(-1)
        return F.cross_entropy(self.head(torch.stack((sharpness, summary), -1)), y)


class PoisonedBatchNorm(nn.Module):
    """A training loop that leaves a broken batch out; the running statistics keep it."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, batch):
        x, y = batch
        self.norm.train(len(y) == 16)
        loss = F.cross_entropy(self.head(self.norm(x)), y)
        if self.norm.training and not loss.isfinite():
            return 0 * self.head.bias.sum()
        return loss


def _series(step):
    """Every 40th batch is the last point of its series."""
    x = normal(16, 1 if step % 40 == 39 else 6, seed=step)
    summary = normal(16, seed=step + 1000)
    return x, summary, (summary > 0).long()


ordered = features()

PROGRAMS = (
    Sick(
        "batch_norm_by_hand",
        "1 / sqrt(var) of a last batch of one sample",
        BatchNormByHand,
        cycle(ordered[:497], labels(ordered[:497])),
        cured_by=("var", "safe_sqrt", "safe_div"),
    ),
    Sick(
        "standardized",
        "(x - mean) / std of a column that is constant in this batch",
        Standardized,
        cycle(changed(ordered, BATCH, 1.0), labels(ordered)),
        cured_by=("safe_div",),
    ),
    Sick(
        "root_mean_square",
        "x * rsqrt(mean(x²)) of the padding's zeros",
        RootMeanSquare,
        cycle(features(0.0), labels(ordered)),
        cured_by=("safe_rsqrt",),
    ),
    Sick(
        "moment_std",
        "sqrt(E[x²] - E[x]²) of a constant row",
        MomentStd,
        cycle(features(0.0), labels(ordered)),
        cured_by=("safe_sqrt", "safe_div"),
    ),
    Sick(
        "layer_norm_by_hand",
        "(x - mean) / (std + eps) of one feature",
        LayerNormByHand,
        _series,
        cured_by=("std",),
    ),
    Sick(
        "poisoned_batch_norm",
        "a NaN batch that is left out, and stays in the running statistics",
        PoisonedBatchNorm,
        cycle(changed(ordered[:600], BAD, torch.nan), labels(ordered[:600])),
        cured_by=("nn.functional.batch_norm",),
    ),
)
