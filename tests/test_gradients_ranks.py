"""Clipping over several ranks: one norm and one decision, as of one process in float64."""

import sys

import pytest
import torch
import torch.distributed as dist

from safeops import _ranks
from tests import rank_decisions, rank_meshes, rank_models, rank_norms, rank_rows
from tests.ranks import World, name_of, run

# One set of processes runs them all, in this order: check_no_import wants the first place.
CHECKS = [
    rank_norms.check_no_import,
    rank_norms.check_group_clip,
    rank_norms.check_idle_ranks,
    rank_norms.check_no_clip,
    rank_norms.check_layouts,
    rank_norms.check_tied,
    rank_norms.check_double_layouts,
    rank_rows.check_group_rows,
    rank_rows.check_extreme_rows,
    rank_rows.check_lone_bad_row,
    rank_rows.check_replica_rows,
    rank_rows.check_sub_groups,
    rank_rows.check_strangers,
    rank_rows.check_locals,
    rank_rows.check_unfinished_local,
    rank_decisions.check_group_decision,
    rank_decisions.check_layout_decision,
    rank_decisions.check_lone_replica,
    rank_decisions.check_replicas_in_a_group,
    rank_decisions.check_values,
    rank_decisions.check_scaler,
    rank_meshes.check_two_meshes,
    rank_meshes.check_mixed_decision,
    rank_meshes.check_lone_plain,
    rank_meshes.check_lone_plain_beside_frozen,
    rank_meshes.check_idle_shard,
    rank_meshes.check_moved,
    rank_meshes.check_moved_decision,
    rank_meshes.check_group_beside_mesh,
    rank_models.check_ddp,
    rank_models.check_fsdp,
    rank_models.check_clipper,
]
GRIDS = [
    rank_meshes.check_nested_meshes,
    rank_meshes.check_pipeline,
    rank_models.check_hybrid_fsdp,
    rank_models.check_tensor_parallel_fsdp,
]
MODULES = [rank_decisions, rank_meshes, rank_models, rank_norms, rank_rows]


def test_every_check_is_listed():
    found = [vars(module)[name] for module in MODULES for name in vars(module) if "check_" in name]
    assert {*found} == {*CHECKS, *GRIDS}
    assert len(CHECKS + GRIDS) == len({*CHECKS, *GRIDS})


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks(ranks):
    run(CHECKS + (GRIDS if ranks > 2 else []), ranks)


def check_that_fails(rank, ranks):
    assert rank != 1, "told by rank 1"


def check_that_differs(rank, ranks):
    return rank


def test_failures_are_told():
    world = World(2)
    failures = [world.failure(name_of(each)) for each in (check_that_fails, check_that_differs)]
    world.close()
    assert failures[0].startswith("--- ranks [1]: Traceback")
    assert "told by rank 1" in failures[0]
    assert failures[1] == "--- ranks [0]: 0\n--- ranks [1]: 1"


DEVICES = [
    ("cpu:gloo,cuda:gloo", "cuda", "cpu"),
    ("cpu:gloo,cuda:nccl", "cuda:1", "cuda:1"),
    ("cpu:gloo,cuda:nccl", "cpu", "cpu"),
    ("cuda:nccl", "cuda", "cuda"),
    ("cuda:nccl", "cpu", "cuda"),  # gradients off-loaded to the host
    ("cpu:mpi", "cpu", "cpu"),
    ("cpu:gloo", "mps", "cpu"),
]


@pytest.mark.parametrize(("backends", "device", "wanted"), DEVICES)
def test_device(monkeypatch, backends, device, wanted):
    """Where the group communicates."""
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    assert _ranks.device_of(None, device) == torch.device(wanted)


@pytest.mark.parametrize("gradient", [torch.ones(2), None, "no tensor"])
def test_plain_gradients_are_not_sharded(monkeypatch, gradient):
    assert not _ranks.is_sharded(gradient)
    monkeypatch.delitem(sys.modules, "torch.distributed.tensor", raising=False)
    assert not _ranks.is_sharded(gradient)
