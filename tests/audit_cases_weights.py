"""Planted faults of values and of initialisation, and healthy twins."""

import math

import torch
from torch import nn

from tests.audited import Cases, changed, embedded, half_net, net, plain, table

CASES = Cases()
planted = CASES.planted


# --- values --------------------------------------------------------------------------------------


def stepped(make=torch.optim.AdamW):
    """After a step, so that there is a state."""
    model = net()
    optimizer = make(model.parameters(), lr=1e-3)
    model(table()).square().mean().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


@planted("nan", "3.weight", plain)
def weight_with_a_nan():
    return {"model": changed(lambda m: m[3].weight[1, 2].fill_(math.nan))}


@planted("inf", "0.bias", plain)
def bias_with_an_inf():
    return {"model": changed(lambda m: m[0].bias[3].fill_(-math.inf))}


@planted("nan", "1.running_var", plain)
def buffer_with_a_nan():
    return {"model": changed(lambda m: m[1].running_var[0].fill_(math.nan))}


@planted("inf", "1.running_mean", plain)
def buffer_with_a_negative_inf():
    return {"model": changed(lambda m: m[1].running_mean[0].fill_(-math.inf))}


@planted("nan", "0.weight (exp_avg_sq)", stepped)
def state_with_a_nan():
    given = stepped()
    weight = given["model"][0].weight
    given["optimizer"].state[weight]["exp_avg_sq"][0, 0] = math.nan
    return given


@planted("inf", "3.bias (momentum_buffer)", lambda: stepped(with_momentum))
def momentum_with_an_inf():
    given = stepped(with_momentum)
    given["optimizer"].state[given["model"][3].bias]["momentum_buffer"][0] = math.inf
    return given


def with_momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def with_gradients():
    given = plain()
    given["model"](table()).square().mean().backward()
    return given


@planted("stale gradient", "3.weight.grad, 5.bias.grad", with_gradients)
def stale_gradients():
    given = with_gradients()
    given["model"][3].weight.grad[0, 0] = math.nan
    given["model"][5].bias.grad[1] = math.inf
    return given


@planted("negative variance", "1.running_var", plain)
def running_variance_below_zero():
    return {"model": changed(lambda m: m[1].running_var[0].fill_(-0.5))}


@planted("subnormal", "1.weight", plain, "warning")
def subnormal_scales():
    return {"model": changed(lambda m: m[1].weight[:30].fill_(1e-40))}


@planted("huge", "1.bias", plain)
def bias_whose_square_overflows():
    return {"model": changed(lambda m: m[1].bias[0].fill_(1e25))}


@planted("huge", "1.weight", plain, "warning")
def large_scales():
    return {"model": changed(lambda m: m[1].weight.fill_(5e3))}


@planted("huge", "3.weight", half_net)
def float16_near_its_end():
    return {"model": changed(lambda m: m[3].weight[0, 0].fill_(6e4), net().half())}


# --- initialisation ------------------------------------------------------------------------------


@planted("weights too large", "3.weight", plain, "warning")
def normal_without_a_fan():
    return {"model": changed(lambda m: nn.init.normal_(m[3].weight))}


@planted("weights too large", "3.weight", plain)
def far_too_large():
    return {"model": changed(lambda m: nn.init.normal_(m[3].weight, std=20.0))}


@planted("weights too small", "0.weight", plain, "warning")
def too_small():
    return {"model": changed(lambda m: nn.init.normal_(m[0].weight, std=5e-4))}


@planted("weights too small", "3.weight", plain)
def far_too_small():
    return {"model": changed(lambda m: nn.init.normal_(m[3].weight, std=1e-6))}


def convolutions():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.ConvTranspose2d(16, 8, 4, 2))
    return {"model": nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))}


@planted("weights too large", "0.0.weight", convolutions, "warning")
def convolution_too_large():
    return {"model": changed(lambda m: m[0][0].weight.mul_(40), convolutions()["model"])}


@planted("weights too small", "0.2.weight", convolutions)
def transposed_convolution_too_small():
    return {"model": changed(lambda m: m[0][2].weight.mul_(1e-4), convolutions()["model"])}


def attention():
    torch.manual_seed(0)
    return {"model": nn.TransformerEncoderLayer(32, 4, 64)}


@planted("weights too large", "self_attn.in_proj_weight", attention, "warning")
def packed_weights_too_large():
    return {"model": changed(lambda m: m.self_attn.in_proj_weight.mul_(20), attention()["model"])}


def recurrent():
    torch.manual_seed(0)
    return {"model": nn.LSTM(16, 32)}


@planted("weights too large", "weight_hh_l0", recurrent, "warning")
def recurrent_weights_too_large():
    return {"model": changed(lambda m: nn.init.normal_(m.weight_hh_l0, std=3), nn.LSTM(16, 32))}


@planted("weights too large", "0.weight", embedded, "warning")
def embedding_too_large():
    return {"model": changed(lambda m: m[0].weight.mul_(300), embedded()["model"])}


@planted("alike", "3.weight", plain)
def constant_matrix():
    return {"model": changed(lambda m: nn.init.constant_(m[3].weight, 0.1))}


@planted("alike", "0.weight", plain)
def the_same_row_for_every_unit():
    return {"model": changed(lambda m: m[0].weight.copy_(torch.randn(16).expand(64, 16) / 4))}


def zero_last():
    return {"model": changed(lambda m: nn.init.zeros_(m[5].weight)), "batch": table()}


@planted("zero", "3.weight", zero_last, "warning")
def zero_in_the_middle():
    return {"model": changed(lambda m: nn.init.zeros_(m[3].weight))}


@planted("zero", "0.weight", zero_last)
def zeros_that_hold_each_other():
    return {"model": changed(lambda m: [nn.init.zeros_(m[i].weight) for i in (0, 3)] and
                             nn.init.zeros_(m[0].bias))}  # fmt: skip


@planted("uninitialised", "0.weight, 0.bias", plain, "warning")
def lazy_layer():
    return {"model": nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 3)), "batch": table()}


@planted("no data", "0.weight, 0.bias, 1.weight and 8 more", plain, "warning")
def on_the_meta_device():
    return {"model": net().to("meta")}
