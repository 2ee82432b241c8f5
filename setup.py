"""Builds the kernels where torch, pybind11 and a compiler are at hand, else the pure package.

SAFEOPS_BUILD=auto  the kernels that can be built, with a sentence why others cannot
             =cpu   kernels for the CPU, or an error
             =cuda  kernels for the CPU and for CUDA, or an error; needs nvcc and no GPU
             =none  the pure-Python package
"""

from __future__ import annotations

import glob
import importlib
import os
import platform
import re
import shutil
import subprocess
import sys

import setuptools

MODES = ("auto", "cpu", "cuda", "none")
WITHOUT_KERNELS = {"egg_info", "dist_info", "sdist"}  # commands that look at no kernel
FLAGS = ["-O3", "-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"]
WARNINGS = ["-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas"]
# Those of torch's headers and of GCC 12's own AVX-512 header; clang does not know the second.
WARNINGS += ["-Wno-unused-parameter", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]
WARNINGS += ["-Wno-unknown-warning-option"]
# Contraction would round differently from the CPU; where an fma is meant, the source says fma.
NVCC_FLAGS = ["-O3", "-std=c++17", "--fmad=false", "--threads=4"]
NVCC_FLAGS += ["-Xcompiler=" + ",".join(FLAGS[2:] + WARNINGS)]
CUDA_MACROS = [("USE_CUDA", None), ("SAFEOPS_CUDA", "1")]  # the first is for torch's headers
STABLE_ABI_OF_TORCH_2_10 = "0x020a000000000000"
UNSTABLE_LIBRARIES = {"torch_python", "c10_cuda"}


def mode() -> str:
    chosen = os.environ.get("SAFEOPS_BUILD", "auto")
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


def cuda_obstacle() -> str | None:
    """Why CUDA kernels cannot be built where those for the CPU can; None if they can."""
    import torch

    built_for = torch.version.cuda
    if built_for is None:
        return f"torch {torch.__version__} is a build without CUDA: install one with CUDA"
    nvcc = find_nvcc()
    if nvcc is None:
        return (
            f"no nvcc: install the toolkit of CUDA {built_for}, with nvcc on the PATH; CUDA_HOME "
            "or CUDA_PATH, if set, must hold bin/nvcc"
        )
    release = nvcc_release(nvcc)
    if release.split(".")[0] != built_for.split(".")[0]:
        return (
            f"{nvcc} is of CUDA {release} and torch {torch.__version__} of CUDA {built_for}: "
            "the major versions must agree"
        )
    return None


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        return shutil.which("nvcc", path=os.path.join(home, "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def output(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True)
    return result.stdout + result.stderr


def nvcc_release(nvcc: str) -> str:
    found = re.search(r"release (\d+\.\d+)", output(nvcc, "--version"))
    return found[1] if found else "unknown version"


def settle_cuda() -> None:
    """Sets what torch's build takes from the environment, where the user did not."""
    nvcc = find_nvcc()
    # An nvcc on the PATH may be a script far from its toolkit; it tells where that is.
    top = re.search(r"^#\$ TOP=(.+)$", output(nvcc, "--dryrun", "-x", "cu", os.devnull), re.M)
    if top and not os.environ.get("CUDA_PATH"):
        os.environ.setdefault("CUDA_HOME", os.path.realpath(top[1]))
    if not os.environ.get("TORCH_CUDA_ARCH_LIST"):
        os.environ["TORCH_CUDA_ARCH_LIST"] = architectures(nvcc_release(nvcc))


def architectures(release: str) -> str:
    """Each generation from Ampere that this nvcc knows, and PTX for those to come."""
    knows_blackwell = tuple(map(int, release.split("."))) >= (12, 8)
    return "8.0;9.0;10.0+PTX" if knows_blackwell else "8.0;9.0+PTX"


def with_cuda(chosen: str) -> bool:
    """Whether to build CUDA kernels too; says why not, if torch has a use for them."""
    import torch

    why = None if chosen == "cpu" else cuda_obstacle()
    if why and chosen == "cuda":
        stop(f"SAFEOPS_BUILD=cuda, but {why}")
    if why and torch.version.cuda:
        say(f"building without CUDA kernels: {why}")
    return chosen != "cpu" and why is None


def extension(cuda: bool) -> setuptools.Extension:
    if cuda:
        settle_cuda()
    import pybind11
    from torch.utils.cpp_extension import CppExtension, CUDAExtension

    folders = ["csrc/*.cpp", "csrc/cpu/*.cpp", *["csrc/cuda/*.cu"] * cuda]
    module = (CUDAExtension if cuda else CppExtension)(
        "safeops._C",
        sorted(path for folder in folders for path in glob.glob(folder)),
        include_dirs=[pybind11.get_include()],
        define_macros=[("TORCH_TARGET_VERSION", STABLE_ABI_OF_TORCH_2_10), *CUDA_MACROS * cuda],
        extra_compile_args={"cxx": FLAGS + WARNINGS, "nvcc": NVCC_FLAGS},
        extra_link_args=["-Wl,-s"] if platform.system() == "Linux" else [],
        depends=glob.glob("csrc/**/*.[hi]*", recursive=True) + glob.glob("csrc/cuda/*.cuh"),
    )
    # These tie a library to one torch; the stable ABI lives in the others.
    module.libraries = [name for name in module.libraries if name not in UNSTABLE_LIBRARIES]
    return module


def build_command(required: bool, cuda: bool) -> type:
    from torch.utils.cpp_extension import BuildExtension

    class Build(BuildExtension):
        def finalize_options(self) -> None:
            super().finalize_options()
            # pip's own is a new folder each time; in a fixed one ninja finds what is up to date.
            kind = "cuda-" if cuda else ""
            self.build_temp = os.path.join("build", f"temp-{kind}{sys.implementation.cache_tag}")

        def run(self) -> None:
            why = self.attempt()
            if why and cuda and not required:
                say(f"{why}; going on without CUDA")
                vars(self.extensions[0]).update(vars(extension(cuda=False)))
                why = self.attempt()
            if why and required:
                stop(why)
            if why:
                say(f"{why}; going on without them, on the torch formulas")
                self.leave_out()

        def attempt(self) -> str | None:
            """Builds the extension; what went wrong, if it did."""
            compiler = self.compiler
            try:
                super().run()
            except Exception as error:
                self.compiler = compiler  # its name, of which run() makes an object
                return f"the kernels did not build: {error} (the compiler's output is above)"
            return None

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
    required = chosen in ("cpu", "cuda")
    if why and required:
        stop(f"SAFEOPS_BUILD={chosen}, but {why}")
    if why or chosen == "none":
        say(f"building without kernels: {why or 'SAFEOPS_BUILD=none'}")
        remove_in_place()
        return {}
    cuda = with_cuda(chosen)
    return {
        "ext_modules": [extension(cuda)],
        "cmdclass": {"build_ext": build_command(required, cuda)},
    }


if int(setuptools.__version__.split(".")[0]) < 77:
    stop(
        f"building needs setuptools >= 77; this is {setuptools.__version__} "
        "('pip install -U setuptools')"
    )
setuptools.setup(**kernels())
