"""What a row of the suite is: one op on one layout, as data.

A contender is a function of the row's tensors, or of what `given` makes of them. Every row has
"safeops" and "torch", the bare op; the other forms are those people write by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

Form = Callable[..., Any]  # gives a tensor, or an answer
Shapes = Sequence[tuple[int, ...]]
Inputs = Callable[[Shapes, float, Generator], list[Tensor]]
INF, NAN = float("inf"), float("nan")
N = -1  # in a shape: the dimension that grows with the number of elements
ONE_WAY, BOTH, BACK = "forward", "forward+backward", "backward"
NO_GRAD = "no_grad"  # of what is no part of a graph, such as a clip of gradients
DIRECTIONS = (ONE_WAY, BOTH, BACK, NO_GRAD)
SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)


@dataclass(frozen=True, eq=False)
class Row:
    """One op on one layout.

    layout      its name, with an N where the shapes have one
    shapes      of the inputs
    inputs      float32 tensors of those shapes, a share of whose elements is singular; masks
    forms       the contenders
    compiled    those that are also measured under torch.compile
    directions  that are measured unless others are asked for
    sizes       elements of the first input, unless others are asked for
    given       what the forms are called with, made of the tensors
    mend        undoes, between two rounds, what the forms have done to that
    reduces     the result is of no size beside the inputs
    tolerance   how far off torch's value may be
    """

    op: str
    layout: str
    shapes: Shapes
    inputs: Inputs
    forms: Mapping[str, Form]
    compiled: Collection[str] = ()
    directions: Sequence[str] = (ONE_WAY, BOTH)
    sizes: Sequence[int] = SIZES
    given: Callable[..., tuple[Any, ...]] = lambda *tensors: tensors
    mend: Callable[..., object] = lambda *given: None
    reduces: bool = False
    tolerance: float = 2e-5

    def takes(self, direction: str) -> bool:
        """What is no part of a graph has no other direction, and is that of no other row."""
        return (direction == NO_GRAD) == (NO_GRAD in self.directions)

    def count(self, size: int) -> int:
        """The N at which the first input has about this many elements."""
        return max(1, size // math.prod(n for n in self.shapes[0] if n != N))

    def layout_at(self, size: int) -> str:
        return self.layout.replace("N", str(self.count(size)))

    def shapes_at(self, size: int) -> Shapes:
        count = self.count(size)
        return [tuple(count if n == N else n for n in shape) for shape in self.shapes]

    def elements(self, size: int) -> int:
        """Of all inputs together."""
        return sum(math.prod(shape) for shape in self.shapes_at(size))

    def tensors(self, size: int, dtype: torch.dtype, singular: float) -> tuple[Tensor, ...]:
        """The inputs, the same in every run."""
        generator = Generator().manual_seed(size)
        inputs = self.inputs(self.shapes_at(size), singular, generator)
        return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
