"""What there is on this machine: versions, kernels, CUDA. All in words."""

from __future__ import annotations

import platform
import warnings

import torch

from . import _extension
from ._version import __version__

HOW_TO_BUILD = "SAFEOPS_BUILD=cuda pip install --no-build-isolation ."


def kernels() -> str:
    module = _extension.module
    if module is None:
        return f"none: {_extension.reason} (the ops run torch formulas: same results within 1 ULP)"
    return f"level {module.level()} of {', '.join(module.levels())}"


def built_with() -> dict[str, str]:
    module = _extension.module
    return {} if module is None else dict(module.build_info())


def gpu() -> str | None:
    """The name of the GPU that torch sees, if it is one for CUDA."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of a driver that is too old
        if torch.version.cuda is None or not torch.cuda.is_available():
            return None
        return torch.cuda.get_device_name()


def cuda() -> str:
    """What this build has for CUDA, what torch sees, and how to bring them together."""
    version = built_with().get("cuda")
    built = f"kernels for CUDA {version}" if version else "no kernels (CPU only)"
    seen = gpu()
    if seen is None:
        return f"{built}; torch sees no GPU for CUDA"
    if "cuda" in _extension.devices:
        return f"{built}; torch sees {seen}"
    return (
        f"{built}; torch sees {seen}: CUDA tensors take the torch formulas. In the source folder, "
        f"with nvcc, '{HOW_TO_BUILD}' builds the kernels"
    )


def versions() -> dict[str, str]:
    facts = {
        "safeops": __version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "platform": platform.platform(),
        "kernels": kernels(),
        "CUDA": cuda(),
    }
    return facts | {f"built with: {key}": value for key, value in built_with().items()}
