"""How a command ends: its exit code, and one sentence on stderr where it did not do what was asked."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import NoReturn

from parallelbench.records.files import os_sentence, printable

FAILED, REFUSED, INTERRUPTED = 1, 2, 130


@contextmanager
def explained() -> Iterator[None]:
    """Ends the process with a sentence and an exit code.

    REFUSED: for a ValueError; the mistake was seen before the work began.
    FAILED: for what the operating system refuses after that.
    INTERRUPTED: for Ctrl-C.

    Warnings are one sentence too, without the line of code that they are about.
    """
    warnings.formatwarning = lambda message, *_, **__: f"warning: {printable(' '.join(str(message).split()))}\n"
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may know fewer characters than a file
    try:
        yield
        sys.stdout.flush()
    except ValueError as error:
        fail(str(error), REFUSED)
    except BrokenPipeError:
        _forget_stdout()  # its reader has seen enough
        raise SystemExit(FAILED) from None
    except OSError as error:
        _forget_stdout()
        fail(os_sentence(error), FAILED)
    except KeyboardInterrupt:
        fail("interrupted; repeat the command to go on", INTERRUPTED)


def fail(message: str, code: int) -> NoReturn:
    """One sentence on stderr."""
    say_error(message)
    raise SystemExit(code)


def say_error(message: str) -> None:
    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)


def _forget_stdout() -> None:
    """What cannot be printed is not tried again when the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
