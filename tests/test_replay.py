"""`safeops replay`: from the dump of a bad step, in a fresh process, to the culprit."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import safeops
from safeops import cli
from safeops.guard import GuardWarning, replay

SCRIPT = """
import torch
from torch import nn
from dataclasses import dataclass

@dataclass
class Sizes:
    width: int = 4

class Head(nn.Module):
    def forward(self, x):
        return (x - x.max()).log()

def build():
    return nn.Sequential(nn.Linear(3, Sizes().width), nn.Dropout(0.5), Head())

def setup():
    model = build()
    return model, lambda batch: model(batch["x"]).mean()

def with_optimizer():
    model, step = setup()
    return model, step, torch.optim.Adam(model.parameters())

def healthy():
    model = nn.Sequential(nn.Linear(3, 4))
    return model, lambda batch: model(batch["x"]).mean()

def wrong():
    return 3

value = 7
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train_it.py"
    path.write_text(SCRIPT)
    return path


class Head(nn.Module):
    def forward(self, x):
        return (x - x.max()).log()


def made(folder, **options):
    """A guard, and a call for a step that is bad."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), Head())
    guard = safeops.Guard(model, torch.optim.Adam(model.parameters()), dump_dir=folder, **options)
    x = torch.randn(5, 3)

    def step():
        with pytest.warns(GuardWarning):
            guard.run(lambda: model(x).mean(), batch={"x": x})
        return guard.events[-1].path

    return guard, step


@pytest.fixture
def dump(tmp_path):
    return made(tmp_path)[1]()


def test_names_the_culprit_from_the_dump_alone(tmp_path, script, dump):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        command = [
            sys.executable,
            "-c",
            "import sys; from safeops.cli import main; sys.exit(main())",
        ]
        done = subprocess.run(
            [*command, "replay", dump, "train_it.py:setup"], capture_output=True, text=True
        )
    assert done.returncode == 1, done.stderr
    assert "log of a non-positive number: log (forward) in 2" in done.stdout
    assert "train_it.py:12: return (x - x.max()).log()" in done.stdout


@pytest.mark.parametrize("name", ["setup", "with_optimizer"])
def test_in_this_process(dump, script, name):
    assert cli.main(["replay", dump, f"{script}:{name}"]) == 1


def test_random_numbers_are_those_of_the_step(tmp_path):
    """Dropout drops the same elements: the result is not finite in the same places."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5))
    seen = []

    def step(batch):
        seen.append(model(batch))
        return seen[-1].log().mean()

    guard = safeops.Guard(model, torch.optim.SGD(model.parameters()), dump_dir=tmp_path)
    x = torch.ones(2, 3)
    with pytest.warns(GuardWarning):
        guard.run(lambda: step(x), batch=x)
    torch.manual_seed(99)
    replay(guard.events[0].path, lambda: (model, step))
    assert len(seen) == 3
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_a_clean_replay_is_told(tmp_path, script, capsys):
    model = nn.Sequential(nn.Linear(3, 4))
    guard = safeops.Guard(model, torch.optim.SGD(model.parameters()), dump_dir=tmp_path)
    bad = iter([float("nan")])
    x = torch.ones(2, 3)
    with pytest.warns(GuardWarning, match="not reproducible"):
        guard.run(lambda: model(x).mean() * next(bad, 1.0), batch={"x": x})
    assert guard.events[0].finding is None
    assert cli.main(["replay", guard.events[0].path, f"{script}:healthy"]) == 0
    assert "all finite" in capsys.readouterr().out


def test_json_and_page(tmp_path, dump, script, capsys):
    page = tmp_path / "page.html"
    options = ["--json", "--html", str(page)]
    assert cli.main(["replay", dump, f"{script}:setup", *options]) == 1
    assert json.loads(capsys.readouterr().out)["first"]["op"] == "log"
    assert "log of a non-positive number" in page.read_text()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("healthy", "does not fit the model of setup"),
        ("wrong", "expected setup to give (model, step)"),
        ("value", "expected a function value"),
        ("missing", "expected a function missing"),
    ],
)
def test_what_does_not_fit(dump, script, capsys, name, says):
    if name == "healthy":
        script.write_text(SCRIPT.replace("nn.Linear(3, 4))", "nn.Linear(3, 5))"))
    assert cli.main(["replay", dump, f"{script}:{name}"]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"no dump", None])
def test_what_is_no_dump(tmp_path, script, capsys, content):
    path = tmp_path / "dump.pt"
    if content is None:
        torch.save({"weights": torch.ones(2)}, path)
    else:
        path.write_bytes(content)
    assert cli.main(["replay", str(path), f"{script}:setup"]) == 2
    assert "expected a dump of a safeops.Guard" in capsys.readouterr().err
    assert cli.main(["replay", str(tmp_path / "nothing.pt"), f"{script}:setup"]) == 2
    assert "nothing.pt" in capsys.readouterr().err


@pytest.mark.parametrize("setup", ["train.py", "train.py:setup", "{}:not a name"])
def test_what_is_no_function(script, capsys, setup):
    assert cli.main(["replay", "x.pt", setup.format(script)]) == 2
    assert "expected a Python file and a function in it" in capsys.readouterr().err


def test_few_dumps_are_written(tmp_path):
    guard, step = made(tmp_path, dumps=1)
    assert [bool(step()), bool(step())] == [True, False]
    assert len(list(tmp_path.glob("*.pt"))) == 1
    assert [event.kind for event in guard.events] == ["skipped", "skipped"]


def test_a_full_disk_is_no_reason_to_stop(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    guard, step = made(tmp_path)
    monkeypatch.setattr("os.fsync", full)
    assert step() == ""
    assert guard.events[0].kind == "skipped"
    assert list(tmp_path.glob("*.pt*")) == []
