"""Planted faults of a batch, and healthy twins."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.audited import Cases, batched, embedded, images, net, plain, table

CASES = Cases()
planted = CASES.planted


@planted("nan", "batch", plain)
def input_with_a_nan():
    x = table()
    x[3, 4] = math.nan
    return batched(x)


@planted("inf", "batch[0]", lambda: batched((table(), torch.arange(32) % 5)))
def input_with_an_inf():
    x = table()
    x[3, 4] = math.inf
    return batched((x, torch.arange(32) % 5))


class Scorer(nn.Module):
    """Takes a mapping, with a mask."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x, attention_mask=None, key_padding_mask=None, mask=None):
        return self.layer(x)


def masked(**masks):
    return {"model": Scorer(), "batch": {"x": torch.randn(8, 6), **masks}}


def mask_with(row, keep):
    mask = torch.full((8, 6), keep)
    mask[:, 4:] = not keep
    mask[2] = row
    return mask


def no_empty_row():
    return masked(
        attention_mask=mask_with(True, True).long(), key_padding_mask=mask_with(False, False)
    )


@planted("masked row", "batch['attention_mask']", no_empty_row, "warning")
def attention_mask_with_an_empty_row():
    return masked(attention_mask=mask_with(False, True).long())


@planted("masked row", "batch['key_padding_mask']", no_empty_row, "warning")
def padding_mask_with_an_empty_row():
    return masked(key_padding_mask=mask_with(True, False))


@planted("masked row", "batch['mask']", lambda: masked(mask=mask_with(True, True)), "warning")
def mask_with_an_empty_row():
    return masked(mask=mask_with(False, True))


def causal():
    return masked(mask=torch.full((6, 6), -math.inf).triu(1))


@planted("masked row", "batch['mask']", causal, "warning")
def additive_mask_with_an_empty_row():
    return masked(mask=torch.full((6, 6), -math.inf).triu(0))


@planted("range", "batch", images, "warning")
def images_from_0_to_255():
    return images(120.0, 60.0)


@planted("range", "batch", plain, "warning")
def one_column_in_other_units():
    return batched(table() * torch.tensor([1.0] * 15 + [1e4]))


@planted("range", "batch", plain, "warning")
def one_column_with_an_offset():
    return batched(table() * 0.01 + torch.tensor([0.0] * 15 + [20.0]))


@planted("constant column", "batch", plain, "warning")
def column_that_never_changes():
    x = table()
    x[:, 7] = 0.5
    return batched(x)


@planted("constant column", "batch", images, "warning")
def channel_that_never_changes():
    given = images()
    given["batch"][:, 1] = 0.0
    return given


@planted("overflow", "batch", lambda: {"model": net().bfloat16(), "batch": table().bfloat16()})
def data_beyond_float16():
    return {"model": net().half(), "batch": table() * 1e5}


@planted("class index", "batch[1]", lambda: batched((table(4), torch.tensor([0, 4, -100, 1]))))
def label_beyond_the_outputs():
    return batched((table(4), torch.tensor([0, 5, -100, 1])))


@planted("class index", "batch[1]", lambda: batched((table(4), torch.tensor([0, 4, -100, 1]))))
def negative_label():
    return batched((table(4), torch.tensor([0, -1, -100, 1])))


def loss_of(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["kind"])


def with_a_loss(kind):
    return batched({"x": table(4), "kind": torch.tensor(kind)}, forward=loss_of)


@planted("class index", "batch['kind']", lambda: with_a_loss([0, 4, -100, 1]))
def label_beyond_the_loss():
    return with_a_loss([0, 9, -100, 1])


@planted("ignored targets", "batch[1]", lambda: batched((table(2), torch.tensor([-100, 1]))))
def labels_that_are_all_ignored():
    return batched((table(4), torch.full((4,), -100)))


@planted("ignored targets", "batch['kind']", lambda: with_a_loss([-100, -100, 2, -100]))
def a_loss_of_nothing():
    return with_a_loss([-100] * 4)


def summed(kind, ignored=0):
    def loss(model, batch):
        scores = model(batch["x"])
        return F.cross_entropy(scores, batch["kind"], ignore_index=ignored, reduction="sum")

    return batched({"x": table(4), "kind": torch.tensor(kind)}, forward=loss)


@planted("ignored targets", "batch['kind']", lambda: summed([0, 0, 1, 0]), "warning")
def a_sum_of_nothing():
    return summed([0] * 4)


@planted("class index", "batch", embedded)
def word_beyond_the_embedding():
    return embedded() | {"batch": torch.full((8, 3), 20)}
