"""Routes: a test that takes one runs on it, and fails if the calls silently took another."""

import os
import re

import pytest
import torch

from safeops import _extension
from safeops.ops import _kernelless
from tests.cuda_devices import EMULATED
from tests.routes import Route

KERNELS_OFF = os.environ.get("SAFEOPS_KERNELS") == "off"
PRESENT = {"cuda": torch.cuda.is_available(), "emulated": EMULATED}
ROUTES = ["formulas"] if KERNELS_OFF else ["kernel", "formulas"]
ALL_ROUTES = [*ROUTES, "torch"]


def pytest_configure(config):
    config.addinivalue_line("markers", "unrecorded: test_transforms.py does not watch this test")
    if os.environ.get("PYTEST_XDIST_WORKER"):
        torch.set_num_threads(1)


def pytest_collection_modifyitems(config, items):
    """Without a GPU, emulated or not, its tests are left out; one that is asked for says why."""
    absent = {name for name, here in PRESENT.items() if not here}
    absent -= set(re.findall(r"\w+", config.option.markexpr))
    out = {item for item in items if absent & {mark.name for mark in item.iter_markers()}}
    out |= {item for item in items if not _has_route(item)}
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


def _has_route(item):
    """An op without a kernel has no such route, but one on which torch's own op is tried first."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    route = params.get("any_route", params.get("route"))
    if getattr(params.get("op"), "raw", "") is not None:
        return route != "torch"
    return route != "kernel" and "kernel" not in item.fixturenames


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def _route(name, monkeypatch):
    if name == "formulas":
        monkeypatch.setattr(_extension, "reason", "the test wants the torch formulas")
        monkeypatch.setattr(_kernelless, "readable", lambda tensor: False)
    if name == "kernel" and _extension.reason is not None:
        pytest.fail(f"there are no kernels to test: {_extension.reason}")
    return Route(name)


@pytest.fixture(params=ALL_ROUTES)
def route(request, monkeypatch):
    """The two eager routes."""
    return _route(request.param, monkeypatch)


@pytest.fixture(params=[*ALL_ROUTES, "composite"])
def any_route(request, monkeypatch):
    """The eager routes, and the composite that torch.func transforms see."""
    return _route(request.param, monkeypatch)


@pytest.fixture
def kernel(monkeypatch):
    if KERNELS_OFF:
        pytest.skip("SAFEOPS_KERNELS=off")
    return _route("kernel", monkeypatch)


@pytest.fixture
def formulas(monkeypatch):
    return _route("formulas", monkeypatch)


@pytest.fixture
def composite():
    return Route("composite")
