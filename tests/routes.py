"""Calls an op on one route, and asserts which raw ops really ran."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Recorder(TorchDispatchMode):
    """Keeps every raw safeops op that runs, with its arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "safeops":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))

    @property
    def names(self):
        return {func._schema.name.removeprefix("safeops::") for func, _ in self.calls}


@dataclass(frozen=True)
class Route:
    name: str

    @contextmanager
    def runs(self, *raw):
        """The block runs these raw ops on the kernel route, and none on the others."""
        expected = set(raw) if self.name == "kernel" else set()
        with Recorder() as recorder:
            yield
        assert recorder.names == expected, f"on the route {self.name} ran {recorder.names}"

    def value(self, op, inputs, **options):
        with self.runs(op.raw):
            if self.name == "composite":
                call = torch.func.vmap(lambda *t: op.function(*t, **options))
                return call(*[tensor[None] for tensor in inputs])[0]
            return op.function(*inputs, **options)

    def gradients(self, op, inputs, upstream=None, **options):
        """The gradient to each input (upstream is ones unless given)."""
        return self.both(op, inputs, upstream, **options)[1]

    def both(self, op, inputs, upstream=None, **options):
        """The value, and the gradient to each input."""
        call = self._pull if self.name == "composite" else self._backward
        with self.runs(op.raw, f"{op.raw}_backward"):
            return call(lambda *t: op.function(*t, **options), inputs, upstream)

    def _backward(self, function, inputs, upstream):
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        value = function(*leaves)
        upstream = torch.ones_like(value) if upstream is None else upstream
        return value.detach(), torch.autograd.grad(value, leaves, upstream)

    def _pull(self, function, inputs, upstream):
        value, pull = torch.func.vjp(function, *inputs)
        return value, pull(torch.ones_like(value) if upstream is None else upstream)
