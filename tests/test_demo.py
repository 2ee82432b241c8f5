"""The demo: plain torch dies by itself, is explained and cured; nothing is lost on the way."""

import math
import sys

import pytest
import torch

from safeops import cli, demo, demo_model, demo_plot, demo_runs

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


@pytest.fixture
def no_training(monkeypatch):
    def compare(*arguments):
        raise AssertionError("trained before the input was checked")

    monkeypatch.setattr(demo, "compare", compare)


def run(ops, seed=0, epochs=1):
    return demo_runs.train(demo_runs.Run("one", ops), seed, epochs)


def guarded(ops, seed, epochs):
    """It must say nothing by itself: warnings are errors here."""
    made = demo_runs.Run("guarded", ops, demo_runs.guarded_step, demo_runs.quietly)
    with demo.one_thread():
        return demo_runs.train(made, seed, epochs)


def test_plain_torch_is_torch():
    assert tuple(demo_model.PLAIN) == (torch.div, torch.log, torch.sqrt, torch.clamp)
    assert demo_runs.DYING.ops is demo_runs.SWAPPED.ops is demo_model.PLAIN
    assert demo_runs.SURVIVING.ops.sqrt is torch.sqrt


def test_safeops_learns_and_plain_torch_does_not():
    with demo.one_thread():
        plain = run(demo_model.PLAIN)
        safe = run(demo_model.SAFE, epochs=30)
    assert plain.bad == (0, "standardised input (NaN)")
    assert plain.dead
    assert math.isnan(plain.losses[-1])
    assert plain.accuracy < 0.2
    assert safe.bad is None
    assert all(map(math.isfinite, safe.losses))
    assert safe.accuracy > 0.95
    assert safe.zeros > 0, "no probability underflowed: safe_log was not needed"


def test_plain_log_and_plain_sqrt_die_too():
    assert run(demo_model.SAFE._replace(log=torch.log)).bad == (0, "loss (Inf)")
    sqrt = run(demo_model.SAFE._replace(sqrt=torch.sqrt), seed=1, epochs=3)
    assert sqrt.bad is not None
    assert sqrt.bad[1] == "gradient of hidden.weight (NaN)"


def test_detect_names_the_line():
    found = demo_runs.culprit(demo_runs.DYING, seed=0)
    assert (found.cause, found.op, found.direction) == ("division by zero", "div", "forward")
    assert found.source.file == demo_model.__file__
    assert "ops.div(x - mean, deviation)" in found.source.text
    assert "safe_div" in found.remedy


def test_detect_finds_nothing_in_what_is_safe():
    safe = demo_runs.Run("safe", demo_model.SAFE)
    swapped = demo_runs.SWAPPED._replace(step=demo_runs.guarded_step)
    assert demo_runs.culprit(safe, seed=0) is None
    assert demo_runs.train(swapped, seed=0, epochs=3).guard.events == []


def test_a_guard_survives_plain_sqrt():
    outcome = guarded(demo_runs.SURVIVING.ops, seed=0, epochs=30)
    bad_step, where = outcome.bad
    skipped = outcome.events("skipped")
    assert (bad_step, where) == (skipped[0].step, "SqrtBackward0 (infinite slope)")
    assert not outcome.dead
    assert 20 < len(skipped) == len(outcome.guard.events) < 100
    assert {event.finding.source.file for event in skipped} == {demo_model.__file__}
    assert {event.finding.source.text.partition("(")[0] for event in skipped} == {
        "return self.ops.sqrt"
    }
    assert len(outcome.losses) == 30 * 22
    assert all(map(math.isfinite, outcome.losses))
    assert outcome.accuracy > 0.9


def test_until_its_first_bad_step_a_guarded_run_is_the_same():
    ops = demo_runs.SURVIVING.ops
    plain, kept = run(ops), guarded(ops, seed=0, epochs=1)
    assert plain.bad[0] == kept.bad[0] > 0
    assert plain.losses[: plain.bad[0] + 1] == kept.losses[: plain.bad[0] + 1]
    assert plain.dead


def test_a_guard_with_nothing_to_skip_names_no_culprit():
    outcome = guarded(demo_runs.SURVIVING.ops, seed=1, epochs=1)
    (told,) = demo.surviving(outcome)
    assert "22 steps, 22 good, " in told
    assert not outcome.dead


def test_a_guard_stops_where_every_step_is_bad():
    outcome = guarded(demo_model.PLAIN, seed=0, epochs=3)
    assert outcome.dead
    assert len(outcome.events("stopped")) == 1
    assert len(outcome.losses) < 3 * 22


def test_a_swap_cures_plain_torch():
    with demo.one_thread():
        outcome = demo_runs.train(demo_runs.SWAPPED, seed=0, epochs=30)
    assert outcome.bad is None
    assert outcome.accuracy > 0.95
    assert outcome.zeros > 0


def test_a_seed_is_a_run():
    first, again = (run(demo_model.SAFE, seed=3) for _ in range(2))
    assert first.losses == again.losses
    assert first.losses != run(demo_model.SAFE, seed=4).losses


def test_the_callers_random_numbers_and_threads_stay():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with demo.one_thread():
        run(demo_model.SAFE, seed=3)
        demo_runs.culprit(demo_runs.DYING, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_first_bad_tells_nan_from_inf():
    one = torch.ones(2)
    assert demo_runs.first_bad([("a", one), ("b", None)]) is None
    assert demo_runs.first_bad([("a", one), ("b", one * torch.inf)]) == "b (Inf)"
    assert demo_runs.first_bad([("a", one * torch.nan), ("b", one * torch.inf)]) == "a (NaN)"


def test_command_prints_a_table_and_saves_a_plot(tmp_path, capsys):
    assert cli.main(["demo", "--epochs", "1", "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    told = [f"training: {one.name}" for one in demo_runs.RUNS]
    told += ["1. plain torch dies in step 0: standardised input (NaN)"]
    told += ["2. safeops.diagnose.detect", "ops.div(x - mean, deviation)"]
    told += ["3. safeops.Guard", " skipped", "SqrtBackward0", "4. safeops.swap_", "loss curves:"]
    places = [out.find(text) for text in told]
    assert -1 not in places
    assert places == sorted(places)
    assert "called from" not in out
    assert str(tmp_path / demo.PLOT) in out
    assert [path.name for path in tmp_path.iterdir()] == [demo.PLOT]
    assert (tmp_path / demo.PLOT).read_bytes().startswith(b"\x89PNG")


def test_no_plot_needs_no_matplotlib(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--epochs", "1", "--no-plot"]) == 0
    assert "loss curves" not in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["sklearn.datasets", "matplotlib"])
@pytest.mark.usefixtures("no_training")
def test_a_missing_package_is_one_sentence(module, monkeypatch, capsys):
    demo.digits.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    assert cli.main(["demo"]) == 1
    error = capsys.readouterr().err
    assert "pip install scikit-learn matplotlib" in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("no_training")
def test_a_file_is_no_directory(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["demo", "--output", str(tmp_path / "file")]) == 2
    assert "existing directory" in capsys.readouterr().err


def test_a_failed_save_leaves_the_old_plot(tmp_path, monkeypatch):
    class Broken:
        def savefig(self, path, format):
            path.write_text("half a plot")
            raise OSError("disk full")

    (tmp_path / demo.PLOT).write_text("old")
    monkeypatch.setattr(demo_plot, "figure", lambda outcomes: Broken())
    with pytest.raises(OSError, match="disk full"):
        demo_plot.save_plot([], tmp_path / demo.PLOT)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_smooth_is_the_mean_of_the_last_losses():
    assert demo_plot.smooth([4.0, 2.0, 0.0], width=2) == [4.0, 3.0, 1.0]
