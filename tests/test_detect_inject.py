"""detect names injected faults of every kind and place."""

from typing import NamedTuple

import pytest
import torch
from torch import nn

from safeops.diagnose import detect, inject

STEPS, AT_STEP, AT = 5, 2, "blocks.1.0"


class Square(nn.Module):
    def forward(self, x):
        return x * x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), Square()) for _ in range(2))
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Expected(NamedTuple):
    op: str
    direction: str
    module: str
    line: str
    cause: str
    parameter: str = ""


CALL, SQUARED, STEP = "x = block(x)", "return x * x", "optimizer.step()"
FAULTS = {
    ("forward", "nan"): Expected("masked_fill", "forward", AT, CALL, "constant that is not finite"),
    ("forward", "inf"): Expected("masked_fill", "forward", AT, CALL, "constant that is not finite"),
    ("forward", "huge"): Expected("mul", "forward", "blocks.1.1", SQUARED, "overflow"),
    ("backward", "nan"): Expected("AddmmBackward0", "backward", AT, CALL, "bad gradient"),
    ("backward", "inf"): Expected("AddmmBackward0", "backward", AT, CALL, "bad gradient"),
    ("backward", "huge"): Expected("AddmmBackward0", "backward", AT, CALL, "exploding gradient"),
    ("weight", "nan"): Expected("addmm", "forward", AT, CALL, "bad weight", f"{AT}.weight"),
    ("weight", "inf"): Expected("addmm", "forward", AT, CALL, "bad weight", f"{AT}.weight"),
    ("weight", "huge"): Expected("mul", "forward", "blocks.1.1", SQUARED, "overflow"),
    ("optimizer", "nan"): Expected(
        "lerp_", "optimizer", AT, STEP, "bad optimizer state", f"{AT}.weight"
    ),
    ("optimizer", "inf"): Expected(
        "lerp_", "optimizer", AT, STEP, "bad optimizer state", f"{AT}.weight"
    ),
    ("optimizer", "huge"): Expected("addcdiv_", "optimizer", AT, STEP, "overflow", f"{AT}.weight"),
    ("batch", "nan"): Expected("addmm", "forward", "first", "x = self.first(x)", "bad input"),
    ("batch", "inf"): Expected("addmm", "forward", "first", "x = self.first(x)", "bad input"),
    ("batch", "huge"): Expected("mul", "forward", "blocks.0.1", SQUARED, "overflow"),
}


def first_of(where, what, prepare=lambda model: model):
    torch.manual_seed(0)
    model = Net()
    run = prepare(model)
    optimizer = torch.optim.Adam(model.parameters())
    with detect(run) as found, inject(model, AT, AT_STEP, what, where) as fault:
        for _ in range(STEPS):
            optimizer.zero_grad()
            run(torch.rand(3, 4) + 1).square().sum().backward()
            optimizer.step()
    assert fault.fired == AT_STEP
    return found.first


def compiled(model):
    torch._dynamo.reset()
    run = torch.compile(model, backend="eager")
    run(torch.ones(3, 4))
    return run


@pytest.mark.parametrize("prepare", [lambda model: model, compiled], ids=["eager", "compiled"])
@pytest.mark.parametrize(("where", "what"), FAULTS)
def test_names_it(where, what, prepare):
    first, expected = first_of(where, what, prepare), FAULTS[where, what]
    assert first is not None
    found = Expected(
        first.op, first.direction, first.module, first.source.text, first.cause, first.parameter
    )
    assert found == expected
    assert first.step == AT_STEP
