"""A run that was thrown away and resumed goes on bit for bit, whatever it is made of."""

from functools import partial

import pytest
import torch
from torch import nn, optim

from tests.guard_resumed import (
    OTHERS,
    SCALERS,
    SCHEDULERS,
    Model,
    Sparse,
    Tied,
    assert_resumes,
    grouped,
    lbfgs,
)


def tensor_rate(params):
    return optim.Adam(params, lr=torch.tensor(0.01), fused=True)


OPTIMIZERS = {
    "SGD": partial(optim.SGD, lr=0.1),
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": partial(optim.Adam, lr=0.01),
    "AdamW fused": partial(optim.AdamW, fused=True),
    "AdamW foreach": partial(optim.AdamW, foreach=True),
    "AdamW amsgrad": partial(optim.AdamW, amsgrad=True, foreach=False),
    "RMSprop": partial(optim.RMSprop, momentum=0.9, centered=True),
    "Adagrad": optim.Adagrad,
    "Adadelta": optim.Adadelta,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "Rprop": optim.Rprop,
    "ASGD": partial(optim.ASGD, t0=2),
    "Adamax": optim.Adamax,
    "Adafactor": optim.Adafactor,
    "LBFGS": lbfgs,
    "tensor rate": tensor_rate,
    "groups": grouped,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(tmp_path, name):
    assert_resumes(tmp_path, optimizer=OPTIMIZERS[name])


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="this torch has no Muon")
def test_muon(tmp_path):
    def model():
        return nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False))

    assert_resumes(tmp_path, model=model, optimizer=optim.Muon)


MODELS = {
    "float64": lambda: Model().double(),
    "bfloat16": lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).bfloat16(),
    "tied": Tied,
    "compiled": lambda: torch.compile(Tied(), backend="aot_eager"),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(tmp_path, name):
    assert_resumes(tmp_path, model=MODELS[name])


def test_sparse(tmp_path):
    assert_resumes(tmp_path, model=Sparse, optimizer=optim.SparseAdam)


# ---- schedulers, scalers and others


RATES = {"number": 0.1, "tensor": torch.tensor(0.1)}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(tmp_path, name, rate):
    """With a momentum that OneCycle and Cyclic move, too."""

    def optimizer(params):
        value = RATES[rate]
        value = value.clone() if isinstance(value, torch.Tensor) else value
        return optim.SGD(params, lr=value, momentum=0.9, foreach=False)

    assert_resumes(tmp_path, optimizer=optimizer, scheduler=SCHEDULERS[name])


@pytest.mark.parametrize("name", SCALERS)
def test_scalers(tmp_path, name):
    optimizer = partial(optim.AdamW, fused="fused" in name)
    assert_resumes(tmp_path, scaler=SCALERS[name], optimizer=optimizer)


@pytest.mark.parametrize("name", OTHERS)
def test_others(tmp_path, name):
    assert_resumes(tmp_path, others=[OTHERS[name]])
