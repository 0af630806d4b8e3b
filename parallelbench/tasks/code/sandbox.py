"""Runs model-written code in a process of its own, locked in as far as the system allows.

Each program gets a fresh Python without site packages (`jail.py`), an empty environment, an own empty
folder, limits on memory, processor time and file sizes, and is killed at its timeout. The layers, all without
privileges:

- seccomp: no other process or program can be started, so nothing survives; no sockets; no signals to others; no
  tracing, mounting or changes of file metadata.
- Landlock: only Python's own library can be read, only the working folder written. Names and sizes of other files can
  still be asked for.
- Namespaces, where the system grants them: no network devices, no shared memory, a working folder in memory.
- A Python audit hook, for clear errors.

Without seccomp or Landlock (other systems than Linux, Linux before 5.13) nothing runs unless asked to (`unsandboxed`):
then a program can read and write what the user can. It is a wall against accidents and common mischief, not against
an attacker with a flaw of the kernel. A test's result is proven by a nonce that the process can read only from a pipe
and only needs once the tests are through, so leaving early, swallowing exceptions or printing prove nothing; but
program and tests share an interpreter, so code written to cheat the tests (an object equal to everything, a hunt for
the pipe) can.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, Literal

JAIL = Path(__file__).with_name("jail.py")
TAIL = 2000  # bytes of output kept

Reason = Literal["passed", "failed", "exited", "crashed", "timed_out"]


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
    timeout_s: float = 10.0,
    memory_mb: int = 512,
    unsandboxed: bool = False,
) -> Outcome:
    """Runs a program, then its tests in the same namespace. Of the program and its alternatives, the first that
    compiles counts.

    Raises ValueError where code cannot be isolated and `unsandboxed` is not set, RuntimeError when Python itself
    cannot be started.
    """
    if os.name != "posix":
        raise ValueError(f"model-written code cannot be limited on {sys.platform}; run its tasks on Linux")
    nonce = secrets.token_hex(16).encode()
    job = {
        "programs": [program, *alternatives],
        "tests": tests,
        "timeout_s": timeout_s,
        "memory_mb": memory_mb,
        "unsandboxed": unsandboxed,
    }
    body = json.dumps(job).encode()
    with tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as folder:
        work = Path(folder) / "work"
        work.mkdir()
        with open(f"{folder}/stdout", "w+b") as stdout, open(f"{folder}/stderr", "w+b") as stderr:
            code, answer = _run(len(body).to_bytes(8, "big") + body + nonce, work, stdout, stderr, timeout_s)
            printed, complained = _tail(stdout), _tail(stderr)
    if code is not None and not answer.startswith(b"R"):
        if code == 1 and complained.startswith("no "):
            raise ValueError(
                f"this system has {complained.strip()} to isolate model-written code with; run code tasks on a newer "
                "Linux, or give them unsandboxed=true to run it with your rights"
            )
        raise RuntimeError(f"the sandbox could not start (exit code {code}): {complained}")
    return Outcome(_reason(code, answer[1:] == nonce), printed, complained)


@cache
def check_sandbox(unsandboxed: bool = False) -> None:
    """Raises ValueError or RuntimeError as `run_code` would."""
    run_code("", "", unsandboxed=unsandboxed, timeout_s=60.0)


def _run(job: bytes, work: Path, stdout: BinaryIO, stderr: BinaryIO, timeout_s: float) -> tuple[int | None, bytes]:
    """Exit code (None: killed at the timeout) and what was written to the answer pipe."""
    kept = {key: os.environ[key] for key in ("LD_LIBRARY_PATH",) if key in os.environ}
    answers, answer = os.pipe()
    os.set_blocking(answers, False)
    try:
        with subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", str(JAIL), str(answer)],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            cwd=work,
            env={"PYTHONHASHSEED": "0", **kept},  # sets in the same order each time
            pass_fds=[answer],
            start_new_session=True,
        ) as process:
            try:
                process.communicate(job, timeout=timeout_s)
                code = process.returncode
            except BaseException as error:  # ours to end, whatever happens
                os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                code = None
        with contextlib.suppress(BlockingIOError):
            return code, os.read(answers, 64)
        return code, b""
    finally:
        os.close(answers)
        os.close(answer)


def _reason(code: int | None, proven: bool) -> Reason:
    if code is None:
        return "timed_out"
    if proven and code == 0:
        return "passed"
    return "crashed" if code < 0 else "failed" if code else "exited"


def _tail(file: BinaryIO) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    return file.read().decode(errors="replace")
