"""Types and shapes of our packages, checked by jaxtyping and beartype in the first calls of each function. The checks
make a call several times as slow, and later calls go the same ways. Importing this wraps what is imported later."""

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from typing import Any

import jaxtyping
from jaxtyping import config, install_import_hook, jaxtyped


class Checks:
    """calls: of a function that are checked in a test function, over all its parameters. test: the one that runs."""

    calls: float = float("inf")
    test: str = ""


def first_calls(part: Any = None, *, typechecker: Callable) -> Any:
    """`jaxtyping.jaxtyped` for the first calls in a test function, made when the first comes."""
    if part is None:
        return partial(first_calls, typechecker=typechecker)
    if inspect.isclass(part):
        if is_dataclass(part) and not hasattr(part.__init__, "__wrapped__"):
            part.__init__ = first_calls(part.__init__, typechecker=typechecker)
        return part
    checked, test, calls = None, "", 0

    @wraps(part)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked, test, calls
        if config.jaxtyping_disable:  # asked first, so that a compiler sees no count
            return part(*args, **kwargs)
        if test != Checks.test:
            test, calls = Checks.test, 0
        if calls >= Checks.calls:
            return part(*args, **kwargs)
        calls += 1
        if checked is None:
            checked = jaxtyped(part, typechecker=typechecker)
        return checked(*args, **kwargs)

    return called


install_import_hook(("dllm", "decoders", "parallelbench"), "beartype.beartype")
jaxtyping.jaxtyped = first_calls  # what the hook puts above each function
