"""One writer at a time for a run's folder."""

import errno
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from parallelbench.records.files import check_folder

LOCK = "writer.tmp"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Keeps other processes from writing this run until the block, or the process that holds it, has ended: the kernel
    lets go of the lock of a process that was killed. The file that is locked says who holds it, and nothing else. A
    folder that cannot be written needs no lock.

    Raises ValueError naming the process that writes the run. A file system without locks costs a warning: there, two
    processes at one run may decode samples twice and lose what one of them had appended while the other merged.
    """
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        yield
        return
    path = folder / LOCK
    file = _locked(path)
    try:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)  # before it is unlocked, so that nobody holds a file that is gone
        file.close()


def _locked(path: Path) -> TextIO:
    while True:
        file = _opened(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = file.read() or "another process"
            file.close()
            raise ValueError(
                f"{path.parent} is being written by {holder}; wait until that ends, or end it, and run the "
                "command again"
            ) from error
        except OSError as error:
            print(f"{path.parent} cannot be locked ({error.strerror}); let one process write it", file=sys.stderr)
            return file
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()  # its holder has just removed it


def _opened(path: Path) -> TextIO:
    """The file to lock. Raises ValueError for what somebody else has put there: a link, a folder, a pipe."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise ValueError(f"{path} is not what a run is locked with; delete it and run the command again") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise ValueError(f"{path} is not what a run is locked with; delete it and run the command again")
    return os.fdopen(number, "r+", encoding="utf-8", errors="replace")
