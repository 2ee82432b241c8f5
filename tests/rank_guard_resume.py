"""Checks of checkpoints of guarded runs on several ranks; test_guard_ranks.py runs them."""

import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from safeops.guard import Guard
from tests.guard_runs import Setup, assert_same, told, training
from tests.rank_guard import ddp, fsdp, own_data

HALF = 4  # steps before the process is gone


@contextmanager
def shared_folder(rank):
    """The same on all ranks, gone when all are done."""
    with tempfile.TemporaryDirectory() as own:
        folders = [own]
        dist.broadcast_object_list(folders, src=0)
        yield Path(folders[0])
        dist.barrier()


def start(wrap, folder, **settings):
    run = training(Setup(), wrap)
    torch.manual_seed(dist.get_rank())  # each rank drops other elements
    guard = Guard(
        run.model,
        run.optimizer,
        scheduler=run.scheduler,
        checkpoint_dir=folder,
        checkpoint_every=2,
        checkpoints=2,
        **settings,
    )
    return run, guard


def go_on(run, guard, steps):
    return [guard.run(partial(run.loss, batch), batch=batch).loss for [batch] in steps]


def resumed(rank, wrap):
    """A bad step of one rank before; all goes on bit by bit, and the oldest checkpoint is gone."""
    steps = own_data(rank)
    if rank == 1:
        steps[1][0][0][0, 0] = torch.nan
    with shared_folder(rank) as folder:
        run, guard = start(wrap, None)
        with told(guard):
            losses = go_on(run, guard, steps)
        killed, first = start(wrap, folder)
        with told(first):
            go_on(killed, first, steps[:HALF])
        other, guard = start(wrap, folder)
        assert guard.resume() == HALF
        assert torch.equal(torch.get_rng_state(), killed.state()["random"])
        assert go_on(other, guard, steps[HALF:]) == losses[HALF:]
        assert_same(other.state(), run.state())
        dist.barrier()
        return sorted(path.name for path in folder.glob("step-*")), guard.summary().summary()


def assert_kept(names, said):
    """The last two checkpoints, and the counts of before."""
    assert names == ["step-00000004", "step-00000006"]
    assert said == "7 steps, 6 good, 1 skipped, last checkpoint after step 6"
    return names, said


def check_resume_ddp(rank, ranks):
    return assert_kept(*resumed(rank, ddp))


def check_resume_fsdp(rank, ranks):
    return assert_kept(*resumed(rank, fsdp))


def check_replicas_write_the_weights_once(rank, ranks):
    with shared_folder(rank) as folder:
        run, guard = start(ddp, folder)
        go_on(run, guard, own_data(rank)[:2])
        sizes = [path.stat().st_size for path in sorted(folder.glob("step-*/rank-*.pt"))]
        first = torch.load(folder / "step-00000002/rank-00000.pt", weights_only=True)
        second = torch.load(folder / "step-00000002/rank-00001.pt", weights_only=True)
        assert "hidden.weight" in first["model"]
        assert "hidden.weight" not in second["model"]
        assert "norm.running_mean" in second["model"]
        assert second["optimizers"] == []
        assert not torch.equal(first["random"]["torch"], second["random"]["torch"])
        dist.barrier()
        return sizes


def check_bad_batch_of_one_rank(rank, ranks):
    """No rank runs the forward of that step, in which the others would wait."""
    run, steps = training(Setup("sgd", parts=2), ddp), own_data(rank, 2)
    if rank == 1:
        steps[2][1][0][0, 0] = torch.inf
    guard = Guard(run.model, run.optimizer, accumulate=2, check_batch=True, max_norm=None)
    seen = []
    run.model.register_forward_pre_hook(lambda *_: seen.append(1))
    with told(guard):
        results = [
            guard.run(partial(run.loss, batch), batch=batch) for parts in steps for batch in parts
        ]
    assert len(seen) == 2 * len(steps) - 1
    assert [result.verdict for result in results].count("skipped") == 1
    return guard.events[0].reason, results[5].verdict


def check_other_number_of_states(rank, ranks):
    """One rank cannot pack its state: all go on without that checkpoint."""
    with shared_folder(rank) as folder:
        run = training(Setup(), ddp)
        other = Odd() if rank == 1 else Plain()
        guard = Guard(
            run.model,
            run.optimizer,
            others=[other],
            checkpoint_dir=folder,
            checkpoint_every=2,
        )
        with told(guard):
            go_on(run, guard, own_data(rank)[:3])
        dist.barrier()
        assert list(folder.glob("step-*")) == []
        return [event.kind for event in guard.events]


class Plain:
    value = 1

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Odd(Plain):
    value = object()
