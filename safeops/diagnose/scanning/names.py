"""The classes and functions that a pickle names: what they are called, and which are refused."""

from __future__ import annotations

from typing import NamedTuple

from .bytes import ScanError

HARMFUL = {  # modules that no checkpoint needs, and attacks are made of
    *("os", "posix", "nt", "sys", "subprocess", "shutil", "socket", "pty", "ctypes", "runpy"),
    *("importlib", "code", "codeop", "webbrowser", "pickle", "_pickle", "marshal", "asyncio"),
    *("multiprocessing", "pip", "requests", "urllib", "http", "ftplib", "smtplib", "commands"),
    *("timeit", "pdb", "bdb", "cProfile", "profile", "doctest", "distutils", "ensurepip"),
}
HARMFUL_NAMES = {
    *("builtins.eval", "builtins.exec", "builtins.compile", "builtins.open", "builtins.input"),
    *("builtins.__import__", "builtins.execfile", "builtins.breakpoint", "builtins.globals"),
    *("io.open", "io.FileIO", "codecs.open", "torch.load", "torch.hub.load", "numpy.load"),
}
ALIASES = {"__builtin__": "builtins", "_io": "io"}


class Global(NamedTuple):
    """The name of a class or function."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def named(module: str, name: str) -> Global:
    """Raises a ScanError for what no checkpoint calls, and an attack would. Nothing else depends on
    this: what is not known to do harm is not run either."""
    top = module.partition(".")[0]
    full = f"{ALIASES.get(module, module)}.{name}"
    if top not in HARMFUL and full not in HARMFUL_NAMES and HARMFUL.isdisjoint(name.split(".")):
        return Global(module, name)
    raise ScanError(
        f"refused: this pickle would run {module[:60]}.{name[:60]} when it is loaded (nothing was "
        "run here): do not load it with weights_only=False, and ask where it comes from"
    )
