"""Types and shapes of our packages, checked by jaxtyping and beartype in the first calls of each function. The checks
make a call several times as slow, and later calls go the same ways. Importing this wraps what is imported later."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import partial, wraps
from types import CodeType
from typing import Any, get_type_hints

import jaxtyping
from beartype import BeartypeConf, beartype
from jaxtyping import config, install_import_hook, jaxtyped


class Checks:
    """calls: of a function that are checked in a test function, over all its parameters. test: the one that runs."""

    calls: float = float("inf")
    test: str = ""


@dataclass
class _Count:
    """Calls of a function in the test function `test`. A function inside another shares them over all of its objects.
    code: kept, so that its id stays its own."""

    code: CodeType
    test: str = ""
    calls: int = 0


_counts: dict[int, _Count] = {}


def first_calls(part: Any = None, *, typechecker: Callable) -> Any:
    """`jaxtyping.jaxtyped` for the first calls in a test function, made when the first comes."""
    if part is None:
        return partial(first_calls, typechecker=typechecker)
    if inspect.isclass(part):
        if is_dataclass(part) and not hasattr(part.__init__, "__wrapped__"):
            part.__init__ = first_calls(part.__init__, typechecker=typechecker)
        return part
    checked, count = None, _counts.setdefault(id(part.__code__), _Count(part.__code__))
    if count.test == Checks.test and count.calls >= Checks.calls:
        return part  # one inside another function, which was called before

    @wraps(part)
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal checked
        if config.jaxtyping_disable:  # asked first, so that a compiler sees no count
            return part(*args, **kwargs)
        if count.test != Checks.test:
            count.test, count.calls = Checks.test, 0
        if count.calls >= Checks.calls:
            return part(*args, **kwargs)
        count.calls += 1
        if checked is None:
            checked = jaxtyped(part, typechecker=typechecker) if _shaped(part) else typechecker(part)
        return checked(*args, **kwargs)

    return called


def _shaped(part: Callable) -> bool:
    """Whether a function needs jaxtyping: it has shapes, or names that only a type checker knows. For all others
    beartype alone checks the same in a fraction of the time."""
    try:
        return "jaxtyping" in repr(get_type_hints(part, include_extras=True))
    except Exception:  # what jaxtyping catches too
        return True


typed = beartype(conf=BeartypeConf(is_pep484_tower=True))  # a whole number is a float, as type checkers have it
install_import_hook(("dllm", "decoders", "parallelbench"), "checked.typed")
jaxtyping.jaxtyped = first_calls  # what the hook puts above each function
