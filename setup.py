"""Builds the kernels where torch, pybind11 and a compiler are at hand, else the pure package.

SAFEOPS_BUILD=auto  kernels if they can be built, else the torch formulas, with a sentence why
             =cpu   kernels, or an error
             =none  the pure-Python package
"""

from __future__ import annotations

import glob
import importlib
import os
import platform
import subprocess
import sys

import setuptools

MODES = ("auto", "cpu", "none")
WITHOUT_KERNELS = {"egg_info", "dist_info", "sdist"}  # commands that look at no kernel
FLAGS = ["-O3", "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas"]
# Those of torch's headers and of GCC 12's own AVX-512 header; clang does not know the second.
WARNINGS += [
    "-Wno-unused-parameter",
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
    "-Wno-unknown-warning-option",
]
STABLE_ABI_OF_TORCH_2_10 = "0x020a000000000000"


def mode() -> str:
    chosen = os.environ.get("SAFEOPS_BUILD", "auto")
    if chosen == "cuda":
        stop(
            "SAFEOPS_BUILD=cuda, but this version has no CUDA kernels (CUDA tensors take the "
            "torch formulas); use auto or cpu"
        )
    if chosen not in MODES:
        stop(f"SAFEOPS_BUILD must be one of {', '.join(MODES)}; it is {chosen!r}")
    return chosen


def say(sentence: str) -> None:
    print(f"safeops: {sentence}", file=sys.stderr, flush=True)


def stop(sentence: str) -> None:
    raise SystemExit(f"safeops: {sentence}")


def obstacle() -> str | None:
    """Why kernels cannot be built here, the quick questions first; None if they can."""
    why = compiler_obstacle(os.environ.get("CXX", "c++"))
    if why:
        return why
    try:
        torch, _ = map(importlib.import_module, ("torch", "pybind11"))
    except (ImportError, OSError) as error:
        return (
            f"the build environment lacks what they need ({error}): install torch, pybind11 and "
            "ninja, then use 'pip install --no-build-isolation .'"
        )
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
        return f"the kernels need torch >= 2.10 to build; this is torch {torch.__version__}"
    return None


def compiler_obstacle(compiler: str) -> str | None:
    probe = "typedef float v __attribute__((vector_size(16))); v f(v a) { return a < a ? a : a; }"
    command = [*compiler.split(), "-std=c++17", "-x", "c++", "-fsyntax-only", "-"]
    try:
        result = subprocess.run(command, input=probe, capture_output=True, text=True)
    except OSError:
        return f"no C++ compiler: {compiler!r} cannot be run (install g++ or clang++, or set CXX)"
    if result.returncode:
        return f"{compiler!r} does not compile C++17 with vector extensions (use g++ or clang++)"
    return None


def extension() -> setuptools.Extension:
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


def build_command(required: bool) -> type:
    from torch.utils.cpp_extension import BuildExtension

    class Build(BuildExtension):
        def finalize_options(self) -> None:
            super().finalize_options()
            # pip's own is a new folder each time; in a fixed one ninja finds what is up to date.
            self.build_temp = os.path.join("build", f"temp-{sys.implementation.cache_tag}")

        def run(self) -> None:
            try:
                super().run()
            except Exception as error:
                why = f"the kernels did not build: {error} (the compiler's output is above)"
                if required:
                    raise SystemExit(f"safeops: {why}") from error
                say(f"{why}; going on without them, on the torch formulas")
                self.leave_out()

        def leave_out(self) -> None:
            """Make this a pure build, also if an earlier one left its kernels where it looks."""
            remove(self.get_outputs())
            remove_in_place()
            self.extensions = self.distribution.ext_modules = []
            self.get_finalized_command("bdist_wheel").root_is_pure = True

    return Build


def remove(paths: list[str]) -> None:
    for path in filter(os.path.exists, paths):
        os.remove(path)


def remove_in_place() -> None:
    """An editable install without kernels must not load those of an earlier one."""
    if "editable_wheel" in sys.argv:
        remove(glob.glob("safeops/_C.*"))


def kernels() -> dict:
    """The arguments of setup() that build the kernels; none of them for the pure package."""
    chosen = mode()
    if WITHOUT_KERNELS & set(sys.argv):
        return {}
    why = None if chosen == "none" else obstacle()
    if why and chosen == "cpu":
        stop(f"SAFEOPS_BUILD=cpu, but {why}")
    if why or chosen == "none":
        say(f"building without kernels: {why or 'SAFEOPS_BUILD=none'}")
        remove_in_place()
        return {}
    return {
        "ext_modules": [extension()],
        "cmdclass": {"build_ext": build_command(required=chosen == "cpu")},
    }


if int(setuptools.__version__.split(".")[0]) < 77:
    stop(
        f"building needs setuptools >= 77; this is {setuptools.__version__} "
        "('pip install -U setuptools')"
    )
setuptools.setup(**kernels())
