"""Sick programs: densities and likelihoods written by hand."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.sick import (
    BAD,
    BATCH,
    ROWS,
    Net,
    Sick,
    adam,
    changed,
    cycle,
    features,
    labels,
    normal,
    scores,
)


class MixtureDensity(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights, self.means = nn.Linear(4, 2), nn.Linear(4, 2)
        self.deviations = nn.Parameter(torch.ones(2))

    def forward(self, batch):
        x, y = batch
        share, deviation = self.weights(x).softmax(-1), self.deviations.abs()
        z = (y - self.means(x)) / deviation
        density = torch.exp(-0.5 * z**2) / (deviation * 2.5066)
        return -torch.log((share * density).sum(-1)).mean()


class LogVariance(nn.Module):
    """A head for the mean and one for the logarithm of the variance."""

    def __init__(self):
        super().__init__()
        self.mean, self.log_variance = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, batch):
        x, y = batch
        log_variance = self.log_variance(x)
        error = (y - self.mean(x)) ** 2
        return 0.5 * (log_variance + error / torch.exp(log_variance)).mean()


class PrecisionWeighted(LogVariance):
    def forward(self, batch):
        x, y, noise = batch
        log_variance = self.log_variance(noise)
        return 0.5 * (log_variance + torch.exp(-log_variance) * (y - self.mean(x)) ** 2).mean()


class PoissonRate(Net):
    def forward(self, batch):
        x, counts, offset = batch
        log_rate = self.net(x).squeeze(-1) + offset
        return (torch.exp(log_rate) - counts * log_rate).mean()


class PoissonLoss(Net):
    def forward(self, batch):
        x, counts, offset = batch
        return F.poisson_nll_loss(self.net(x).squeeze(-1) + offset, counts)


class VariationalEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.deviation, self.decoder = (nn.Linear(*n) for n in ((4, 2), (4, 2), (2, 4)))

    def forward(self, batch):
        (x,) = batch
        mean, deviation = self.mean(x), F.softplus(self.deviation(x))
        z = mean + deviation * torch.ones_like(mean)
        prior = (deviation**2 + mean**2 - 1) / 2 - torch.log(deviation)
        return (self.decoder(z) - x).abs().mean() + 0.01 * prior.mean()


class BoltzmannMachine(nn.Module):
    """A restricted Boltzmann machine as a classifier, by its free energies."""

    def __init__(self):
        super().__init__()
        self.visible, self.classes = nn.Linear(4, 8), nn.Parameter(0.1 * normal(3, 8))

    def forward(self, batch):
        x, y = batch
        hidden = self.visible(x)[:, None] + self.classes
        energy = -torch.log(1 + torch.exp(hidden)).sum(-1)
        return F.cross_entropy(-energy, y)


ordered = features()
extreme = features([4000.0, -3000.0, 2000.0, 5000.0])
target = scores(ordered, 1)
offset = changed(0.1 * normal(ROWS, seed=4), BAD, 100.0)
counts = (1 + 0.5 * target.squeeze(-1)).exp().round()

PROGRAMS = (
    Sick(
        "mixture_density",
        "log of a sum of normal densities that all underflow",
        MixtureDensity,
        cycle(ordered, changed(target, BAD, 1e3)),
        cured_by=("safe_log",),
        optimizer=adam,
    ),
    Sick(
        "log_variance",
        "error**2 / exp(log_variance), which underflows to 0",
        LogVariance,
        cycle(features([0.0, 0.0, 0.0, -6000.0]), target),
        cured_by=("safe_div",),
        clip=1.0,
    ),
    Sick(
        "precision_weighted",
        "exp(-log_variance) * error**2",
        PrecisionWeighted,
        cycle(ordered, target, changed(normal(ROWS, 4, seed=5), BAD, 300.0)),
        cured_by=("safe_exp",),
        clip=1.0,
    ),
    Sick(
        "poisson_rate",
        "exp(log_rate), with an exposure whose logarithm was forgotten",
        lambda: PoissonRate(outputs=1),
        cycle(ordered, counts, offset),
        cured_by=("safe_exp",),
        clip=1.0,
    ),
    Sick(
        "poisson_nll_loss",
        "poisson_nll_loss(log_rate) that overflows",
        lambda: PoissonLoss(outputs=1),
        cycle(ordered, counts, offset),
        cured_by=("nn.functional.poisson_nll_loss",),
        clip=1.0,
    ),
    Sick(
        "variational_encoder",
        "log(sigma) of a sigma that underflows",
        VariationalEncoder,
        cycle(extreme),
        cured_by=("safe_log",),
        optimizer=adam,
    ),
    Sick(
        "boltzmann_machine",
        "log(1 + exp(x)) in a free energy, of grey values that were not scaled",
        BoltzmannMachine,
        cycle(changed(ordered, BATCH, 255 * ordered[BATCH].abs()), labels(ordered)),
        cured_by=("safe_exp",),
    ),
)
