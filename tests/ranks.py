"""Runs checks in several processes on gloo, and says which failed on which rank and where; below,
the gradients that these checks have in common.

A check is a function `check(rank, ranks)` of a test module. What it returns must be the same on all
ranks: how they all decide alike is tested so.
"""

import importlib
import math
import multiprocessing
import os
import tempfile
import time
import traceback
import warnings
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import nn

from safeops._ranks import is_sharded

SPAWN = multiprocessing.get_context("spawn")
COLLECTIVE = 30  # seconds until a rank that waits for the others raises, and so shows where
CHECK = 60  # seconds that a check may take, the start of the processes included
LAST = 10  # seconds that the others have once a rank has failed
SHAPES = ((8, 4), (5, 3), (1, 3), (0, 3), (3, 7))  # even, uneven, fewer rows than ranks, no element


def run(checks, ranks):
    """All checks on that many ranks, each started set of processes until something fails in it."""
    failures, world = [], None
    for check in checks:
        world = world or World(ranks)
        if failure := world.failure(name_of(check)):
            failures.append(f"{check.__name__} on {ranks} ranks\n{failure}")
            world = world.kill()
    if world:
        world.close()
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)


def name_of(check):
    return f"{check.__module__}:{check.__name__}"


class World:
    """The processes, and a pipe to each of them."""

    def __init__(self, ranks):
        self.folder = tempfile.TemporaryDirectory()
        store = Path(self.folder.name, "store").as_uri()  # a file: no port that others could take
        self.pipes, theirs = zip(*(SPAWN.Pipe() for _ in range(ranks)), strict=True)
        self.processes = [
            SPAWN.Process(target=serve, args=(pipe, rank, ranks, store), daemon=True)
            for rank, pipe in enumerate(theirs)
        ]
        for process, pipe in zip(self.processes, theirs, strict=True):
            process.start()
            pipe.close()  # so that the death of the process is the end of the file

    def failure(self, check):
        """What went wrong in the check, None if nothing did."""
        for pipe in self.pipes:
            pipe.send(check)
        errors, values = zip(*self.answers(), strict=True)
        told = errors if any(errors) else [repr(value) for value in values]
        return by_rank(told) if len(set(told)) > 1 or any(errors) else None

    def answers(self):
        """Error and value of each rank, in rank order."""
        answers, end = {}, time.monotonic() + CHECK
        while len(answers) < len(self.pipes) and (left := end - time.monotonic()) > 0:
            for pipe in wait([p for p in self.pipes if self.pipes.index(p) not in answers], left):
                answers[self.pipes.index(pipe)] = received(pipe)
            if any(error for error, _ in answers.values()):
                end = min(end, time.monotonic() + LAST)
        silent = ("no answer: the rank hangs", None)
        return [answers.get(rank, silent) for rank in range(len(self.pipes))]

    def kill(self):
        for process in self.processes:
            process.kill()
        self.clean()

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(COLLECTIVE)
        self.kill()

    def clean(self):
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.join()
            process.close()
            pipe.close()
        self.folder.cleanup()


def by_rank(texts):
    """Each text once, with the ranks that it comes from."""
    ranks = {}
    for rank, text in enumerate(texts):
        ranks.setdefault(text, []).append(rank)
    return "\n".join(f"--- ranks {which}: {text}" for text, which in ranks.items() if text)


def received(pipe):
    try:
        return pipe.recv()
    except EOFError:
        return "the process died", None


def serve(pipe, rank, ranks, store):
    """The life of one process: it answers each check with an error, or with the check's value."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    patience = timedelta(seconds=COLLECTIVE)
    dist.init_process_group("gloo", store, rank=rank, world_size=ranks, timeout=patience)
    while (check := pipe.recv()) is not None:
        pipe.send(answer(check, rank, ranks))
    dist.destroy_process_group()


def answer(check, rank, ranks):
    module, name = check.split(":")
    torch.manual_seed(0)
    try:
        return None, getattr(importlib.import_module(module), name)(rank, ranks)
    except BaseException:
        return traceback.format_exc(), None


# ---- gradients over ranks


class Case(NamedTuple):
    """What one rank passes to clip_grad_norm_, and what one process would see."""

    parameters: list
    gradients: list  # those of `parameters`, each of them whole
    everything: list  # the gradients of all ranks
    options: dict


def norm(gradients, p):
    """The p-norm of the finite elements, by its formula."""
    values = torch.cat([gradient.double().abs().flatten() for gradient in gradients])
    values = values[values.isfinite()]
    if values.numel() == 0:
        return 0.0
    return values.max().item() if math.isinf(p) else (values**p).sum().item() ** (1 / p)


def whole(gradient):
    return (gradient.full_tensor() if is_sharded(gradient) else gradient).clone()


def with_gradient(gradient):
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    return parameter


def randoms(dtype=torch.float32):
    return [torch.randn(shape, dtype=dtype) for shape in SHAPES]


def grouped(rank, ranks, dtype=torch.float32):
    """Every rank has its own parameters, and another number of them."""
    everyone = [randoms(dtype)[each:] for each in range(ranks)]
    own = [with_gradient(gradient.clone()) for gradient in everyone[rank]]
    return Case(own, everyone[rank], [*chain(*everyone)], {"process_group": dist.group.WORLD})


def distributed(values, mesh, placements):
    """DTensor gradients of these values."""
    parameters = [with_gradient(sharded(value, mesh, placements)) for value in values]
    return Case(parameters, values, values, {})


def sharded(value, mesh, placements):
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    visible = [Replicate() if each.is_partial() else each for each in placements]
    part = distribute_tensor(value, mesh, visible, src_data_rank=None).to_local().clone()
    for placement, place, size in zip(placements, mesh.get_coordinate(), mesh.shape, strict=True):
        if placement.is_partial():  # the parts add up to the value, or to its multiple for a mean
            part *= (-2 if place else 2 * size - 1) * (size if placement.is_partial("avg") else 1)
    shape, stride = value.shape, value.stride()
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)


def meshes(ranks):
    """A line of all ranks, and a grid; with two ranks, one of its dims has the size 1."""
    from torch.distributed.device_mesh import init_device_mesh

    line = init_device_mesh("cpu", (ranks,))
    grid = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("outer", "inner"))
    return line, grid


def layouts(ranks):
    from torch.distributed.tensor import Partial, Replicate, Shard

    line, grid = meshes(ranks)
    rows, columns, replica, part, mean = Shard(0), Shard(1), Replicate(), Partial(), Partial("avg")
    pairs = [(rows, replica), (replica, columns), (rows, columns), (columns, rows), (rows, rows)]
    pairs += [(replica, replica), (part, rows), (columns, part), (part, part), (replica, part)]
    yield from ((line, (placement,)) for placement in (rows, columns, replica, part, mean))
    yield from ((grid, pair) for pair in (pairs if ranks > 2 else pairs[:3]))


def close(actual, expected, tolerance, **options):
    options |= {"rtol": tolerance, "atol": 0, "check_dtype": False}
    torch.testing.assert_close(actual, expected, **options)


@contextmanager
def all_reduces():
    """Counts them while they go on."""
    seen, real = SimpleNamespace(count=0), dist.all_reduce

    def counting(*arguments, **options):
        seen.count += 1
        return real(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", counting)
        yield seen
