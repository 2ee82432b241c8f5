"""Where the CUDA kernels of the ops run: on a GPU, or emulated on CPU tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from safeops import _extension
from tests.routes import Route

CPU = torch.device("cpu")
DEVICES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("emulated", "cuda")]
EMULATED = "cuda_emulation" in (getattr(_extension.module, "__file__", None) or "")


@dataclass(frozen=True)
class DeviceRoute(Route):
    """The kernel route on a device: operands go there as they lie, results come back."""

    name: str = "kernel"
    device: torch.device = CPU

    def put(self, value: Any) -> Any:
        return placed(value, self.device) if isinstance(value, Tensor) else value

    def value(self, op, inputs, **options):
        options = {name: self.put(option) for name, option in options.items()}
        return self.back(super().value(op, [self.put(x) for x in inputs], **options))

    def both(self, op, inputs, upstream=None, **options):
        options = {name: self.put(option) for name, option in options.items()}
        inputs = [self.put(x) for x in inputs]
        value, gradients = super().both(op, inputs, self.put(upstream), **options)
        return self.back(value), tuple(self.back(gradient) for gradient in gradients)

    def back(self, result: Tensor) -> Tensor:
        assert result.device.type == self.device.type
        return result.cpu()


def placed(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy there, with its strides, its offset and its neighbours in memory."""
    size = tensor.untyped_storage().nbytes() // tensor.itemsize
    whole = tensor.as_strided((size,), (1,), 0).to(device, copy=True)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def shifted(tensor: Tensor, by: int) -> Tensor:
    """A copy that lies `by` elements past an address that vectors like."""
    whole = tensor.new_empty(tensor.numel() + by)
    return whole[by:].copy_(tensor.reshape(-1)).view(tensor.shape)


@pytest.fixture
def gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    if "cuda" not in _extension.devices:
        pytest.skip("needs kernels built for CUDA")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(params=DEVICES)
def there(request):
    """The kernel route on a GPU, and on the emulated one."""
    if request.param == "cuda":
        return DeviceRoute(device=request.getfixturevalue("gpu"))
    return DeviceRoute()


# What csrc/cuda chooses its paths by.


def vector(dtype: torch.dtype) -> int:
    """Elements that are read and written at once."""
    return 16 // dtype.itemsize


def held(dtype: torch.dtype) -> int:
    """Elements of a row that a thread holds, in its compute type."""
    return 64 // max(4, dtype.itemsize)
