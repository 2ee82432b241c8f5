"""python -m benchmarks.scan: a scan of a checkpoint beside reading its bytes.

Reading is readinto of one buffer, as large as a chunk of the scan, from first byte to last. Both
run in this process by turns, and the file is in the page cache (it is read once before), so that
what is compared is the work, not a disk. Told are the median of the quotients, the quotient of the
fastest, that of processor time (which other programs disturb least), and the largest resident set
of a `safeops scan` of its own, torch included.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from safeops.diagnose.scanning.bytes import CHUNK
from safeops.diagnose.scanning.scan import scan

SHAPES = ((1024, 1024), (1024, 1024), (4096, 1024), (1024, 4096), (1024,), (32768, 1024))
GIB = 1 << 30


def checkpoint(path: Path, size: int, dtype: torch.dtype) -> None:
    """Normal weights, of a transformer's shapes, over and over."""
    tensors: dict[str, torch.Tensor] = {}
    while (left := size - sum(x.nbytes for x in tensors.values())) > 0:
        shape = SHAPES[len(tensors) % len(SHAPES)]
        x = (0.02 * torch.randn(shape)).to(dtype).flatten()[: left // dtype.itemsize + 1]
        tensors[f"layers.{len(tensors)}"] = x.clone()
    torch.save(tensors, path)


def read(path: Path) -> None:
    view = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while file.readinto(view):
            pass


def seconds(call: Callable[[Path], object], path: Path) -> tuple[float, float]:
    """On the wall, and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    call(path)
    return time.perf_counter() - wall, time.process_time() - processor


def compared(path: Path, rounds: int) -> str:
    """Seconds of reading and of scanning, and their quotients."""
    seconds(read, path)
    seconds(scan, path)
    times = [(seconds(read, path), seconds(scan, path)) for _ in range(rounds)]
    (reads, reads_cpu), (scans, scans_cpu) = (
        zip(*column, strict=True) for column in zip(*times, strict=True)
    )
    quotient = statistics.median(scan / read for read, scan in zip(reads, scans, strict=True))
    processor = statistics.median(b / a for a, b in zip(reads_cpu, scans_cpu, strict=True))
    return (
        f"read {statistics.median(reads):.3f} s, scan {statistics.median(scans):.3f} s, "
        f"{quotient:.2f} times (the fastest {min(scans) / min(reads):.2f}, processor time "
        f"{processor:.2f})"
    )


MEMORY = """
import sys, safeops.cli
safeops.cli.main(["scan", sys.argv[1]])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def memory(path: Path) -> float:
    """MiB of the largest resident set of the command (on Linux)."""
    command = [sys.executable, "-c", MEMORY, str(path)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(ran.stdout.split()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scan", description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="size of the checkpoint")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder", type=Path, help="for the file; default: that for such files")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for dtype in (torch.float32, torch.bfloat16):
            path = Path(folder) / "model.pt"
            checkpoint(path, int(options.gib * GIB), dtype)
            print(
                f"{options.gib:g} GiB of {dtype}, {options.threads} threads: "
                f"{compared(path, options.rounds)}; memory {memory(path):.0f} MiB"
            )


if __name__ == "__main__":
    main()
