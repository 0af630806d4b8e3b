"""What files say as what it should be, by type, and in one sentence what is not."""

import re
from typing import Any

import msgspec

from dllm.validation import shown

WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a finite number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}


def typed(values: Any, kind: Any, name: str = "") -> Any:
    """Values of JSON or YAML as this kind of object. Raises ValueError naming the first that is not of its type. name:
    of the values as a whole."""
    try:
        return msgspec.convert(values, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ValueError(_sentence(str(error), values, name)) from error


def _sentence(error: str, value: Any, place: str) -> str:
    """`choices is 3, not an object` of "Expected `object`, got `int` - at `$.choices`"."""
    what, _, path = error.partition(" - at ")
    for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        place = f"{place}.{name}".lstrip(".") if name else f"{place}[{index}]"
        value = value[name or int(index)] if index != "..." else ...
    if field := re.search("(missing|unknown).* field `(.*)`", what):
        name = f"{place}.{field[2]}".lstrip(".")
        return f"nothing says its {name}" if field[1] == "missing" else f"its {name} is not known"
    is_so = f"{place or 'it'} is {shown(value)}" if value is not ... and "`key`" not in path else f"{place} has a value"
    if expected := re.match(r"Expected `(\w+).*?`([^,]*)", what):
        return f"{is_so}, not {WORDS.get(expected[1], expected[1])}{expected[2]}"
    return f"its {is_so}, which this version does not know" if what.startswith("Invalid") else f"{is_so}: {what}"
