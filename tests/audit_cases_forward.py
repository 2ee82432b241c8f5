"""Planted faults that a forward shows, and healthy twins."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.audited import Cases, batched, changed, images, plain, table

CASES = Cases()
planted = CASES.planted


@planted("dead units", "2", plain)
def relus_with_a_negative_bias():
    return {"model": changed(lambda m: m[1].bias.fill_(-100.0)), "batch": table()}


@planted("dead units", "2", plain, "warning")
def most_relus_dead():
    return {"model": changed(lambda m: m[1].bias[:56].fill_(-100.0)), "batch": table()}


@planted("dead units", "2", images, "warning")
def dead_channels():
    given = images()
    nn.init.constant_(given["model"][1].bias[:7], -100.0)
    return given


class Functional(nn.Module):
    def __init__(self, bias=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)
        nn.init.constant_(self.first.bias, bias)

    def forward(self, x):
        return self.second(F.relu(self.first(F.relu(x))))


@planted("dead units", "the model (call 2)", lambda: {"model": Functional(), "batch": table()})
def relu_function_dead():
    return {"model": Functional(-100.0), "batch": table()}


@planted("saturated", "4", plain, "warning")
def tanh_at_its_ends():
    return {"model": changed(lambda m: m[3].bias.fill_(50.0)), "batch": table()}


@planted("saturated", "1", lambda: batched(table()), "warning")
def sigmoid_at_its_ends():
    model = nn.Sequential(nn.Linear(16, 8), nn.Sigmoid())
    return {"model": changed(lambda m: m[0].bias.fill_(-50.0), model), "batch": table()}


class Sums(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(16, 16), function

    def forward(self, x):
        return self.function(self.layer(x))


@planted("activation", "the model", lambda: {"model": Sums(torch.exp), "batch": table()})
def output_that_is_not_finite():
    return {"model": Sums(torch.log), "batch": table()}


@planted("activation", "0", plain, "warning")
def activations_that_explode():
    return {"model": changed(lambda m: m[0].weight.mul_(1e5)), "batch": table()}


def attending(masked_rows):
    def scores(x):
        mask = torch.zeros(len(x), 1, dtype=torch.bool)
        mask[:masked_rows] = True
        return torch.softmax(x.masked_fill(mask, -torch.inf), -1)

    return {"model": Sums(scores), "batch": table()}


@planted("masked row", "the model", lambda: attending(0))
def softmax_of_nothing():
    return attending(2)


@planted("not a tensor", "batch[0]", lambda: batched([table()]))
def numpy_batch():
    return batched([table().numpy(), table().numpy()])


@planted("forward failed", "forward", plain)
def batch_of_another_width():
    return batched(torch.randn(8, 17))


@planted("forward failed", "forward", plain)
def batch_norm_of_one_sample():
    return batched(table(1))
