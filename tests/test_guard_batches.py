"""Batches come in the order of an uninterrupted run, wherever it is resumed or taken back."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
)

from safeops._random import random_state, set_random_state
from safeops.guard import Batches, GuardWarning, Policy
from tests.guard_resumed import Run, assert_resumes, bits, seeded

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


class Items(Dataset):
    """draws: an item takes random numbers of Python, NumPy and torch, as an augmentation does."""

    def __init__(self, size=10, draws=False):
        self.size, self.draws = size, draws

    def __len__(self):
        return self.size

    def __getitem__(self, place):
        x = torch.full((4,), place / 10)
        x[0] = -x[0]
        return x + random.random() + np.random.rand() + torch.rand(4) if self.draws else x  # noqa: NPY002


class Stream(IterableDataset):
    def __init__(self, draws=False):
        self.draws = draws

    def __iter__(self):
        places = torch.randperm(10) / 10
        yield from (place + (torch.rand(4) if self.draws else torch.zeros(4)) for place in places)


class Shuffled:
    """No DataLoader and without len()."""

    def __iter__(self):
        return iter(random.sample(range(5), 5))


def loader(draws=False, own=False, size=10, **options):
    generator = torch.Generator().manual_seed(torch.initial_seed()) if own else None
    return DataLoader(Items(size, draws), 2, shuffle=True, generator=generator, **options)


def given_sampler(loaders=None, batch=None):
    """A generator of the sampler; perhaps another one of the loader, or of the batch sampler."""
    own = [torch.Generator().manual_seed(torch.initial_seed() + i) for i in range(3)]
    sampler = RandomSampler(Items(10), generator=own[0])
    if batch is None:
        return DataLoader(Items(10), 2, sampler=sampler, generator=own[1] if loaders else None)
    generator = own[1] if loaders else None
    return DataLoader(Items(10), batch_sampler=batch(sampler, own[2]), generator=generator)


class Mixed(BatchSampler):
    """Batches in an order of its own."""

    def __init__(self, sampler, generator):
        super().__init__(sampler, 2, drop_last=False)
        self.generator = generator

    def __iter__(self):
        batches = list(super().__iter__())
        order = torch.randperm(len(batches), generator=self.generator).tolist()
        return (batches[place] for place in order)


def pairs(sampler, generator):
    return BatchSampler(sampler, 2, drop_last=False)


def distributed():
    return DataLoader(Items(16), 2, sampler=DistributedSampler(Items(16), 2, 1))


LOADERS = {
    "list": lambda: [0, 1, 2, 3, 4],
    "shuffled": loader,
    "own generator": partial(loader, own=True),
    "sampler": given_sampler,
    "sampler and loader": partial(given_sampler, loaders=True),
    "batch sampler's sampler": partial(given_sampler, batch=pairs),
    "batch sampler": partial(given_sampler, batch=Mixed),
    "batch sampler and loader": partial(given_sampler, loaders=True, batch=Mixed),
    "drawn": partial(loader, draws=True),
    "drawn, own generator": partial(loader, draws=True, own=True),
    "stream": lambda: DataLoader(Stream(), 2),
    "stream, drawn": lambda: DataLoader(Stream(draws=True), 2),
    "without len": Shuffled,
    "distributed": distributed,
    "empty": lambda: [],
    "empty DataLoader": lambda: DataLoader(Items(0), 2),
}
WORKERS = {
    "workers": partial(loader, draws=True, num_workers=2),
    "workers, own generator": partial(loader, draws=True, own=True, num_workers=2),
}


class Reader:
    """Reads epochs, with random numbers of its own between the batches; told is what it saw."""

    def __init__(self, make, seed=0):
        seeded(seed)
        self.batches, self.told = Batches(make()), []

    def read(self, until=3, at=lambda reader: None):
        while self.batches.epoch < until:
            for batch in self.batches:
                self.told.append((self.batches.epoch, self.batches.position, bits(batch)))
                _ = torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002
                at(self)
            self.told.append(("end", bits(random_state())))
            at(self)
        return self.told

    def state(self):
        return len(self.told), self.batches.state_dict(), random_state()

    def load(self, state):
        _, batches, numbers = state
        self.batches.load_state_dict(batches)
        set_random_state(numbers)


@pytest.mark.parametrize("name", LOADERS)
def test_resumed_anywhere(name):
    """After each batch and after each epoch, by another loader and with other random numbers."""
    whole, states = Reader(LOADERS[name]), []
    states.append(whole.state())
    whole.read(at=lambda reader: states.append(reader.state()))
    for state in states[:-1]:
        again = Reader(LOADERS[name], seed=1)
        again.load(state)
        assert again.read() == whole.told[state[0] :]


@pytest.mark.parametrize("back", range(1, 6))
@pytest.mark.parametrize("name", sorted(LOADERS.keys() - {"empty", "empty DataLoader"}))
def test_rewound(name, back):
    """To the state of that many batches before, in the middle of the iteration."""
    whole = Reader(LOADERS[name])
    whole.read()
    again, states = Reader(LOADERS[name]), []

    def at(reader):
        states.append(reader.state())
        if len(states) == 9:  # 5 batches, the end of the epoch, 3 batches
            reader.load(states[-1 - back])
            del reader.told[states[-1 - back][0] :]

    assert again.read(at=at) == whole.told


# ---- with a guard


@pytest.mark.parametrize("every", [3, 4, 5, 6], ids=lambda k: f"at {k} of 5")
@pytest.mark.parametrize("name", [*sorted(LOADERS.keys() - {"list", "without len"}), *WORKERS])
def test_guarded(tmp_path, name, every):
    """In the middle of an epoch, before its last batch, at its end and in the next one."""
    if "empty" in name:
        return
    make = (LOADERS | WORKERS)[name]
    assert_resumes(tmp_path, data=lambda: Batches(make()), every=every, steps=12)


@pytest.mark.parametrize("name", ["own generator", "drawn"])
def test_rolled_back(tmp_path, name):
    """With the policy to rewind, the batches since the snapshot come again, and are the same."""
    policy = Policy(skips=0, rewind=True)
    options = {"data": lambda: Batches(LOADERS[name]()), "policy": policy, "snapshot_every": 4}
    told = Run(tmp_path / "whole", **options).train(12)
    run = Run(tmp_path / "run", **options)
    assert run.train(6) == told[:6]
    with pytest.warns(GuardWarning, match="rolled back to step 4"):
        run.train(1, bad=(0,))
    assert run.train(8) == told[4:]
    assert (run.data.epoch, run.data.position) == (2, 2)


# ---- positions


def test_positions():
    batches = Batches("abc")
    seen = [(batches.epoch, batches.position, one) for _ in range(2) for one in batches]
    assert seen == [(epoch, i + 1, one) for epoch in range(2) for i, one in enumerate("abc")]
    assert (batches.epoch, batches.position, len(batches)) == (2, 0, 3)


def test_broken_off():
    """An epoch that is left begins anew, and does not count."""
    batches = Batches("abc")
    for left in range(1, 4):
        for _, one in zip(range(left), batches, strict=False):
            assert (batches.epoch, batches.position) == (0, "abc".index(one) + 1)
    assert list(batches) == list("abc")
    assert batches.epoch == 1


def test_left_by_an_error():
    batches = Batches("abc")
    with pytest.raises(ZeroDivisionError):
        [1 / 0 for _ in batches]
    state = batches.state_dict()
    batches.load_state_dict(state)
    assert list(batches) == ["b", "c"]
    assert batches.epoch == 1


# ---- errors


@pytest.mark.parametrize(
    "wrong",
    [3, None, iter("abc"), (one for one in "abc"), Shuffled],
    ids=lambda one: type(one).__name__,
)
def test_no_loader(wrong):
    with pytest.raises(TypeError, match="that can be iterated over again, such as a DataLoader"):
        Batches(wrong)


def test_no_len():
    with pytest.raises(TypeError, match="has no len"):
        len(Batches(Shuffled()))


@pytest.mark.parametrize("missing", ["epoch", "position", "began", "generators"])
def test_no_state(missing):
    """Nothing of it is loaded."""
    batches = Batches("abc")
    assert next(iter(batches)) == "a"
    before = batches.state_dict()
    state = {key: value for key, value in (before | {"epoch": 7}).items() if key != missing}
    with pytest.raises(KeyError, match=missing):
        batches.load_state_dict(state)
    assert bits(batches.state_dict()) == bits(before)


NUMBERS = {
    "own generator": 1, "shuffled": 0, "sampler": 1, "sampler and loader": 2,
    "batch sampler's sampler": 1, "batch sampler": 2, "batch sampler and loader": 3, "list": 0,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_generators(name):
    """One that comes twice is one."""
    assert len(Batches(LOADERS[name]()).state_dict()["generators"]) == NUMBERS[name]


def test_other_generators():
    """A state of a loader with its own generator, for one without."""
    given, other = Reader(partial(loader, own=True)), Reader(loader)
    batches = iter(given.batches)
    next(batches)
    before = bits([random_state(), other.batches.state_dict()])
    with pytest.raises(ValueError, match="1 generators there, 0 here"):
        other.batches.load_state_dict(given.batches.state_dict())
    assert bits([random_state(), other.batches.state_dict()]) == before
