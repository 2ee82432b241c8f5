"""What a Guard refuses when it is made: an error that says so, and nothing moves."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.optim import lr_scheduler as lr
from torch.utils.data import DataLoader

from safeops._random import random_state
from safeops.guard import Guard, Policy
from tests.guard_resumed import INF, NAN, Run, bits, everything, files, lbfgs, spoilt

# ---- arguments


def stranger():
    return optim.SGD(nn.Linear(2, 2).parameters())


def two(params):
    first, *rest = params
    return [lbfgs([first]), optim.SGD(rest)]


def a_file(folder, optimizer):
    (folder / "file").write_text("")
    return folder / "file"


ONE = "expected a torch optimizer, got"
WRONG = {
    "no optimizer": ({"optimizer": lambda params: None}, ValueError, "optimizer .*got none"),
    "a number": ({"optimizer": lambda params: 3}, TypeError, f"{ONE} int"),
    "its parameters": ({"optimizer": list}, TypeError, f"{ONE} Parameter"),
    "a generator": ({"optimizer": lambda params: params}, TypeError, f"{ONE} generator"),
    "strangers": ({"optimizer": lambda _: stranger()}, ValueError, "got 2 that are none.*place 0"),
    "max_norm": ({"max_norm": -1.0}, ValueError, "max_norm >= 0, got -1"),
    "max_norm nan": ({"max_norm": NAN}, ValueError, "number as max_norm, got NaN"),
    "max_norm text": ({"max_norm": "1"}, TypeError, "number as max_norm, got str"),
    "scheduler": ({"scheduler": 3}, TypeError, "learning rate scheduler, got int"),
    "plateau": (
        {"scheduler": lambda _, optimizer: lr.ReduceLROnPlateau(optimizer)},
        ValueError,
        r"ReduceLROnPlateau, which needs a metric: give it in others=",
    ),
    "scheduler of another": (
        {"scheduler": lambda *_: lr.ConstantLR(stranger())},
        ValueError,
        "expected schedulers of the optimizer, got a ConstantLR of another one",
    ),
    "scaler": ({"scaler": 3}, TypeError, "GradScaler or None, got int"),
    "policy": ({"policy": 3}, TypeError, "Policy or None, got int"),
    "others": ({"others": 3}, TypeError, "others to be a list, got int"),
    "one of others": ({"others": [3]}, TypeError, r"others with state_dict\(\) .*, got int"),
    "data": (
        {"data": DataLoader([1])}, TypeError, r"got DataLoader: give safeops.guard.Batches\(loader",
    ),
    "writer": ({"writer": 3}, TypeError, "function writer.add_scalar, got NoneType"),
    "directory": ({"checkpoint_dir": a_file}, NotADirectoryError, "file: Not a directory. Give"),
    "dump_dir": (
        {"dump_dir": a_file, "checkpoint_dir": None}, NotADirectoryError, "Not a directory. Give",
    ),
    "log": ({"log": lambda folder, _: folder}, OSError, "path of a file .*as log"),
    "log nowhere": (
        {"log": lambda folder, _: folder / "a" / "b"}, FileNotFoundError, "directory that exists",
    ),
    "snapshot_device": ({"snapshot_device": "nowhere"}, RuntimeError, "nowhere"),
    "LBFGS, parts": ({"optimizer": lbfgs, "accumulate": 2}, ValueError, "accumulate=1 and .*got"),
    "LBFGS, alone": ({"optimizer": two}, ValueError, "to be alone, .* got 2 optimizers"),
    "LBFGS, no snapshot": ({"optimizer": lbfgs, "snapshots": 0}, ValueError, "one snapshot; got"),
    "LBFGS, scaler": (
        {"optimizer": lbfgs, "scaler": torch.amp.GradScaler("cpu")}, ValueError, "no scaler beside",
    ),
}  # fmt: skip
COUNTS = ("accumulate", "check_every", "snapshot_every", "checkpoint_every", "checkpoints")
LEAST = dict.fromkeys(COUNTS, 1) | {"snapshots": 0, "dumps": 0}
for _name, _least in LEAST.items():
    WRONG |= {
        f"{_name} low": ({_name: _least - 1}, ValueError, f"{_name} >= {_least}, got"),
        f"{_name} broken": ({_name: 1.5}, TypeError, f"whole number for {_name}, got float"),
        f"{_name} true": ({_name: True}, TypeError, f"whole number for {_name}, got bool"),
    }


@pytest.mark.parametrize("name", WRONG)
def test_arguments(tmp_path, name):
    """Nothing is made, be it in the model or on the disk; the directory is not there yet."""
    options, kind, text = WRONG[name]
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model(torch.randn(3, 4)).sum().backward()
    options = dict(options)
    optimizer = options.pop("optimizer", optim.AdamW)(model.parameters())
    for key, value in ({"checkpoint_dir": lambda folder, _: folder / "new"} | options).items():
        options[key] = value(tmp_path, optimizer) if callable(value) else value

    def state():
        grads = [parameter.grad for parameter in model.parameters()]
        return bits([model.state_dict(), grads, random_state(), files(tmp_path)])

    before = state()
    with pytest.raises(kind, match=text):
        Guard(model, optimizer, **options)
    assert state() == before


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_zero_redundancy(tmp_path):
    """It holds the states of some parameters alone."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Linear(4, 4)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, lr=0.1)
    with pytest.raises(TypeError, match="holds its states, got ZeRO: use fully_shard"):
        Guard(model, optimizer, checkpoint_dir=tmp_path / "new")
    assert files(tmp_path) == []


UNMADE = {"lazy": lambda: nn.LazyLinear(4), "meta": lambda: nn.Linear(4, 4, device="meta")}


@pytest.mark.parametrize("name", UNMADE)
def test_without_values(tmp_path, name):
    model = nn.Sequential(nn.Linear(4, 4), UNMADE[name]())
    optimizer = optim.SGD(model[0].parameters())
    with pytest.raises(ValueError, match=r"parameters with values, got a lazy or .* \(1.weight\)"):
        Guard(model, optimizer, checkpoint_dir=tmp_path / "new")
    assert files(tmp_path) == []


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_copy(way):
    """It would hold a training of its own."""
    run = Run(None)
    run.train(1)
    before = everything(run)
    with pytest.raises(TypeError, match=r"a Guard to stay where it is: .*resume\(\) take"):
        way(run.guard)
    assert everything(run) == before


def test_no_model():
    with pytest.raises(TypeError, match=r"expected a torch.nn.Module, got int: pass the model"):
        Guard(3, stranger())


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"skips": -1}, ValueError, "skips >= 0, got -1"),
        ({"rollbacks": 1.0}, TypeError, "whole number for rollbacks"),
        ({"forgive_after": 0}, ValueError, "forgive_after >= 1"),
        ({"lr_factor": 0}, ValueError, r"lr_factor in \(0, 1\], got 0"),
        ({"lr_factor": 2}, ValueError, r"lr_factor in \(0, 1\], got 2"),
        ({"huge": 0}, ValueError, "huge > 0, got 0"),
        ({"loss_spike": -1}, ValueError, "loss_spike > 0, got -1"),
        ({"norm_spike": "6"}, TypeError, "number as norm_spike, got str"),
    ],
)
def test_policy(options, kind, text):
    with pytest.raises(kind, match=text):
        Policy(**options)


def test_others_once(tmp_path):
    """A generator of others is as good as a list."""
    module = nn.BatchNorm1d(2)
    model = nn.Linear(2, 2)
    guard = Guard(model, optim.SGD(model.parameters()), others=(one for one in [module]),
                  checkpoint_dir=tmp_path)  # fmt: skip
    guard.checkpoint()
    torch.nn.init.ones_(module.running_mean)
    guard.resume()
    assert not module.running_mean.any()


# ---- models that are not finite


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_bad_start(tmp_path, value):
    model = spoilt(nn.Sequential(nn.Linear(2, 2)), "0.bias", value)
    with pytest.raises(ValueError, match=r"expected a finite model, .* in 0.bias: .*audit"):
        Guard(model, optim.SGD(model.parameters()), checkpoint_dir=tmp_path / "new")
    assert files(tmp_path) == []


def test_bad_before_the_first_step():
    run = Run(None)
    spoilt(run.model, "layers.0.bias")
    before = everything(run)
    with pytest.raises(ValueError, match=r"a finite model to start with: .*layers.0.bias"):
        run.guard.run(lambda: run.model(torch.ones(2, 4)).sum())
    assert everything(run) == before
