"""What a value may be, declared where it is declared and checked when it is given.

A dataclass that derives from `Checked` refuses at construction what the annotations of its fields do not allow, and a
function asks `check` about its arguments. `int` takes no fraction and no bool, `float` neither NaN nor infinity nor
what is beyond a million, `Literal` one of its values, a class its instances; `Annotated[float, Interval("(0, 1]")]` an
interval, `Callable` what can be called. Protocols that exist for type checkers alone allow everything.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache, cached_property, wraps
from inspect import signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")
SHOWN = 80  # characters of a refused value


@dataclass(frozen=True)
class Interval:
    """The numbers of an interval in the notation of mathematics, such as "[0, 1)". why: what a refusal adds in
    brackets."""

    interval: str
    why: str = ""

    @cached_property
    def ends(self) -> tuple[float, float]:
        low, high = map(float, self.interval[1:-1].split(","))
        return low, high

    def __contains__(self, number: int | float) -> bool:
        low, high = self.ends
        begins = number > low if self.interval[0] == "(" else number >= low
        return begins and (number < high if self.interval[-1] == ")" else number <= high)

    def __str__(self) -> str:
        return f"in {self.interval}" + (f" ({self.why})" if self.why else "")


Fraction = Annotated[float, Interval("[0, 1]")]
NonNegative = Annotated[float, Interval("[0, 1e6]")]
Positive = Annotated[float, Interval("(0, 1e6]")]
Scale = Annotated[float, Interval("[1e-6, 1e6]")]  # to divide by
Count = Annotated[int, Interval("[1, 1e6]")]
Number = Annotated[int, Interval("[0, 1e6]")]
Token = Annotated[int, Interval("[0, 9e18]")]  # of a vocabulary, or beyond it a picture's column

# Tensors hold these whole numbers, and float32 the square of these fractions.
REASONABLE = {int: Interval("[-9e18, 9e18]"), float: Interval("[-1e6, 1e6]")}
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}


class WrongType(TypeError, ValueError):
    """A value of another type than the declared one. As every mistake of a user's it is a ValueError too."""


class Checked:
    """Base of frozen dataclasses whose fields are checked at construction."""

    def __post_init__(self) -> None:
        given = [field.name for field in fields(self) if field.init]  # type: ignore[arg-type]
        check(type(self), **{name: vars(self)[name] for name in given})


def check(of: type | Callable[..., Any], **values: Any) -> None:
    """Raises ValueError, or WrongType, for the first of these fields of a class, or arguments of a function, that its
    annotations do not allow."""
    check_named(of, values, owner=f" of {of.__qualname__.removesuffix('.__init__')}")


def check_named(of: type | Callable[..., Any], values: Mapping[str, Any], *, below: str = "", owner: str = "") -> None:
    """The same of a mapping. below, owner: what a refusal says before the name, as `decoder.rule.` of a config, and
    after the value."""
    kinds = _kinds(of)
    for name, value in values.items():
        fault = _fault(value, kinds.get(name, Any))
        if fault is not None:
            raise fault.error(f"{below}{name}{fault.where}={shown(fault.value)}{owner}; give {wanted(fault.kind)}")


ALSO = {"gen_length": "gen_len", "block_length": "block_len"}  # names of the command line


def named(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which understands the command line's name of an argument, and refuses an argument that it does not
    have and names the nearest."""
    known = list(signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        for name in list(given):
            own = ALSO.get(name, name)
            if own not in known:
                raise WrongType(f"{function.__name__} has no argument {name!r}; {nearest(name, known)}")
            if own != name and own in given:
                raise WrongType(f"{own} and {name} of {function.__name__} are the same; give one of them")
            given[own] = given.pop(name)
        return function(*args, **given)

    return checked


def check_blocks(gen_len: int, block_len: int) -> None:
    """Raises ValueError for an answer that is not of whole blocks."""
    if gen_len % block_len:
        nearest = max(block_len, gen_len // block_len * block_len)
        raise ValueError(
            f"gen_length={gen_len} is not a multiple of block_length={block_len}; use gen_length={nearest}, or "
            f"block_length={gen_len}"
        )


@dataclass(frozen=True)
class _Fault:
    """What does not fit. where: in which place of a list or mapping; empty for the value as a whole."""

    value: Any
    kind: Any
    error: type[ValueError] = WrongType
    where: str = ""


@cache
def _kinds(of: type | Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(of, include_extras=True)
    except NameError:  # a name that is there for type checkers alone
        return {}


def _fault(value: Any, kind: Any) -> _Fault | None:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        fault = _fault(value, inner[0])
        within = fault is not None or all(value in limit for limit in inner[1:])
        return None if fault is None and within else _Fault(value, kind, fault.error if fault else ValueError)
    if origin in (Union, UnionType):
        return _of_union(value, kind)
    if origin is Literal:
        right = [one for one in inner if type(one) is type(value)]
        return None if value in right else _Fault(value, kind, ValueError if right else WrongType)
    if origin in (Sequence, list, tuple):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            return _Fault(value, kind)
        if get_origin(inner[0]) is Annotated and set(map(type, value)) == {int}:  # limits are intervals: try the ends
            value = value if _fault(min(value), inner[0]) or _fault(max(value), inner[0]) else ()
        return _first((f"[{i}]", _fault(one, inner[0])) for i, one in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return _Fault(value, kind)
        return _first((f"[{key!r}]", _fault(one, inner[1])) for key, one in value.items())
    if origin is Callable:
        return None if callable(value) else _Fault(value, kind)
    if kind in REASONABLE:
        if not isinstance(value, int | kind) or isinstance(value, bool):
            return _Fault(value, kind)
        return None if value in REASONABLE[kind] else _Fault(value, kind, ValueError)
    is_one = not _is_told(kind) or (isinstance(value, kind) and not isinstance(value, type))  # no class of its objects
    return None if is_one else _Fault(value, kind)


def _of_union(value: Any, kind: Any) -> _Fault | None:
    faults = [_fault(value, one) for one in get_args(kind)]
    found = [fault for fault in faults if fault is not None]
    if len(found) < len(faults):
        return None
    inside = [fault for fault in found if fault.where]  # a list, as it should be, of something wrong
    wrong = any(fault.error is ValueError for fault in found)
    return inside[0] if inside else _Fault(value, kind, ValueError if wrong else WrongType)


def _first(parts: Iterable[tuple[str, _Fault | None]]) -> _Fault | None:
    for where, fault in parts:
        if fault is not None:
            return _Fault(fault.value, fault.kind, fault.error, where + fault.where)
    return None


def _is_told(kind: Any) -> bool:
    """Whether an object's class can be compared with it."""
    if kind is Any or not isinstance(kind, type):
        return False
    told = vars(kind)
    return not told.get("_is_protocol") or bool(told.get("_is_runtime_protocol"))


def wanted(kind: Any) -> str:
    """What a field of this kind takes, in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{WORDS[inner[0]]} {' '.join(map(str, inner[1:]))}"
    if origin in (Union, UnionType):
        return " or ".join(map(wanted, inner))
    if origin is Literal:
        return " or ".join(map(str, inner))
    if origin is not None:
        return {Mapping: "a mapping", Callable: "a function"}.get(origin, "a list")
    if kind in REASONABLE:
        return f"{WORDS[kind]} {REASONABLE[kind]}"
    if kind in WORDS:
        return WORDS[kind]
    bases = [base for base in kind.__mro__ if vars(base).get("_is_protocol")]
    needed = sorted({name for base in bases for name in vars(base) if not name.startswith("_")})
    if needed and kind in bases:
        return f"an object with {', '.join(needed)}"
    return f"an object whose class derives from {kind.__module__.split('.')[0]}.{kind.__name__}"


def at_home(value: Any) -> Any:
    """A path that begins with ~/ in the home folder, also inside lists and mappings; any other value as it is."""
    if isinstance(value, Mapping):
        return {key: at_home(one) for key, one in value.items()}
    if isinstance(value, list):
        return [at_home(one) for one in value]
    return os.path.expanduser(value) if isinstance(value, str) and re.match("~(/|$)", value) else value


def nearest(word: str, known: Iterable[str], listed: str = "") -> str:
    """What to choose instead of an unknown word: the closest, if there is one, and where to find the others.

    listed: the command that lists them; without one they are named here.
    """
    names = list(known)
    ends = {name.split("/")[-1]: name for name in names}
    near = get_close_matches(word.split("/")[-1], ends, 1)
    others = f"`{listed}` lists them all" if listed else f"choose among {', '.join(names)}"
    return f"did you mean {ends[near[0]]!r}? {others[0].upper()}{others[1:]}" if near else others


def shown(value: Any, quoted: bool = True) -> str:
    """A value as a sentence names it, cut where it is long. quoted: a text in quotation marks."""
    if isinstance(value, int) and value.bit_length() > 1000:  # Python writes out no number of so many digits
        return f"a number of {value.bit_length()} bits"
    text = repr(value) if quoted or not str(value).isprintable() else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
