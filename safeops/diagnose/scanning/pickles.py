"""A pickle read as data: a machine that builds a tree of what it says, and calls nothing.

Unpickling runs what the file names. Here a class or function is a Global, which is a name; a call
is a Call, which is a note that the file wants it. So there is nothing that a file could run.

Source: CPython's Lib/pickletools.py, which has the opcodes and decodes their arguments.
"""

from __future__ import annotations

import io
import pickletools
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .bytes import ScanError
from .names import Global, named

SIZE = 32 << 20  # bytes; a pickle beside tensors has a few hundred for each of them
STEPS = 2_000_000  # opcodes; some 30 for a tensor
TEXT = 4096  # characters that are kept of a string
MARK = object()
DEFECTS = (ValueError, IndexError, TypeError, KeyError, struct.error, OverflowError, AttributeError)


class Persistent(NamedTuple):
    """What the file keeps elsewhere: the storage of a tensor."""

    pid: Any


class Pairs(list):
    """A dictionary as a list of pairs: keys may be anything, and are never hashed."""


class Call:
    """What the file wants called, and what it puts into the result."""

    __slots__ = ("args", "contents", "func")

    def __init__(self, func: Any, args: Any):
        self.func, self.args = func, args
        self.contents: list[Any] = []


class Tree(NamedTuple):
    """A pickle: numbers, strings, lists, tuples, Pairs and Calls, and what is kept elsewhere."""

    root: Any
    persistent: list[Persistent]


def read(stream: io.BytesIO) -> Tree:
    """The next pickle of the stream.

    Raises:
        ScanError: no pickle, a damaged one, or one that is far too long.
    """
    machine = Machine()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python, about escapes in a damaged string
            return Tree(machine.run(stream), machine.persistent)
    except ScanError:
        raise
    except DEFECTS as error:
        said = str(error)[:100]
        raise ScanError(f"a pickle that cannot be read ({said}): copy the file again") from error


class Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.persistent: list[Persistent] = []

    def run(self, stream: io.BytesIO) -> Any:
        for step, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
            if step > STEPS:
                raise ScanError(
                    f"expected a pickle of at most {STEPS} steps: save tensors, not numbers one by "
                    "one"
                )
            if opcode.name == "STOP":
                return self.stack.pop()
            action = ACTIONS.get(opcode.name)
            if action is None:
                raise ScanError(f"a pickle with the rare opcode {opcode.name}: save it anew")
            action(self, argument)
        raise ValueError("it has no end")

    def pop_mark(self) -> list[Any]:
        """What lies above the last mark, which goes too."""
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
            if at < 0:
                raise ValueError("a mark is missing")
        above = self.stack[at + 1 :]
        del self.stack[at:]
        return above

    def put(self, place: int | None) -> None:
        if place is not None and not 0 <= place < 1 << 32:
            raise ValueError("a place in the memo out of range")
        self.memo[len(self.memo) if place is None else place] = self.stack[-1]

    def call(self, func: Any, args: Any) -> None:
        self.stack.append(Call(func, args))

    def keep(self, pid: Any) -> None:
        self.persistent.append(Persistent(pid))
        self.stack.append(self.persistent[-1])

    def into(self, *values: Any) -> None:
        """Elements into the collection below them."""
        target = self.stack[-1]
        if isinstance(target, Call):
            target.contents.extend(values)
        elif type(target) in (list, Pairs):
            target.extend(values)
        else:
            raise ValueError("elements for what is no collection")


def _constant(value: Any) -> Callable[[Machine, Any], None]:
    return lambda m, argument: m.stack.append(value)


def _made(make: Callable[[], Any]) -> Callable[[Machine, Any], None]:
    return lambda m, argument: m.stack.append(make())


def _literal(m: Machine, argument: Any) -> None:
    if isinstance(argument, (bytes, bytearray)):
        argument = None  # no tensor is in it, and it may be long
    m.stack.append(argument[:TEXT] if isinstance(argument, str) else argument)


def _tuple_of(count: int) -> Callable[[Machine, Any], None]:
    def action(m: Machine, argument: Any) -> None:
        if len(m.stack) < count:
            raise ValueError("a tuple of more than there is")
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return action


def _from_mark(make: Callable[[list[Any]], Any]) -> Callable[[Machine, Any], None]:
    return lambda m, argument: m.stack.append(make(m.pop_mark()))


def _pairs(flat: list[Any]) -> Pairs:
    if len(flat) % 2:
        raise ValueError("a key without a value")
    return Pairs(zip(flat[::2], flat[1::2], strict=True))


def _set_item(m: Machine, argument: Any) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    m.into((key, value))


def _append(m: Machine, argument: Any) -> None:
    m.into(m.stack.pop())


def _global(m: Machine, argument: str) -> None:
    m.stack.append(named(*argument.split(" ", 1)))


def _stack_global(m: Machine, argument: Any) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if not (isinstance(name, str) and isinstance(module, str)):
        raise ValueError("a global whose name is no string")
    m.stack.append(named(module, name))


def _pop_mark(m: Machine, argument: Any) -> None:
    m.pop_mark()


def _instance(m: Machine, argument: str) -> None:
    m.call(named(*argument.split(" ", 1)), tuple(m.pop_mark()))


def _object(m: Machine, argument: Any) -> None:
    made, *args = m.pop_mark()
    m.call(made, tuple(args))


def _call(m: Machine, argument: Any) -> None:
    args, func = m.stack.pop(), m.stack.pop()
    m.call(func, args)


def _call_named(m: Machine, argument: Any) -> None:
    names, args, func = m.stack.pop(), m.stack.pop(), m.stack.pop()
    m.call(func, (args, names))


def _build(m: Machine, argument: Any) -> None:
    state = m.stack.pop()
    if not isinstance(m.stack[-1], Call):
        raise ValueError("a state for what has none")
    m.stack[-1].contents.append(state)


def _literals() -> Iterator[tuple[str, Callable[[Machine, Any], None]]]:
    """The opcodes whose argument is their value."""
    numbers = "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT"
    strings = "STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8"
    others = "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8"
    for name in f"{numbers} {strings} {others}".split():
        yield name, _literal


ACTIONS: dict[str, Callable[[Machine, Any], None]] = {
    **dict(_literals()),
    **{name: lambda m, argument: None for name in ("PROTO", "FRAME")},
    **{name: lambda m, place: m.put(place) for name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")},
    **{
        name: lambda m, place: m.stack.append(m.memo[place])
        for name in ("GET", "BINGET", "LONG_BINGET")
    },
    **{
        name: lambda m, code: m.stack.append(Global("copyreg", f"extension {code}"))
        for name in ("EXT1", "EXT2", "EXT4")
    },
    "NONE": _constant(None),
    "NEWTRUE": _constant(True),
    "NEWFALSE": _constant(False),
    "EMPTY_TUPLE": _constant(()),
    "MARK": _constant(MARK),
    "EMPTY_LIST": _made(list),
    "EMPTY_SET": _made(list),
    "EMPTY_DICT": _made(Pairs),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "TUPLE": _from_mark(tuple),
    "LIST": _from_mark(list),
    "FROZENSET": _from_mark(list),
    "DICT": _from_mark(_pairs),
    "APPEND": _append,
    "APPENDS": lambda m, argument: m.into(*m.pop_mark()),
    "ADDITEMS": lambda m, argument: m.into(*m.pop_mark()),
    "SETITEM": _set_item,
    "SETITEMS": lambda m, argument: m.into(*_pairs(m.pop_mark())),
    "POP": lambda m, argument: m.stack.pop(),
    "POP_MARK": _pop_mark,
    "DUP": lambda m, argument: m.stack.append(m.stack[-1]),
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "INST": _instance,
    "OBJ": _object,
    "REDUCE": _call,
    "NEWOBJ": _call,
    "NEWOBJ_EX": _call_named,
    "BUILD": _build,
    "PERSID": lambda m, pid: m.keep(pid),
    "BINPERSID": lambda m, argument: m.keep(m.stack.pop()),
}
