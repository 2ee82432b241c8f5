"""safeops demo: one model, one training loop, and only the arithmetic differs.

Three places in it divide by zero, take log(0) or differentiate sqrt at 0, all of them in the data
or in the model and none of them staged:

- three pixels are empty in every training image, so their standard deviation is 0;
- a class probability underflows to 0 where an image lies far from the centre of its class;
- a digit that occurs once in a batch lies at distance 0 from the mean of its class, and one that
  does not occur has a mean of 0/0.
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from .demo_plot import save_plot
from .ops.div import safe_div
from .ops.finite_clip import finite_clip
from .ops.log import safe_log
from .ops.sqrt import safe_sqrt

TRAINING, BATCH, FEATURES, CLASSES = 1437, 64, 256, 10
PLOT = "safeops-demo.png"


class Ops(NamedTuple):
    """All in which the runs differ."""

    div: Callable[[Tensor, Tensor], Tensor]
    log: Callable[[Tensor], Tensor]
    sqrt: Callable[[Tensor], Tensor]
    clip: Callable[[Tensor, float, float], Tensor]


PLAIN = Ops(torch.div, torch.log, torch.sqrt, torch.clamp)
PATCHED = Ops(
    lambda x, y: x / (y + 1e-8),
    lambda x: torch.log(x + 1e-8),
    lambda x: torch.sqrt(x + 1e-8),
    lambda x, low, high: torch.nan_to_num(x).clamp(low, high),
)
SAFE = Ops(safe_div, safe_log, safe_sqrt, finite_clip)
RUNS = {
    "plain torch": PLAIN,
    "all patched but sqrt": PATCHED._replace(sqrt=torch.sqrt),
    "hand-written patches": PATCHED,
    "safeops": SAFE,
}


class Data(NamedTuple):
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


@dataclass
class Outcome:
    """What one run did; ``bad`` is (step, where) of the first NaN or Inf."""

    name: str
    bad: tuple[int, str] | None = None
    zeros: int = 0
    accuracy: float = math.nan
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


# --- the model ---------------------------------------------------------------------------------


def moments(ops: Ops, x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(0)
    return mean, ops.sqrt((x - mean).square().mean(0))


def standardise(ops: Ops, x: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    return ops.clip(ops.div(x - mean, deviation), -3.0, 3.0)


class Classifier(nn.Module):
    """Standardised ReLU features; the scores are minus squared distances to learned centres."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self.ops = ops
        self.hidden = nn.Linear(64, FEATURES)
        self.centres = nn.Parameter(torch.randn(CLASSES, FEATURES))

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.hidden(F.dropout(x, 0.3, self.training)))

    def probabilities(self, features: Tensor) -> Tensor:
        """softmax of minus the squared distances, without the part that is equal in a row."""
        scores = 2 * features @ self.centres.T - self.centres.square().sum(1)
        return torch.softmax(scores, 1)

    def spread(self, features: Tensor, y: Tensor) -> Tensor:
        """The mean distance to the mean of the class in this batch."""
        member = F.one_hot(y, CLASSES).to(features.dtype)
        means = self.ops.div(member.T @ features, member.sum(0)[:, None])
        return self.ops.sqrt((features - means[y]).square().sum(1)).mean()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features, probabilities of the right classes, loss."""
        raw = self.features(x)
        features = standardise(self.ops, raw, *moments(self.ops, raw))
        right = self.probabilities(features).gather(1, y[:, None])
        return features, right, -self.ops.log(right).mean() + 0.1 * self.spread(features, y)


@torch.no_grad()
def accuracy(model: Classifier, data: Data) -> float:
    model.eval()
    known = moments(model.ops, model.features(data.x))
    features = standardise(model.ops, model.features(data.test_x), *known)
    return float((model.probabilities(features).argmax(1) == data.test_y).float().mean())


# --- training ----------------------------------------------------------------------------------


@functools.cache
def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def split(ops: Ops) -> Data:
    x, y = digits()
    order = torch.randperm(len(x))
    known, held = order[:TRAINING], order[TRAINING:]
    scale = moments(ops, x[known])
    return Data(
        standardise(ops, x[known], *scale), y[known], standardise(ops, x[held], *scale), y[held]
    )


def batches(epochs: int) -> Iterator[Tensor]:
    for _ in range(epochs):
        yield from torch.randperm(TRAINING)[: TRAINING // BATCH * BATCH].view(-1, BATCH)


def first_bad(quantities: Iterable[tuple[str, Tensor | None]]) -> str | None:
    for name, value in quantities:
        if value is not None and not value.isfinite().all():
            return f"{name} ({'NaN' if value.isnan().any() else 'Inf'})"
    return None


def gradients(model: nn.Module) -> Iterator[tuple[str, Tensor | None]]:
    for name, parameter in model.named_parameters():
        yield f"gradient of {name}", parameter.grad


def step(model: Classifier, x: Tensor, y: Tensor, outcome: Outcome) -> None:
    """Forward and backward, and a record of what happened."""
    began = time.perf_counter()
    features, right, loss = model(x, y)
    model.zero_grad()
    loss.backward()
    outcome.seconds.append(time.perf_counter() - began)
    seen = [("standardised input", x), ("standardised features", features), ("loss", loss)]
    where = None if outcome.bad else first_bad([*seen, *gradients(model)])
    outcome.bad = (len(outcome.losses), where) if where else outcome.bad
    outcome.zeros += int((right == 0).sum())
    outcome.losses.append(loss.item())


def train(
    name: str, ops: Ops, seed: int, epochs: int, advance: Callable[[], object] = lambda: None
) -> Outcome:
    """One run to its end, also past a NaN: no run is stopped early."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        data, model, outcome = split(ops), Classifier(ops), Outcome(name)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
        for index in batches(epochs):
            step(model, data.x[index], data.y[index], outcome)
            optimizer.step()
            advance()
        outcome.accuracy = accuracy(model, data)
    return outcome


@contextmanager
def one_thread() -> Iterator[None]:
    """The matrices are small: a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compare(console: Console, seed: int, epochs: int) -> list[Outcome]:
    """Every run, under a progress bar, or a line a run where there is no terminal."""
    steps, outcomes = epochs * (TRAINING // BATCH), []
    bar = Progress(console=console, disable=not console.is_terminal, transient=True)
    with one_thread(), bar as progress:
        for name, ops in RUNS.items():
            if not console.is_terminal:
                console.print(f"training: {name}")
            task = progress.add_task(name, total=steps)
            outcomes.append(
                train(name, ops, seed, epochs, functools.partial(progress.advance, task))
            )
    return outcomes


# --- what is shown -----------------------------------------------------------------------------


def table(outcomes: list[Outcome]) -> Table:
    result = Table("run", "first NaN or Inf", title="scikit-learn's digits, one model")
    for heading in ("p = 0", "final loss", "test accuracy", "ms/step"):
        result.add_column(heading, justify="right")
    for run in outcomes:
        bad = "none" if run.bad is None else f"step {run.bad[0]}: {run.bad[1]}"
        speed = f"{1e3 * statistics.median(run.seconds):.2f}"
        loss = f"{run.losses[-1]:.3f}" + (" (dead)" if run.bad else "")
        zeros = "–" if run.bad else str(run.zeros)
        result.add_row(run.name, bad, zeros, loss, f"{run.accuracy:.1%}", speed)
    result.caption = (
        "p = 0: how often the probability of the right class was exactly 0 in training. "
        "ms/step: median of forward and backward."
    )
    return result


def unmet(output: Path | None) -> tuple[int, str] | None:
    """Exit status and sentence for what would make the run fail at its end."""
    try:
        digits()
        if output is not None:
            import matplotlib  # noqa: F401
    except ImportError as error:
        return 1, f"the demo needs {error.name}: pip install scikit-learn matplotlib"
    if output is not None and not (output.is_dir() and os.access(output, os.W_OK)):
        return 2, f"--output must be an existing directory that can be written to, got {output}"
    return None


def main(seed: int = 0, epochs: int = 30, output: Path | None = Path()) -> int:
    """Train, show the table, and save the plot in ``output`` unless that is None."""
    problem = unmet(output)
    if problem:
        print(f"safeops demo: {problem[1]}", file=sys.stderr)
        return problem[0]
    console = Console()
    outcomes = compare(console, seed, epochs)
    console.print(table(outcomes))
    if output is not None:
        console.print(f"loss curves: {save_plot(outcomes, output / PLOT)}", soft_wrap=True)
    return 0
