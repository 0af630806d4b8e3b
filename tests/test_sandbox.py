"""Model-written code can neither harm the machine nor pass without passing; and what is right passes."""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallelbench.tasks.code import sandbox
from parallelbench.tasks.code.sandbox import RUNNER, check_sandbox, run_code

JAIL = RUNNER.with_name("jail.py")
RIGHT = "def double(x):\n    return 2 * x\n"
TESTS = "assert double(2) == 4\n"


@pytest.fixture(autouse=True, scope="module")
def _isolated() -> None:
    try:
        check_sandbox()
    except ValueError as error:
        pytest.skip(str(error))


def test_a_right_program_passes_and_a_wrong_one_fails() -> None:
    assert run_code(RIGHT, TESTS).passed
    outcome = run_code("def double(x):\n    return x\n", TESTS)
    assert outcome.reason == "failed" and "AssertionError" in outcome.stderr


def test_the_first_program_that_compiles_counts() -> None:
    assert run_code("def double(x:", TESTS, alternatives=[RIGHT]).passed
    assert not run_code("double = abs", TESTS, alternatives=[RIGHT]).passed
    assert "SyntaxError" in run_code("def double(x:", TESTS, alternatives=["\0"]).stderr


ENDLESS = RIGHT + "while True:\n    pass\n"
PROCESSES = "import os, subprocess, sys\n" + RIGHT
MISCHIEF = {
    "endless loop": ENDLESS,
    "sleep": RIGHT + "import time\ntime.sleep(100)\n",
    "fork bomb": PROCESSES + "while True:\n    os.fork()\n",
    "program": PROCESSES + "subprocess.run(['true'])\n",
    "shell": PROCESSES + "assert os.system('true') == 0\n",
    "daemon": PROCESSES + "if os.fork() == 0:\n    os.setsid()\n    import time\n    time.sleep(100)\n",
    "memory bomb": RIGHT + "hoard = []\nwhile True:\n    hoard.append(bytearray(10**7))\n",
    "one huge allocation": RIGHT + "b' ' * 10**11\n",
    "huge output": RIGHT + "while True:\n    print('x' * 1000)\n",
    "huge file": RIGHT + "with open('big', 'wb') as file:\n    while True:\n        file.write(bytes(10**6))\n",
    "read of the user's files": RIGHT + "open('/etc/passwd').read()\n",
    "read of a process": RIGHT + "open(f'/proc/{__import__('os').getppid()}/environ').read()\n".replace("'os'", '"os"'),
    "socket": RIGHT + "import socket\nsocket.socket()\n",
    "connection": RIGHT + "import socket\nsocket.create_connection(('127.0.0.1', 9))\n",
    "kill the parent": PROCESSES + "os.kill(os.getppid(), 9)\n",
    "kill all": PROCESSES + "os.kill(-1, 9)\n",
    "foreign functions": RIGHT + "import ctypes\nctypes.CDLL(None).getpid()\n",
    "exit": PROCESSES + "sys.exit(0)\n",
    "exit at once": PROCESSES + "os._exit(0)\n",
    "stack": RIGHT + "import sys\nsys.setrecursionlimit(10**9)\ndef deep(n):\n    return [deep(n + 1)]\ndeep(0)\n",
    "reads input": RIGHT + "input()\n",
}


@pytest.mark.parametrize("program", MISCHIEF.values(), ids=MISCHIEF)
def test_mischief_is_a_failed_sample(program: str) -> None:
    began = time.perf_counter()
    outcome = run_code(program, TESTS, timeout_s=1.0)
    assert not outcome.passed
    assert time.perf_counter() - began < 5
    assert len(outcome.stdout) <= sandbox.TAIL and len(outcome.stderr) <= sandbox.TAIL


def test_reasons() -> None:
    assert run_code(ENDLESS, TESTS, timeout_s=0.5).reason == "timed_out"
    assert run_code(MISCHIEF["exit"], TESTS).reason == "exited"
    assert run_code(MISCHIEF["exit at once"], TESTS).reason == "exited"
    assert run_code(PROCESSES + "os.abort()\n", TESTS).reason == "crashed"


WRONG = "def double(x):\n    return 5\n"
CHEATS = {
    "exception hook": "import sys\nsys.excepthook = sys.__excepthook__ = lambda *_: None\n",
    "another AssertionError": "import builtins\nbuiltins.AssertionError = type('Fine', (BaseException,), {})\n",
    "own builtins": "import builtins\nbuiltins.exec = builtins.compile = lambda *_, **__: None\n",
    "exit functions": "import atexit, os\natexit.register(os._exit, 0)\nos._exit = lambda code: None\n",
    "printed success": "print('R', 'passed', 'OK')\n",
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
def test_a_wrong_program_does_not_talk_itself_out(cheat: str) -> None:
    assert not run_code(cheat + WRONG, TESTS).passed
    assert not run_code(WRONG + cheat, TESTS).passed


def test_builtins_are_the_tests_own() -> None:
    program = "import builtins\nbuiltins.abs = lambda x: 0\n" + WRONG
    assert not run_code(program, "assert abs(double(2) - 4) < 1\n").passed


def test_nothing_leaks_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    outcome = run_code("import os, sys\nprint(dict(os.environ), os.listdir('.'), sys.path)\n", "")
    assert outcome.passed and "[]" in outcome.stdout
    for word in ("secret", "HOME", "PYTHONPATH", "site-packages", str(Path.cwd())):
        assert word not in outcome.stdout


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    for write in ("open({!r}, 'w')", "import os\nos.mkdir({!r})", "import os\nos.symlink('x', {!r})"):
        assert not run_code(write.format(str(tmp_path / "new")), "").passed
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for change in ("remove({!r})", "truncate({!r}, 0)", "rename({!r}, 'x')", "chmod({!r}, 0)", "utime({!r}, (0, 0))"):
        assert not run_code(f"import os\nos.{change}".format(str(kept)), "").passed
    assert list(tmp_path.iterdir()) == [kept] and kept.read_text() == "kept" and kept.stat().st_mtime > 0
    own = "with open('own', 'w') as file:\n    file.write('x')\nassert open('own').read() == 'x'"
    assert run_code(own, "import os\nos.remove('own')").passed


def test_the_same_each_time() -> None:
    program = "print(list({'ada', 'ben', 'cole', 'dora', 'eva'}))"
    assert run_code(program, "").stdout == run_code(program, "").stdout


# each line is an attempt past Python's own checks: it prints what the kernel answers
ATTEMPTS = """
import ctypes, os, socket
LIBC = jail.LIBC
def attempt(name, act):
    ctypes.set_errno(0)
    try:
        result = act()
    except (OSError, PermissionError) as error:
        result = -1
    print(name, "refused" if result == -1 else "done")
attempt("fork", os.fork)
attempt("vfork", lambda: LIBC.syscall(57))
attempt("clone3", lambda: LIBC.syscall(435, None, 0))
attempt("exec", lambda: os.execv("/bin/true", ["true"]))
attempt("kill", lambda: os.kill(os.getppid(), 0))
attempt("socket", socket.socket)
attempt("ptrace", lambda: LIBC.ptrace(16, os.getppid(), 0, 0))
attempt("unshare", lambda: LIBC.unshare(0x10000000))
attempt("mount", lambda: LIBC.mount(b"x", b"/", b"tmpfs", 0, None))
attempt("shm", lambda: LIBC.shmget(0, 4096, 0o600))
attempt("write", lambda: os.open(OUTSIDE, os.O_WRONLY))
attempt("create", lambda: os.open(OUTSIDE + "x", os.O_WRONLY | os.O_CREAT))
attempt("remove", lambda: os.remove(OUTSIDE))
attempt("chmod", lambda: os.chmod(OUTSIDE, 0))
attempt("chown", lambda: os.chown(OUTSIDE, 1, 1))
attempt("truncate", lambda: os.truncate(OUTSIDE, 0))
attempt("read", lambda: os.open(OUTSIDE, os.O_RDONLY))
attempt("list", lambda: os.listdir(os.path.dirname(OUTSIDE)))
attempt("thread", lambda: __import__("_thread").start_new_thread(int, ()))
attempt("own file", lambda: os.open("own", os.O_WRONLY | os.O_CREAT))
"""


@pytest.mark.parametrize("namespaces", [True, False])
def test_the_kernel_refuses_too(namespaces: bool, tmp_path: Path) -> None:
    outside, work = tmp_path / "outside", tmp_path / "work"
    outside.write_text("kept")
    work.mkdir()
    script = [
        f"import importlib.util, sys\nspec = importlib.util.spec_from_file_location('jail', {str(JAIL)!r})",
        "jail = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(jail)",
        "sys.addaudithook = lambda hook: None",
        "jail.enter_namespaces()" if namespaces else "",
        f"OUTSIDE = {str(outside)!r}",
        "assert not jail.lock(20, 1 << 29)",
        ATTEMPTS,
    ]
    done = subprocess.run(
        [sys.executable, "-S", "-B", "-c", "\n".join(script)], cwd=work, capture_output=True, text=True, timeout=60
    )
    answers = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if line)
    assert done.returncode == 0, done.stderr
    assert answers.pop("thread") == answers.pop("own file") == "done"
    assert len(answers) == 18 and set(answers.values()) == {"refused"}
    assert outside.read_text() == "kept" and os.stat(outside).st_mode & 0o600


def test_without_isolation_nothing_runs_unless_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weak = tmp_path / "runner.py"
    for name in ("runner.py", "peers.py", "jail.py"):
        tmp_path.joinpath(name).write_text(RUNNER.with_name(name).read_text())
    weak.write_text(weak.read_text().replace("import peers", "import peers\njail.enter_landlock = lambda: False", 1))
    monkeypatch.setattr(sandbox, "RUNNER", weak)
    with pytest.raises(ValueError, match=r"no Landlock to isolate.*unsandboxed=true"):
        run_code(RIGHT, TESTS)
    assert run_code(RIGHT, TESTS, unsandboxed=True).passed
    weak.write_text("raise SystemExit('broken')")
    with pytest.raises(RuntimeError, match=r"could not start.*broken"):
        run_code(RIGHT, TESTS)


def test_the_numbers_of_system_calls() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel headers for x86-64 here")
    words = (line.split() for line in header.read_text().splitlines())
    numbers = {word[1].removeprefix("__NR_"): int(word[2]) for word in words if word[:1] == ["#define"] and word[2:]}
    spec = importlib.util.spec_from_file_location("jail", JAIL)
    assert spec and spec.loader
    jail = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(jail)
    for name, number, _ in (entry.split(":") for entry in jail.DENIED):
        assert numbers[name] == int(number)
    for name, (number, _) in jail.FIRST_ARGUMENT.items():
        assert numbers[name] == number
