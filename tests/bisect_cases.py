"""Models with planted culprits, which must be frozen for a step to be finite."""

import itertools

import torch
from torch import nn

EXPLODING = 1e38


def stepper(model, optimizer, x, times=3, scale=1e4):
    def step():
        for _ in range(times):
            optimizer.zero_grad()
            loss = scale * model(x).float().square().mean()
            loss.backward()
            optimizer.step()
        return loss

    return step


def sgd(model, culprits, **options):
    """A learning rate that explodes for some parameters."""
    groups = [
        {"params": [p], "lr": EXPLODING if name.startswith(culprits) else 1e-7}
        for name, p in model.named_parameters()
    ]
    return torch.optim.SGD(groups, **options)


def mlp(depth=4, width=6):
    layers = [[nn.Linear(width, width), nn.Tanh()] for _ in range(depth)]
    return nn.Sequential(*itertools.chain(*layers), nn.Linear(width, 1))


X = torch.linspace(-1, 1, 48).view(8, 6)


def one_learning_rate():
    model = mlp()
    return model, sgd(model, "4"), ["4"]


def two_at_once():
    model = mlp()
    return model, sgd(model, ("2", "8")), ["2", "8"]


def huge_weights_that_decay():
    """w · (1 - lr · weight_decay) = -4 w overflows if w is huge; its input is small."""
    model = mlp()
    with torch.no_grad():
        model[2].weight.fill_(2e38)
        model[0].weight.mul_(1e-3)
        model[0].bias.zero_()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=5e3), ["2"]


def a_module_in_two_places():
    model = mlp()
    model[4] = model[2]
    return model, sgd(model, "2"), ["2"]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 6, bias=False)
        self.hidden = nn.Linear(6, 6)
        self.head = nn.Linear(6, 6)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(self.embed(x))))


def a_weight_of_two_modules():
    model = Tied()
    return model, sgd(model, "embed"), ["embed"]


def batch_norm():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
    return model, sgd(model, "1"), ["1"]


def moments():
    """A bad first moment of Adam, as an earlier step may have left it."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    stepper(model, optimizer, X)()
    optimizer.state[model[6].weight]["exp_avg"][0, 0] = torch.nan
    return model, optimizer, ["6"]


class NoSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.inf


class BadBias(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight, NoSlope.apply(self.bias))


def one_gradient():
    model = mlp()
    model[2] = BadBias(6, 6)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), ["2"]


LAYER_CASES = [
    one_learning_rate,
    two_at_once,
    huge_weights_that_decay,
    a_module_in_two_places,
    a_weight_of_two_modules,
    batch_norm,
    moments,
    one_gradient,
]
