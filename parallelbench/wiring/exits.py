"""How a command ends: its exit code, and one sentence on stderr where it did not do what was asked."""

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any, NoReturn, TextIO

from parallelbench.records.files import in_short, os_sentence, printable

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
    out = _lasting_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may know fewer characters than a file
    try:
        yield
        sys.stdout.flush()
    except ValueError as error:
        fail(str(error), REFUSED)
    except OSError as error:
        fail(os_sentence(error), FAILED)
    except KeyboardInterrupt:
        fail("interrupted; run the same command again to resume", INTERRUPTED)
    if out is not None and isinstance(out.lost, BrokenPipeError):
        raise SystemExit(FAILED)  # its reader has seen enough
    if out is not None and out.lost is not None:
        fail(
            f"standard output took no text ({out.lost.strerror}); what was done is done, and its files are whole",
            FAILED,
        )


class _Lasting(FileIO):
    """A standard stream that keeps nobody from the work: what it cannot take is lost. lost: the first reason."""

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.lost = self.lost or error
            return len(data)


def _lasting_streams() -> _Lasting | None:
    """Puts lasting streams where Python's own are, or were closed; returns that of stdout."""
    for number in range(3):  # else the next file that is opened is taken for the stream
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(_lasting(sys.stderr, 2), sys.stderr)
    if sys.stdout is not sys.__stdout__:
        return None
    out = _lasting(sys.stdout, 1)
    sys.stdout = _text(out, sys.stdout)
    return out


def _lasting(stream: TextIO | None, number: int) -> _Lasting:
    if stream is not None:
        return _Lasting(number, "w", closefd=False)
    closed = _Lasting(os.devnull, "w")
    closed.lost = OSError(errno.EBADF, "it is closed")
    return closed


def _text(raw: _Lasting, stream: TextIO | None) -> TextIOWrapper:
    """A stream of text like the one that it takes the place of."""
    encoding, errors = (stream.encoding, stream.errors) if stream is not None else ("utf-8", "backslashreplace")
    return TextIOWrapper(BufferedWriter(raw), encoding, errors, line_buffering=raw.isatty() or raw.fileno() == 2)


def fail(message: str, code: int) -> NoReturn:
    """One sentence on stderr."""
    say_error(message)
    raise SystemExit(code)


def say_error(message: str) -> None:
    print(f"error: {in_short(message)}", file=sys.stderr, flush=True)
