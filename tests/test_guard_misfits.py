"""Which checkpoints fit; others are an error that says where, and nothing has changed."""

from functools import partial

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DistributedSampler

from safeops.guard import Batches, GuardWarning, replay
from tests.guard_resumed import NAN, OTHERS, SCALERS, SCHEDULERS, Model, Run, grouped


def narrow():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


OTHER = {
    "model": ({"model": narrow}, r"model: 0.bias is only here, .* and \d+ more"),
    "dtype": (
        {"model": lambda: Model().double()},
        r"model: layers.0.bias is float32\[6\] there, float64\[6\] here",
    ),
    "optimizer": ({"optimizer": optim.SGD}, "optimizers: AdamW there, SGD here"),
    "groups": ({"optimizer": grouped}, r"optimizers\[0\]: groups of \[6\] parameters there"),
    "scheduler": ({"scheduler": SCHEDULERS["Step"]}, "schedulers: none there, StepLR here"),
    "others": ({"others": [OTHERS["average"]]}, "others: none there, AveragedModel here"),
    "scaler": ({"scaler": SCALERS["torch"]}, "scaler: none there, enabled here"),
    "data": ({"data": lambda: Batches([1])}, "data: none there, Batches here"),
}


@pytest.mark.parametrize("name", OTHER)
def test_other(tmp_path, name):
    options, text = OTHER[name]
    Run(tmp_path, checkpoint_every=2).train(2)
    again = Run(tmp_path, seed=1, **options)
    before = again.bits()
    with pytest.raises(ValueError, match=f"step-00000002 does not fit: .*{text}"):
        again.guard.resume()
    assert again.bits() == before


class Sampler(DistributedSampler):
    """With a position."""

    def __init__(self):
        super().__init__(range(8), 1, 0)

    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


CHANGED = {
    "scheduler": ("scheduler", SCHEDULERS["Step"], SCHEDULERS["Cyclic"], "StepLR .*, CyclicLR"),
    "no scheduler": ("scheduler", SCHEDULERS["Step"], None, "StepLR there, none"),
    "others": ("others", [OTHERS["module"]], [OTHERS["generator"]], "BatchNorm1d .*, Generator"),
    "their order": (
        "others", [OTHERS["module"], OTHERS["generator"]], [OTHERS["generator"], OTHERS["module"]],
        "BatchNorm1d, Generator there, Generator, BatchNorm1d",
    ),
    "data": ("data", lambda: Batches([torch.ones(2, 4)]), Sampler, "Batches there, Sampler"),
    "scaler": ("scaler", SCALERS["torch"], SCALERS["off"], "scaler: enabled there, none"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGED)
def test_other_kinds(tmp_path, name):
    """What is there in both, and of another kind."""
    part, there, here, text = CHANGED[name]
    Run(tmp_path, **({part: there} if there else {})).guard.checkpoint()
    again = Run(tmp_path, seed=1, **({part: here} if here else {}))
    before = again.bits()
    with pytest.raises(ValueError, match=f"does not fit: .*{text} here"):
        again.guard.resume()
    assert again.bits() == before


SAME = {
    "scaler": ("scaler", SCALERS["torch"], SCALERS["ours"]),
    "no scaler": ("scaler", SCALERS["off"], None),
    "scaler that is off": ("scaler", None, SCALERS["off"]),
}


@pytest.mark.parametrize("name", SAME)
def test_as_good_as_the_same(tmp_path, name):
    part, there, here = SAME[name]
    run = Run(tmp_path, **({part: there} if there else {}))
    run.train(2)
    run.guard.checkpoint()
    rest = run.train(3)
    again = Run(tmp_path, seed=1, **({part: here} if here else {}))
    assert again.guard.resume() == 2
    assert again.train(3) == rest


class Loose(nn.Linear):
    """With a buffer that is in no state_dict."""

    def __init__(self, size):
        super().__init__(4, 4)
        self.register_buffer("table", torch.zeros(size) if size else None, persistent=False)


@pytest.mark.parametrize(("there", "here"), [(0, 3), (3, 0), (3, 5), (5, 3)])
def test_loose_buffers(tmp_path, there, here):
    """They may come, go and grow."""
    run = Run(tmp_path, model=partial(Loose, there))
    run.train(2)
    run.guard.checkpoint()
    rest = run.train(3)
    again = Run(tmp_path, seed=1, model=partial(Loose, here))
    assert again.guard.resume() == 2
    assert again.train(3) == rest


def test_replay_without_an_optimizer(tmp_path):
    """The dump has one; the forward alone is run again."""
    run = Run(tmp_path, scaler=SCALERS["torch"], others=OTHERS.values())
    with pytest.warns(GuardWarning):
        run.train(3, bad=(2,))
    [event] = run.guard.events
    model, x = Model(), torch.full((8, 4), NAN)
    found = replay(event.path, lambda: (model, lambda batch: model(x).sum()))
    assert found.first.cause == "bad input"
    for name, one in model.named_parameters():
        assert torch.equal(one, run.model.get_parameter(name))
