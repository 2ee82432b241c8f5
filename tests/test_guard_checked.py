"""check_batch: what of a batch is read, and how a message calls it."""

from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import nn

from safeops.guard import Guard
from tests.guard_runs import ALWAYS, told

BAD, GOOD = torch.tensor([1.0, torch.nan]), torch.ones(2)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


NAMES = {
    "batch": BAD,
    "batch[1]": (GOOD, BAD),
    "batch.x[0]": {"x": [BAD], "y": GOOD},
    "batch[0].x.z": [{"x": {"z": BAD}}],
    "batch.1[1]": {0: GOOD, 1: Pair(GOOD, BAD)},
    "batch.y": {"x": "text", "n": 3, "none": None, "y": BAD},
}


def run_on(batch):
    """The verdict, the reason, and whether there was a forward."""
    model, seen = nn.Linear(2, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, check_batch=True, **ALWAYS)
    model.register_forward_hook(lambda *_: seen.append(1))
    with told(guard):
        verdict = guard.run(lambda: model(GOOD).sum(), batch=batch).verdict
    return verdict, [event.reason for event in guard.events], bool(seen)


@pytest.mark.parametrize("name", NAMES)
def test_names(name):
    reason = f"the batch is not finite: {name} (1 nan)"
    assert run_on(NAMES[name]) == ("skipped", [reason], False)


def test_many():
    batch = [torch.full((i,), torch.inf) for i in range(1, 6)]
    listed = ", ".join(f"batch[{i}] ({i + 1} inf)" for i in range(3))
    reason = f"the batch is not finite: {listed}, and 2 more"
    assert run_on(batch) == ("skipped", [reason], False)


def quantized():
    return torch.quantize_per_tensor(GOOD, 0.1, 0, torch.qint8)


UNREAD = {
    "none": lambda: None,
    "empty": lambda: torch.empty(0),
    "whole numbers": lambda: torch.ones(2, dtype=torch.int64),
    "bool": lambda: torch.ones(2, dtype=torch.bool),
    "meta": lambda: torch.empty(2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([GOOD, BAD], layout=torch.jagged),
    "float8": lambda: GOOD.to(torch.float8_e4m3fn),
    "an object": lambda: object(),
    "quantized": quantized,
}
KNOWN = "ignore:.*(quantize|TypedStorage|nested)"  # torch's own, of what the test makes


@pytest.mark.filterwarnings(KNOWN)
@pytest.mark.parametrize("name", UNREAD)
def test_passed_over(name):
    """What cannot be read is not in the way of what can."""
    assert run_on([UNREAD[name](), GOOD]) == ("ok", [], True)
    reason = "the batch is not finite: batch[1] (1 nan)"
    assert run_on([UNREAD[name](), BAD]) == ("skipped", [reason], False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_dtypes(dtype):
    assert run_on(GOOD.to(dtype)) == ("ok", [], True)
    assert run_on(BAD.to(dtype))[0] == "skipped"


def test_not_asked_for():
    """The batch is not read then."""
    model = nn.Linear(2, 1)
    guard = Guard(model, torch.optim.SGD(model.parameters(), lr=0.1), **ALWAYS)
    assert guard.run(lambda: model(GOOD).sum(), batch=BAD).verdict == "ok"


def test_bad_part_of_a_group():
    """The first one, or the last; what follows is a group of its own."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = Guard(model, optimizer, accumulate=2, check_batch=True, max_norm=None)
    verdicts = []
    with told(guard):
        for x in (GOOD, GOOD, BAD, GOOD, GOOD, BAD, GOOD, GOOD):
            verdicts.append(guard.run(partial(lambda x: model(x).sum(), x), batch=x).verdict)
    assert verdicts == ["accumulated", "ok", *["accumulated", "skipped"] * 2, "accumulated", "ok"]
    assert [event.step for event in guard.events] == [1, 2]
