"""Runs model-written code in processes of its own, locked in as far as the system allows.

Each program gets a fresh Python without site packages (`runner.py`), an empty environment, an own empty
folder, limits on memory, processor time and file sizes, and is killed at its timeout. The layers, all without
privileges (`jail.py`):

- seccomp: no other process or program can be started, so nothing survives; no sockets; no signals to others, by
  whatever call; no tracing, mounting or changes of file metadata.
- Landlock: only Python's own library can be read, only the working folder written. Names and sizes of other files can
  still be asked for.
- Namespaces, where the system grants them: no network devices, no shared memory, a working folder in memory.
- A Python audit hook, for clear errors.

Without seccomp or Landlock (other systems than Linux, Linux before 5.13) nothing runs unless asked to (`unsandboxed`):
then a program can read and write what the user can. It is a wall against accidents and common mischief, not against
an attacker with a flaw of the kernel.

The tests run in a second process, locked in alike. The program's never holds them, nor a way to the verdict: it only
answers calls, and of its answers plain values alone come across (`peers.py`). So leaving early, printing, hooks,
replaced built-ins, a search through frames and memory, or an object that equals everything prove nothing.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, Literal

RUNNER = Path(__file__).with_name("runner.py")
TAIL = 2000  # bytes of output kept

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
    timeout_s: float = 10.0,
    memory_mb: int = 512,
    unsandboxed: bool = False,
) -> Outcome:
    """Runs a program, and its tests in another process. Of the program and its alternatives, the first that compiles
    counts.

    setup: code that the tests need, run before them beside them.
    asked: names that the program has to define. Other names in the tests are the program's where neither `setup` nor
        Python has them.

    Raises ValueError where code cannot be isolated and `unsandboxed` is not set, RuntimeError when Python itself
    cannot be started.
    """
    if os.name != "posix":
        raise ValueError(f"model-written code cannot be limited on {sys.platform}; run its tasks on Linux")
    limits = {"timeout_s": timeout_s, "memory_mb": memory_mb, "unsandboxed": unsandboxed}
    parts = ({"programs": [program, *alternatives], **limits}, {"tests": tests, "setup": setup, "asked": [*asked]})
    bodies = [json.dumps(part).encode() for part in parts]
    job = b"".join(len(body).to_bytes(8, "big") + body for body in bodies)
    with tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as folder:
        work = Path(folder) / "work"
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
    return Outcome(_reason(code, answer[1:].decode()), printed, complained)


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
            [sys.executable, "-S", "-s", "-P", "-B", "-X", "utf8", str(RUNNER), str(answer)],
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


def _reason(code: int | None, verdict: str) -> Reason:
    if code is None:
        return "timed_out"
    return VERDICTS.get(verdict, "crashed" if code < 0 else "failed")


def _tail(file: BinaryIO) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    return file.read().decode(errors="replace")
