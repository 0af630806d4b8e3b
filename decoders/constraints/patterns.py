"""Constraints as a user writes them: regexes, JSON schemas, choices and grammars. They hold text only."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, SchemaError

from dllm.validation import Checked, nearest, shown

KEYS = ("regex", "json_schema", "choice", "grammar")  # of a mapping that describes a constraint
UNDERSTOOD = frozenset(  # keywords of JSON schema that the regex of a schema honours
    "type properties required additionalProperties items prefixItems minItems maxItems minLength maxLength pattern "
    "format enum const anyOf oneOf allOf $ref $defs definitions minProperties maxProperties".split()
)
SAID = frozenset(
    "$schema $id $comment $anchor title description default examples deprecated readOnly writeOnly".split()
)
PRIVATE = range(0xE000, 0xF900)  # characters without a meaning
SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$#&~\-]")


class Constraint(Checked, ABC):
    """What every answer matches as a whole, before its EOS."""

    @property
    @abstractmethod
    def given(self) -> Mapping[str, Any]:
        """The mapping that `constraint_of` makes it of, of JSON values."""


class Regular(Constraint):
    """A constraint that an automaton can check, so that every decoder can keep it."""

    @property
    @abstractmethod
    def pattern(self) -> str:
        """A regex in Rust's syntax. A dot matches newlines too."""


class ContextFree(Constraint):
    """A constraint that no automaton can check, for decoders that write from left to right."""

    @property
    @abstractmethod
    def lark(self) -> str:
        """A grammar in Lark's syntax."""


@dataclass(frozen=True)
class Regex(Regular):
    """A regex in Rust's syntax, which has no look-around and no back-references. It describes the whole answer, and a
    dot matches every character. Raises ValueError for a pattern that is no regex."""

    regex: str

    @property
    def given(self) -> Mapping[str, Any]:
        return {"regex": self.regex}

    @property
    def pattern(self) -> str:
        return self.regex


@dataclass(frozen=True)
class Choice(Regular):
    """One of some texts. Raises ValueError where none is given, or an empty one."""

    choice: Sequence[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "choice", tuple(self.choice))
        if not self.choice or not all(self.choice):
            raise ValueError(f"choice={list(self.choice)} of Choice; give at least one text, and none that is empty")

    @property
    def given(self) -> Mapping[str, Any]:
        return {"choice": list(self.choice)}

    @property
    def pattern(self) -> str:
        return "|".join(SPECIAL.sub(lambda found: "\\" + found[0], text) for text in self.choice)


@dataclass(frozen=True)
class JsonSchema(Regular):
    """JSON of a schema, with its properties in the schema's order.

    schema: a mapping, or JSON text. Objects have the properties that it names and no others. `$ref` to itself is
        followed three levels deep.
    whitespace: a regex of what may stand around punctuation. None: a blank after commas and colons and no other, as
        `json.dumps` writes, so that a decoder has nothing to choose there.

    Raises ValueError, with the keyword's name, for what a regex of the schema would ignore, such as `minimum`.
    """

    schema: Mapping[str, Any] | str
    whitespace: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            schema = json.loads(self.schema) if isinstance(self.schema, str) else self.schema
        except ValueError as error:
            raise ValueError(f"schema={shown(self.schema)} of JsonSchema is no JSON ({error}); mend it") from error
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            at = ".".join(["schema", *map(str, error.path)])
            raise ValueError(f"{at} of JsonSchema: {error.message[:200]}; mend the schema") from error
        for keyword, why in _refused(schema, "schema"):
            raise ValueError(f"{keyword} of JsonSchema {why}")
        object.__setattr__(self, "schema", json.dumps(schema))

    @property
    def given(self) -> Mapping[str, Any]:
        return {"json_schema": self.schema}

    @property
    def pattern(self) -> str:
        try:
            build = outlines().json_schema.build_regex_from_schema
            if self.whitespace is not None:
                return build(self.schema, self.whitespace)
            gap = next(mark for mark in map(chr, PRIVATE) if json.dumps(mark)[1:-1] not in str(self.schema))
            return re.sub(f"{gap}([,:]){gap}?|([,:]){gap}", r"\1\2 ", build(self.schema, gap)).replace(gap, "")
        except ValueError as error:
            said = str(error).split("\n")[0].replace(" by Outlines", "").strip()
            raise ValueError(f"schema={shown(self.schema)} of JsonSchema: {said}; use what the docs list") from error


@dataclass(frozen=True)
class Grammar(ContextFree):
    """A context-free grammar in Lark's syntax, whose first rule is `start`. For decoders that write from left to right
    (decoder=ar, prompt_lookup): no automaton has its language. An answer that its length cuts may be incomplete."""

    grammar: str

    @property
    def given(self) -> Mapping[str, Any]:
        return {"grammar": self.grammar}

    @property
    def lark(self) -> str:
        return self.grammar


def constraint_of(given: Mapping[str, Any], where: str = "constraint") -> Constraint:
    """The constraint that a mapping of one key describes: `regex`, `json_schema` (a schema, or the path of its file),
    `choice` (texts) or `grammar` (Lark, or the path of its file). where: what a refusal calls it."""
    if len(given) != 1:
        raise ValueError(f"{where}={shown(dict(given))}; give one of {', '.join(KEYS)}")
    ((key, value),) = given.items()
    if key == "regex":
        return Regex(value)
    if key == "choice":
        return Choice(value)
    if key == "json_schema":
        return JsonSchema(_read(value, f"{where}.{key}") if isinstance(value, str) and value[:1] != "{" else value)
    if key == "grammar":
        return Grammar(value if isinstance(value, str) and "\n" in value else _read(value, f"{where}.{key}"))
    raise ValueError(f"{where}.{key} is no kind of constraint; {nearest(key, KEYS)}")


def _read(path: Any, where: str) -> str:
    if not isinstance(path, str) or not Path(path).is_file():
        raise ValueError(f"{where}={shown(path)} is not a file; give the path of one")
    return Path(path).read_text(encoding="utf-8")


def _refused(schema: Any, where: str) -> Iterator[tuple[str, str]]:
    """Where a schema says what its regex would not keep, and what to do about it."""
    if not isinstance(schema, Mapping):
        yield where, f"is {shown(schema)}, which is no schema of a regex; give an object with a type"
        return
    for key, value in schema.items():
        at = f"{where}.{key}"
        if key not in UNDERSTOOD | SAID and (key != "uniqueItems" or value):
            yield at, "is not supported, and answers would break it; leave it out or say it otherwise"
        elif key == "allOf" and len(value) > 1:
            yield at, "joins several schemas, which is not supported; write them as one"
        elif key == "pattern" and ("minLength" in schema or "maxLength" in schema):
            yield at, "is next to a length, and only one of them would be kept; put the length into the pattern"
        elif key in ("properties", "$defs", "definitions"):
            for name, inner in value.items():
                yield from _refused(inner, f"{at}.{name}")
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            for place, inner in enumerate(value):
                yield from _refused(inner, f"{at}.{place}")
        elif key == "items" or (key == "additionalProperties" and not isinstance(value, bool)):
            yield from _refused(value, at)


def outlines() -> Any:
    """outlines-core. Raises ValueError where the extra is not installed."""
    if find_spec("outlines_core") is None:
        raise ValueError("constraints need outlines-core; pip install 'dllm-parallelbench[structured]'")
    import outlines_core

    return outlines_core
