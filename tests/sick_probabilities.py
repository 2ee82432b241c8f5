"""Sick programs: losses written by hand of probabilities that are 0 or 1."""

import torch
import torch.nn.functional as F

from tests.sick import BAD, ROWS, Net, Sick, adam, changed, cycle, features, labels, normal, scores


class LogOfSoftmax(Net):
    def forward(self, batch):
        x, y = batch
        p = torch.softmax(self.net(x), dim=-1)
        return -torch.log(p[torch.arange(len(y)), y]).mean()


class CrossEntropyByHand(Net):
    def forward(self, batch):
        x, y = batch
        e = torch.exp(self.net(x))
        p = e / e.sum(dim=-1, keepdim=True)
        return -(F.one_hot(y, 3) * p.log()).sum(-1).mean()


class FocalLoss(Net):
    gamma = 0.5

    def forward(self, batch):
        x, y = batch
        log_p = F.log_softmax(self.net(x), dim=-1).gather(1, y[:, None])
        return -((1 - log_p.exp()) ** self.gamma * log_p).mean()


class RankingLoss(Net):
    def forward(self, batch):
        liked, other = batch
        margin = self.net(liked) - self.net(other)
        return -torch.log(torch.sigmoid(margin)).mean()


class BinaryCrossEntropyByHand(Net):
    def forward(self, batch):
        x, y = batch
        p = torch.sigmoid(self.net(x)).squeeze(-1)
        return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


class Discriminator(Net):
    def forward(self, batch):
        real, fake = batch
        d_real, d_fake = torch.sigmoid(self.net(real)), torch.sigmoid(self.net(fake))
        return -(torch.log(d_real) + torch.log(1 - d_fake)).mean()


class LogisticLoss(Net):
    def forward(self, batch):
        x, y = batch
        sign = 2 * y - 1
        return torch.log(1 + torch.exp(-sign * self.net(x).squeeze(-1))).mean()


class LogCosh(Net):
    def forward(self, batch):
        x, y = batch
        return torch.log(torch.cosh(self.net(x).squeeze(-1) - y)).mean()


class SoftMargin(Net):
    def forward(self, batch):
        x, y = batch
        return F.soft_margin_loss(self.net(x).squeeze(-1), 2 * y - 1)


class NoisyOr(Net):
    """Multiple instances: a bag is positive if one of its instances is."""

    def forward(self, batch):
        x, y = batch
        p = torch.sigmoid(self.net(x)).squeeze(-1)
        negative = torch.log1p(-p).sum(-1)
        positive = torch.log(1 - negative.exp() + 1e-6)
        return -torch.where(y, positive, negative).mean()


def _wrong(x):
    """Labels that are wrong where the features are extreme."""
    return changed(labels(x), BAD, scores(x[BAD], 3).argmin())


def _binary(x):
    return (scores(x, 1) > 0).float().squeeze(-1)


extreme = features([4000.0, -3000.0, 2000.0, 5000.0])
ordered = features()
liked, other = (torch.where(scores(ordered, 1) > 0, s * ordered, -s * ordered) for s in (1, -1))
bags = changed(normal(ROWS, 3, 4), BAD, 3000 * normal(1, 1, 4))
flipped = changed(_binary(extreme), BAD, 1 - _binary(extreme)[BAD])

PROGRAMS = (
    Sick(
        "log_of_softmax",
        "torch.log(torch.softmax(x)) of a probability that underflows",
        LogOfSoftmax,
        cycle(extreme, _wrong(extreme)),
        cured_by=("safe_log",),
    ),
    Sick(
        "cross_entropy_by_hand",
        "exp(x) / exp(x).sum(), without taking off the maximum",
        CrossEntropyByHand,
        cycle(extreme, _wrong(extreme)),
        cured_by=("safe_exp", "safe_log"),
    ),
    Sick(
        "focal_loss",
        "(1 - p)**gamma * log(p) with gamma < 1, at p = 1",
        FocalLoss,
        cycle(extreme, labels(extreme)),
        cured_by=("safe_pow",),
        optimizer=adam,
    ),
    Sick(
        "ranking_loss",
        "log(sigmoid(x)) of a pair that is ordered wrongly, and clearly so",
        lambda: RankingLoss(outputs=1),
        cycle(changed(liked, BAD, 2000 * other[BAD]), changed(other, BAD, 2000 * liked[BAD])),
        cured_by=("safe_log",),
    ),
    Sick(
        "binary_cross_entropy_by_hand",
        "(1 - y) * log(1 - p) with y = 1 and p = 1: 0 * -inf",
        lambda: BinaryCrossEntropyByHand(outputs=1),
        cycle(extreme, _binary(extreme)),
        cured_by=("safe_log",),
    ),
    Sick(
        "discriminator",
        "log(1 - D(fake)), and D is sure that it is real",
        lambda: Discriminator(outputs=1),
        cycle(liked, changed(other, BAD, 2000 * liked[BAD])),
        cured_by=("safe_log",),
    ),
    Sick(
        "softplus_by_hand",
        "log(1 + exp(x)) beyond x = 88",
        lambda: LogisticLoss(outputs=1),
        cycle(extreme, flipped),
        cured_by=("safe_exp",),
        optimizer=adam,
    ),
    Sick(
        "log_cosh",
        "log(cosh(x)) beyond x = 89",
        lambda: LogCosh(outputs=1),
        cycle(ordered, changed(scores(ordered, 1).squeeze(-1), BAD, 1e3)),
        cured_by=("safe_cosh",),
    ),
    Sick(
        "soft_margin_loss",
        "soft_margin_loss, which is log(1 + exp(x)) inside",
        lambda: SoftMargin(outputs=1),
        cycle(extreme, flipped),
        cured_by=("nn.functional.soft_margin_loss",),
        optimizer=adam,
    ),
    Sick(
        "noisy_or",
        "log1p(-p) at p = 1",
        lambda: NoisyOr(outputs=1),
        cycle(bags, (scores(bags, 1).squeeze(-1) > 1).any(-1)),
        cured_by=("safe_log1p",),
    ),
)
