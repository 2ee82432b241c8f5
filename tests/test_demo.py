"""The demo: plain torch dies by itself, safeops learns, and nothing is lost on the way."""

import math
import sys

import pytest
import torch

from safeops import cli, demo, demo_plot

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


@pytest.fixture
def no_training(monkeypatch):
    def compare(*arguments):
        raise AssertionError("trained before the input was checked")

    monkeypatch.setattr(demo, "compare", compare)


def test_plain_torch_is_torch():
    assert tuple(demo.PLAIN) == (torch.div, torch.log, torch.sqrt, torch.clamp)


def test_safeops_learns_and_plain_torch_does_not():
    with demo.one_thread():
        plain = demo.train("plain", demo.PLAIN, seed=0, epochs=1)
        safe = demo.train("safe", demo.SAFE, seed=0, epochs=30)
    assert plain.bad == (0, "standardised input (NaN)")
    assert math.isnan(plain.losses[-1])
    assert plain.accuracy < 0.2
    assert safe.bad is None
    assert all(map(math.isfinite, safe.losses))
    assert safe.accuracy > 0.95
    assert safe.zeros > 0, "no probability underflowed: safe_log was not needed"


def test_plain_log_and_plain_sqrt_die_too():
    log = demo.train("log", demo.SAFE._replace(log=torch.log), seed=0, epochs=1)
    assert log.bad == (0, "loss (Inf)")
    sqrt = demo.train("sqrt", demo.SAFE._replace(sqrt=torch.sqrt), seed=1, epochs=3)
    assert sqrt.bad is not None
    assert sqrt.bad[1] == "gradient of hidden.weight (NaN)"


def test_a_seed_is_a_run():
    first, again = (demo.train("safe", demo.SAFE, seed=3, epochs=1) for _ in range(2))
    assert first.losses == again.losses
    assert first.losses != demo.train("safe", demo.SAFE, seed=4, epochs=1).losses


def test_the_callers_random_numbers_and_threads_stay():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with demo.one_thread():
        demo.train("safe", demo.SAFE, seed=3, epochs=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_first_bad_tells_nan_from_inf():
    one = torch.ones(2)
    assert demo.first_bad([("a", one), ("b", None)]) is None
    assert demo.first_bad([("a", one), ("b", one * torch.inf)]) == "b (Inf)"
    assert demo.first_bad([("a", one * torch.nan), ("b", one * torch.inf)]) == "a (NaN)"


def test_command_prints_a_table_and_saves_a_plot(tmp_path, capsys):
    assert cli.main(["demo", "--epochs", "1", "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "training: safeops" in out
    assert "standardised" in out
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
