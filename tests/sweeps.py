"""Exhaustive sweeps: every input there is, the worst error and where it is.

``python -m tests.sweeps`` prints them as the rows of docs/accuracy.md (minutes each);
``--stride 1000`` takes every thousandth.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from safeops import why_not_kernel
from safeops.testing import all_values, ulp_distance
from tests import oracle
from tests.cases import OP, Op

CHUNK = 2**17


@dataclass
class Worst:
    """The largest error of many chunks."""

    error: float = 0.0
    at: tuple = ()

    def see(self, errors, inputs):
        index = errors.argmax()
        if not errors[index] <= self.error:
            self.error, self.at = errors[index].item(), tuple(t[index].item() for t in inputs)


@dataclass
class Row:
    what: str
    dtype: str
    bound: float
    tried: int
    worst: Worst

    def __str__(self):
        at = ", ".join(f"{number:.9g}" for number in self.worst.at)
        error = f"{self.worst.error:.4f}"
        return f"| {self.what} | {self.dtype} | {self.tried:,} | {error} | {self.bound:g} | {at} |"


HEAD = (
    "| function | dtype | inputs tried | worst error, ULP | bound | at |\n|---|---|--:|--:|--:|---|"
)


def every_float32(stride: int) -> Iterator[list]:
    """All bit patterns, NaNs too, in chunks."""
    for start in range(-(2**31), 2**31, CHUNK * stride):
        patterns = torch.arange(start, min(start + CHUNK * stride, 2**31), stride)
        yield [patterns.to(torch.int32).view(torch.float32)]


def every_pair_of_float16(stride: int) -> Iterator[list]:
    """All numerators over all denominators, NaNs too, two denominators at a time."""
    numbers = all_values(torch.float16)
    for denominators in numbers[::stride].split(2):
        pairs = torch.meshgrid(numbers, denominators, indexing="ij")
        yield [tensor.flatten() for tensor in pairs]


@dataclass(frozen=True)
class Sweep:
    op: Op
    dtype: torch.dtype
    inputs: Callable

    def bounds(self):
        if self.dtype is torch.float16:
            return [0.0] + [self.op.half_ulp] * self.op.arity
        return [self.op.value_ulp[0], *self.op.gradient_ulp]

    def names(self):
        operands = ("x", "y")[: self.op.arity]
        return [self.op.name, *(f"gradient to {operand}" for operand in operands)]

    def run(self, stride: int = 1) -> list[Row]:
        """The rows of value and gradients over every stride-th input."""
        tried, worst = 0, [Worst() for _ in self.bounds()]
        for inputs in self.inputs(stride):
            tried += inputs[0].numel()
            for one, errors in zip(worst, self.errors(inputs), strict=True):
                one.see(errors, inputs)
        dtype = str(self.dtype).removeprefix("torch.")
        rows = zip(self.names(), self.bounds(), worst, strict=True)
        return [Row(name, dtype, bound, tried, one) for name, bound, one in rows]

    def errors(self, inputs: list) -> list:
        """Distances from float64, saturated as the contract says; inf for what is not finite."""
        leaves = [tensor.requires_grad_() for tensor in inputs]
        value = self.op.function(*leaves)
        ones = torch.ones_like(value)
        gradients = torch.autograd.grad(value, leaves, ones)
        inputs = [tensor.detach() for tensor in inputs]
        to_each = (
            oracle.gradient_errors(self.op, index, inputs, ones, gradient, self.op.options[0])
            for index, gradient in enumerate(gradients)
        )
        return [self.value_errors(inputs, value.detach()), *to_each]

    def value_errors(self, inputs: list, value: torch.Tensor) -> torch.Tensor:
        options = self.op.options[0]
        if self.dtype is torch.float16:
            return ulp_distance(value, oracle.expected_half(self.op, inputs, options, self.dtype))
        return oracle.value_errors(self.op, inputs, value, options)


def exponentials(x: torch.Tensor) -> torch.Tensor:
    """exp(x), as the kernels have it: the gradient of log_softmax to an element without upstream
    gradient, -exp(result) * sum(upstream), of a row whose upstream gradient sums to -1."""
    results, upstream = torch.stack((x, torch.zeros_like(x))), torch.zeros(2, x.numel())
    upstream[1] = -1
    return torch.ops.safeops.log_softmax_backward(upstream, results, 0, None)[0]


def sweep_exponentials(stride: int = 1) -> Row:
    """Every float32 up to 19, NaNs too: no op asks for more than 0, but for rounding."""
    tried, worst = 0, Worst()
    for (x,) in every_float32(stride):
        inside = x[~(x > 19)]
        tried += inside.numel()
        if inside.numel():
            worst.see(ulp_distance(exponentials(inside), inside.double().exp()), [inside])
    return Row("exp in the row ops", "float32", 1.0, tried, worst)


SWEEPS = (
    Sweep(OP["safe_log"], torch.float32, every_float32),
    Sweep(OP["safe_sqrt"], torch.float32, every_float32),
    Sweep(OP["safe_div"], torch.float16, every_pair_of_float16),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stride", type=int, default=1, help="take every stride-th input")
    stride = parser.parse_args().stride
    print(f"Route: {why_not_kernel(torch.ones(1)) or 'kernel'}\n\n{HEAD}", flush=True)
    for sweep in SWEEPS:
        print(*sweep.run(stride), sep="\n", flush=True)
    if why_not_kernel() is None:
        print(sweep_exponentials(stride), flush=True)


if __name__ == "__main__":
    main()
