"""Sick programs: means, ratios and losses of nothing."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.sick import (
    BAD,
    BATCH,
    ROWS,
    Net,
    Sick,
    changed,
    cycle,
    features,
    labels,
    normal,
    scores,
)


class Dice(Net):
    def forward(self, batch):
        x, target, valid = batch
        p = torch.sigmoid(self.net(x)).squeeze(-1) * valid
        target = target * valid
        overlap = (p * target).sum(-1)
        return (1 - 2 * overlap / (p.sum(-1) + target.sum(-1))).mean()


class BoxIoU(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False), nn.Softplus()
        )

    def forward(self, batch):
        x, size, there = batch
        predicted = self.net(x) * there
        inner = torch.minimum(predicted, size).prod(-1)
        union = predicted.prod(-1) + size.prod(-1) - inner
        return (1 - inner / union).mean()


class MeanOverMask(Net):
    def forward(self, batch):
        x, y, mask = batch
        error = (self.net(x).squeeze(-1) - y) ** 2
        return error[mask].mean()


class SumOverCount(Net):
    def forward(self, batch):
        x, y, mask = batch
        error = (self.net(x).squeeze(-1) - y) ** 2
        return (error * mask).sum() / mask.sum()


class MseOfSelection(Net):
    def forward(self, batch):
        x, y, mask = batch
        return F.mse_loss(self.net(x).squeeze(-1)[mask], y[mask])


class CrossEntropy(Net):
    def forward(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y, ignore_index=-100)


class WeightedCrossEntropy(Net):
    def __init__(self):
        super().__init__()
        self.loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.0]))

    def forward(self, batch):
        x, y = batch
        return self.loss(self.net(x), y)


class Speech(Net):
    def forward(self, batch):
        x, targets, frames, letters = batch
        log_p = self.net(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(log_p, targets, frames, letters)


def _mask():
    return changed(normal(ROWS, seed=3) > 0, BATCH, False)


ordered = features()
pixels = normal(ROWS, 6, 4)
sounds = normal(ROWS, 6, 4)
there = changed(torch.ones(ROWS, 1), BAD, 0)
regression = (ordered, scores(ordered, 1).squeeze(-1), _mask())

PROGRAMS = (
    Sick(
        "dice",
        "2 * overlap / (p.sum() + target.sum()) of an image without valid pixels",
        lambda: Dice(outputs=1),
        cycle(
            pixels,
            (scores(pixels, 1).squeeze(-1) > 0).float(),
            changed(torch.ones(ROWS, 6), BAD, 0),
        ),
        cured_by=("safe_div",),
    ),
    Sick(
        "box_iou",
        "intersection / union of two empty boxes: 0 / 0",
        BoxIoU,
        cycle(ordered, scores(ordered, 2).exp() * there, there),
        cured_by=("safe_div",),
    ),
    Sick(
        "mean_over_mask",
        "loss[mask].mean() where nothing is selected",
        lambda: MeanOverMask(outputs=1),
        cycle(*regression),
        cured_by=("mean",),
    ),
    Sick(
        "sum_over_count",
        "(loss * mask).sum() / mask.sum() where the mask is empty",
        lambda: SumOverCount(outputs=1),
        cycle(*regression),
        cured_by=("safe_div",),
    ),
    Sick(
        "mse_of_selection",
        "F.mse_loss(prediction[mask], y[mask]) where nothing is selected",
        lambda: MseOfSelection(outputs=1),
        cycle(*regression),
        cured_by=("nn.functional.mse_loss",),
    ),
    Sick(
        "all_ignored",
        "cross_entropy of a batch in which every target is ignored",
        CrossEntropy,
        cycle(ordered, changed(labels(ordered), BATCH, -100)),
        cured_by=("nn.functional.cross_entropy",),
    ),
    Sick(
        "no_class_weight",
        "CrossEntropyLoss(weight=...) of a batch in which every class weighs 0",
        WeightedCrossEntropy,
        cycle(ordered, changed(labels(ordered), BATCH, 2)),
        cured_by=("nn.functional.cross_entropy",),
    ),
    Sick(
        "ctc",
        "ctc_loss of a text that is longer than its sound",
        lambda: Speech(outputs=5),
        cycle(
            sounds,
            scores(sounds[:, ::2], 4).argmax(-1) + 1,
            changed(torch.full((ROWS,), 6), BAD, 2),
            torch.full((ROWS,), 3),
        ),
        cured_by=("nn.functional.ctc_loss",),
    ),
)
