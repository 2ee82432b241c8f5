"""Faults on purpose: one bad number, at one place, in one step."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..._ranks import is_sharded, own_rank
from ..._where import EAGERLY, recomputing
from .targets import check, check_holds, holds, is_floating, module_at, parameter_at

_VALUES: dict[str, Callable[[torch.dtype], float]] = {
    "nan": lambda dtype: math.nan,
    "inf": lambda dtype: math.inf,
    "huge": lambda dtype: torch.finfo(dtype).max,
}


def inject(
    model: nn.Module,
    at: str = "",
    step: int = 0,
    what: str = "nan",
    where: str = "forward",
    *,
    optimizer: torch.optim.Optimizer | None = None,
    rank: int | None = None,
) -> Injection:
    """x[0, …, 0] = NaN, Inf or finfo.max, once: to test what watches a training run.

    Args:
        model: the model that is trained; a DDP or compiled one too, with the names that it has.
        at: the dotted path of a module as in ``named_modules()``, "" is the model itself; for
            "weight" and "optimizer" also that of a parameter (a module means its first one).
        step: which step, from 0. Steps are the model's forwards in training mode alone: those in
            eval mode are not counted and get no fault. For "optimizer" the steps of an optimizer
            that holds the parameter.
        what: "nan", "inf", or "huge", the largest finite number of the tensor's dtype. An
            operation such as tanh or clamp swallows the last two: then nothing that is not finite
            is left behind.
        where: what gets the value, in the first element of the first floating tensor.
            "forward": the module's output, out of place; the gradient of the others is as it was.
            "backward": the gradient with respect to that output.
            "weight": the parameter, in place, before the forward. It stays bad.
            "optimizer": a state of the parameter (the first of its shape, as exp_avg) before the
            optimizer's step. It stays bad. The gradient if there is no such state yet.
            "batch": the arguments of the model, in a copy; ``at`` is not used.
        optimizer: for "optimizer", the one that is meant; else each that holds the parameter.
        rank: the one rank of torch.distributed that has the fault; None is every rank.

    Returns:
        A handle, also a context manager: ``remove()`` ends it, ``fired`` is the step at which the
        fault happened and None before; its repr says how many steps it saw. It happens once; a
        checkpointed module that is computed again in backward gives the same again. From here
        until remove() what is compiled runs as it was written. A module that is never called by
        its forward (as the out_proj of nn.MultiheadAttention) never fires; nor does a gradient
        that nobody asks for.

    Raises:
        TypeError: a model or optimizer that is none, a step that is no whole number.
        ValueError: an unknown path (the error names those like it), what or where; a negative
            step; a module without floating parameters; an optimizer that does not hold the
            parameter. At the step itself: arguments or outputs without a floating tensor in
            nested tuples, lists and dicts.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with inject(model, "0", step=1, what="inf") as fault:
    ...     finite = [model(torch.ones(2)).isfinite().all().item() for _ in range(3)]
    >>> finite, fault.fired
    ([True, False, True], 1)
    """
    check(model, step, what, where, optimizer)
    target: Any = (parameter_at if where in ("weight", "optimizer") else module_at)(model, at)
    if where == "optimizer":
        check_holds(optimizer, target, at)
    fault = Injection(step, what)
    if rank is None or rank == (own_rank() or 0):
        fault.install(where, model, target, optimizer)
    return fault


class Injection:
    """A fault that waits for its step; see inject."""

    def __init__(self, step: int, what: str):
        self.step, self.what = step, what
        self.fired: int | None = None
        self.removed = False
        self._seen, self._armed = -1, False
        self._kind, self._in_eval = "forwards in training mode", 0
        self._before: Tensor | None = None  # what was replaced
        self._stack = ExitStack()

    def remove(self) -> None:
        """What was written stays; nothing else does."""
        self.removed, self._armed, self._before = True, False, None
        self._stack.close()

    def __enter__(self) -> Injection:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        if self.fired is None:
            state = f"{'removed before' if self.removed else 'waiting for'} step {self.step}"
        else:
            state = f"fired at step {self.fired}" + ", removed" * self.removed
        seen = f"{self._seen + 1} {self._kind} seen"
        skipped = f", {self._in_eval} in eval mode not counted" * (self._in_eval > 0)
        return f"<Injection: {self.what}, {state}; {seen}{skipped}>"

    def install(self, where: str, model: nn.Module, target: Any, optimizer: Any) -> None:
        self._stack.enter_context(EAGERLY)
        if where == "optimizer":
            self._kind = "optimizer steps"
            self._before_steps(target, optimizer)
            return
        before = {"weight": lambda *call: self._write(target), "batch": self._in_arguments}
        self._before_forwards(model, before.get(where))
        if where in ("forward", "backward"):
            self._around(target, self._in_output if where == "forward" else self._in_gradient)

    # --- when --------------------------------------------------------------------------------

    def _before_forwards(self, model: nn.Module, act: Callable | None) -> None:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if module is not model:  # a copy of it
                return None
            if not recomputing():
                self._in_eval += not module.training
                self._armed = module.training and self._arrived()
            return act(args, kwargs) if act and self._may_fire() else None

        handle = model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
        self._stack.callback(handle.remove)

    def _before_steps(self, parameter: Tensor, optimizer: Any) -> None:
        def hook(running: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if holds(running, parameter) and self._arrived():
                self._write(_state_of(running, parameter))

        own = optimizer and optimizer.register_step_pre_hook
        self._stack.callback((own or register_optimizer_step_pre_hook)(hook).remove)

    def _may_fire(self) -> bool:
        return self._armed or (self._before is not None and recomputing())

    def _arrived(self) -> bool:
        self._seen += 1
        return self._seen == self.step

    # --- what --------------------------------------------------------------------------------

    def _write(self, tensor: Tensor | None) -> None:
        """Past autograd, which may still need the tensor of before, and past what watches the ops:
        it shall find the number, not the hand that wrote it."""
        if tensor is None:
            return
        with torch.no_grad(), _disable_current_modes():
            data = cast(Any, tensor).to_local() if is_sharded(tensor) else tensor.data
            if data.numel():
                data[(0,) * data.dim()] = self._value(data)
                self.fired = self.step

    def _in_arguments(self, args: Any, kwargs: Any) -> Any:
        with _disable_current_modes():
            return self._in_tree((args, kwargs), "arguments of the model")

    def _in_output(self, output: Any) -> Any:
        return self._in_tree(output, "output of the module") if self._may_fire() else output

    def _in_tree(self, tree: Any, whose: str) -> Any:
        leaves, spec = tree_flatten(tree)
        place = _first_floating(leaves, whose)
        if not self._is_due(leaves[place].detach()):
            return tree
        leaves[place] = self._replaced(leaves[place])
        return tree_unflatten(leaves, spec)

    def _is_due(self, tensor: Tensor) -> bool:
        """At the first call of the step, and when that call is computed again."""
        if self._before is not None:
            return recomputing() and _same(self._before, tensor)
        self._before, self.fired = tensor, self.step
        return True

    def _in_gradient(self, output: Any) -> Any:
        """Under a reentrant checkpoint it is the second forward that has the gradient."""
        if self._armed and self.fired is None:
            leaves = tree_flatten(output)[0]
            result = leaves[_first_floating(leaves, "output of the module")]
            if result.requires_grad:
                self._armed = False
                result.register_hook(self._on_gradient)
        return output

    def _on_gradient(self, gradient: Tensor) -> Tensor | None:
        if self.fired is not None:
            return None
        self.fired = self.step
        return self._replaced(gradient)

    def _replaced(self, tensor: Tensor) -> Tensor:
        return tensor.masked_fill(_first_element(tensor), self._value(tensor))

    def _value(self, tensor: Tensor) -> float:
        return _VALUES[self.what](tensor.dtype)

    # --- where -------------------------------------------------------------------------------

    def _around(self, module: nn.Module, act: Callable[[Any], Any]) -> None:
        """Not a hook: global hooks, by which others know what runs, would have left the module."""
        inner = _unbound(module)

        @functools.wraps(inner)
        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return act(inner(self, *args, **kwargs))

        vars(forward).update(fault=self, own=vars(module).get("forward"))
        module.forward = types.MethodType(forward, module)  # copied and pickled like any method
        self._stack.callback(_unwrap, module)


def _unbound(module: nn.Module) -> Callable:
    """The module's forward, of which a copy of the module can be the self."""
    own = vars(module).get("forward")
    if getattr(own, "__self__", None) is module:
        return own.__func__  # type: ignore[union-attr]

    @functools.wraps(own or type(module).forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        call = own or functools.partial(type(self).forward, self)  # a swap changes the class
        return call(*args, **kwargs)

    return forward


def _unwrap(module: nn.Module) -> None:
    """Takes off what was removed. Where someone has put his own forward around it, it stays there
    and does nothing."""
    while (own := vars(module).get("forward")) is not None:
        if not getattr(getattr(own, "fault", None), "removed", False):
            return
        if own.own is None:
            del module.forward
        else:
            module.forward = own.own


def _same(a: Tensor, b: Tensor) -> bool:
    same = a.shape == b.shape and a.dtype == b.dtype
    return same and bool(((a == b) | ((a != a) & (b != b))).all())


def _first_floating(leaves: Iterable[Any], whose: str) -> int:
    for place, leaf in enumerate(leaves):
        if is_floating(leaf) and leaf.numel():
            return place
    kinds = ", ".join(sorted({type(leaf).__name__ for leaf in leaves})) or "nothing"
    raise ValueError(
        f"expected a floating tensor with elements in the {whose}, got {kinds}: inject elsewhere"
    )


def _first_element(tensor: Tensor) -> Tensor:
    mask = torch.zeros_like(tensor, dtype=torch.bool)
    mask[(0,) * mask.dim()] = True
    return mask


def _state_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Tensor | None:
    for value in optimizer.state.get(parameter, {}).values():
        if is_floating(value) and value.shape == parameter.shape and value.numel():
            return value
    return parameter.grad
