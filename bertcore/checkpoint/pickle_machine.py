"""Read a pickle as plain values, without running any of it.

Pickle is a program for a small stack machine (the standard library's pickletools documents every opcode), and Python's
own machine is unsafe by design: it imports the names in the pickle, calls them with the pickle's arguments and sets
attributes. A pickle.Unpickler that only narrows find_class still calls and builds, looks up copyreg's extension codes,
and sizes its memo by an index of the pickle's choice. This machine of our own lacks the dangerous parts:

- It imports nothing and looks up no attribute. A name in the pickle is only a key into the caller's table of names; an
  unknown name ends the reading.
- It calls nothing but the Functions of that table, which are written for it: they take and return plain values.
- It lacks the opcodes that tensors in plain containers do not need: objects (NEWOBJ, INST, OBJ), extension codes,
  bytes, sets, out-of-band buffers, the text opcodes of protocol 0. BUILD only drops the attributes of a dict. Keys are
  strings, so nothing else is hashed or compared.
- Each opcode makes at most one value, the memo grows by one at a time, and lengths are checked against the bytes left.
  Memory is thus bounded by a multiple of the pickle's length (below 100: a byte can ask for an empty dict), which has a
  limit of its own. Nothing recurses: neither nesting nor a cycle can harm.
"""

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LIMIT = 4 << 20  # bytes of one pickle; the state dict of XLM-R large takes 80 kB, 20,000 tensors about 4 MB


NOT_NEEDED = "which tensors in plain containers do not need; nothing of it was run"


class Refused(ValueError):
    """A pickle is broken, or holds more than tensors in plain containers; the message does not name the file."""


@dataclass(frozen=True, slots=True)
class Function:
    """The stand-in of a name that a pickle may call: `call`, with its fewest and most arguments."""

    call: Callable[..., Any]
    fewest: int
    most: int


@dataclass(frozen=True, slots=True)
class KnownNames:
    """The names that a pickle may refer to."""

    names: Mapping[tuple[str, str], Any]  # (module, name) -> a Function, or a value that stands for the name
    reference: Callable[[Any], Any]  # returns the value of a reference to something outside the pickle (BINPERSID)


def read_pickle(data: bytes | mmap.mmap, known: KnownNames, start: int = 0) -> tuple[Any, int]:
    """Return the value of the pickle that begins at byte `start` of `data`, and where it ends.

    Values are dict (for OrderedDict too), list, tuple, int, float, bool, str, None and the values of `known`. Raises
    Refused for everything else.
    """
    stop = min(len(data), start + LIMIT)
    machine = _Machine(data, known, start, stop, limited=stop < len(data))
    try:
        return machine.run(), machine.position
    except IndexError as error:
        raise Refused(f"the pickle takes more values than it made, before byte {machine.position}") from error
    except UnicodeDecodeError as error:
        raise Refused(f"the pickle has text that is not UTF-8, before byte {machine.position}") from error


def kind(value: object) -> str:
    """Return the name of a value's type, for messages: the value itself may be endless."""
    return type(value).__name__


def shown(text: str) -> str:
    """Return text of a file for messages, without control characters and not endless."""
    return text if text.isprintable() and len(text) < 100 else ascii(text[:100])


def check_key(key: object) -> None:
    """Raise Refused for a key of a dict that is not a string.

    Hashing a tuple can take exponential time; integers can be chosen so that all of them collide.
    """
    if type(key) is not str:
        raise Refused(f"the pickle has a dict with a key of type {kind(key)}, expected strings")


class _Machine:
    """The stack machine: `stack` since the last mark, `outer` the stacks before it, `memo` values by number."""

    def __init__(self, data: bytes | mmap.mmap, known: KnownNames, position: int, stop: int, *, limited: bool):
        self.data, self.position, self.stop, self.limited = data, position, stop, limited
        self.known = known
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.memo: list[Any] = []

    def run(self) -> Any:
        while (opcode := self.take(1)) != b".":
            if opcode not in STEPS:
                raise Refused(f"the pickle has the opcode {opcode!r} at byte {self.position - 1}, {NOT_NEEDED}")
            STEPS[opcode](self)
        return self.stack.pop()

    def take(self, count: int) -> bytes:
        if count > self.stop - self.position:
            ends = f"is longer than {LIMIT >> 20} MiB" if self.limited else "ends too early (truncated?)"
            raise Refused(f"the pickle {ends}")
        self.position += count
        return self.data[self.position - count : self.position]

    def number(self, size: int) -> int:
        """Return the next `size` bytes as a number of at least 0."""
        return int.from_bytes(self.take(size), "little")

    def signed(self, size: int) -> int:
        """Return the next `size` bytes as an integer; at most 255 bytes, as there is no LONG4."""
        return int.from_bytes(self.take(size), "little", signed=True)

    def text(self, size: int) -> str:
        """Return the next string; the `size` bytes before it are its length."""
        return self.take(self.number(size)).decode("utf-8")

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, self.stop)
        return self.take((self.stop if end < 0 else end) + 1 - self.position)[:-1].decode("utf-8")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def mark(self) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        """Return the values since the last mark, and remove it."""
        values, self.stack = self.stack, self.outer.pop()
        return values

    def last(self, expected: type) -> Any:
        """Return the value on top of the stack, which stays there."""
        value = self.stack[-1]
        if type(value) is not expected:
            raise Refused(f"the pickle treats a {kind(value)} as a {expected.__name__}, before byte {self.position}")
        return value

    def last_as_tuple(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def set_items(self, items: list[Any]) -> None:
        if len(items) % 2:
            raise Refused("the pickle has a dict with a key without a value")
        target = self.last(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            check_key(key)
            target[key] = value

    def extend(self, values: list[Any]) -> None:
        self.last(list).extend(values)

    def name(self, module: object, name: object) -> None:
        if type(module) is not str or type(name) is not str:
            raise Refused("the pickle asks for a name that is not text")
        if (module, name) not in self.known.names:
            raise Refused(f"the pickle asks for {shown(f'{module}.{name}')}, {NOT_NEEDED}")
        self.push(self.known.names[module, name])

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if type(function) is not Function or type(arguments) is not tuple:
            raise Refused(f"the pickle calls a {kind(function)} with a {kind(arguments)}; nothing of it was run")
        if not function.fewest <= len(arguments) <= function.most:
            found, expected = f"{len(arguments)} values", f"{function.fewest} to {function.most}"
            raise Refused(f"the pickle calls {function.call.__name__} with {found}, expected {expected}")
        self.push(function.call(*arguments))

    def build(self) -> None:
        """Drop the attributes of an OrderedDict: a module's state dict has `_metadata`."""
        state = self.pop()
        target = self.stack[-1]
        if type(state) is not dict or type(target) is not dict:
            raise Refused(f"the pickle gives attributes to a {kind(target)}; nothing of it was run")

    def memoize(self, number: int) -> None:
        # Python 3 counts from 0 and Python 2 from 1; neither leaves a gap of more than one.
        if number > len(self.memo) + 1:
            raise Refused(f"the pickle numbers its value {number} after {len(self.memo)} values")
        self.memo[number : number + 1] = [self.stack[-1]] * (max(number - len(self.memo), 0) + 1)

    def recall(self, number: int) -> None:
        if number >= len(self.memo):
            raise Refused(f"the pickle uses its value number {number}, which it has not made")
        self.push(self.memo[number])

    def protocol(self) -> None:
        version = self.number(1)
        if version > 5:
            raise Refused(f"the pickle is of protocol {version}; readable are 2 to 5")


STEPS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.protocol,
    b"\x95": lambda machine: machine.take(8),  # FRAME: a length, for reading ahead
    b"N": lambda machine: machine.push(None),
    b"\x88": lambda machine: machine.push(True),
    b"\x89": lambda machine: machine.push(False),
    b"K": lambda machine: machine.push(machine.number(1)),
    b"M": lambda machine: machine.push(machine.number(2)),
    b"J": lambda machine: machine.push(machine.signed(4)),
    b"\x8a": lambda machine: machine.push(machine.signed(machine.number(1))),  # LONG1
    b"G": lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    b"U": lambda machine: machine.push(machine.text(1)),  # SHORT_BINSTRING and BINSTRING: the strings of Python 2
    b"T": lambda machine: machine.push(machine.text(4)),
    b"\x8c": lambda machine: machine.push(machine.text(1)),  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
    b"X": lambda machine: machine.push(machine.text(4)),
    b"\x8d": lambda machine: machine.push(machine.text(8)),
    b"}": lambda machine: machine.push({}),
    b"]": lambda machine: machine.push([]),
    b")": lambda machine: machine.push(()),
    b"(": _Machine.mark,
    b"t": lambda machine: machine.push(tuple(machine.since_mark())),
    b"\x85": lambda machine: machine.last_as_tuple(1),
    b"\x86": lambda machine: machine.last_as_tuple(2),
    b"\x87": lambda machine: machine.last_as_tuple(3),
    b"a": lambda machine: machine.extend([machine.pop()]),
    b"e": lambda machine: machine.extend(machine.since_mark()),
    b"s": lambda machine: machine.set_items([machine.pop(), machine.pop()][::-1]),
    b"u": lambda machine: machine.set_items(machine.since_mark()),
    b"q": lambda machine: machine.memoize(machine.number(1)),  # BINPUT, LONG_BINPUT, MEMOIZE
    b"r": lambda machine: machine.memoize(machine.number(4)),
    b"\x94": lambda machine: machine.memoize(len(machine.memo)),
    b"h": lambda machine: machine.recall(machine.number(1)),
    b"j": lambda machine: machine.recall(machine.number(4)),
    b"c": lambda machine: machine.name(machine.line(), machine.line()),
    b"\x93": lambda machine: machine.name(*[machine.pop(), machine.pop()][::-1]),
    b"Q": lambda machine: machine.push(machine.known.reference(machine.pop())),
    b"R": _Machine.call,
    b"b": _Machine.build,
}
