"""Model-written code can neither harm the machine nor pass without passing; and what is right passes."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallelbench.tasks.code import sandbox
from parallelbench.tasks.code.sandbox import RUNNER, run_code

pytestmark = pytest.mark.usefixtures("sandboxed")

JAIL = RUNNER.with_name("jail.py")
RIGHT = "def double(x):\n    return 2 * x\n"
TESTS = "assert double(2) == 4\n"


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
# what a program can do to seem right, each beside a wrong function
CHEATS = {
    "exception hook": "sys.excepthook = sys.__excepthook__ = lambda *_: None",
    "another AssertionError": "builtins.AssertionError = type('Fine', (BaseException,), {})",
    "own exec and compile": "builtins.exec = builtins.compile = lambda *_, **__: None",
    "exec of the main module": "sys.modules['__main__'].exec = lambda *_: None",
    "compile of the main module": "sys.modules['__main__'].compile = lambda *_: compile('', '', 'exec')",
    "the main module's functions": "sys.modules['__main__'].run_tests = lambda *_, **__: 'passed'",
    "exit functions": "atexit.register(os._exit, 0)",
    "printed success": "print('R', 'passed', 'Rpassed', 'OK', flush=True)",
    "success on every descriptor": "[os.write(fd, b'Rpassed') for fd in range(3, 64) if is_no_channel(fd)]",
    "read of every descriptor": "[os.read(fd, 99) for fd in range(64) if is_no_channel(fd)]",
    "locals of the callers": "[frame.f_locals.update(tests='', code=compile('', '', 'exec')) for frame in frames()]",
    "globals of the callers": "[frame.f_globals.update(run_tests=lambda *_, **__: 'passed') for frame in frames()]",
    "search of all objects": "[o.clear() for o in gc.get_objects() if type(o) is dict and 'tests' in o]",
    "search of all code": "[o for o in gc.get_objects() if getattr(o, 'co_filename', '') == '<tests>'][0]",
    "trace function": "sys.settrace(lambda frame, *_: frame.f_locals.clear())",
    "profile function": "sys.setprofile(lambda frame, *_: frame.f_locals.clear())",
    "import hook": "sys.meta_path.insert(0, type('Hook', (), {'find_spec': lambda *_: None}))",
    "module of the tests' name": "open('math.py', 'w').write('isclose = lambda *_, **__: True')",
    "replaced library": "math.isclose = lambda *_, **__: True",
    "replaced encoder": "json.dumps = lambda *_, **__: '[\"answer\", 4]'",
    "answers given in advance": "[os.write(fd, FOUR) for fd in range(3, 64) if not is_no_channel(fd)]",
    "verdict as an answer": "sys.modules['peers'].Peer.pack = lambda *_: 'passed'",
    "built-in as an answer": "sys.modules['peers'].Peer.pack = lambda *_: ['builtin', 'all']",
    "thread": "threading.Thread(target=print, args=['Rpassed'], daemon=True).start()",
    "alarm": "signal.signal(signal.SIGALRM, lambda *_: os._exit(0)), signal.alarm(1), time.sleep(2)",
    "weak comparison": "operator.eq = lambda *_: True",
    "own assert": "builtins.__debug__ = False",
    "memory of the process": "open('/proc/self/mem', 'r+b').write(b'x')",
}
# instead of the wrong function, or behind it: its tests are `assert double(2) == 4` and such
ANY = (
    "class Any({}):\n    __eq__ = lambda *_: True\n    __ne__ = lambda *_: False\n    __hash__ = None\n"
    "double = lambda x: Any()"
)
FAKES = {
    "equal to everything": ANY.format("object"),
    "size of everything": ANY.format("object").replace("eq", "len"),
    "text equal to everything": ANY.format("str"),
    "number equal to everything": ANY.format("int"),
    "list equal to everything": ANY.format("list"),
    "mock": "from unittest.mock import ANY\ndouble = lambda x: ANY",
    "not a number": "double = lambda x: float('nan')",
    "function": "double = lambda x: double",
    "own class": "class double:\n    def __new__(cls, x): return object.__new__(cls)\n    __eq__ = lambda *_: True",
    "exit when called": "import sys\ndef double(x): sys.exit(0)",
    "exit at once when called": "import os\ndef double(x): os._exit(0)",
    "exit of another kind when called": "def double(x): raise KeyboardInterrupt",
    "end of the iteration": "def double(x): raise StopIteration",
    "exit": "import sys\nsys.exit(0)",
    "exit at once": "import os\nos._exit(0)",
    "closed channel": "import os\nos.closerange(0, 64)",
    "names of built-ins": "abs = lambda x: 0\nsorted = list = all = lambda *_: True\ndouble = lambda x: 5",
    "names of the tests'": "def check(candidate): pass\ndouble = lambda x: 5",
    "names of the setup's": "def doubled(x): return 5\ndouble = lambda x: 5",
    "false module": "import cmath as math\nmath.isclose = lambda *_, **__: True\ndouble = lambda x: 5",
    "no function": "",
}
CHEATING = (
    "import atexit, builtins, gc, json, math, operator, os, signal, stat, sys, threading, time\n"
    "FOUR = bytes(7) + b'\\x0d[\"answer\", 4]'\n"
    "is_no_channel = lambda fd: not stat.S_ISFIFO(os.fstat(fd).st_mode)\n"
    "def frames():\n    frame = sys._getframe()\n    while frame := frame.f_back:\n        yield frame\n"
)
CHEATED = (
    "import math\nTESTED = 2\ndef check(candidate):\n    assert candidate(TESTED) == 4\n"
    "    assert abs(candidate(3) - 6) < 1\n    assert math.isclose(candidate(4), doubled(4))\n"
    "check(double)\nassert not double(TESTED) != 4"
)
SETUP = "def doubled(x):\n    return 2 * x\n"


def cheats(program: str) -> bool:
    return run_code(program, CHEATED, setup=SETUP, asked=["double"], timeout_s=5.0).passed


def guarded(cheat: str) -> str:
    return f"try:\n    {cheat}\nexcept Exception:\n    pass\n"


def test_the_cheated_tests_can_be_passed() -> None:
    assert cheats(RIGHT)
    assert cheats(CHEATING + RIGHT)


def test_a_wrong_program_does_not_talk_itself_out() -> None:
    calm = [guarded(cheat) for name, cheat in CHEATS.items() if name not in ("alarm", "replaced encoder")]
    for tampered in (calm, [part for part in calm if ".pack" not in part and "answer" not in part]):
        assert not cheats(CHEATING + "".join(tampered) + WRONG)


def test_fakes_do_not_pass() -> None:
    tried = ("equal to everything", "number equal to everything", "exit when called", "names of built-ins", "mock")
    assert not [name for name in tried if cheats(FAKES[name])]


@pytest.mark.slow
def test_no_cheat_passes_alone() -> None:
    programs = {name: CHEATING + guarded(cheat) + WRONG for name, cheat in CHEATS.items()}
    programs |= {f"late {name}": CHEATING + WRONG + guarded(cheat) for name, cheat in CHEATS.items()}
    calls = {name: cheat.replace("\n", "\n    ") for name, cheat in CHEATS.items()}
    programs |= {f"called {n}": f"{CHEATING}def double(x):\n    {c}\n    return 5\n" for n, c in calls.items()}
    assert not [name for name, program in (programs | FAKES).items() if cheats(program)]
    print(f"{len(programs)} cheats and {len(FAKES)} fakes tried, none passed")


def test_builtins_are_the_tests_own() -> None:
    program = "import builtins\nbuiltins.abs = lambda x: 0\nabs = builtins.abs\n" + WRONG
    assert not run_code(program, "assert abs(double(2) - 4) < 1\n").passed
    added = "def sum(a, b):\n    return a + b\n"
    assert run_code(added, "assert sum(1, 2) == 3", asked=["sum"]).passed
    assert run_code(added, "assert sum([1, 2]) == 3").passed


# what tests hand over and get back, as between functions of one process
CARRIED = """
import collections, math, re
def found(text): return re.search("b", text)
def same(x): return x
def kinds(): return [None, True, 2**80, -1.5, 1j, "\\ud800", b"\\0", (1,), {2}, frozenset({3}), {(4, "a"): [5]}, int]
def counted(text): return collections.Counter(text)
def walked(n): yield from range(n)
def called(f, x): return f(x)
def raised(): raise ZeroDivisionError("nothing")
class Own(Exception): pass
def own(): raise Own("mine")
class Node:
    def __init__(self, value): self.value, self.left = value, None
def depth(node): return 0 if node is None else 1 + depth(node.left)
"""
CARRIED_TESTS = """
for value in kinds():
    assert same(value) == value and type(same(value)) is type(value)
assert kinds()[:5] == [None, True, 2**80, -1.5, 1j] and kinds()[-2:] == [{(4, "a"): [5]}, int]
assert math.isnan(same(math.nan)) and same(-math.inf) == -math.inf
assert counted("aab") == {"a": 2, "b": 1}
assert list(walked(3)) == [0, 1, 2] and sum(walked(3)) == 3
assert called(lambda x: same(x) + 1, 2) == 3 and called(len, "abc") == 3 and called(lambda f: f is same, same)
assert found("abc") and not found("ac") and found("abc").group(0) == found("abc")[0] == "b"
root = Node(1)
root.left = Node(2)
assert depth(root) == 2 and root.left.value == 2 and same(root) is root
try:
    raised()
except ZeroDivisionError as error:
    assert str(error) == "nothing"
else:
    raise AssertionError
try:
    own()
except RuntimeError as error:
    assert "mine" in str(error)
"""


def test_values_are_carried_between_tests_and_program() -> None:
    outcome = run_code(CARRIED, CARRIED_TESTS)
    assert outcome.passed, outcome.stderr


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
import ctypes, fcntl, os, resource, signal, socket, struct, subprocess
LIBC = jail.LIBC
PARENT = os.getppid()
READ, WRITE = os.pipe()
def attempt(name, act, *args):
    ctypes.set_errno(0)
    try:
        result = act(*args)
    except (OSError, PermissionError, ValueError) as error:
        result = -1
    print(name, "refused" if result == -1 else "done")
def opened(path, flags=os.O_RDONLY):
    return lambda: os.open(path, flags)
def linked(path):
    os.symlink(path, "link")
    return os.open("link", os.O_RDONLY)
def entered(path, name):
    os.chdir(path)
    return os.open(name, os.O_RDONLY)
FOLDER = os.path.dirname(OUTSIDE)
for name, act in {
    "fork": os.fork,
    "vfork": lambda: LIBC.vfork(),
    "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "program": lambda: subprocess.run(["/bin/true"]).returncode,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "exec of memory": lambda: os.execve(os.memfd_create("x"), ["x"], {}),
    "session": os.setsid,
    "group": lambda: os.setpgid(0, 0),
    "kill the parent": lambda: os.kill(PARENT, 0),
    "kill the group": lambda: os.killpg(os.getpgid(0), 0),
    "kill all": lambda: os.kill(-1, 0),
    "signal by thread": lambda: LIBC.tgkill(PARENT, PARENT, 0),
    "descriptor of a process": lambda: os.pidfd_open(PARENT),
    "owner of a pipe": lambda: fcntl.fcntl(READ, fcntl.F_SETOWN, PARENT),
    "owner of a pipe, extended": lambda: fcntl.fcntl(READ, 15, struct.pack("ii", 1, PARENT)),
    "signal of a pipe": lambda: fcntl.fcntl(READ, 10, signal.SIGURG),
    "notice of a folder": lambda: fcntl.fcntl(os.open(".", os.O_RDONLY), fcntl.F_NOTIFY, 0x80000004),
    "lease": lambda: fcntl.fcntl(os.open("/dev/null", os.O_RDONLY), 1024, 0),
    "owner by ioctl": lambda: fcntl.ioctl(READ, 0x8901, struct.pack("i", PARENT)),
    "group by ioctl": lambda: fcntl.ioctl(READ, 0x8902, struct.pack("i", PARENT)),
    "signals by ioctl": lambda: fcntl.ioctl(READ, 0x5452, struct.pack("i", 1)),
    "typing": lambda: fcntl.ioctl(0, 0x5412, b"x"),
    "terminal": lambda: fcntl.ioctl(0, 0x540E, 0),
    "terminal's group": lambda: fcntl.ioctl(0, 0x5410, struct.pack("i", PARENT)),
    "console": lambda: fcntl.ioctl(0, 0x541C, b"x"),
    "outliving the parent": lambda: LIBC.prctl(1, 0, 0, 0, 0),
    "tracers": lambda: LIBC.prctl(0x59616D61, -1, 0, 0, 0),
    "dumps": lambda: LIBC.prctl(4, 1, 0, 0, 0),
    "another filter": lambda: LIBC.prctl(22, 0, 0, 0, 0),
    "privileges": lambda: LIBC.prctl(38, 0, 0, 0, 0),
    "capabilities": lambda: LIBC.capset(struct.pack("=Ii", 0x20080522, 0), b"\\xff" * 24),
    "limits": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
    "limits of the parent": lambda: resource.prlimit(PARENT, resource.RLIMIT_CPU, (1, 1)),
    "priority of the parent": lambda: os.setpriority(os.PRIO_PROCESS, PARENT, 19),
    "cores of the parent": lambda: os.sched_setaffinity(PARENT, {0}),
    "schedule of the parent": lambda: os.sched_setscheduler(PARENT, os.SCHED_IDLE, os.sched_param(0)),
    "socket": socket.socket,
    "local socket": lambda: socket.socket(socket.AF_UNIX),
    "datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "kernel's socket": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "unshare": lambda: LIBC.unshare(0x10000000),
    "mount": lambda: LIBC.mount(b"x", b"/", b"tmpfs", 0, None),
    "unmount": lambda: LIBC.umount2(b".", 2),
    "root": lambda: os.chroot("."),
    "ptrace": lambda: LIBC.ptrace(16, PARENT, 0, 0),
    "traced": lambda: LIBC.ptrace(0, 0, 0, 0),
    "name of the machine": lambda: socket.sethostname("x"),
    "time": lambda: LIBC.settimeofday(struct.pack("qq", 0, 0), None),
    "shared memory": lambda: LIBC.shmget(0, 4096, 0o600),
    "shared memory of others": lambda: LIBC.shmat(SEGMENT, None, 0o10000),
    "removal of shared memory": lambda: LIBC.shmctl(SEGMENT, 0, None),
    "queue": lambda: LIBC.msgget(0, 0o600),
    "semaphore": lambda: LIBC.semget(0, 1, 0o600),
    "shared memory by name": opened("/dev/shm/x", os.O_RDWR | os.O_CREAT),
    "watch": lambda: LIBC.inotify_init1(0),
    "watch of all": lambda: LIBC.fanotify_init(0, 0),
    "read": opened(OUTSIDE),
    "write": opened(OUTSIDE, os.O_WRONLY),
    "append": opened(OUTSIDE, os.O_WRONLY | os.O_APPEND),
    "emptying": opened(OUTSIDE, os.O_WRONLY | os.O_TRUNC),
    "create": opened(OUTSIDE + "x", os.O_WRONLY | os.O_CREAT),
    "file without a name": opened(FOLDER, os.O_TMPFILE | os.O_RDWR),
    "remove": lambda: os.remove(OUTSIDE),
    "truncate": lambda: os.truncate(OUTSIDE, 0),
    "rename": lambda: os.rename(OUTSIDE, OUTSIDE + "x"),
    "take": lambda: os.rename(OUTSIDE, "taken"),
    "link": lambda: os.link(OUTSIDE, "linked"),
    "symbolic link": lambda: linked(OUTSIDE),
    "link outside": lambda: os.symlink("x", OUTSIDE + "x"),
    "folder outside": lambda: os.mkdir(OUTSIDE + "x"),
    "pipe outside": lambda: os.mkfifo(OUTSIDE + "x"),
    "chmod": lambda: os.chmod(OUTSIDE, 0),
    "chown": lambda: os.chown(OUTSIDE, 1, 1),
    "times": lambda: os.utime(OUTSIDE, (0, 0)),
    "attributes": lambda: os.setxattr(OUTSIDE, "user.x", b"x"),
    "list": lambda: os.listdir(FOLDER),
    "list of the root": lambda: os.listdir("/"),
    "list of processes": lambda: os.listdir("/proc"),
    "own environment": opened("/proc/self/environ"),
    "own memory": opened("/proc/self/mem", os.O_RDWR),
    "memory of the parent": opened(f"/proc/{PARENT}/mem"),
    "environment of the parent": opened(f"/proc/{PARENT}/environ"),
    "descriptors of the parent": opened(f"/proc/{PARENT}/fd/1", os.O_WRONLY),
    "program of the parent": lambda: os.readlink(f"/proc/{PARENT}/exe"),
    "users": opened("/etc/passwd"),
    "settings of the kernel": opened("/proc/sys/kernel/core_pattern", os.O_WRONLY),
    "devices": opened("/dev/zero"),
    "terminal of the user": opened("/dev/tty", os.O_RDWR),
    "memory of the machine": opened("/dev/mem"),
    "Python's library": opened(os.__file__, os.O_WRONLY),
    "way up": opened("../outside"),
    "path and link": lambda: os.open(f"/proc/self/fd/{os.open(OUTSIDE, os.O_PATH)}", os.O_RDONLY),
    "other folder": lambda: entered(FOLDER, "outside"),
}.items():
    attempt(name, act)
for name, number in NUMBERS.items():
    attempt(name, LIBC.syscall, number, *([PARENT, 0, 0, 0, 0, 0] if "of a process" in name else [-1] * 6))
attempt("thread", lambda: __import__("_thread").start_new_thread(int, ()))
os.chdir(HOME)
attempt("own file", lambda: os.open("own", os.O_WRONLY | os.O_CREAT))
attempt("own lock", lambda: fcntl.lockf(os.open("own", os.O_WRONLY), fcntl.LOCK_EX))
attempt("own flags", lambda: fcntl.fcntl(READ, fcntl.F_SETFL, os.O_NONBLOCK))
attempt("own size", lambda: fcntl.ioctl(READ, 0x541B, bytes(4)))
"""
NUMBERS = {  # on x86-64, those that libc does not name
    **{
        "clone3": 435,
        "exec at": 322,
        "signal to a thread": 200,
        "queued signal": 129,
        "queued signal to a thread": 297,
    },
    **{"signal by descriptor": 424, "ring": 425, "open again": 437, "mode again": 452, "join": 308, "root again": 155},
    **{"memory of a process, read": 310, "memory of a process, written": 311, "advice of a process": 440},
    **{"comparison of a process": 312, "priority of input": 251, "attributes of the schedule": 314, "pages": 256},
    **{"moved pages of a process": 279, "program in the kernel": 321, "events": 298, "faults": 323, "keys": 250},
    **{"key": 248, "request": 249, "personality": 135, "module": 175, "module of a file": 313, "end of a module": 176},
    **{"kernel": 246, "restart": 169, "swap": 167, "accounts": 163, "quota": 179, "log": 103, "ports": 172},
    **{"file by handle": 304, "handle of a file": 303, "operations": 65, "message": 69, "received message": 70},
    **{"queue by name": 240, "end of a queue": 241, "clock": 227, "watch by descriptor": 253, "new mount": 428},
    **{"fork of the other kind": 0x40000039, "kill of the other kind": 0x4000003E, "call to come": 999},
}


@pytest.mark.parametrize(("namespaces", "scopes"), [(True, True), (False, True), (False, False)])
def test_the_kernel_refuses_too(namespaces: bool, scopes: bool, tmp_path: Path) -> None:
    """Without scopes Landlock is what it was before Linux 6.12."""
    outside, work = tmp_path / "outside", tmp_path / "work"
    outside.write_text("kept")
    work.mkdir()
    source = JAIL.read_text()
    assert "3 * (version >= 6)" in source
    own = tmp_path / "jail.py"
    own.write_text(source if scopes else source.replace("3 * (version >= 6)", "0"))
    segment = ctypes.CDLL(None).shmget(0, 4096, 0o600)
    script = [
        f"import sys\nsys.path.append({str(tmp_path)!r})\nimport jail\nsys.addaudithook = lambda hook: None",
        "jail.enter_namespaces()" if namespaces else "",
        f"OUTSIDE, HOME, SEGMENT = {str(outside)!r}, {str(work)!r}, {segment}",
        f"NUMBERS = {NUMBERS if platform.machine() == 'x86_64' else {}}",
        "assert not jail.lock(20, 1 << 29)",
        ATTEMPTS,
    ]
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-B", "-c", "\n".join(script)], cwd=work, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert ctypes.CDLL(None).shmctl(segment, 0, None) == 0, "it was removed"
        segment = -1
    finally:
        ctypes.CDLL(None).shmctl(segment, 0, None)
    answers = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if line)
    assert [name for name, answer in answers.items() if answer == "done"] == [
        *("thread", "own file", "own lock", "own flags", "own size")
    ]
    assert len(answers) > 90 + len(NUMBERS) * (platform.machine() == "x86_64")
    assert outside.read_text() == "kept" and os.stat(outside).st_mode & 0o600


def test_no_signal_reaches_the_parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where Landlock has no scopes, the kernel would send any signal for a pipe to its owner."""
    for name in ("runner.py", "peers.py", "jail.py"):
        source = RUNNER.with_name(name).read_text()
        tmp_path.joinpath(name).write_text(source.replace("3 * (version >= 6)", "0"))
    monkeypatch.setattr(sandbox, "RUNNER", tmp_path / "runner.py")
    received: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: received.append(number))
    owner = f"r, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, {os.getpid()})\n"
    try:
        outcome = run_code(
            f"import fcntl, os, signal\n{owner}fcntl.fcntl(r, 10, signal.SIGUSR1)\n"
            "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)\nos.write(w, b'x')\n",
            "",
        )
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not received and outcome.reason == "failed" and "PermissionError" in outcome.stderr


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
