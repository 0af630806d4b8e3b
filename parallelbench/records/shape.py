"""Whether values read from a file are what a type says, so that no reader meets a number where a text belongs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

WORDS = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false"}

LARGEST = 2**63  # of numbers; what counts or measures something here is far below


def check(value: Any, kind: Any, name: str) -> None:
    """Raises ValueError naming the first value that is not of its type.

    kind: a dataclass or a TypedDict, whose fields are looked up in a mapping or an object; a mapping by text or whole
    numbers, a sequence, a tuple, a union or a literal of them; text, a number, true or false, or anything.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind in WORDS:
        if not (_is_number(value, kind) if kind in (int, float) else isinstance(value, kind)):
            raise ValueError(f"{name or 'it'} is {_shown(value)}, not {WORDS[kind]}")
    elif is_typeddict(kind) or is_dataclass(kind):
        _check_fields(value, kind, name)
    elif origin is UnionType:
        if not (value is None and NoneType in inner):
            check(value, next(one for one in inner if one is not NoneType), name)
    elif origin is Literal:
        if value not in inner:
            raise ValueError(f"{name} is {_shown(value)}, not one of {', '.join(map(repr, inner))}")
    elif origin is not None and issubclass(origin, Mapping):
        _must_be(isinstance(value, Mapping), value, name, "an object")
        _check_each(value.items(), inner[1], name)
    elif origin is not None and issubclass(origin, Sequence):
        _must_be(isinstance(value, list | tuple), value, name, "a list")
        if origin is tuple:
            _must_be(len(value) == len(inner), value, name, f"a list of {len(inner)}")
            for i, (one, its) in enumerate(zip(value, inner, strict=True)):
                check(one, its, f"{name}[{i}]")
        elif inner[0] is not int or not all(type(one) is int for one in value):
            _check_each(enumerate(value), inner[0], name)


def _check_fields(value: Any, kind: Any, name: str) -> None:
    values = value if isinstance(value, Mapping) else vars(value) if is_dataclass(value) else None
    _must_be(values is not None, value, name, "an object")
    assert values is not None
    for field, hint in _hints(kind).items():
        optional = get_origin(hint) is NotRequired
        may_lack = optional or field in _with_default(kind)
        if field in values:
            check(values[field], get_args(hint)[0] if optional else hint, f"{name}.{field}".lstrip("."))
        elif not may_lack:
            raise ValueError(f"nothing says its {field}")


@cache
def _with_default(kind: Any) -> set[str]:
    """Fields of a dataclass that files of before they were there do not have."""
    found = fields(kind) if is_dataclass(kind) else ()
    return {field.name for field in found if field.default is not MISSING or field.default_factory is not MISSING}


def _check_each(values: Iterable[tuple[Any, Any]], kind: Any, name: str) -> None:
    for key, one in values:
        check(one, kind, f"{name}.{key}")


def _must_be(is_so: bool, value: Any, name: str, what: str) -> None:
    if not is_so:
        raise ValueError(f"{name or 'it'} is {_shown(value)}, not {what}")


def _is_number(value: Any, kind: type) -> bool:
    """A whole number is also a number, and a score may be true or false."""
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
    return isinstance(value, int | float) and abs(value) < LARGEST


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)
