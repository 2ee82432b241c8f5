"""An extension with CUDA kernels, looked into without a GPU: `make cuda-check` runs these tests."""

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch

from safeops import _extension
from tests.cuda_check import DTYPES, titles

pytestmark = pytest.mark.cuda_build

ROOT = Path(__file__).parents[1]
# What titles() makes of elementwise<Kind, memory<dtype>, op, inputs, width>.
ELEMENTWISE = re.compile(r"elementwise<.*, memory<(?P<dtype>\w+)>, .*, (?P<width>\d+)>")


@pytest.fixture(autouse=True)
def _cuda_build():
    if _extension.module is None or "cuda" not in _extension.module.build_info():
        pytest.skip(f"no CUDA kernels in this build: {_extension.reason or 'CPU only'}")


def cuobjdump(*arguments):
    """What NVIDIA's tool says of the extension: that of the toolkit, or of triton beside torch."""
    triton = importlib.util.find_spec("triton")
    beside = triton and Path(triton.origin).parent / "backends" / "nvidia" / "bin"
    tool = shutil.which("cuobjdump") or shutil.which("cuobjdump", path=beside)
    assert tool, "no cuobjdump: neither on the PATH nor in triton"
    command = [tool, *arguments, _extension.module.__file__]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@cache
def architectures():
    return sorted(set(re.findall(r"\.(sm_\w+)\.cubin", cuobjdump("--list-elf"))))


@cache
def assembly(arch):
    """The code of each kernel by its title."""
    _, *functions = cuobjdump("-sass", "-arch", arch).split("Function : ")
    code = dict(function.split("\n", 1) for function in functions)
    return {title: code[name] for name, title in titles(list(code)).items()}


def vector_kernels(arch):
    for title, code in assembly(arch).items():
        found = ELEMENTWISE.fullmatch(title)
        if found and found["width"] != "1":
            yield title, found["dtype"], code


def elementwise_ops():
    return re.findall(r"^OP\((\w+),", (ROOT / "csrc" / "ops.inc").read_text(), re.M)


def row_ops():
    return ("softmax", "log_softmax", "logsumexp")


@pytest.mark.parametrize("suffix", ["", "_backward"])
@pytest.mark.parametrize("name", [*elementwise_ops(), *row_ops()])
def test_every_op_has_a_cuda_kernel(name, suffix):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"safeops::{name}{suffix}", "CUDA")


def test_every_raw_op_is_one_of_those():
    raw = {
        name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if "safeops::" in name
    }
    names = (*elementwise_ops(), *row_ops())
    assert raw == {*names, *(f"{name}_backward" for name in names)}


def test_code_for_three_generations_and_ptx_for_those_to_come():
    assert architectures() == ["sm_100", "sm_80", "sm_90"]
    assert re.findall(r"\.(sm_\w+)\.ptx", cuobjdump("--list-ptx"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_elementwise_kernels_read_and_write_16_bytes_at_once(arch):
    found = list(vector_kernels(arch))
    assert {dtype for _, dtype, _ in found} == set(DTYPES)
    for title, _, code in found:
        assert re.search(r"\bLDG\.E\S*\.128\b", code), f"{title} reads no vector"
        assert re.search(r"\bSTG\.E\S*\.128\b", code), f"{title} writes no vector"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_the_same_kernels_for_every_generation(arch):
    assert assembly(arch).keys() == assembly("sm_80").keys()
