"""Builds the extension with emulated CUDA kernels, and the emulation's own test program."""

from __future__ import annotations

import ast
import fcntl
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent.relative_to(ROOT)
SOURCES = ("csrc/*.cpp", "csrc/cpu/levels.cpp", "csrc/cpu/multi_tensor.cpp", "csrc/cuda/*.cu")
SETUP_CONSTANTS = ("FLAGS", "WARNINGS", "STABLE_ABI_OF_TORCH_2_10")
JOBS = 2

# A distribution's default fortification forbids the jumps between stacks.
EMULATED = [f"-I{HERE}", "-fsanitize=alignment", "-U_FORTIFY_SOURCE"]

RULES = """
rule compile
  command = $cxx -MD -MF $out.d $flags -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = $in
rule link
  command = $cxx $in -o $out $flags
  description = $out
"""


def library() -> Path:
    """The extension module, whose CUDA kernels are registered for CPU tensors."""
    return _built("_C" + sysconfig.get_config_var("EXT_SUFFIX"), _library_edges)


def selftest() -> Path:
    """The program that runs a kernel of selftest.cu."""
    return _built("selftest", _selftest_edges)


def _built(name: str, edges) -> Path:
    folder = _folder()
    with _locked(folder):
        ninja = folder / f"{name}.ninja"
        ninja.write_text(f"builddir = {folder}\n{RULES}" + "".join(edges(folder, folder / name)))
        command = [sys.executable, "-m", "ninja", "-f", str(ninja), "-j", str(JOBS)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"the emulated CUDA kernels did not build:\n{result.stdout}")
    if "warning: " in result.stdout:
        print(result.stdout, file=sys.stderr)
    return folder / name


def _folder() -> Path:
    """One for each Python and torch, on whose headers every object depends."""
    import torch

    tag = f"{sys.implementation.cache_tag}-torch-{torch.__version__}"
    folder = ROOT / "build" / "cuda_emulation" / tag
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One build at a time, however many test processes there are."""
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _library_edges(folder: Path, output: Path) -> Iterator[str]:
    from torch.utils import cpp_extension

    sources = [path.relative_to(ROOT) for glob in SOURCES for path in sorted(ROOT.glob(glob))]
    if not any(path.suffix == ".cu" for path in sources):
        raise RuntimeError("csrc/cuda holds no kernels to emulate")
    flags = _flags()
    objects = [folder / f"{str(path).replace('/', '.')}.o" for path in sources]
    for source, compiled in zip(sources, objects, strict=True):
        yield _edge("compile", compiled, [source], flags + _flags_for(source))
    paths = [f"-L{path}" for path in cpp_extension.library_paths()]
    libraries = [*paths, "-lc10", "-ltorch", "-ltorch_cpu"]
    yield _edge("link", output, objects, ["-shared", "-Wl,-s", *libraries])


def _selftest_edges(folder: Path, output: Path) -> Iterator[str]:
    compiled, source = folder / "selftest.o", HERE / "selftest.cu"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", *_flags_for(source)]
    yield _edge("compile", compiled, [source], flags)
    yield _edge("link", output, [compiled], ["-pthread"])


def _edge(rule: str, output: Path, inputs: list[Path], flags: list[str]) -> str:
    def escaped(path: Path | str) -> str:
        return "".join(f"${c}" if c in "$ :" else c for c in str(path))

    sources = " ".join(map(escaped, inputs))
    command = shlex.join(flags).replace("$", "$$")
    compiler = os.environ.get("CXX", "c++")
    return f"build {escaped(output)}: {rule} {sources}\n  cxx = {compiler}\n  flags = {command}\n"


def _flags() -> list[str]:
    """Those of setup.py, at a level of optimisation that compiles sooner."""
    import pybind11
    from torch.utils import cpp_extension

    setup = _setup_constants()
    includes = [*cpp_extension.include_paths(), pybind11.get_include()]
    includes.append(sysconfig.get_paths()["include"])
    return [
        *setup["FLAGS"],
        *setup["WARNINGS"],
        *("-O1", "-fPIC", "-DSAFEOPS_EMULATED_CUDA"),
        f"-DTORCH_TARGET_VERSION={setup['STABLE_ABI_OF_TORCH_2_10']}",
        *(f"-I{path}" for path in includes),
    ]


def _flags_for(source: Path) -> list[str]:
    if source.suffix != ".cu":
        return []
    return [*EMULATED, *(["-mfma"] if _has_fma() else []), "-x", "c++"]


def _has_fma() -> bool:
    """Without the instruction, fma() is a slow call that gives the same bits."""
    import torch

    vectors = torch.backends.cpu.get_cpu_capability().startswith(("AVX2", "AVX512"))
    return vectors and platform.machine() == "x86_64"


def _setup_constants() -> dict[str, list[str] | str]:
    """Read from the source: to import setup.py is to run setup()."""
    constants: dict = {}
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if any(getattr(target, "id", None) in SETUP_CONSTANTS for target in targets):
            exec(compile(ast.Module([node], []), "setup.py", "exec"), constants)
    return constants
