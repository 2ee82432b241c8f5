"""Modules of every kind: which are swapped, how they are pickled, and which are left and named."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn

import safeops
from tests.swap_samples import ZERO, Sick


@pytest.mark.filterwarnings("ignore")
def test_scripted_and_quantized_modules_are_left_and_named():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1)))
    quantized = torch.ao.nn.quantized.Linear(3, 3)
    model = nn.ModuleList([scripted, nn.Softmax(-1), quantized])
    report = safeops.swap_(model)
    assert [entry.name for entry in report.replaced] == ["1"]
    reasons = {entry.name: entry.why for entry in report.left}
    assert "scripted" in reasons["0"]
    assert "quantized" in reasons["2"]
    assert set(reasons) == {"0", "2"}
    assert safeops.swap_(scripted).left[0].name == ""


def test_a_forward_of_the_instance_is_left_and_named():
    model = Sick()
    model.forward = lambda x: x
    report = safeops.swap_(model)
    assert "set on the instance" in report.left[0].why
    assert model(ZERO) is ZERO


class Closed(nn.Module):
    """Lets nobody derive from it."""

    def __init_subclass__(cls):
        raise TypeError("closed")

    def forward(self, x):
        return x


def test_a_class_that_nobody_may_derive_from_is_left_and_named():
    model = nn.Sequential(nn.Softmax(-1), Closed())
    report = safeops.swap_(model)
    assert [(e.name, e.why) for e in report.left] == [
        ("1", "no class can be derived from its own: closed")
    ]
    assert type(model[0]) is safeops.nn.Softmax


class Static(nn.Module):
    @staticmethod
    def forward(x):
        return x / x


class ByClass(nn.Module):
    @classmethod
    def forward(cls, x):
        return x / x


class Partial(nn.Module):
    forward = functools.partial(torch.softmax, dim=-1)


class Property(nn.Module):
    @property
    def forward(self):
        return lambda x: x / x


class Refusing(nn.Module):
    """Keeps its class to itself, as far as it can."""

    def __setattr__(self, name, value):
        if name == "__class__":
            raise AttributeError(name)
        super().__setattr__(name, value)

    def forward(self, x):
        return x / x


@pytest.mark.parametrize("kind", [Static, ByClass, Partial, Property, Refusing])
def test_forwards_of_every_kind(kind):
    model = nn.Sequential(kind())
    safeops.swap_(model)
    assert model(torch.full((2,), 0.0)).isfinite().all()
    safeops.unswap_(model)
    assert type(model[0]) is kind


class Yields(nn.Module):
    def forward(self, x):
        yield x


class Called(nn.Module):
    def __call__(self, x):
        return x

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("model", "why"),
    [(Yields(), "generator"), (Called(), "__call__"), (nn.LazyBatchNorm1d(), "lazy")],
)
def test_what_is_out_of_reach_is_named(model, why):
    (left,) = safeops.swap_(nn.Sequential(model)).left
    assert why in left.why


class Reduced(nn.Module):
    def __init__(self, size=2):
        super().__init__()
        self.size = size

    def forward(self, x):
        return x / x

    def __reduce__(self):
        return type(self), (self.size,), self.__dict__


def test_a_reduce_of_its_own():
    model = Reduced(5)
    safeops.swap_(model)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert other.size == 5
        assert not other(ZERO).isnan().any()
        safeops.unswap_(other)
        assert type(other) is Reduced


def test_reports_are_pickled_and_keep_their_options():
    options = {"safe_log": {"eps": 1e-3}}
    report = safeops.swap_(Sick(), options=options)
    options["safe_log"]["eps"] = 1.0
    assert pickle.loads(pickle.dumps(report)).options == {"safe_log": {"eps": 1e-3}}
