"""Loads the compiled kernels once, or keeps the reason why there are none."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import torch

MODES = ("auto", "off", "require")


def _mode() -> str:
    mode = os.environ.get("SAFEOPS_KERNELS") or "auto"
    if mode not in MODES:
        raise ValueError(f"SAFEOPS_KERNELS must be one of {', '.join(MODES)}; it is {mode!r}")
    return mode


def _level(module: ModuleType) -> str | None:
    """The best compiled level that torch itself would use on this machine."""
    capability = torch.backends.cpu.get_cpu_capability().lower()
    compiled = module.levels()
    if "native" in compiled:
        return "native"
    return next((level for level in compiled if capability.startswith(level)), None)


def _load() -> tuple[ModuleType | None, str | None]:
    """The extension and no reason, or no extension and the reason."""
    if _mode() == "off":
        return None, "SAFEOPS_KERNELS=off"
    try:
        module = importlib.import_module("safeops._C")
    except ModuleNotFoundError:
        if others := sorted(path.name for path in Path(__file__).parent.glob("_C.*")):
            return None, f"the kernels are for another Python than {_python()}: {others[0]}"
        return None, (
            f"{Path(__file__).parent} holds no kernels; with torch, ninja, pybind11 and a C++17 "
            "compiler present, 'SAFEOPS_BUILD=cpu pip install --no-build-isolation .' builds them "
            "or says why not (an installed safeops is not seen from inside its source folder)"
        )
    except ImportError as error:
        return None, (
            f"the kernels do not load beside torch {torch.__version__}: {error}. "
            "They need torch >= 2.10 and the Python version they were built for"
        )
    level = _level(module)
    if level is None:
        return None, (
            f"the kernels need one of {', '.join(module.levels())}; "
            f"torch reports {torch.backends.cpu.get_cpu_capability()} for this CPU"
        )
    module.use_level(level)
    return module, None


def _python() -> str:
    return f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"


def give_up(why: str) -> None:
    """No kernels, for that reason; an error where they are required."""
    global module, reason, devices
    module, reason, devices = None, why, ()
    if _mode() == "require":
        raise RuntimeError(f"SAFEOPS_KERNELS=require, but there are no kernels: {why}")


module: ModuleType | None
reason: str | None
module, reason = _load()
devices: tuple[str, ...] = tuple(module.devices()) if module is not None else ()
if reason is not None:
    give_up(reason)
