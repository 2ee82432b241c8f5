"""What is audited in the tests: a small model and its data, and cases of planted faults."""

import torch
from torch import nn


class Case:
    def __init__(self, what, where, severity, sick, healthy):
        self.what, self.where, self.severity = what, where, severity
        self.sick, self.healthy = sick, healthy

    def __repr__(self):
        return f"{self.what}: {self.sick.__name__}".replace(" ", "-")


class Cases(list):
    """Those of one file, in its order."""

    def planted(self, what, where, healthy, severity="error"):
        """The function makes the sick arguments of audit, `healthy` those of the twin."""

        def add(sick):
            self.append(Case(what, where, severity, sick, healthy))
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


def half_net():
    return {"model": net().half()}


def batched(x, **more):
    return {"model": net(), "batch": x, **more}


def images(offset=0.0, scale=1.0):
    torch.manual_seed(0)
    x = torch.randn(8, 3, 8, 8) * scale + offset
    return {"model": nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), "batch": x}


def embedded():
    torch.manual_seed(0)
    words = nn.Sequential(nn.Embedding(20, 16), nn.Flatten(), nn.Linear(48, 4))
    return {"model": words, "batch": torch.randint(0, 20, (8, 3))}


def settings(make=torch.optim.AdamW, model=None, **group):
    model = model or net()
    optimizer = make(model.parameters(), lr=1e-3)
    optimizer.param_groups[0].update(group)
    return {"model": model, "optimizer": optimizer}
