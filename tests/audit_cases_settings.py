"""Planted faults of an optimizer's settings, and healthy twins."""

import copy
import math

import torch
from torch import nn

from tests.audited import Cases, half_net, net, plain, settings

CASES = Cases()
planted = CASES.planted


def setting(name):
    return f'param_groups[0]["{name}"]'


@planted("eps", setting("eps"), settings)
def adam_eps_in_float16():
    return settings(model=net().half())


@planted("eps", setting("eps"), settings, "warning")
def adam_without_eps():
    return settings(eps=0.0)


@planted("eps", "1.eps", plain, "warning")
def normalisation_without_eps():
    model = net()
    model[1].eps = 0.0
    return {"model": model}


@planted("eps", "1.eps", half_net, "warning")
def normalisation_eps_in_float16():
    model = net().half()
    model[1].eps = 1e-12
    return {"model": model}


@planted("setting", setting("lr"), settings)
def negative_rate():
    return settings(lr=-1e-3)


@planted("setting", setting("lr"), settings)
def rate_of_nan():
    return settings(lr=math.nan)


@planted("setting", setting("lr"), lambda: settings(lr=0.0, initial_lr=1e-3), "warning")
def rate_of_zero():
    return settings(lr=0.0)


@planted("setting", setting("lr"), lambda: settings(torch.optim.SGD, lr=1.0), "warning")
def huge_rate_of_adam():
    return settings(lr=torch.tensor(1.0))


@planted("setting", setting("lr"), lambda: settings(torch.optim.SGD, lr=1.0), "warning")
def huge_rate_of_sgd():
    return settings(torch.optim.SGD, lr=50.0)


@planted("setting", setting("betas"), settings)
def beta_of_one():
    return settings(betas=(0.9, 1.0))


@planted("setting", setting("momentum"), lambda: settings(torch.optim.SGD, momentum=0.9))
def momentum_of_one():
    return settings(torch.optim.SGD, momentum=1.0)


@planted("setting", setting("weight_decay"), settings)
def negative_weight_decay():
    return settings(weight_decay=-0.01)


def frozen_first():
    model = net()
    model[0].requires_grad_(False)
    return {"model": model, "optimizer": torch.optim.SGD(model[1:].parameters(), lr=0.1)}


@planted("not optimised", "0.weight, 0.bias", frozen_first, "warning")
def parameters_that_were_forgotten():
    model = net()
    return {"model": model, "optimizer": torch.optim.SGD(model[1:].parameters(), lr=0.1)}


@planted("nothing to train", "the model", frozen_first, "warning")
def all_frozen():
    return {"model": net().requires_grad_(False)}


@planted("not in the model", "param_groups", settings)
def optimizer_of_a_copy():
    given = settings()
    return given | {"model": copy.deepcopy(given["model"])}


@planted("not in the model", "param_groups", settings, "warning")
def a_layer_was_replaced():
    given = settings()
    given["model"][5] = nn.Linear(64, 5)
    return given


@planted("float16 weights", "0.weight, 0.bias, 1.weight and 5 more", half_net, "warning")
def float16_without_master_weights():
    return settings(torch.optim.SGD, model=net().half())
