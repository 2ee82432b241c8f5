"""The build of CUDA kernels: when it is chosen, what it says, what nvcc is told. Without nvcc."""

import re
import shutil
import subprocess
import zipfile

import pytest

from tests.test_build import FAILED, ROOT, build, built, copy_tree, needs_kernels, sentences

WITHOUT_CUDA = "safeops: building without CUDA kernels: "
# A torch that says so and sees no GPU, whatever this one is.
WITH_CUDA = "import torch; torch.cuda._is_compiled, torch.cuda.is_available = lambda: 1, lambda: 0"
NVCC = """#!/bin/sh
echo "$@" >> "$0.calls"
[ "$1" = --version ] && echo "Cuda compilation tools, release {release}, V{release}.1"
"""
OBSTACLES = {
    "no nvcc": ("torch.version.cuda = '13.0'", None, "no nvcc: install the toolkit of CUDA 13.0"),
    "older nvcc": (
        "torch.version.cuda = '13.0'",
        "12.4",
        r"\S+/nvcc is of CUDA 12.4 and torch \S+ of CUDA 13.0: the major versions must agree",
    ),
}
FOR_CPU = ("torch.version.cuda = None", "13.0", r"torch \S+ is a build without CUDA")
FOR_NEITHER = ("torch.__version__ = '2.9.1'", "13.0", "the kernels need torch >= 2.10")


@pytest.fixture
def small_tree(tmp_path):
    """A tree of which the source compiles at once; the package's take minutes."""
    tree = copy_tree(tmp_path)
    shutil.rmtree(tree / "csrc")
    (tree / "csrc" / "cuda").mkdir(parents=True)
    (tree / "csrc" / "cuda" / "kernels.cu").touch()
    (tree / "csrc" / "module.cpp").write_text("int nothing;\n")
    return tree


def toolkit(tree, release):
    """A CUDA_HOME with an nvcc that takes down what it is told and compiles nothing, or empty."""
    nvcc = tree / "toolkit" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    if release:
        nvcc.write_text(NVCC.format(release=release))
        nvcc.chmod(0o755)
    return str(tree / "toolkit")


def build_cuda(tree, pretended, release, **variables):
    before = f"{WITH_CUDA}; {pretended}"
    return build(tree, before=before, CUDA_HOME=toolkit(tree, release), **variables)


def has_kernels(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return any(name.startswith("safeops/_C.") for name in archive.namelist())


@needs_kernels
@pytest.mark.parametrize(
    ("pretended", "release", "why"), [*OBSTACLES.values(), FOR_CPU, FOR_NEITHER]
)
def test_an_obstacle_is_an_error_where_cuda_is_asked_for(small_tree, pretended, release, why):
    result = build_cuda(small_tree, pretended, release, SAFEOPS_BUILD="cuda")
    assert result.returncode != 0
    (sentence,) = sentences(result)
    assert re.match(f"safeops: SAFEOPS_BUILD=cuda, but {why}", sentence)


def test_no_compiler_is_an_error_where_cuda_is_asked_for(small_tree):
    result = build(small_tree, SAFEOPS_BUILD="cuda", CXX="/nonexistent")
    assert result.returncode != 0
    assert sentences(result)[0].startswith("safeops: SAFEOPS_BUILD=cuda, but no C++ compiler")


@needs_kernels
@pytest.mark.parametrize(("pretended", "release", "why"), OBSTACLES.values(), ids=OBSTACLES)
def test_an_obstacle_leaves_the_kernels_for_the_cpu(small_tree, pretended, release, why):
    result = build_cuda(small_tree, pretended, release)
    assert result.returncode == 0, result.stderr
    (sentence,) = sentences(result)
    assert re.match(WITHOUT_CUDA + why, sentence)
    assert has_kernels(built(small_tree))


@needs_kernels
@pytest.mark.parametrize(("pretended", "mode"), [(FOR_CPU[0], "auto"), ("", "cpu")])
def test_nothing_is_said_where_cuda_is_not_wanted(small_tree, pretended, mode):
    result = build_cuda(small_tree, pretended, None, SAFEOPS_BUILD=mode)
    assert result.returncode == 0, result.stderr
    assert sentences(result) == []
    assert has_kernels(built(small_tree))


@needs_kernels
def test_failed_compilation_for_cuda_leaves_the_kernels_for_the_cpu(small_tree):
    result = build_cuda(small_tree, "torch.version.cuda = '13.0'", "13.0")
    assert result.returncode == 0, result.stdout + result.stderr
    (sentence,) = sentences(result)
    assert sentence.startswith(FAILED)
    assert sentence.endswith("going on without CUDA")
    assert has_kernels(built(small_tree))


def told(tree, release, **variables):
    """How nvcc is called to compile the one source."""
    pretended = f"torch.version.cuda = '{release}'"
    result = build_cuda(tree, pretended, release, SAFEOPS_BUILD="cuda", **variables)
    assert result.returncode != 0
    assert sentences(result)[-1].startswith(FAILED)
    calls = (tree / "toolkit" / "bin" / "nvcc.calls").read_text().splitlines()
    (call,) = (call for call in calls if "kernels.cu" in call)
    return call.split()


@needs_kernels
def test_nvcc_keeps_to_ieee_arithmetic_and_the_stable_abi(small_tree):
    call = told(small_tree, "13.0")
    assert {"--fmad=false", "-std=c++17", "-O3", "-DSAFEOPS_CUDA=1", "-DUSE_CUDA"} <= set(call)
    assert any(flag.startswith("-DTORCH_TARGET_VERSION=") for flag in call)
    assert not any("fast" in flag for flag in call if flag.startswith("-"))


@needs_kernels
@pytest.mark.parametrize(
    ("release", "asked", "codes"),
    [
        ("13.0", "", ["compute_100", "sm_100", "sm_80", "sm_90"]),
        ("12.6", "", ["compute_90", "sm_80", "sm_90"]),
        ("13.0", "8.6", ["sm_86"]),
    ],
)
def test_architectures(small_tree, release, asked, codes):
    call = told(small_tree, release, TORCH_CUDA_ARCH_LIST=asked)
    assert sorted(re.findall(r",code=(\w+)", " ".join(call))) == codes


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_cuda_check_without_nvcc_says_that_it_checks_nothing():
    command = ["make", "--no-print-directory", "cuda-check", "NVCC="]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0
    assert result.stdout == ""
    assert "LEFT OUT: the check of the CUDA build" in result.stderr
