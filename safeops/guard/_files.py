"""Files that are whole or not there: written under another name, brought to the disk, renamed."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import shutil
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import torch

from .._gradients import user_level
from .events import GuardWarning

ADVICE = {
    errno.ENOSPC: "Make room on the disk, or keep fewer checkpoints",
    errno.EDQUOT: "Make room within the quota, or keep fewer checkpoints",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f)",
    errno.ENOENT: "Its folder must be there, for all ranks if there are several",
}
PLAIN = "Keep plain values and tensors in the state"
OTHERWISE = "Give a directory that this process can write to"
UNSYNCED = (errno.EINVAL, errno.ENOTSUP)  # file systems that cannot bring a folder to the disk

_serial = itertools.count()
_open: set[Path] = set()  # what this process writes right now


class Sum(NamedTuple):
    size: int
    sha256: str


# --- names that say whose they are ----------------------------------------------------------------


def aside(path: Path, kind: str) -> Path:
    """.NAME.HOST-PID-NUMBER.KIND beside it."""
    owner = f"{_host()}-{os.getpid()}-{next(_serial)}"
    return path.with_name(f".{path.name}.{owner}.{kind}")


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", os.uname().nodename)[:64]


def sweep(directory: Path) -> None:
    """Remove what killed processes of this host have left there."""
    ours = re.compile(rf"\..+\.{_host()}-(\d{{1,9}})-\d+\.(partial|trash)")
    for path in directory.iterdir():
        found = ours.fullmatch(path.name)
        if found and path not in _open and not _lives(int(found[1])):
            remove(path)


def _lives(pid: int) -> bool:
    """Another process. After a restart in a container, left-overs have the number of this one."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class Partial:
    """A name beside `path` to write to; what is still there at the end is removed."""

    def __init__(self, path: Path):
        self.path = aside(path, "partial")

    def __enter__(self) -> Path:
        _open.add(self.path)
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None
    ) -> None:
        remove(self.path)
        _open.discard(self.path)


def discard(path: Path) -> None:
    """Under another name first: half removed, it must not pass for a broken checkpoint."""
    trash = aside(path, "trash")
    try:
        path.rename(trash)
    except FileNotFoundError:  # another process was quicker
        pass
    except OSError as error:
        _warn_of(path, error)
    else:
        remove(trash)


def remove(path: Path) -> None:
    """A file or a folder, if it is there."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        _warn_of(path, error)


def _warn_of(path: Path, error: OSError) -> None:
    text = f"safeops.Guard: {path} was not removed: {error.strerror}. Remove it by hand"
    warnings.warn(text, GuardWarning, stacklevel=user_level())


# --- writing -------------------------------------------------------------------------------------


class _Hashed:
    """What torch.save writes to: it counts and hashes on the way, and keeps the first error."""

    def __init__(self, file: BinaryIO):
        self._file, self._hash, self.size = file, hashlib.sha256(), 0
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        try:
            self._file.write(data)
            self._hash.update(data)
        except BaseException as error:
            self.error = self.error or error
            raise
        self.size += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self) -> None:
        self._file.flush()

    def sum(self) -> Sum:
        return Sum(self.size, self._hash.hexdigest())


def save(path: Path, value: Any) -> Sum:
    """By torch.save, and on the disk."""
    with open(path, "xb") as file:
        hashed = _Hashed(file)
        try:
            torch.save(value, hashed)  # type: ignore[arg-type]
        finally:
            if hashed.error is not None:  # else hidden by what torch raises as it closes the file
                raise hashed.error
        _synced(file)
    return hashed.sum()


def save_bytes(path: Path, data: bytes) -> None:
    """On the disk."""
    with open(path, "xb") as file:
        file.write(data)
        _synced(file)


def _synced(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """The names in it, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSYNCED:
            raise
    finally:
        os.close(descriptor)


def write_file(path: str | Path, value: Any) -> None:
    """torch.save(value, path): killed at any instant, the file is the old one or the new one.

    Raises:
        OSError: the disk is full, or the folder is missing or cannot be written to.
        RuntimeError: the value cannot be pickled.
    """
    path = Path(path)
    try:
        sweep(path.parent)
        with Partial(path) as new:
            save(new, value)
            new.replace(path)
            sync_folder(path.parent)
    except Exception as error:
        raise not_written(str(path), error) from error


def not_written(what: str, error: Exception) -> Exception:
    """The error to raise: an OSError remains one, of the same number."""
    head = f"{what} was not written: "
    if not isinstance(error, OSError):
        if type(error) is RuntimeError:
            return RuntimeError(f"{head}{error}")
        return RuntimeError(f"{head}{type(error).__name__}: {error}. {PLAIN}")
    text = f"{head}{error.strerror or error}. {ADVICE.get(error.errno or 0, OTHERWISE)}"
    return OSError(text) if error.errno is None else OSError(error.errno, text)


def make(directory: Path) -> None:
    """If it is missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error


def check_directory(directory: str | Path) -> Path:
    """Make it if it is missing, and try to write to it.

    Raises:
        OSError: NotADirectoryError, PermissionError and so on; it says what to do.
    """
    path = Path(directory)
    try:
        make(path)
        with Partial(path / "check") as file:
            save_bytes(file, b"\0")
    except OSError as error:
        advice = ADVICE.get(error.errno or 0, OTHERWISE)
        text = f"expected a directory that can be written to, got {path}: {error.strerror}"
        raise OSError(error.errno, f"{text}. {advice}") from error
    return path
