"""The tensors in the tree of a pickle, by the names that people give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .bytes import ScanError
from .pickles import Call, Pairs
from .stored import Stored

DEPTH, TENSORS = 1000, 200_000
NAME = 1000  # characters
TRANSPARENT = ("_parameters", "_buffers", "_modules")  # of a module, which its names leave out


def walk(tree: Any, tensor: Callable[[str, Call], Stored | None]) -> Iterator[Stored]:
    """The tensors that `tensor` sees in calls, in the order of the file. One that comes twice has
    two names; a collection is entered once.

    Raises:
        ScanError: a collection too deep, or far too many tensors.
    """
    seen: set[int] = set()
    stack: list[Iterator[tuple[str, Any]]] = [iter([("", tree)])]
    found = 0
    while stack:
        name, node = next(stack[-1], (None, None))
        if name is None:
            stack.pop()
            continue
        result = tensor(name or "tensor", node) if isinstance(node, Call) else None
        if result is not None:
            found += 1
            yield result
        if (result is None or result.why) and id(node) not in seen and _holds(node):
            seen.add(id(node))
            stack.append(_inside(name[-NAME:], node))
        if len(stack) > DEPTH or found > TENSORS:
            raise ScanError(
                f"expected at most {TENSORS} tensors, nested at most {DEPTH} deep, got more"
            )


def _holds(node: Any) -> bool:
    return isinstance(node, Call) or (isinstance(node, (list, tuple)) and bool(node))


def _inside(name: str, node: Any) -> Iterator[tuple[str, Any]]:
    """What a collection or call holds, with names."""
    if isinstance(node, Pairs):
        for key, value in node:
            yield from _pair(name, key, value)
    elif isinstance(node, Call):
        yield from _arguments(name, node.args)
        for value in node.contents:  # its state, elements, and pairs of key and value
            both = type(value) is tuple and len(value) == 2
            yield from _pair(name, *value) if both else [(name, value)]
    else:
        yield from ((f"{name}[{place}]", value) for place, value in enumerate(node))


def _pair(name: str, key: Any, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(key, str):
        plain = name if key in TRANSPARENT else f"{name}.{key}" if name else key
        yield plain, value
    elif isinstance(key, (int, float)):
        yield f"{name}[{key}]", value
    else:
        yield from ((f"{name}[?]", part) for part in (key, value))


def _arguments(name: str, args: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(args, tuple):
        return ((f"{name}({place})", value) for place, value in enumerate(args))
    return iter([(name, args)])
