"""The emulation of CUDA: right kernels give right results, and each kind of wrong one is caught.

The kernels are those of cuda_emulation/selftest.cu; every schedule must find the same errors.
"""

import os
import re
import subprocess
import sys

import pytest

from safeops import _extension
from tests.cuda_emulation import build

SCHEDULES = ["forward", "reverse", "shuffled:1", "shuffled:2"]
RIGHT = ["sums", "shapes", "parameters", "limits", "halves", "threads", "order"]
RIGHT += ["votes", "shuffles", "masks", "ordered_by_warps", "ordered_by_barriers"]
WRONG = {
    "no_barrier": "race: .* shared x",
    "no_second_barrier": "race: .* shared x",
    "no_barrier_after_many_readers": r"race: .* shared x\[0\]",
    "two_writers": r"race: writes shared x\[0\], which thread .* wrote",
    "no_syncwarp": "race: .* shared x",
    "no_second_syncwarp": "race: .* shared x",
    "syncwarp_of_others": r"race: .* shared x\[0\]",
    "syncwarp_for_another_warp": "race: .* shared x",
    "barrier_in_branch": "waits forever: 40 threads.* wait at __syncthreads .* 24 .* have ended",
    "barrier_in_both_branches": "__syncthreads at .* while other threads wait at __syncthreads at",
    "barriers_of_two_kinds": "__syncthreads_(or|and) at .* wait at __syncthreads_(or|and) at",
    "barrier_and_shuffle": "waits forever: .* wait at __syncthreads .* wait at .*__shfl_sync",
    "lane_not_in_mask": r"__syncwarp\(0x0000ffff\) .* the calling lane is not in the mask",
    "masks_that_differ": r"__syncwarp\(0xffffffff\) .*(names|for) lanes [^:;]* \(ended\)",
    "operations_that_differ": "__a.._sync.* while .* __a.._sync.* must make the same call",
    "types_that_differ": "of [48] bytes .* while .* of [48] bytes .* must make the same call",
    "lanes_that_do_not_exist": "names lanes that the block does not have",
    "lane_that_ended": r"__syncwarp\(0xffffffff\) .*(names|for) lanes 9 \(ended\)",
    "source_not_in_mask": r"lane \d+ reads lane \d+, which is not in the mask",
    "never_written": r"shared x\[63\] is read before this block wrote it",
    "written_by_another_block": r"shared x\[\d+\] is read before this block wrote it",
    "index_too_large": r"shared x\[64\] of an array of 64 elements",
    "index_negative": r"shared x\[-1\] of an array of 64 elements",
    "misaligned_16": "misaligned access at .*: the address is 8 past a multiple of 16",
    "misaligned_8": "misaligned access at .*: the address is 4 past a multiple of 8",
    "throws_an_exception": r"thread \(33, 0, 0\): exception: not this one",
    "throws_a_number": "an exception that is no std::exception",
    "launches": "a launch from inside a kernel",
    "shuffles_by_halves": "a width of 32 only",
}

pytestmark = pytest.mark.skipif(
    _extension.module is None, reason=f"kernels cannot be built here: {_extension.reason}"
)


@pytest.fixture(scope="module")
def program():
    return build.selftest()


def run(program, name, schedule):
    environment = os.environ | {"SAFEOPS_CUDA_SCHEDULE": schedule}
    return subprocess.run([program, name], env=environment, capture_output=True, text=True)


def lines(program, name, schedule):
    """What the kernel said; then right kernels must still have run."""
    result = run(program, name, schedule)
    assert result.returncode == 0, result.stderr
    *said, last = result.stdout.splitlines()
    assert last == "usable"
    return said


def test_every_kernel_is_tested(program):
    kernels = [tuple(line.split()) for line in run(program, "", "forward").stdout.splitlines()]
    assert set(kernels) == {("right", n) for n in RIGHT} | {("wrong", n) for n in WRONG}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", RIGHT)
def test_right(program, name, schedule):
    assert lines(program, name, schedule)[-1] == "ok"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", WRONG)
def test_wrong(program, name, schedule):
    (line,) = lines(program, name, schedule)
    pattern = r"error: emulated CUDA: block \(\d+, 0, 0\), .*" + WRONG[name]
    assert re.match(pattern, line), line


@pytest.mark.parametrize("name", ["sideways", "shuffled:", "shuffled:x", "shuffled"])
def test_unknown_schedule(program, name):
    result = run(program, "sums", name)
    assert result.returncode != 0
    assert f"SAFEOPS_CUDA_SCHEDULE must be forward, reverse or shuffled:SEED; it is '{name}'" in (
        result.stderr + result.stdout
    )


def order(program, schedule):
    """The threads of a block between its barriers, and the blocks, as they came by."""
    threads, blocks, _ = lines(program, "order", schedule)
    threads = [int(i) for i in threads.split()]
    rounds = [tuple(threads[start : start + 64]) for start in range(0, len(threads), 64)]
    return rounds, tuple(int(i) for i in blocks.split())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_threads_run_between_two_barriers(program, schedule):
    rounds, blocks = order(program, schedule)
    assert [sorted(one) for one in rounds] == [list(range(64))] * 3
    assert sorted(blocks) == list(range(20))


@pytest.mark.parametrize(("schedule", "step"), [("forward", 1), ("reverse", -1)])
def test_order_of_plain_schedules(program, schedule, step):
    rounds, blocks = order(program, schedule)
    assert rounds == [tuple(range(64))[::step]] * 3
    assert blocks == tuple(range(20))[::step]


def test_seeds_draw_orders_that_repeat(program):
    rounds, blocks = zip(*(order(program, f"shuffled:{seed}") for seed in (1, 2, 3)), strict=True)
    assert len({one for several in rounds for one in several}) == 9
    assert len(set(blocks)) == 3
    assert order(program, "shuffled:1") == (rounds[0], blocks[0])


# --- the extension with the emulated kernels ---------------------------------------------------

IS_EMULATED = """
import pytest, torch, safeops, sys
def test_it():
    assert "cuda_emulation" in sys.modules["safeops._C"].__file__
    assert safeops.why_not_kernel(torch.ones(3)) is None
    assert safeops.safe_log(torch.tensor([0.0, 1.0, torch.inf])).tolist()[1:] == [0, torch.inf]
"""


def pytest_with_plugin(tmp_path, *arguments, **variables):
    (tmp_path / "test_it.py").write_text(IS_EMULATED)
    command = ["-p", "tests.cuda_emulation.plugin", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", tmp_path, *command, tmp_path],
        cwd=build.ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("processes", ["0", "2"])
def test_plugin_brings_the_emulated_kernels(tmp_path, processes):
    result = pytest_with_plugin(tmp_path, "-n", processes)
    assert result.returncode == 0, result.stdout + result.stderr


def test_plugin_refuses_to_come_late(tmp_path):
    result = pytest_with_plugin(tmp_path, PYTEST_PLUGINS="safeops")
    assert result.returncode != 0
    assert "was loaded before the emulated CUDA kernels" in result.stdout + result.stderr


def test_plugin_fails_where_the_build_fails(tmp_path):
    result = pytest_with_plugin(tmp_path, CXX="false")
    assert result.returncode != 0
    assert "the emulated CUDA kernels did not build" in result.stdout + result.stderr
