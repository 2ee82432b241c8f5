"""Sick programs: angles, correlations and roots at the end of their domain."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.sick import (
    BAD,
    BATCH,
    ROWS,
    Embedder,
    Sick,
    changed,
    cycle,
    features,
    normal,
    scores,
)


class Angle(Embedder):
    def forward(self, batch):
        a, b, wanted = batch
        a, b = F.normalize(self.net(a), dim=-1), F.normalize(self.net(b), dim=-1)
        return ((torch.acos((a * b).sum(-1)) - wanted) ** 2).mean()


class FisherZ(Embedder):
    """Brings the correlation of two measurements to what it should be."""

    def forward(self, batch):
        x, y, wanted = batch
        p = self.net(x).squeeze(-1)
        p, y = p - p.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
        r = (p * y).sum(-1) / ((p * p).sum(-1).sqrt() * (y * y).sum(-1).sqrt())
        return ((torch.atanh(r) - wanted) ** 2).mean()


class Pitch(nn.Module):
    """Calibrates an attitude sensor that gives quaternions."""

    def __init__(self):
        super().__init__()
        self.scale, self.offset = (nn.Parameter(torch.full((n,), 0.8)) for n in (4, 1))

    def forward(self, batch):
        x, wanted = batch
        w, i, j, k = (self.scale * x).unbind(-1)
        return ((torch.asin(2 * (w * j - k * i)) + self.offset - wanted) ** 2).mean()


class GammaCorrection(Embedder):
    def forward(self, batch):
        x, y = batch
        light = self.net(x).squeeze(-1).abs()
        return ((light ** (1 / 2.2) - y) ** 2).mean()


def _quaternions():
    q = F.normalize(normal(ROWS, 4) * torch.tensor([3.0, 1, 1, 1]), dim=-1)
    q = q[(2 * (q[:, 0] * q[:, 2] - q[:, 3] * q[:, 1])).abs() < 0.7]
    return changed(q, 200, [0.75, 0.0, 0.75, 0.0])


def _pitch(q):
    return torch.asin((2 * (q[:, 0] * q[:, 2] - q[:, 3] * q[:, 1])).clamp(-1, 1))


ordered = features()
blank = features(0.0)
second = normal(ROWS, 4, seed=6)
series, partner = normal(ROWS, 6, 4), normal(ROWS, 6, seed=7)
quaternions = _quaternions()

PROGRAMS = (
    Sick(
        "angle",
        "acos(a @ b) of two equal unit vectors",
        Angle,
        cycle(
            ordered,
            changed(second, BATCH, ordered[BATCH]),
            F.cosine_similarity(scores(ordered, 3), scores(second, 3)).acos(),
        ),
        cured_by=("safe_acos",),
    ),
    Sick(
        "fisher_z",
        "atanh(r) of a correlation of 1",
        lambda: FisherZ(outputs=1),
        cycle(
            changed(series, BAD, torch.tensor([-1.0, -1, 0, 0, 1, 1])[:, None]),  # nothing rounds
            changed(partner + scores(series, 1).squeeze(-1), BAD, [1.0, 1, 2, 2, 3, 3]),
            torch.ones(ROWS),
        ),
        cured_by=("safe_atanh",),
    ),
    Sick(
        "pitch",
        "asin(2 * (w * y - z * x)) of a quaternion longer than 1",
        Pitch,
        cycle(quaternions, _pitch(quaternions)),
        cured_by=("safe_asin",),
    ),
    Sick(
        "gamma_correction",
        "x.abs()**(1 / 2.2), whose slope at 0 is infinite",
        lambda: GammaCorrection(outputs=1),
        cycle(blank, scores(ordered, 1).squeeze(-1).abs() ** (1 / 2.2)),
        cured_by=("safe_pow",),
    ),
)
