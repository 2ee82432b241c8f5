"""The examples of the docstrings, the README and the guides run; everything public is explained."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import safeops
from safeops.swap.table import replaced_functions
from tests.cases import OPS
from tests.row_cases import ROW_OPS

README = Path(__file__).parent.parent / "README.md"
MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(safeops.__path__, "safeops.")
    if not name.endswith(("._C", "__main__"))
)
PUBLIC = {name: getattr(safeops, name) for name in safeops.__all__ if name != "__version__"}
PUBLIC |= {name: getattr(safeops.diagnose, name) for name in safeops.diagnose.__all__}
CALLED = [name for name, thing in PUBLIC.items() if inspect.isfunction(thing)]
CALLED.append("GradNormClipper")
OPS = [op.name for op in (*OPS, *ROW_OPS)]


@pytest.mark.parametrize("name", ["safeops", *MODULES])
def test_examples(name):
    module = importlib.import_module(name)
    results = doctest.testmod(module, extraglobs={"torch": torch, "safeops": safeops})
    assert results.failed == 0


def test_examples_of_what_is_called_are_found():
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in CALLED:
        assert any(test.examples for test in finder.find(PUBLIC[name], name)), name


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_is_explained(name):
    assert inspect.getdoc(PUBLIC[name])


@pytest.mark.parametrize("name", CALLED)
def test_parameters_are_explained(name):
    thing = PUBLIC[name]
    text = inspect.getdoc(thing)
    parameters = [p for p in inspect.signature(thing).parameters if p not in ("tensors", "paths")]
    assert [p for p in parameters if not re.search(rf"\b{p}\b", text)] == []


@pytest.mark.parametrize("name", OPS)
def test_docstring_of_an_op(name):
    """Formula, domain, gradient, arguments, result, errors, example, source."""
    text = inspect.getdoc(getattr(safeops, name))
    parts = [".. math::", "Args:", "Returns:", "Raises:", ">>>", "Source:", "radient", "NaN"]
    assert [part for part in parts if part not in text] == []


CONTRACT = (README.parent / "docs" / "contract.md").read_text() + README.read_text()


@pytest.mark.parametrize("name", sorted(set(replaced_functions().values())))
def test_what_takes_a_call_has_its_row_in_the_contract(name):
    last = name.rpartition(".")[2]
    rows = "".join(line for line in CONTRACT.splitlines() if line.startswith("|"))
    assert re.search(rf"`(nn\.functional\.)?{last}[`(]", rows)


def test_public_names():
    assert len(set(safeops.__all__)) == len(safeops.__all__)


def blocks(path):
    text = path.read_text() if path.exists() else ""
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


GUIDES = [README.parent / "docs" / name for name in ("swap.md", "diagnose.md", "guard.md")]
BLOCKS = [code for text in (README, *GUIDES) for code in blocks(text)]


@pytest.mark.filterwarnings("ignore::safeops.guard.GuardWarning")
@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.splitlines()[0])
def test_texts(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if code.startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(code, {}, "README", str(README), 0)
        assert doctest.DocTestRunner().run(test).failed == 0
    else:
        exec(compile(code, str(README), "exec"), {})


TEXTS = sorted([*README.parent.glob("*.md"), *README.parent.glob("docs/*.md")])


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\((?!http)([^)#]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []
