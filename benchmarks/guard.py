"""What a Guard adds to a healthy step: forward, backward, clip and AdamW, beside the same loop with
torch's clip_grad_norm_.

The model is GPT-2 small with random weights, and all forms share it and the optimizer: a learning
rate of 0 takes as long as another and leaves every step like the first. What comes due now and then
is a form of its own: a step that also reads weights and states and takes a snapshot; divided by the
number of steps between two of them it adds to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from safeops import Guard

from .rows import NO_GRAD, Form, Row
from .swap import MODEL, TOKENS, words

DUE = "check and snapshot"
SIZES: dict[str, int] = {}  # of the model, where GPT-2 small is too large


class Training:
    """The model, what it learns from, its optimizer, and the guards."""

    def __init__(self, tokens: Tensor):
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        self.tokens, self.model = tokens, GPT2LMHeadModel(GPT2Config(**SIZES)).eval()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        self.guard = Guard(self.model, self.optimizer, snapshots=0)
        self.due = Guard(self.model, self.optimizer, snapshots=1, check_every=1, snapshot_every=1)

    def loss(self) -> Tensor:
        output: Any = self.model(input_ids=self.tokens, labels=self.tokens)
        return output.loss

    def plain(self) -> Tensor:
        """What people write."""
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def guarded(self, guard: Guard) -> Tensor:
        return torch.tensor(guard.run(self.loss).loss)


STEP: Mapping[str, Form] = {
    "safeops": lambda training: training.guarded(training.guard),
    "torch": Training.plain,
    DUE: lambda training: training.guarded(training.due),
}

ROWS: tuple[Row, ...] = (
    Row(
        "Guard",
        MODEL,
        (TOKENS,),
        words,
        STEP,
        directions=(NO_GRAD,),
        sizes=(TOKENS[1],),
        given=lambda tokens: (Training(tokens),),
    ),
)
