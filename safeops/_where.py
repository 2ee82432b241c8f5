"""Where a program is: the module that is running, the line of the user's that called."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module

OUTSIDE = "(outside the model)"
_DEMO = str(Path(__file__).parent / "demo")  # a program as users write them
_LIBRARIES = tuple(str(Path(file).parent) + os.sep for file in (__file__, torch.__file__))


class RunningModule:
    """A context that knows which module of a model is running in this thread, by its name."""

    def __init__(self, model: nn.Module):
        self.model, self.begun = model, 0  # forwards of the model
        self.names = {module: plain_path(name) for name, module in model.named_modules()}
        self.running = [OUTSIDE]

    @property
    def name(self) -> str:
        return self.running[-1]

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        enter = torch_module.register_module_forward_pre_hook(self._enter)
        leave = torch_module.register_module_forward_hook(self._leave, always_call=True)
        with ExitStack() as stack:
            stack.callback(enter.remove)
            stack.callback(leave.remove)
            if "torch._dynamo" in sys.modules:  # it warns of hooks of all modules
                stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are")
            self.within = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        self.within.close()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not is_compiling() and threading.get_ident() == self.thread:
            self.begun += module is self.model and not recomputing()
            self.running.append(self.names.get(module, self.running[-1]))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if not is_compiling() and threading.get_ident() == self.thread and len(self.running) > 1:
            self.running.pop()


def plain_path(name: str) -> str:
    """Of a module or parameter, the same if the model is compiled."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def user_frame() -> FrameType | None:
    """The innermost frame outside torch and safeops."""
    return callers()[0]


def callers() -> tuple[FrameType | None, FrameType | None, tuple[str, ...]]:
    """The innermost frame outside torch and safeops; the innermost of the user's own program,
    which is another one where a library runs the model; and the functions of torch in between, the
    outermost last."""
    frame: FrameType | None = sys._getframe(1)
    within = []
    while frame is not None and _is_library(frame.f_code.co_filename):
        within.append(frame.f_code.co_name)
        frame = frame.f_back
    own = frame
    while own is not None and _is_installed(own.f_code.co_filename):
        own = own.f_back
    return frame, own, tuple(within)


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) and not file.startswith(_DEMO)


def _is_installed(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file


class _Eagerly:
    """While entered, what is compiled runs as it was written: compiled code does not see hooks that
    come later. Many may enter it, and leave it in any order."""

    waiting = 0
    stance: Any = None

    def __enter__(self) -> None:
        self.waiting += 1
        if self.stance is None and "torch._dynamo" in sys.modules:
            self.stance = torch.compiler.set_stance("force_eager")

    def __exit__(self, *error: object) -> None:
        self.waiting -= 1
        if not self.waiting and self.stance is not None:
            self.stance.__exit__(None, None, None)
            self.stance = None


EAGERLY = _Eagerly()


def recomputing() -> bool:
    """Whether a forward runs inside of a backward, as checkpointed ones do."""
    return torch._C._current_graph_task_id() != -1
