"""Sick programs: distances, directions and degrees that are 0."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.sick import (
    BAD,
    ROWS,
    Embedder,
    Sick,
    adam,
    changed,
    cycle,
    features,
    labels,
    normal,
    scores,
)


class UnitVector(Embedder):
    def forward(self, batch):
        x, y = batch
        e = self.net(x)
        return F.cross_entropy(4 * e / e.norm(dim=-1, keepdim=True), y)


class Contrastive(Embedder):
    def forward(self, batch):
        a, b, same = batch
        d = ((self.net(a) - self.net(b)) ** 2).sum(-1).sqrt()
        return (same * d**2 + (1 - same) * F.relu(1 - d) ** 2).mean()


class Scaling(Embedder):
    """Multidimensional scaling, with |a|² + |b|² - 2ab."""

    def forward(self, batch):
        x, wanted = batch
        e = self.net(x)
        square = (e * e).sum(-1)
        d = torch.sqrt(square[:, None] + square[None] - 2 * e @ e.T)
        return ((d - torch.cdist(wanted, wanted)) ** 2).mean()


class CosineByHand(Embedder):
    def forward(self, batch):
        a, b, wanted = batch
        a, b = self.net(a), self.net(b)
        cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
        return ((cosine - wanted) ** 2).mean()


class Ranges(Embedder):
    """Places, of which only the distance to an anchor is known."""

    def forward(self, batch):
        x, wanted = batch
        place = self.net(x)
        return ((torch.hypot(place[:, 0], place[:, 1]) - wanted) ** 2).mean()


class Poincare(nn.Module):
    """Embeddings in the hyperbolic disc."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 2)
        nn.init.uniform_(self.table.weight, -0.3, 0.3)

    def forward(self, batch):
        i, j, wanted = batch
        u, v = self.table(i), self.table(j)
        square = ((u - v) ** 2).sum(-1)
        room = (1 - (u * u).sum(-1)) * (1 - (v * v).sum(-1))
        return ((torch.acosh(1 + 2 * square / room) - wanted) ** 2).mean()


class GraphConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, batch):
        x, edges, y = batch
        scale = edges.sum(-1) ** -0.5
        h = (scale[..., None] * edges * scale[..., None, :]) @ self.net(x)
        return F.cross_entropy(h.flatten(0, 1), y.flatten())


def _graphs():
    edges = (normal(ROWS, 5, 5) + torch.eye(5) * 9 > 0).float()
    return changed(edges, (BAD, slice(None), 0), 0) * changed(torch.ones(ROWS, 5, 1), (BAD, 0), 0)


def _pairs():
    pairs = torch.combinations(torch.arange(12)).repeat(9, 1)
    return changed(pairs, BAD, 5)


ordered = features()
blank = features(0.0)
second = normal(ROWS, 4, seed=6)
same = (scores(ordered, 1) * scores(second, 1) > 0).float().squeeze(-1)
duplicate = changed(second, BAD, ordered[BAD])
pairs = _pairs()
nodes, edges = normal(ROWS, 5, 4), _graphs()

PROGRAMS = (
    Sick(
        "unit_vector",
        "x / x.norm() of the zero vector",
        UnitVector,
        cycle(blank, labels(ordered)),
        cured_by=("safe_div",),
    ),
    Sick(
        "contrastive",
        "sqrt of a sum of squares at a pair of duplicates",
        Contrastive,
        cycle(ordered, duplicate, changed(same, BAD, 1)),
        cured_by=("safe_sqrt",),
        optimizer=adam,
    ),
    Sick(
        "scaling",
        "sqrt(|a|² + |b|² - 2ab), a difference that is 0 or below",
        Scaling,
        cycle(ordered, scores(ordered, 3)),
        cured_by=("safe_sqrt",),
    ),
    Sick(
        "cosine_by_hand",
        "a @ b / (|a| |b|) of a zero vector",
        CosineByHand,
        cycle(blank, second, F.cosine_similarity(scores(ordered, 3), scores(second, 3))),
        cured_by=("safe_div",),
    ),
    Sick(
        "ranges",
        "hypot(x, y) at the place of the anchor",
        lambda: Ranges(outputs=2),
        cycle(blank, scores(ordered, 2).norm(dim=-1)),
        cured_by=("safe_hypot",),
    ),
    Sick(
        "poincare",
        "acosh(1 + x) of two equal points",
        Poincare,
        cycle(pairs[:, 0], pairs[:, 1], (pairs[:, 0] - pairs[:, 1]).abs() / 3),
        cured_by=("safe_acosh",),
    ),
    Sick(
        "graph_convolution",
        "degree**-0.5 of an isolated node: inf * 0",
        GraphConvolution,
        cycle(nodes, edges, labels(edges @ nodes)),
        cured_by=("safe_pow",),
    ),
)
