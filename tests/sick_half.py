"""Sick programs: what is well in float32 and not in float16 or bfloat16."""

import torch
import torch.nn.functional as F

from tests.sick import (
    BAD,
    BATCH,
    ROWS,
    Embedder,
    Net,
    Sick,
    changed,
    cycle,
    features,
    labels,
    normal,
    scores,
)


class LogOfSoftmax(Net):
    def forward(self, batch):
        x, y = batch
        p = torch.softmax(self.net(x), dim=-1)
        return -torch.log(p + 1e-8).gather(1, y[:, None]).mean()


class CrossEntropyByHand(Net):
    def forward(self, batch):
        x, y = batch
        e = self.net(x).exp()
        return -(e / e.sum(-1, keepdim=True)).gather(1, y[:, None]).log().mean()


class Discriminator(Net):
    def forward(self, batch):
        real, fake = batch
        d_real, d_fake = torch.sigmoid(self.net(real)), torch.sigmoid(self.net(fake))
        return -(torch.log(d_real) + torch.log(1 - d_fake)).mean()


class SquaredError(Net):
    def forward(self, batch):
        x, y = batch
        return ((self.net(x) - y) ** 2).mean()


class UnitVector(Embedder):
    def forward(self, batch):
        x, y = batch
        e = self.net(x)
        return F.cross_entropy(4 * e / (e.norm(dim=-1, keepdim=True) + 1e-8), y)


class Normalize(Embedder):
    def forward(self, batch):
        x, y = batch
        return F.cross_entropy(4 * F.normalize(self.net(x), dim=-1), y)


class Cosine(Embedder):
    def forward(self, batch):
        a, b, wanted = batch
        return ((F.cosine_similarity(self.net(a), self.net(b)) - wanted) ** 2).mean()


class Angle(Embedder):
    def forward(self, batch):
        a, b, wanted = batch
        a, b = self.net(a), self.net(b)
        cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
        return ((torch.acos(cosine) - wanted) ** 2).mean()


class Standardized(Net):
    def forward(self, batch):
        x, y = batch
        x = (x - x.mean(0)) / torch.sqrt(x.var(0) + 1e-8)
        return F.cross_entropy(self.net(x), y)


class MomentStd(Net):
    """The deviation from the moments: E[x²] - E[x]²."""

    def forward(self, batch):
        x, y = batch
        deviation = torch.sqrt((x * x).mean(0) - x.mean(0) ** 2)
        return F.cross_entropy(self.net((x - x.mean(0)) / (deviation + 1e-2)), y)


class ProbabilityLoss(Net):
    def forward(self, batch):
        x, y = batch
        return F.binary_cross_entropy(torch.sigmoid(self.net(x)), y)


FLOAT, BRAIN = torch.float16, torch.bfloat16
ordered, second = features(), normal(ROWS, 4, seed=6)
blank = features(0.0)
liked, other = (torch.where(scores(ordered, 1) > 0, s * ordered, -s * ordered) for s in (1, -1))
extreme = features([40.0, -30.0, 20.0, 50.0])
wrong = changed(labels(extreme), BAD, scores(extreme[BAD], 3).argmin())
cosine = F.cosine_similarity(scores(ordered, 3), scores(second, 3))
binary = (scores(extreme, 1) > 0).float()
nearly = changed(ordered, (BATCH, 3), torch.tensor([9.0, 9.2]).repeat(8))

PROGRAMS = (
    Sick(
        "half_log_of_softmax",
        "log(p + 1e-8): the eps is 0 in float16",
        LogOfSoftmax,
        cycle(extreme, wrong),
        cured_by=("safe_log",),
        dtype=FLOAT,
    ),
    Sick(
        "half_cross_entropy_by_hand",
        "exp(x) beyond x = 11",
        CrossEntropyByHand,
        cycle(extreme, wrong),
        cured_by=("safe_exp", "safe_log"),
        dtype=FLOAT,
    ),
    Sick(
        "half_squared_error",
        "(x - y)**2 of an error beyond 256",
        lambda: SquaredError(outputs=1),
        cycle(ordered, changed(scores(ordered, 1), BAD, 400.0)),
        cured_by=("safe_pow",),
        dtype=FLOAT,
    ),
    Sick(
        "half_unit_vector",
        "x / (x.norm() + 1e-8): the eps is 0 in float16",
        UnitVector,
        cycle(blank, labels(ordered)),
        cured_by=("safe_div",),
        dtype=FLOAT,
    ),
    Sick(
        "half_normalize",
        "F.normalize of a zero vector: its eps is 0 in float16",
        Normalize,
        cycle(blank, labels(ordered)),
        cured_by=("nn.functional.normalize",),
        dtype=FLOAT,
    ),
    Sick(
        "half_cosine",
        "F.cosine_similarity of a zero vector: its eps is 0 in float16",
        Cosine,
        cycle(blank, second, cosine),
        cured_by=("nn.functional.cosine_similarity",),
        dtype=FLOAT,
    ),
    Sick(
        "half_standardized",
        "1 / sqrt(var + 1e-8) of a constant column: the eps is 0 in float16",
        Standardized,
        cycle(changed(ordered, (BATCH, 3), 1.0), labels(ordered)),
        cured_by=("safe_div",),
        dtype=FLOAT,
    ),
    Sick(
        "half_binary_cross_entropy",
        "binary_cross_entropy of a sigmoid that is 1 in float16",
        lambda: ProbabilityLoss(outputs=1),
        cycle(extreme, binary),
        cured_by=("nn.functional.binary_cross_entropy",),
        dtype=FLOAT,
    ),
    Sick(
        "brain_discriminator",
        "log(1 - D(fake)): D is 1 in bfloat16 from x = 6 on",
        lambda: Discriminator(outputs=1),
        cycle(liked, changed(other, BAD, 100 * liked[BAD])),
        cured_by=("safe_log",),
        dtype=BRAIN,
    ),
    Sick(
        "brain_angle",
        "acos of a cosine that is rounded to 1 or more",
        Angle,
        cycle(ordered, changed(second, BATCH, ordered[BATCH]), cosine.acos()),
        cured_by=("safe_acos",),
        dtype=BRAIN,
    ),
    Sick(
        "brain_moment_std",
        "sqrt(E[x²] - E[x]²), which is below 0 in bfloat16",
        MomentStd,
        cycle(nearly, labels(ordered)),
        cured_by=("safe_sqrt",),
        dtype=BRAIN,
    ),
)
