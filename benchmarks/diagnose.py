"""What detect and monitor add to the step of a model: forward, backward and AdamW.

The model is a small transformer with random weights. All forms share it: a learning rate of 0 takes
as long as another and leaves every step like the first. A call of a form opens what watches the
model and closes it again, so that the other forms are not watched; what that takes counts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Generator, Tensor, nn

from safeops.diagnose import detect, monitor

from .rows import NO_GRAD, Form, Row, Shapes

LAYERS, WIDTH, HEADS, VOCABULARY = 4, 256, 4, 1000
TOKENS = (8, 128)  # samples and words of each
TRANSFORMER = "a small transformer"
EVERY_STEP, EVERY_TENTH = "every step", "every tenth step"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


def small_transformer() -> nn.Sequential:
    blocks = [Block() for _ in range(LAYERS)]
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)
    )


class Training:
    """The model, what it learns from, and its optimizer."""

    def __init__(self, tokens: Tensor):
        torch.manual_seed(0)
        self.tokens, self.model = tokens, small_transformer()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)

    def step(self) -> Tensor:
        logits = self.model(self.tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def steps(self, count: int) -> Tensor:
        return [self.step() for _ in range(count)][-1]


def detected(training: Training) -> Tensor:
    with detect(training.model):
        return training.step()


def with_anomaly_mode(training: Training) -> Tensor:
    """detect_anomaly() does the same, and warns each time."""
    with torch.autograd.set_detect_anomaly(True):
        return training.step()


def monitored(every: int) -> Callable[[Training], Tensor]:
    def call(training: Training) -> Tensor:
        with monitor(training.model, every=every):
            return training.steps(every)

    return call


DETECT: Mapping[str, Form] = {
    "safeops": detected,
    "torch": Training.step,
    "anomaly mode": with_anomaly_mode,
}


def steps_of(every: int) -> Mapping[str, Form]:
    """As many as from one that is observed to the next."""
    return {"safeops": monitored(every), "torch": lambda training: training.steps(every)}


def words(shapes: Shapes, share: float, generator: Generator) -> list[Tensor]:
    return [torch.randint(VOCABULARY, shape, generator=generator) for shape in shapes]


def row(op: str, layout: str, forms: Mapping[str, Form]) -> Row:
    return Row(
        op,
        layout,
        (TOKENS,),
        words,
        forms,
        directions=(NO_GRAD,),
        sizes=(TOKENS[0] * TOKENS[1],),
        given=lambda tokens: (Training(tokens),),
    )


ROWS: tuple[Row, ...] = (
    row("detect", TRANSFORMER, DETECT),
    row("monitor", EVERY_STEP, steps_of(1)),
    row("monitor", EVERY_TENTH, steps_of(10)),
)
