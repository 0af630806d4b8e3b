"""Arguments of the commands that are not Hydra's: paths and key=value."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path


def whole_number(name: str, text: str, least: int = 1) -> int:
    """An option that counts. Raises ValueError unless it is a number from `least` to 999,999."""
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) < least:
        raise ValueError(f"{name}={text}; give a whole number in [{least}, 999999]")
    return int(text)


def split_options(
    arguments: Sequence[str], defaults: Mapping[str, str], needs_paths: bool = True
) -> tuple[list[Path], dict[str, str]]:
    """Paths and key=value options. Raises ValueError for an unknown key, or without a path where one is needed."""
    options = dict(defaults)
    paths = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in options:
            options[key] = value
        elif equals and not Path(argument).exists():
            known = ", ".join(f"{key}=" for key in defaults) or "none"
            raise ValueError(f"unknown option {argument!r}; choose among {known}")
        else:
            paths.append(Path(argument))
    if needs_paths and not paths:
        raise ValueError("no run directory given; name at least one")
    return paths, options
