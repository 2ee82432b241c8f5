"""What monitor adds to the step of a model: forward, backward and AdamW of a small transformer.

    python -m benchmarks.monitor [--steps 100] [--threads 1 2]

Steps of a plain and of a watched model take turns in one process. A round is one step of each, or
with every=10 ten; what is told is the median of the ratios of the rounds, and their quartiles.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from safeops.diagnose.monitoring.monitor import monitor

LAYERS, WIDTH, HEADS, VOCABULARY = 4, 256, 4, 1000
BATCH, TOKENS = 8, 128
EVERY = (1, 10)
TITLE = "What monitor adds to the step of a small transformer, as a ratio to a plain step."


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


def step_of(model: nn.Module) -> Callable[[], None]:
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def ratios(steps: Sequence[Callable[[], None]], every: int, rounds: int) -> list[float]:
    """Of the watched to the plain one, over as many steps as from one observed to the next."""
    found = []
    for _ in range(rounds):
        times = [0.0, 0.0]
        for turn in range(every):
            for which in (0, 1) if turn % 2 else (1, 0):
                times[which] += seconds(steps[which])
        found.append(times[1] / times[0])
    return found


def measured(every: int, steps: int) -> list[float]:
    """Both are one model with the same weights; steps of each."""
    torch.manual_seed(0)
    plain = small_transformer()
    watched = copy.deepcopy(plain)
    both = step_of(plain), step_of(watched)
    ratios(both, 3, 1)
    with monitor(watched, every=every):
        return ratios(both, every, max(2, steps // every))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitor", description=TITLE)
    parser.add_argument("--steps", type=int, default=100, help="of each model in each case")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    given = parser.parse_args(arguments)
    for threads in given.threads:
        torch.set_num_threads(threads)
        for every in EVERY:
            low, middle, high = statistics.quantiles(measured(every, given.steps), n=4)
            spread = f"quartiles {low:.3f} to {high:.3f}"
            print(f"{threads} threads, every {every:2}: {middle:.3f} ({spread})", flush=True)


if __name__ == "__main__":
    main()
