"""Runs any tests on the emulated CUDA kernels in place of the CPU kernels:

    python -m pytest -p tests.cuda_emulation.plugin tests/test_contract.py

SAFEOPS_CUDA_SCHEDULE=forward|reverse|shuffled:SEED is the order in which GPU threads run. Python
processes that a test starts load the CPU kernels, as ever.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest

NAME = "safeops._C"


def pytest_load_initial_conftests():
    """Before any conftest.py: they import safeops, which looks for its extension once."""
    early = [name for name in (NAME, "safeops") if name in sys.modules]
    if early:
        raise pytest.UsageError(f"{early[0]} was loaded before the emulated CUDA kernels")
    import torch  # noqa: F401  # the extension needs its libraries

    from tests.cuda_emulation import build

    try:
        path = build.library()
    except RuntimeError as error:
        raise pytest.UsageError(str(error)) from error
    spec = importlib.util.spec_from_file_location(NAME, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module


def pytest_report_header():
    return f"safeops: emulated CUDA kernels, {sys.modules[NAME].__file__}"
