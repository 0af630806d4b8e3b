"""Analyses: `python -m parallelbench analyze NAME ...`. Each is a module here, with `USAGE` (one line) and
`main(arguments)`, which writes its files and returns what to print; it raises ValueError for what the user can mend."""

from importlib import import_module
from types import ModuleType

ANALYSES: tuple[str, ...] = ("theory", "frontier", "pbx", "compare", "oracle")


def analysis(name: str) -> ModuleType:
    """The module of an analysis. Raises ValueError for an unknown name."""
    if name not in ANALYSES:
        raise ValueError(f"unknown analysis {name!r}; choose among {', '.join(ANALYSES)}")
    return import_module(f"parallelbench.analyze.{name}")
