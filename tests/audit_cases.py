"""For each kind of finding, planted faults and healthy twins, as audit's arguments."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

CASES = []


class Case:
    def __init__(self, what, where, severity, sick, healthy):
        self.what, self.where, self.severity = what, where, severity
        self.sick, self.healthy = sick, healthy

    def __repr__(self):
        return f"{self.what}: {self.sick.__name__}".replace(" ", "-")


def planted(what, where, healthy, severity="error"):
    """The function makes the sick arguments of audit, `healthy` those of the twin."""

    def add(sick):
        CASES.append(Case(what, where, severity, sick, healthy))
        return sick

    return add


def net(*_):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(),
        nn.Linear(64, 5),
    )  # fmt: skip


def table(rows=32):
    return torch.randn(rows, 16)


def changed(change, model=None):
    model = model or net()
    with torch.no_grad():
        change(model)
    return model


def plain():
    return {"model": net(), "batch": table()}


def stepped(make=torch.optim.AdamW):
    """After a step, so that there is a state."""
    model = net()
    optimizer = make(model.parameters(), lr=1e-3)
    model(table()).square().mean().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


# --- values --------------------------------------------------------------------------------------


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


@planted("subnormal", "1.weight", plain, "warning")
def subnormal_scales():
    return {"model": changed(lambda m: m[1].weight[:30].fill_(1e-40))}


@planted("huge", "1.bias", plain)
def bias_whose_square_overflows():
    return {"model": changed(lambda m: m[1].bias[0].fill_(1e25))}


@planted("huge", "1.weight", plain, "warning")
def large_scales():
    return {"model": changed(lambda m: m[1].weight.fill_(5e3))}


def half_net():
    return {"model": net().half()}


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


def embedded():
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(20, 16), nn.Flatten(), nn.Linear(48, 4))
    return {"model": words, "batch": torch.randint(0, 20, (8, 3))}


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


# --- the batch -----------------------------------------------------------------------------------


def batched(x, **more):
    return {"model": net(), "batch": x, **more}


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


def images(offset=0.0, scale=1.0):
    torch.manual_seed(0)
    x = torch.randn(8, 3, 8, 8) * scale + offset
    return {"model": nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), "batch": x}


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


@planted("class index", "batch", embedded)
def word_beyond_the_embedding():
    return embedded() | {"batch": torch.full((8, 3), 20)}


# --- settings ------------------------------------------------------------------------------------


def settings(make=torch.optim.AdamW, model=None, **group):
    model = model or net()
    optimizer = make(model.parameters(), lr=1e-3)
    optimizer.param_groups[0].update(group)
    return {"model": model, "optimizer": optimizer}


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


# --- the forward ---------------------------------------------------------------------------------


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


@planted("forward failed", "forward", plain)
def batch_of_another_width():
    return batched(torch.randn(8, 17))


@planted("forward failed", "forward", plain)
def batch_norm_of_one_sample():
    return batched(table(1))
