"""Runs model-written code in processes of its own, locked in as far as the system allows.

Each program gets a fresh Python without site packages (`runner.py`), an empty environment, an own empty
folder, limits on memory, processor time and file sizes, and is killed at its timeout. The layers, all without
privileges (`jail.py`):

- seccomp: a list of allowed system calls. No other process or program can be started, so nothing survives; no sockets
  of any kind; no signals to others, by whatever call; no tracing, mounting or changes of file metadata.
- Landlock: only Python's own library, and packages that the caller names, can be read, only the working folder
  written. Names and sizes of other files can still be asked for.
- Namespaces, where the system grants them: no network devices, no shared memory, a working folder in memory.
- A watch over the working folder where it is on disk: more than 256 files or 16 MB end the program.
- A Python audit hook, for clear errors.

Without seccomp or Landlock (other systems than Linux, Linux before 5.13) nothing runs unless asked to (`unsandboxed`):
then a program can read and write what the user can. It is a wall against accidents and common mischief, not against
an attacker with a flaw of the kernel.

The tests run in a second process, locked in alike. The program's never holds them, nor a way to the verdict: it only
answers calls, and of its answers plain values alone come across (`peers.py`). What it may ask of the tests' process is
to use the objects that they handed over; no name is resolved for it there. So leaving early, printing, hooks, replaced
built-ins, a search through frames and memory, or an object that equals everything prove nothing.
"""

import contextlib
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, Literal

from parallelbench.tasks.base import PLACE

RUNNER = Path(__file__).with_name("runner.py")
TAIL = 2000  # bytes of output kept
MOST_FILES, MOST_BYTES = 256, 16 << 20  # in the working folder, as in the one in memory
WATCH_S = 0.05  # between looks at it

Reason = Literal["passed", "failed", "exited", "crashed", "timed_out"]
VERDICTS: dict[str, Reason] = {"passed": "passed", "failed": "failed", "exited": "exited", "crashed": "crashed"}


@dataclass(frozen=True)
class Outcome:
    """What became of a program. failed: an exception in it or its tests. exited: it ended before the tests were
    through. crashed: a signal ended it. stdout, stderr: their last 2000 bytes."""

    reason: Reason
    stdout: str
    stderr: str

    @property
    def passed(self) -> bool:
        return self.reason == "passed"


def run_code(
    program: str,
    tests: str,
    *,
    alternatives: Sequence[str] = (),
    setup: str = "",
    asked: Sequence[str] = (),
    packages: Sequence[str] = (),
    timeout_s: float = 10.0,
    memory_mb: int = 512,
    unsandboxed: bool = False,
) -> Outcome:
    """Runs a program, and its tests in another process. Of the program and its alternatives, the first counts that runs
    without an exception and defines what is asked; whether it passes has no part in that.

    setup: code that the tests need, run before them in the same program.
    asked: names that the program has to define. Other names in the tests are the program's where neither `setup` nor
        Python has them.
    packages: installed packages that the tests and the program may import, besides Python's library.

    Raises ValueError where code cannot be isolated and `unsandboxed` is not set, where a package is missing, or where
    the tests import what they may not; RuntimeError when Python itself cannot be started.
    """
    if os.name != "posix":
        raise ValueError(f"model-written code cannot be limited on {sys.platform}; run its tasks on Linux")
    files = {name: _file_of(name) for name in packages}
    readable = [path for file in files.values() for path in _readable(file)]
    token = secrets.token_hex(8)
    limits = {"timeout_s": timeout_s, "memory_mb": memory_mb, "unsandboxed": unsandboxed}
    parts = (
        {"programs": [program, *alternatives], "packages": files, "readable": readable, **limits},
        {"tests": tests, "setup": setup, "asked": [*asked], "token": token},
    )
    bodies = [json.dumps(part).encode() for part in parts]
    job = b"".join(len(body).to_bytes(8, "big") + body for body in bodies)
    with _folder() as folder:
        work = folder / "work"
        work.mkdir()
        with open(f"{folder}/stdout", "w+b") as stdout, open(f"{folder}/stderr", "w+b") as stderr:
            code, answer = _run(job, work, stdout, stderr, timeout_s)
            printed, complained = _tail(stdout), _tail(stderr)
    if code is not None and not answer.startswith(b"R"):
        if code == 1 and complained.startswith("no "):
            raise ValueError(
                f"this system has {complained.strip()} to isolate model-written code with; run code tasks on a newer "
                "Linux, or give them unsandboxed=true to run it with your rights"
            )
        raise RuntimeError(f"the sandbox could not start (exit code {code}): {complained}")
    verdict = answer[1:].decode(errors="replace")
    verdict = verdict.removeprefix(token) if verdict.startswith(token) else ""
    if verdict.startswith("imports "):
        name = verdict.removeprefix("imports ").partition(".")[0]
        raise ValueError(f"the tests import {name!r}, which they may not; {use_packages([name], packages)}")
    return Outcome(_reason(code, verdict), printed, complained)


def use_packages(names: Sequence[str], packages: Sequence[str] = ()) -> str:
    """How packages are allowed besides those that are."""
    return f"give {PLACE}.packages=[{','.join([*packages, *names])}] if what is installed under that name is trusted"


@cache
def _file_of(package: str) -> str:
    """The file that a package begins with. Raises ValueError where it is missing."""
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.has_location or not spec.origin:
        raise ValueError(f"packages={package!r} is not installed as a package of its own; pip install {package}")
    return spec.origin


def _readable(file: str) -> list[str]:
    """What has to be read to import the package: itself, and the shared libraries that its wheel put next to it."""
    if not Path(file).name.startswith("__init__."):
        return [file]
    folder = str(Path(file).parent)
    return [path for path in (folder, f"{folder}.libs") if Path(path).is_dir()]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A new folder for the time of a program, gone afterwards with whatever is in it."""
    folder = tempfile.mkdtemp(prefix="sandbox-")
    try:
        yield Path(folder)
    finally:
        _remove(folder)


def _remove(folder: str) -> None:
    """Removes a folder however deep it is, and never raises. Each folder within moves up to the top and is emptied
    there, so that no path gets long."""
    left, number = [folder], 0
    while left:
        with contextlib.suppress(OSError):
            with os.scandir(left[-1]) as entries:
                inner = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
            for path, is_folder in inner:
                if is_folder:
                    os.chmod(path, stat.S_IRWXU)
                    number += 1
                    os.rename(path, f"{folder}.{number}")
                    left.insert(0, f"{folder}.{number}")
                else:
                    os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(left[-1])
        left.pop()


def _is_full(work: Path) -> bool:
    """Whether there is more in the working folder than the one in memory would take. It costs no more than that."""
    files = size = 0
    left = [str(work)]
    try:
        while left:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    files += 1
                    size += entry.stat(follow_symlinks=False).st_size
                    if files > MOST_FILES or size > MOST_BYTES:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
    except FileNotFoundError:  # just removed
        return False
    except OSError:  # a path too long, or a folder that cannot be read
        return True
    return False


@cache
def check_sandbox(unsandboxed: bool = False, packages: tuple[str, ...] = ()) -> None:
    """Raises ValueError or RuntimeError as `run_code` would."""
    run_code("", "", packages=packages, unsandboxed=unsandboxed, timeout_s=60.0)


def _run(job: bytes, work: Path, stdout: BinaryIO, stderr: BinaryIO, timeout_s: float) -> tuple[int | None, bytes]:
    """Exit code (None: killed at the timeout) and what was written to the answer pipe."""
    kept = {key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ}
    answers, answer = os.pipe()
    os.set_blocking(answers, False)
    try:
        with subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", str(RUNNER), str(answer)],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            cwd=work,
            env={"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", **kept},  # sets in the same order each time
            pass_fds=[answer],
            start_new_session=True,
        ) as process:
            try:
                code = _wait(process, job, work, timeout_s)
            except BaseException as error:  # ours to end, whatever happens
                os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                code = None
        with contextlib.suppress(BlockingIOError):
            return code, os.read(answers, 4096)
        return code, b""
    finally:
        os.close(answers)
        os.close(answer)


def _wait(process: subprocess.Popen[bytes], job: bytes, work: Path, timeout_s: float) -> int:
    """Its exit code. Raises TimeoutExpired at the timeout. A program that fills its folder is killed."""
    end = time.monotonic() + timeout_s
    given: bytes | None = job
    while True:
        try:
            process.communicate(given, timeout=min(WATCH_S, max(0.0, end - time.monotonic())))
            return process.returncode
        except subprocess.TimeoutExpired:
            given = None
            if time.monotonic() >= end:
                raise
        if _is_full(work):
            os.killpg(process.pid, signal.SIGKILL)


def _reason(code: int | None, verdict: str) -> Reason:
    if code is None:
        return "timed_out"
    return VERDICTS.get(verdict, "crashed" if code < 0 else "failed")


def _tail(file: BinaryIO) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    return file.read().decode(errors="replace")
