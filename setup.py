"""Builds the kernels where torch, pybind11 and a compiler are at hand, else the pure package.

SAFEOPS_BUILD=auto  kernels if they can be built, else the torch formulas, with a sentence why
             =cpu   kernels, or an error
             =none  the pure-Python package
"""

from __future__ import annotations

import glob
import os
import platform
import sys

from setuptools import setup

MODES = ("auto", "cpu", "none")
FLAGS = ["-O3", "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas"]
STABLE_ABI_OF_TORCH_2_10 = "0x020a000000000000"


def mode() -> str:
    chosen = os.environ.get("SAFEOPS_BUILD", "auto")
    if chosen == "cuda":
        sys.exit(
            "safeops: SAFEOPS_BUILD=cuda, but this version has no CUDA kernels (CUDA tensors take "
            "the torch formulas); use auto or cpu"
        )
    if chosen not in MODES:
        sys.exit(f"safeops: SAFEOPS_BUILD must be one of {', '.join(MODES)}; it is {chosen!r}")
    return chosen


def obstacle() -> str | None:
    """Why kernels cannot be built here; None if they can."""
    try:
        import torch
    except ImportError:
        return (
            "torch is not in the build environment (install torch, ninja and pybind11, then use "
            "'pip install --no-build-isolation .')"
        )
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 10):
        return f"the kernels need torch >= 2.10 to build; this is torch {torch.__version__}"
    try:
        import pybind11  # noqa: F401
    except ImportError:
        return "pybind11 is not in the build environment ('pip install pybind11 ninja')"
    return compiler_obstacle()


def compiler_obstacle() -> str | None:
    import subprocess

    compiler = os.environ.get("CXX", "c++")
    probe = "typedef float v __attribute__((vector_size(16))); v f(v a, v b) { return a < b ? a : b; }"
    command = [*compiler.split(), "-std=c++17", "-x", "c++", "-fsyntax-only", "-"]
    try:
        result = subprocess.run(command, input=probe, capture_output=True, text=True)
    except OSError:
        return f"no C++ compiler: {compiler!r} cannot be run (install g++ or clang++, or set CXX)"
    if result.returncode:
        return f"{compiler!r} does not compile C++17 with vector extensions (use g++ or clang++)"
    return None


def say(sentence: str) -> None:
    print(f"safeops: {sentence}", file=sys.stderr, flush=True)


def extension():
    import pybind11
    from torch.utils.cpp_extension import CppExtension

    module = CppExtension(
        "safeops._C",
        sorted(glob.glob("csrc/*.cpp") + glob.glob("csrc/cpu/*.cpp")),
        include_dirs=[pybind11.get_include()],
        define_macros=[("TORCH_TARGET_VERSION", STABLE_ABI_OF_TORCH_2_10)],
        extra_compile_args=FLAGS + WARNINGS,
        extra_link_args=["-Wl,-s"] if platform.system() == "Linux" else [],
        depends=glob.glob("csrc/**/*.[hi]*", recursive=True),
    )
    # torch_python ties a library to one torch; the stable ABI lives in the others.
    module.libraries = [name for name in module.libraries if name != "torch_python"]
    return module


def build_command(required: bool):
    from torch.utils.cpp_extension import BuildExtension

    class Build(BuildExtension):
        """In auto mode a failed build leaves the pure package behind."""

        def run(self):
            try:
                super().run()
            except (Exception, SystemExit) as error:
                sentence = f"the kernels did not build: {str(error).splitlines()[0]}"
                if required:
                    raise SystemExit(f"safeops: {sentence} (the compiler's output is above)") from error
                say(f"{sentence}; installing the pure-Python package (same results, slower)")
                self.extensions = []

    return Build


def kernels(chosen: str) -> dict:
    if chosen == "none":
        return {}
    why = obstacle()
    if why and chosen == "cpu":
        sys.exit(f"safeops: SAFEOPS_BUILD=cpu, but {why}")
    if why:
        say(f"building without kernels: {why}")
        return {}
    command = build_command(required=chosen == "cpu").with_options(use_ninja=True)
    return {"ext_modules": [extension()], "cmdclass": {"build_ext": command}}


setup(**kernels(mode()))
