"""Two processes that call each other and exchange plain values only: the tests hold one end, the program the other.

None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset and dict are copied, subclasses of them as
their base; built-in names and modules of the standard library go by name. Anything else stays where it is, and the
other end holds a `Remote` of it. So what a program returns has no code of its own with which it could answer a test: an
object that claims to equal everything equals nothing but itself.
"""

import builtins
import contextlib
import importlib
import json
import operator
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

CONTAINERS = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
SMALL = 1 << 62  # integers up to it are written as numbers
ON_REMOTE: dict[str, Callable[..., Any]] = {
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "get": getattr,
    "set": setattr,
    "bool": bool,
    "list": list,
    "len": len,
    "item": operator.getitem,
}


class Gone(BaseException):
    """The other process has ended."""


class Remote:
    """An object of the other process: it can be called, read, set, walked and indexed there."""

    __slots__ = ("_key", "_peer")

    def __init__(self, peer: "Peer", key: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_key", key)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._peer.ask("call", self, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._peer.ask("get", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self._peer.ask("set", self, name, value)

    def __bool__(self) -> bool:
        return self._peer.ask("bool", self)

    def __iter__(self) -> Any:
        return iter(self._peer.ask("list", self))

    def __len__(self) -> int:
        return self._peer.ask("len", self)

    def __getitem__(self, index: object) -> Any:
        return self._peer.ask("item", self, index)


class Peer:
    """One end. served: what the other end may ask for, by name."""

    def __init__(self, source: int, sink: int, served: Mapping[str, Callable[..., Any]]) -> None:
        self.source, self.sink, self.served = source, sink, dict(served)
        self.given: list[object] = []  # what the other end holds a Remote of, kept alive
        self.keys: dict[int, int] = {}  # where it is in the list, by its id
        self.held: dict[int, Remote] = {}
        self.gone = False

    def ask(self, name: str, *args: object) -> Any:
        """What the other end's `served[name](*args)` returns or raises (an exception that is not built in as a
        RuntimeError). Serves what the other asks in the meantime. Raises Gone when the other process has ended."""
        self._send(["ask", name, [self.pack(argument) for argument in args]])
        return self.serve()

    def serve(self) -> Any:
        """Answers the other end until it answers us."""
        while True:
            kind, *message = self._receive()
            if kind == "answer":
                return self.unpack(message[0])
            if kind == "raise":
                raise _exception(*message)
            self._send(self._answered(*message))

    def _answered(self, name: str, args: list[object]) -> list[object]:
        try:
            return ["answer", self.pack(self.served[name](*map(self.unpack, args)))]
        except Gone:
            raise
        except BaseException as error:
            if not isinstance(error, SystemExit):
                sys.__excepthook__(type(error), error, error.__traceback__)
            return ["raise", type(error).__name__, str(error)]

    def pack(self, value: Any) -> Any:
        """A value as JSON."""
        if value is None or isinstance(value, bool | float | str):
            return value
        if isinstance(value, int):
            return value if -SMALL < value < SMALL else ["int", hex(value)]
        if isinstance(value, complex):
            return ["complex", [value.real, value.imag]]
        if isinstance(value, bytes | bytearray):
            return ["bytes", value.hex()]
        if isinstance(value, dict):
            return ["dict", [[self.pack(key), self.pack(item)] for key, item in value.items()]]
        for name, kind in CONTAINERS.items():
            if isinstance(value, kind):
                return [name, [self.pack(item) for item in value]]
        if isinstance(value, Remote):
            return ["yours", value._key]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if isinstance(value, type | types.BuiltinFunctionType) and vars(builtins).get(value.__name__) is value:
            return ["builtin", value.__name__]
        key = self.keys.setdefault(id(value), len(self.given))
        if key == len(self.given):
            self.given.append(value)
        return ["mine", key]

    def unpack(self, value: Any) -> Any:
        """A value from JSON. Raises KeyError, TypeError or ValueError for what `pack` never writes."""
        if not isinstance(value, list):
            return value
        kind, content = value
        if kind in CONTAINERS:
            return CONTAINERS[kind](map(self.unpack, content))
        if kind == "dict":
            return {self.unpack(key): self.unpack(item) for key, item in content}
        if kind == "int":
            return int(content, 16)
        if kind == "complex":
            return complex(*content)
        if kind == "bytes":
            return bytes.fromhex(content)
        if kind == "builtin":
            return vars(builtins)[content]
        if kind == "module" and content in sys.stdlib_module_names:
            return importlib.import_module(content)
        if kind == "yours":
            return self.given[content]
        if kind == "mine":
            return self.held.setdefault(content, Remote(self, content))
        raise ValueError(f"a value of kind {kind!r}")

    def _send(self, message: list[object]) -> None:
        data = json.dumps(message).encode()
        data = len(data).to_bytes(8, "big") + data
        with contextlib.suppress(OSError, ValueError):  # more output than allowed
            sys.stdout.flush()
        try:
            while data:
                data = data[os.write(self.sink, data) :]
        except BrokenPipeError:
            self.gone = True
            raise Gone from None

    def _receive(self) -> list[Any]:
        try:
            return json.loads(read_part(self.source))
        except EOFError:
            self.gone = True
            raise Gone from None


def read_part(source: int) -> bytes:
    """The next part: its length in 8 bytes, then itself. Raises EOFError where it is cut off."""
    return _read(source, int.from_bytes(_read(source, 8), "big"))


def _read(source: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = os.read(source, min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def names_in(code: types.CodeType) -> set[str]:
    """The global names that a code object and those within it may use."""
    inner: Iterable[types.CodeType] = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(names_in, inner))


def _exception(name: str, text: str) -> BaseException:
    kind = vars(builtins).get(name)
    if isinstance(kind, type) and issubclass(kind, BaseException):
        try:
            return kind(text)
        except TypeError:  # it wants more than a text
            pass
    return RuntimeError(f"{name}: {text}")
