"""The build: what each SAFEOPS_BUILD gives, what it says, and what SAFEOPS_KERNELS does with it."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import safeops
from safeops import _extension

ROOT = Path(__file__).parents[1]
OTHER_PYTHON = os.environ.get("SAFEOPS_OTHER_PYTHON")
TREE = ("csrc", "safeops", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
WITHOUT = "safeops: building without kernels: "
FAILED = "safeops: the kernels did not build: "


def copy_tree(to, names=TREE):
    """These parts of the repository in a new folder, and nothing that was built."""
    unbuilt = shutil.ignore_patterns("*.so", "__pycache__")
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=unbuilt)
        else:
            shutil.copy(ROOT / name, to / name)
    return to


def run(*arguments, cwd, python=sys.executable, **variables):
    """Python with these arguments, and no SAFEOPS_ or compiler variable but the given ones."""
    dropped = ("SAFEOPS_", "CXX", "CC", "CUDA_", "TORCH_CUDA_", "PYTHONPATH")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return subprocess.run(
        [python, *arguments], cwd=cwd, env=environment | variables, capture_output=True, text=True
    )


def build(tree, hook="build_wheel", before="", **variables):
    """Runs one hook of the build backend, as pip does; its result lies in tree/dist."""
    code = f"{before}\nfrom setuptools import build_meta; build_meta.{hook}('dist')"
    return run("-c", code, cwd=tree, **variables)


def sentences(result):
    return [line for line in result.stderr.splitlines() if line.startswith("safeops: ")]


def built(tree):
    (path,) = (tree / "dist").iterdir()
    return path


def unpack(wheel, to):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(to)
    return to


@pytest.fixture
def tree(tmp_path):
    return copy_tree(tmp_path)


@pytest.fixture(scope="module")
def pure(tmp_path_factory):
    """A pure wheel, built beside kernels that an earlier build left in place."""
    tree = copy_tree(tmp_path_factory.mktemp("pure"))
    (tree / "safeops" / "_C.cpython-39-x86_64-linux-gnu.so").touch()
    result = build(tree, SAFEOPS_BUILD="none")
    assert result.returncode == 0, result.stderr
    assert sentences(result) == [WITHOUT + "SAFEOPS_BUILD=none"]
    return built(tree)


@pytest.fixture(scope="module")
def pure_package(pure):
    return unpack(pure, pure.parent / "unpacked")


# --- the pure package --------------------------------------------------------------------------


def test_pure_wheel_is_the_python_package_and_nothing_else(pure):
    assert pure.name == f"safeops-{safeops.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(pure) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = (ROOT / "safeops").rglob("*.py")
    assert names == {"safeops/py.typed", *(str(path.relative_to(ROOT)) for path in sources)}


def test_metadata(pure_package):
    (info,) = pure_package.glob("*.dist-info")
    metadata = Parser().parsestr((info / "METADATA").read_text())
    assert metadata["Name"] == "safeops"
    assert metadata["Version"] == safeops.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert {line.split(">=")[0] for line in required} == {"torch", "rich"}
    assert (info / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "safeops = safeops.cli:main" in (info / "entry_points.txt").read_text()


WORKS = """
import torch, safeops
x = torch.tensor([0.0, 1.0], requires_grad=True)
safeops.safe_log(x).sum().backward()
assert x.grad.tolist() == [0.0, 1.0]
print(safeops.__file__)
print(safeops.why_not_kernel(x))
"""


def test_pure_package_works_and_says_how_to_get_kernels(pure_package, tmp_path):
    result = run("-c", WORKS, cwd=tmp_path, PYTHONPATH=str(pure_package))
    assert result.returncode == 0, result.stderr
    file, reason = result.stdout.splitlines()
    assert file.startswith(str(pure_package))
    assert "pip install --no-build-isolation" in reason


def test_editable_install_without_kernels_drops_those_of_an_earlier_one(tree):
    stale = tree / "safeops" / "_C.cpython-39-x86_64-linux-gnu.so"
    stale.touch()
    result = build(tree, "build_editable", SAFEOPS_BUILD="none")
    assert result.returncode == 0, result.stderr
    assert not stale.exists()


def test_sdist_holds_what_a_build_needs(tree):
    result = build(tree, "build_sdist", SAFEOPS_BUILD="cpu", CXX="/nonexistent")
    assert result.returncode == 0, result.stderr
    with tarfile.open(built(tree)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = (str(path.relative_to(tree)) for path in (tree / "csrc").rglob("*.*"))
    assert names >= {"LICENSE", "README.md", "setup.py", "safeops/py.typed", *sources}


# --- when kernels cannot be built --------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fast", ""])
def test_unknown_mode(tree, mode):
    result = build(tree, SAFEOPS_BUILD=mode)
    assert result.returncode != 0
    (sentence,) = sentences(result)
    assert "SAFEOPS_BUILD" in sentence
    assert "auto" in sentence


def test_no_compiler_gives_the_pure_package(tree):
    result = build(tree, CXX="/nonexistent")
    assert result.returncode == 0, result.stderr
    (sentence,) = sentences(result)
    assert sentence.startswith(WITHOUT + "no C++ compiler: '/nonexistent' cannot be run")
    assert built(tree).name.endswith("-py3-none-any.whl")


def test_no_compiler_is_an_error_where_kernels_are_asked_for(tree):
    result = build(tree, SAFEOPS_BUILD="cpu", CXX="/nonexistent")
    assert result.returncode != 0
    (sentence,) = sentences(result)
    assert sentence.startswith("safeops: SAFEOPS_BUILD=cpu, but no C++ compiler")


@pytest.fixture
def broken_tree(tree):
    """A tree with one source, which does not compile, and kernels of an earlier build."""
    shutil.rmtree(tree / "csrc")
    (tree / "csrc").mkdir()
    (tree / "csrc" / "module.cpp").write_text("#error broken on purpose\n")
    return tree


needs_kernels = pytest.mark.skipif(
    _extension.module is None, reason=f"kernels cannot be built here: {_extension.reason}"
)


@needs_kernels
def test_failed_compilation_gives_the_pure_package(broken_tree):
    result = build(broken_tree)
    assert result.returncode == 0, result.stderr
    *_, sentence = sentences(result)  # before it one of CUDA, if that was tried first
    assert sentence.startswith(FAILED)
    assert sentence.endswith("going on without them, on the torch formulas")
    assert built(broken_tree).name.endswith("-py3-none-any.whl")


@needs_kernels
def test_failed_compilation_is_an_error_where_kernels_are_asked_for(broken_tree):
    result = build(broken_tree, SAFEOPS_BUILD="cpu")
    assert result.returncode != 0
    assert "broken on purpose" in result.stdout + result.stderr
    (sentence,) = sentences(result)
    assert sentence.startswith(FAILED)


# --- at run time -------------------------------------------------------------------------------

REASON = "import safeops; print(safeops.why_not_kernel())"


def test_kernels_off():
    result = run("-c", REASON, cwd=ROOT, SAFEOPS_KERNELS="off")
    assert result.stdout.strip() == "SAFEOPS_KERNELS=off", result.stderr


def test_kernels_of_an_unknown_mode():
    result = run("-c", REASON, cwd=ROOT, SAFEOPS_KERNELS="on")
    assert "ValueError: SAFEOPS_KERNELS must be one of auto, off, require" in result.stderr


def test_kernels_required_but_not_installed(pure_package, tmp_path):
    variables = {"SAFEOPS_KERNELS": "require", "PYTHONPATH": str(pure_package)}
    result = run("-c", REASON, cwd=tmp_path, **variables)
    assert "RuntimeError: SAFEOPS_KERNELS=require, but there are no kernels" in result.stderr
    assert "pip install --no-build-isolation" in result.stderr


@needs_kernels
def test_kernels_required_and_installed():
    result = run("-c", REASON, cwd=ROOT, SAFEOPS_KERNELS="require")
    assert result.stdout.strip() == "None", result.stderr


# --- a real wheel ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel with kernels, built from the sdist."""
    tree = copy_tree(tmp_path_factory.mktemp("sdist"))
    result = build(tree, "build_sdist")
    assert result.returncode == 0, result.stderr
    with tarfile.open(built(tree)) as archive:
        archive.extractall(tree)
    unpacked = tree / built(tree).name.removesuffix(".tar.gz")
    result = build(unpacked, SAFEOPS_BUILD="cpu")
    assert result.returncode == 0, result.stdout + result.stderr
    return built(unpacked)


@pytest.fixture
def installed(wheel, tmp_path):
    """The unpacked wheel with the tests beside it, so that they import it."""
    return copy_tree(unpack(wheel, tmp_path), ("tests", "pyproject.toml"))


def run_contract(folder, python):
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_contract.py")
    result = run(*arguments, cwd=folder, python=python, SAFEOPS_KERNELS="require")
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr


@pytest.mark.slow
def test_wheel_from_the_sdist_has_kernels(wheel):
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        (kernels,) = (name for name in archive.namelist() if name.endswith(".so"))
        assert b"libtorch_cpu" in archive.read(kernels)
        assert b"libtorch_python" not in archive.read(kernels)


@pytest.mark.slow
def test_wheel_keeps_the_contract(installed):
    run_contract(installed, sys.executable)


@pytest.mark.slow
@pytest.mark.skipif(
    not OTHER_PYTHON, reason="SAFEOPS_OTHER_PYTHON names no Python with another torch"
)
def test_wheel_keeps_the_contract_on_another_torch(installed):
    version = ("-c", "import torch; print(torch.__version__)")
    here, there = (run(*version, cwd=installed, python=p) for p in (sys.executable, OTHER_PYTHON))
    assert here.stdout != there.stdout
    run_contract(installed, OTHER_PYTHON)
