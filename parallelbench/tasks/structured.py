"""Facts as JSON: a record, a list of records, the arguments of a function call, and the two ends of a waiting line.

Texts, people and functions are our own. `jsonschema` checks answers against the schema of their sample. No shipped
model was trained on these tasks.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from parallelbench.tasks.base import Draw, Drawn, Sample
from parallelbench.tasks.names import FIRST_NAMES, LAST_NAMES
from parallelbench.tasks.waiting_line import write_list

WORDINGS = (
    "{text}\nWrite {form}. Answer with the JSON only.",
    "{text}\nPut this into JSON, as {form}. Reply with the JSON alone.",
    "Read the text below and give {form}. Say nothing else.\n{text}",
    "Text: {text}\nTask: {form}\nOutput: the JSON only",
)
FORMS = {
    "record": "a JSON object with the keys {keys}",
    "records": "a JSON list of objects, one for each person, with the keys {keys}",
    "call": "a JSON object with the keys {keys}",
    "line": "a JSON object with the keys {keys}, for the person in front and the person at the end",
}
CITIES = "Athens Berlin Boston Cairo Dublin Geneva Lisbon London Madrid Milan Oslo Paris Prague Rome Vienna".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
RECORD_TEXTS = (
    "{name} is {age} years old and lives in {city}.",
    "{name}, who is {age} years old, lives in {city}.",
    "In {city} we met {name}, who is {age} years old.",
)
LINE_TEXT = "{people}\nThese people wait at the service desk."
REQUESTS: dict[str, tuple[str, dict[str, Sequence[str] | range]]] = {  # of each function, and what its arguments may be
    "book_table": (
        "Please book a table for {people} people on {day} at {hour} o'clock.",
        {"people": range(2, 13), "day": DAYS, "hour": range(5, 11)},
    ),
    "call_person": ("Call {person} in {minutes} minutes.", {"person": FIRST_NAMES, "minutes": range(5, 60)}),
    "find_flight": (
        "Find a flight from {start} to {goal} on {day}.",
        {"start": CITIES[:7], "goal": CITIES[7:], "day": DAYS},
    ),
    "order_food": (
        "I would like {amount} {dish} without {without}.",
        {
            "dish": ("burgers", "pizzas", "salads", "sandwiches", "soups"),
            "amount": range(2, 20),
            "without": ("cheese", "garlic", "onions", "pepper", "salt"),
        },
    ),
    "set_light": (
        "Make the light in the {room} {colour}, at {percent} percent.",
        {
            "room": ("bedroom", "hall", "kitchen"),
            "colour": ("blue", "green", "red", "white"),
            "percent": range(5, 100),
        },
    ),
}
Drawing = tuple[str, dict[str, Any] | list[dict[str, Any]], str]  # a text, the facts in it, and their schema's name
WHOLE = {"type": "integer"}
WORD = {"type": "string", "pattern": "^[A-Za-z]+$"}
FULL_NAME = {"type": "string", "pattern": "^[A-Z][a-z]+ [A-Z][a-z]+$"}


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with exactly these keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _argument(values: Sequence[str] | range) -> dict[str, Any]:
    """The schema of an argument: a number, one of a few words, or any word."""
    if isinstance(values, range):
        return WHOLE
    return WORD if values is FIRST_NAMES else {"enum": list(values)}


SCHEMAS = {
    "record": _object(name=FULL_NAME, age=WHOLE, city=WORD),
    "records": {"type": "array", "items": _object(name=FULL_NAME, age=WHOLE), "minItems": 1},
    "line": _object(first=FULL_NAME, last=FULL_NAME),
    **{
        name: _object(**{key: _argument(values) for key, values in arguments.items()})
        for name, (_, arguments) in REQUESTS.items()
    },
}


@dataclass(frozen=True)
class Structured(Drawn):
    """A text whose facts are asked for as JSON: one person's (`record`), two or three people's (`records`), the
    arguments of a function call (`call`), or who is first and last in a waiting line of four (`line`, the
    shortest)."""

    asks: Literal["record", "records", "call", "line"]
    version: str = "1"

    @property
    def name(self) -> str:
        return f"json/{self.asks}"

    def draw(self, rng: random.Random, index: int) -> Draw:
        """One instance; sample i calls function i % 5."""
        text, answer, schema = DRAWERS[self.asks](rng, index)
        keys = [f'"{key}"' for key in (answer[0] if isinstance(answer, list) else answer)]
        form = FORMS[self.asks].format(keys=f"{', '.join(keys[:-1])} and {keys[-1]}")
        prompt, *wordings = (wording.format(text=text, form=form) for wording in WORDINGS)
        return Draw(
            prompt, {"schema": schema}, json.dumps(answer), wordings, constraint={"json_schema": SCHEMAS[schema]}
        )

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """`score` wants the right JSON, whatever text surrounds it, `score_strict` nothing else. `parses`: the
        whole answer is JSON of the sample's schema. `fields`: the share of right fields, of those asked for or of those
        given, whichever are more."""
        wanted, schema = _fields(_read(sample.target)), sample.data["schema"]
        whole, inner = _read(completion), _read(_inner(completion, sample.target))
        parses, found = is_valid(whole, schema), _fields(inner)
        return {
            "score": float(is_valid(inner, schema) and found == wanted),
            "score_strict": float(parses and _fields(whole) == wanted),
            "parses": float(parses),
            "fields": sum(found.get(place) == value for place, value in wanted.items()) / max(len(wanted), len(found)),
        }


def json_tasks() -> dict[str, Structured]:
    """The tasks by name."""
    tasks = [Structured("record"), Structured("records"), Structured("call"), Structured("line")]
    return {task.name: task for task in tasks}


def is_valid(value: Any, schema: str) -> bool:
    """Whether a JSON value is one of a schema of `SCHEMAS`."""
    try:
        return _validator(schema).is_valid(value)
    except RecursionError:  # nested so deep that its message cannot be written
        return False


@cache
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator  # takes a quarter of a second to load, which `list` does not need

    return Draft202012Validator(SCHEMAS[schema])


def _record(rng: random.Random, index: int) -> Drawing:
    (name,) = _people(rng, 1)
    answer = {"name": name, "age": rng.randrange(18, 90), "city": rng.choice(CITIES)}
    return rng.choice(RECORD_TEXTS).format(**answer), answer, "record"


def _records(rng: random.Random, index: int) -> Drawing:
    answer = [{"name": name, "age": rng.randrange(18, 90)} for name in _people(rng, 2 + index % 2)]
    *others, last = ("{name} is {age} years old".format(**person) for person in answer)
    return f"{', '.join(others)} and {last}.", answer, "records"


def _call(rng: random.Random, index: int) -> Drawing:
    function = list(REQUESTS)[index % len(REQUESTS)]
    request, arguments = REQUESTS[function]
    answer = {key: rng.choice(values) for key, values in arguments.items()}
    return f"{function}: {request.format(**answer)}", answer, function


def _line(rng: random.Random, index: int) -> Drawing:
    people = _people(rng, 4)
    return LINE_TEXT.format(people=write_list(people)), {"first": people[0], "last": people[-1]}, "line"


DRAWERS = {"record": _record, "records": _records, "call": _call, "line": _line}


def _people(rng: random.Random, number: int) -> list[str]:
    """Full names; first names and last names are distinct."""
    return [
        " ".join(name) for name in zip(rng.sample(FIRST_NAMES, number), rng.sample(LAST_NAMES, number), strict=True)
    ]


def _read(text: str) -> Any:
    """The value of a JSON text; None for any other text, such as one that names a key twice."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=int)
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is repeated")
    return dict(pairs)


def _inner(text: str, target: str) -> str:
    """From the first bracket of the target's kind to the last."""
    return text[max(text.find(target[0]), 0) : text.rfind(target[-1]) + 1]


def _fields(value: Any) -> dict[tuple[int, str], tuple[bool, Any]]:
    """The fields of an object or of a list of objects by number and key. True is not 1, but 3.0 is 3."""
    items = value if isinstance(value, list) else [value]
    objects = ((i, item) for i, item in enumerate(items) if isinstance(item, dict))
    return {(i, key): (isinstance(field, bool), field) for i, item in objects for key, field in item.items()}
