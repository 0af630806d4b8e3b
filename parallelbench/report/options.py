"""Arguments of the commands that are not Hydra's: paths and key=value."""

from collections.abc import Mapping, Sequence
from pathlib import Path


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
