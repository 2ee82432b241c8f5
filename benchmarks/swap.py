"""What safe_mode adds to a call, and a swap to the step of a model.

The calls are those of a method that itself costs nothing, so that what is measured is the mode: one
that it takes, to a function that does as little, and one that it leaves to torch. The model is
GPT-2 small with random weights, forward and backward; plain and swapped share their parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

from safeops import swap_
from safeops.swap.functions import SafeMode

from .rows import NO_GRAD, Form, Row, Shapes

CALLS = 100
TAKEN, OTHER = f"{CALLS} calls that it takes", f"{CALLS} other calls"
MODEL, TOKENS = "GPT-2 small", (1, 256)
_MODES = {TAKEN: SafeMode({Tensor.dim: lambda x: 1}), OTHER: SafeMode({})}


def dims(x: Tensor) -> int:
    return sum(x.dim() for _ in range(CALLS))


def within(mode: SafeMode) -> Form:
    def call(x: Tensor) -> int:
        with mode:
            return dims(x)

    return call


class Pair:
    """The model, plain and swapped."""

    def __init__(self, tokens: Tensor):
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        self.tokens, self.plain = tokens, GPT2LMHeadModel(GPT2Config()).eval()
        shared = {id(parameter): parameter for parameter in self.plain.parameters()}
        self.swapped: nn.Module = copy.deepcopy(self.plain, shared)
        swap_(self.swapped)

    def step(self, model: nn.Module) -> Tensor:
        """Of dropout there is none, so that both do the same."""
        loss: Any = model(input_ids=self.tokens, labels=self.tokens).loss
        loss.backward()
        model.zero_grad()
        return loss.detach()


STEP: Mapping[str, Form] = {
    "safeops": lambda pair: pair.step(pair.swapped),
    "torch": lambda pair: pair.step(pair.plain),
}


def normal(shapes: Shapes, share: float, generator: Generator) -> list[Tensor]:
    return [torch.randn(shape, generator=generator) for shape in shapes]


def words(shapes: Shapes, share: float, generator: Generator) -> list[Tensor]:
    return [torch.randint(50257, shape, generator=generator) for shape in shapes]


def calls(layout: str) -> Row:
    forms: Mapping[str, Form] = {"safeops": within(_MODES[layout]), "torch": dims}
    return Row("safe_mode", layout, ((4,),), normal, forms, directions=(NO_GRAD,), sizes=(4,))


ROWS: tuple[Row, ...] = (
    calls(TAKEN),
    calls(OTHER),
    Row(
        "swap_",
        MODEL,
        (TOKENS,),
        words,
        STEP,
        directions=(NO_GRAD,),
        sizes=(TOKENS[1],),
        given=lambda tokens: (Pair(tokens),),
    ),
)
