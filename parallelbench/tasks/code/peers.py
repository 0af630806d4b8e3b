"""Two processes that call each other and exchange plain values only: the tests hold one end, the program the other.

Numbers, text, containers and values of the standard library (`STATES`) are copied, subclasses of built-in ones as their
base. A container that is handed over and changed in place is changed at the other end too. Exceptions come
across as exceptions, of a stand-in class where the program has its own. Anything else stays where it is, and the
other end holds a `Remote` of it. So what a program returns has no code of its own with which it could answer a test: an
object that claims to equal everything equals nothing but other objects of the program.

The ends differ in one thing. The program's end resolves names of the standard library and does what it is asked. The
tests' end resolves no name but those of plain types, and serves only objects that the tests handed over.
"""

import builtins
import collections
import contextlib
import importlib
import json
import operator
import sys
import types
from collections.abc import Callable
from typing import Any, cast

BROUGHT = "_text"  # the attribute by which an exception that came from the other end is known
SMALL = 1 << 62  # integers up to it are written as numbers
# of values that are copied by type: the arguments that make them again
STATES: dict[str, Callable[[Any], tuple]] = {
    "builtins.complex": lambda value: (value.real, value.imag),
    "builtins.range": lambda value: (value.start, value.stop, value.step),
    "builtins.slice": lambda value: (value.start, value.stop, value.step),
    **{f"builtins.dict_{name}": lambda value: (tuple(value),) for name in ("keys", "values", "items")},
    **{f"collections.{name}": lambda value: (dict(value),) for name in ("UserDict", "ChainMap")},
    "collections.UserList": lambda value: (list(value),),
    "array.array": lambda value: (value.typecode, value.tolist()),
    "decimal.Decimal": lambda value: (str(value),),
    "fractions.Fraction": lambda value: (value.numerator, value.denominator),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.datetime": lambda value: (value.isoformat(),),
    "datetime.time": lambda value: (value.isoformat(),),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    "numpy.ndarray": lambda value: (value.dtype.str, value.shape, value.tobytes()),
}
MAKERS: dict[str, Callable[..., Any]] = {  # where it is not the type itself
    "builtins.dict_keys": lambda items: dict.fromkeys(items).keys(),
    "builtins.dict_values": lambda items: dict(enumerate(items)).values(),
    "builtins.dict_items": lambda items: dict(items).items(),
    "datetime.datetime": lambda text: library("datetime", "datetime.fromisoformat")(text),
    "datetime.time": lambda text: library("datetime", "time.fromisoformat")(text),
    "numpy.ndarray": lambda kind, shape, data: _array(kind, shape, data),
}
NUMBERS = "biufc"  # the kinds of arrays that are copied
MUTABLE: dict[str, type] = {
    **{kind.__name__: kind for kind in (collections.OrderedDict, collections.Counter, collections.defaultdict)},
    **{kind.__name__: kind for kind in (collections.deque, bytearray, list, set, dict)},
}
FIXED: dict[str, type] = {"tuple": tuple, "frozenset": frozenset}
PLAIN_TYPES = {"int", "float", "complex", "bool", "str", "bytes", "tuple", "frozenset", "object", "range"}
ALONE = {"bool", "str", "repr", "hash", "len", "iter", "next", "getitem", "setitem", "delitem"}
# only between two objects of the other process: with a plain value one could claim anything
BETWEEN = {"eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv"}
OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "get": getattr,
    "set": setattr,
    "isinstance": lambda kind, value: isinstance(value, kind),
    **{name: vars(builtins).get(name) or getattr(operator, name) for name in ALONE | BETWEEN},
}
FOR_PROGRAMS = {"call", "get", "set", "bool", "hash", "len", "iter", "next", "getitem"}


class Gone(BaseException):
    """The other process has ended."""


class Remote:
    """An object of the other process: it can be called, read, set, walked, indexed and printed there, and compared with
    and added to others from there."""

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

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Remote) and self._peer.ask("isinstance", self, value) is True


def _special(operation: str) -> Callable[..., Any]:
    def method(self: Remote, *args: object) -> Any:
        if operation in BETWEEN and not isinstance(args[0], Remote):
            return NotImplemented
        return self._peer.ask(operation, self, *args)

    return method


for _name in (*ALONE, *BETWEEN):
    setattr(Remote, f"__{_name}__", _special(_name))


class Shared:
    """The containers of one call that can change in place, numbered alike at both ends."""

    def __init__(self, other: "Shared | None" = None) -> None:
        self.all: list[Any] = list(other.all) if other else []
        self.numbers: dict[int, int] = dict(other.numbers) if other else {}

    def add(self, container: object) -> None:
        self.numbers[id(container)] = len(self.all)
        self.all.append(container)  # kept alive


class Peer:
    """One end. is_tests: whether it is that of the tests, which trusts nothing that comes. send, receive: carry JSON,
    and raise Gone when the other process has ended."""

    def __init__(self, send: Callable[[list], None], receive: Callable[[], list], is_tests: bool) -> None:
        self.send, self.receive, self.is_tests = send, receive, is_tests
        self.operations = dict(OPERATIONS)
        self.given: list[Any] = []  # what the other end holds a Remote of, kept alive
        self.keys: dict[int, int] = {}  # where it is in the list, by its id
        self.held: dict[int, Any] = {}
        self.stand_ins: dict[type, int] = {}  # keys of exception classes of the other end

    def ask(self, name: str, *args: object) -> Any:
        """What the other end's operation of this name returns or raises. Serves what the other asks in the meantime.
        Raises Gone when the other process has ended."""
        shared = Shared()
        self.send(["ask", name, [self.pack(argument, shared) for argument in args]])
        while True:
            kind, *message = self.receive()
            if kind == "ask":
                self._answer(*message)
                continue
            value, changes = message
            value = self.unpack(value, shared)
            for number, state in changes:
                self._fill(shared.all[number], state, shared)
            if kind != "raise":
                return value
            if self.is_tests and name != "next" and isinstance(value, StopIteration):  # as in a generator (PEP 479)
                raise RuntimeError(f"the program's {name} raised StopIteration")  # else a map() of the tests ends
            raise value if isinstance(value, BaseException) else TypeError(f"{value!r} is no exception")

    def serve(self) -> None:
        """Answers the other end until it has ended."""
        while True:
            self._answer(*self.receive()[1:])

    def _answer(self, name: str, args: list[Any]) -> None:
        shared = Shared()
        before: list[str] = []
        try:
            if self.is_tests and (name not in FOR_PROGRAMS or args[0][0] != "yours"):
                raise ValueError(f"{name} of {args[0]!r} is not served")
            target, *values = (self.unpack(argument, shared) for argument in args)
            before = [self._snapshot(shared, number) for number in range(len(shared.all))]
            if self.is_tests and name in ("get", "set") and not _is_open(target, values[0]):
                raise AttributeError(values[0])
            answer = ["answer", self.pack(self.operations[name](target, *values), shared)]
        except Gone:
            raise
        except BaseException as error:
            if name in ("call", "load") and not isinstance(error, SystemExit):
                sys.__excepthook__(type(error), error, error.__traceback__)
            answer = ["raise", self.pack(error, shared)]
        now = [self._snapshot(shared, number) for number in range(len(before))]
        changed = [number for number, state in enumerate(before) if now[number] != state]
        self.send([*answer, [[number, self._state(shared.all[number], shared)] for number in changed]])

    def pack(self, value: Any, shared: Shared) -> Any:
        """A value as JSON."""
        if value is None or isinstance(value, bool | float | str):
            return value
        if isinstance(value, int):
            return value if -SMALL < value < SMALL else ["int", hex(value)]
        if isinstance(value, Remote):
            return ["yours", value._key]
        if id(value) in shared.numbers:
            return ["shared", shared.numbers[id(value)]]
        for kind, of in MUTABLE.items():
            if isinstance(value, of):
                shared.add(value)
                argument = value.maxlen if kind == "deque" else None
                argument = (value.default_factory,) if kind == "defaultdict" else argument
                return [kind, self.pack(argument, shared), self._state(value, shared)]
        if isinstance(value, bytes):
            return ["bytes", value.hex()]
        if isinstance(value, tuple) and isinstance(fields := getattr(value, "_fields", None), tuple):
            return ["record", [type(value).__name__, *fields], [self.pack(item, shared) for item in value]]
        for kind, of in FIXED.items():
            if isinstance(value, of):
                return [kind, [self.pack(item, shared) for item in value]]
        if isinstance(value, BaseException):
            attributes = {name: item for name, item in vars(value).items() if not name.startswith("_")}
            parts = (type(value), value.args, attributes, str(value))
            return ["error", *(self.pack(part, shared) for part in parts)]
        return self._packed_object(value, shared)

    def _packed_object(self, value: Any, shared: Shared) -> Any:
        of = type(value)
        name = f"{of.__module__}.{of.__qualname__}"
        if name.startswith("numpy.") and isinstance(value, sys.modules["numpy"].generic):
            return self.pack(value.item(), shared)
        if name in STATES and not (name == "numpy.ndarray" and value.dtype.kind not in NUMBERS):
            return ["value", name, [self.pack(part, shared) for part in STATES[name](value)]]
        if isinstance(value, type) and value in self.stand_ins:
            return ["yours", self.stand_ins[value]]
        if (where := _where(value)) and (self.is_tests or _plain_type(*where) is value):
            return ["named", *where]
        key = self.keys.setdefault(id(value), len(self.given))
        if key == len(self.given):
            self.given.append(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            bases = [self.pack(base, shared) for base in value.__bases__ if issubclass(base, BaseException)]
            return ["class", key, value.__module__, value.__name__, bases]
        return ["mine", key]

    def unpack(self, value: Any, shared: Shared) -> Any:
        """A value from JSON. Raises KeyError, TypeError or ValueError for what `pack` never writes."""
        if not isinstance(value, list):
            return value
        kind, content, *more = value
        if kind in MUTABLE:
            argument = self.unpack(content, shared)
            container = collections.deque(maxlen=argument) if kind == "deque" else MUTABLE[kind](*argument or ())
            shared.add(container)
            self._fill(container, more[0], shared)
            return container
        if kind == "shared":
            return shared.all[content]
        if kind == "yours":
            return self.given[content]
        if kind == "mine":
            return self.held.setdefault(content, Remote(self, content))
        if kind == "int":
            return int(content, 16)
        if kind == "bytes":
            return bytes.fromhex(content)
        if kind in FIXED:
            return FIXED[kind](self.unpack(item, shared) for item in content)
        if kind == "record":
            record = cast(Any, collections).namedtuple(content[0], content[1:])  # which checks that these are names
            return record(*(self.unpack(item, shared) for item in more[0]))
        if kind == "value" and content in STATES:
            make = MAKERS.get(content) or library(*content.split("."))
            return make(*(self.unpack(part, shared) for part in more[0]))
        if kind == "error":
            return self._error(*(self.unpack(part, shared) for part in (content, *more)))
        if kind == "class":
            return self._stand_in(content, *more[:2], *(self.unpack(base, shared) for base in more[2]))
        if kind == "named" and (found := (_plain_type if self.is_tests else library)(content, *more)) is not None:
            return found
        raise ValueError(f"a value of kind {kind!r}")

    def _error(self, kind: type[BaseException], args: tuple, attributes: dict[str, Any], text: str) -> BaseException:
        if not issubclass(kind, BaseException):
            raise TypeError(f"{kind} is no exception")
        try:
            error = kind(*args)
        except Exception:  # it wants more than it keeps
            error = kind.__new__(kind)
            error.args = args
        vars(error).update(attributes | {BROUGHT: text})
        return error

    def _stand_in(self, key: int, module: str, name: str, *bases: type) -> type:
        """The class of an exception of the other end: the library's, where it is loaded here, or one like it, which is
        a RuntimeError too. unittest's are orders to who runs the tests, such as to skip one."""
        if module.partition(".")[0] in sys.stdlib_module_names - {"unittest"}:
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type) and issubclass(found, BaseException):
                return found
        if key not in self.held:
            plain = BaseException.__str__
            shown = {"__str__": lambda error: vars(error).get(BROUGHT, plain(error)), "__module__": module}
            kinds = (RuntimeError if base is Exception else base for base in bases if issubclass(base, BaseException))
            self.held[key] = type(name, tuple(kinds) or (RuntimeError,), shown)
            self.stand_ins[self.held[key]] = key
        return self.held[key]

    def _snapshot(self, shared: Shared, number: int) -> str:
        return json.dumps(self._state(shared.all[number], Shared(shared)))

    def _state(self, container: Any, shared: Shared) -> Any:
        if isinstance(container, bytearray):
            return container.hex()
        if isinstance(container, dict):
            return [[self.pack(key, shared), self.pack(item, shared)] for key, item in container.items()]
        return [self.pack(item, shared) for item in container]

    def _fill(self, container: Any, state: Any, shared: Shared) -> None:
        """Gives a container this state in place of its own."""
        if isinstance(container, bytearray):
            container[:] = bytes.fromhex(state)
        elif isinstance(container, dict):
            items = [(self.unpack(key, shared), self.unpack(item, shared)) for key, item in state]
            container.clear()
            container.update(dict(items))
        else:
            items = [self.unpack(item, shared) for item in state]
            container.clear()
            (container.update if isinstance(container, set) else container.extend)(items)


def _is_open(target: object, name: object) -> bool:
    """Whether the program may read and set an attribute: a public one of an object of the tests' own class."""
    return type(target).__module__ == "tests" and isinstance(name, str) and not name.startswith("_")


def _where(value: Any) -> tuple[str, str] | None:
    """Module and name by which the standard library has a value."""
    if isinstance(value, types.ModuleType):
        return (value.__name__, "") if value.__name__.partition(".")[0] in sys.stdlib_module_names else None
    kinds = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
    module, name = getattr(value, "__module__", None) or "builtins", getattr(value, "__qualname__", "")
    if isinstance(value, kinds) and module.partition(".")[0] in sys.stdlib_module_names and module in sys.modules:
        with contextlib.suppress(AttributeError):
            return (module, name) if library(module, name) is value else None
    return None


def library(module: str, name: str = "") -> Any:
    """What the library has under this name. Raises ValueError where it has no such module here."""
    try:
        inner = importlib.import_module(module)
    except ImportError as error:  # which, in the tests' process, would be taken for one of the tests
        raise ValueError(f"no module {module}") from error
    return operator.attrgetter(name)(inner) if name else inner


def _plain_type(module: str, name: str) -> type | None:
    """A type that the tests' end lets in by name: calling it makes plain values and nothing else."""
    found = vars(builtins).get(name) if module == "builtins" else None
    is_error = isinstance(found, type) and issubclass(found, BaseException)
    if is_error or (found and (name in PLAIN_TYPES or name in MUTABLE)):
        return found
    is_value = f"{module}.{name}" in STATES or (module == "collections" and name in MUTABLE)
    return library(module, name) if is_value and module != "builtins" else None


def _array(kind: str, shape: list[int], data: bytes) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or numpy.dtype(kind).kind not in NUMBERS:
        raise ValueError(f"an array of {kind!r}")
    return numpy.frombuffer(data, kind).reshape(shape).copy()
