"""What ptxas says about each kernel: python -m tests.cuda_check LOG...

A LOG is what a build printed with NVCC_APPEND_FLAGS='-Xptxas -v' in the environment, whether of one
source or of all. Prints a table of kernels and processors; fails on spilled registers, on a
compiler's warning and on a log without kernels.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

DTYPES = ("double", "float", "half", "bfloat16")  # in the order of csrc/kinds.h
KERNEL = re.compile(r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>\w+)'")
# A file with the place in it (nvcc, g++, ld), or the name of a tool.
WARNING = re.compile(
    r"\S+(\(\d+\)|:\d+|\.\w+): warning\b|(\S*/)?(nvcc|ptxas|nvlink|ld)\s*:? warning\b"
)


class Usage(NamedTuple):
    """Registers of a thread; bytes that a thread keeps in memory, and moves to and fro for want
    of registers; bytes of shared memory that a block declares."""

    registers: int
    stack: int
    spills: int
    shared: int

    def __str__(self):
        stack = f" stack {self.stack}" if self.stack else ""
        spills = f" SPILLS {self.spills}" if self.spills else ""
        return f"{self.registers} {self.shared}{stack}{spills}"


def number_before(words, text):
    found = re.search(rf"(\d+) {words}", text)
    return int(found[1]) if found else 0


def usages(log):
    """The usage of each kernel by (mangled name, processor); the last, if it was built twice."""
    parts = KERNEL.split(log)
    found = {}
    for name, arch, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        own = text.split("Compile time")[0]
        spills = number_before("bytes spill stores", own) + number_before("bytes spill loads", own)
        numbers = (number_before(words, own) for words in ("registers", "bytes stack frame"))
        found[name, arch] = Usage(*numbers, spills, number_before("bytes smem", own))
    return found


def warnings(log):
    """The lines that warn, each once."""
    return list(
        dict.fromkeys(line for line in map(str.strip, log.splitlines()) if WARNING.match(line))
    )


def titles(names):
    """The names as C++ writes them, without namespaces, parameters and result."""
    try:
        ran = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    except OSError:
        return dict(zip(names, names, strict=True))
    return dict(zip(names, map(short, ran.stdout.splitlines()), strict=True))


def short(name):
    name = re.sub(r"^void |\(anonymous namespace\)::|safeops::", "", name)
    name = re.sub(r"\(Dtype\)(\d)", lambda found: DTYPES[int(found[1])], name)
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def table(found):
    """The rows: a kernel, then a cell for each processor."""
    archs = sorted({arch for _, arch in found}, key=lambda arch: int(re.sub(r"\D", "", arch)))
    title = titles(sorted({name for name, _ in found}))
    yield ["", *archs]
    for name in sorted(title, key=title.get):
        yield [title[name], *(str(found.get((name, arch), "missing")) for arch in archs)]


def aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


def findings(found, log):
    """A sentence for each thing that must not be."""
    if not found:
        yield "the log names no kernel: was it made with NVCC_APPEND_FLAGS='-Xptxas -v'?"
    title = titles(sorted({name for name, _ in found}))
    for (name, arch), usage in found.items():
        if usage.spills:
            yield f"{title[name]} spills registers on {arch}: {usage.spills} bytes moved"
    yield from warnings(log)


def main(paths):
    log = "\n".join(Path(path).read_text() for path in paths)
    found = usages(log)
    print("Registers and bytes of shared memory, by kernel and processor")
    print(*aligned(list(table(found))), sep="\n")
    bad = list(findings(found, log))
    for sentence in bad:
        print("FAILED:", sentence, file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
