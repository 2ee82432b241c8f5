"""The benchmarks on a GPU, without one: its clock is played, its tensors are those of the CPU.

Nothing here asserts a time.
"""

import json
import subprocess
import time
import types

import pytest
import torch

from benchmarks import __main__ as cli
from benchmarks import gpu, machine, measure, report, timing
from benchmarks.gpu import CPU, CUDA
from benchmarks.rows import BACK, ONE_WAY
from benchmarks.suite import rows_on
from tests.test_benchmarks_command import refused

TINY = timing.Effort(seconds=0.0, least=3)
SIZE = 3000


class Player:
    """A GPU whose clock goes by what each call takes."""

    def __init__(self, monkeypatch):
        self.seconds, self.calls, self.modes = 0.0, 0, []
        player = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = player.now()

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return (end.at - self.at) * 1e3

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", self.modes.append)

    def now(self):
        return self.seconds

    def call(self, seconds):
        """A call that takes so long."""

        def launch():
            self.calls += 1
            self.seconds += seconds

        return launch


@pytest.fixture
def player(monkeypatch):
    return Player(monkeypatch)


@pytest.fixture
def played(monkeypatch, player):
    """Cases of the CPU are measured as those of a GPU are, by its clock."""
    monkeypatch.setattr(measure, "CUDA", CPU)
    monkeypatch.setattr(player, "now", time.perf_counter)
    return player


def by_name(op, layout):
    return next(row for row in rows_on(CUDA) if (row.op, row.layout) == (op, layout))


# --- without a GPU -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "sentence"), [(None, "is built without CUDA"), ("13.0", "torch finds no GPU here")]
)
def test_without_a_gpu(monkeypatch, capsys, version, sentence):
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for more in ([], ["--check"]):
        said = refused(capsys, "--device", "cuda", *more)
        assert "--device cuda: torch" in said
        assert sentence in said
        assert "leave it out to measure on the CPU" in said


def test_threads_are_those_of_the_cpu(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "why_none", lambda: None)
    assert "--threads are those of the CPU" in refused(capsys, "--device", "cuda", "--threads", "1")


def test_numbers_of_the_formulas_do_not_pass_for_those_of_the_kernels(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "why_none", lambda: None)
    monkeypatch.setattr(machine, "why_no_kernels", lambda device: f"none for {device}")
    assert "none for cuda" in refused(capsys, "--device", "cuda", "--check")


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "repetitions"), [(0.4e-3, 5), (1.0, 1), (1e-9, gpu.MOST)])
def test_launches_last_long_enough(player, seconds, repetitions):
    launches = gpu.Launches(player.call(seconds))
    assert launches.repetitions == repetitions
    before = player.calls
    assert launches() == pytest.approx(seconds)
    assert player.calls - before == 1 + repetitions


def test_a_call_that_waits(player):
    def waiting():
        raise RuntimeError("called a synchronizing CUDA operation")

    assert gpu.waits(waiting)
    assert not gpu.waits(player.call(1.0))
    assert player.modes == ["error", "default"] * 2


def test_other_errors_are_no_waiting(player):
    def broken():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        gpu.waits(broken)
    assert player.modes == ["error", "default"]


# --- the whole way -------------------------------------------------------------------------------


def test_a_measurement(played):
    row = by_name("softmax", "[N,1024]")
    result = measure.measure(measure.Case(row, 4096, torch.float32, 1, BACK), row.forms, TINY)
    assert set(result.times) == {*row.forms, "copy"}
    assert {record["waits_for_gpu"] for record in result.records} == {False}
    assert played.modes == ["error", "default"] * len(row.forms)


def test_no_gpu_in_the_description_of_a_cpu():
    about = machine.describe()
    assert (about["device"], about["gpu"], about["driver"], about["cuda"]) == (
        CPU,
        None,
        None,
        None,
    )
    record = measure.record(
        measure.Case(by_name("log", "contiguous"), 8, torch.float32, 1, ONE_WAY),
        {"torch": [1.0] * 3, "copy": [1.0] * 3},
        "torch",
        8,
        None,
    )
    assert record["device"] == CPU


def test_the_card_is_described(monkeypatch, tmp_path):
    card = types.SimpleNamespace(name="A card", total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gpu, "driver", lambda: "580.1")
    monkeypatch.setattr(machine, "why_no_kernels", lambda device: None)
    about = machine.describe(CUDA)
    assert about["safeops_route"] == "kernels loaded, on the GPU"
    with (out := report.console()).capture() as said:
        report.header(out, about)
    assert "A card, 80 GB, CUDA 13.0, driver 580.1" in said.get()
    json.dumps(about)


def test_the_driver(monkeypatch):
    ran = types.SimpleNamespace(stdout="580.1\n580.1\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: ran)
    assert gpu.driver() == "580.1"

    def missing(*args, **options):
        raise FileNotFoundError("nvidia-smi")

    monkeypatch.setattr(subprocess, "run", missing)
    assert gpu.driver() is None


def test_cases_of_the_command(monkeypatch):
    monkeypatch.setattr(gpu, "why_none", lambda: None)
    monkeypatch.setattr(machine, "why_no_kernels", lambda device: None)
    cases = cli.cases(cli.options(["--device", "cuda"]))
    assert {(case.device, case.threads) for case in cases} == {(CUDA, 1)}
    assert {case.row for case in cases} == set(rows_on(CUDA))
    assert (
        max(case.size for case in cli.cases(cli.options(["--device", "cuda", "--quick"])))
        == 1 << 20
    )
