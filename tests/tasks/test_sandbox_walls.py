"""What a program can send to the tests' process, or do to a machine without user namespaces, proves and breaks nothing;
and values of Python's library compare as within one process."""

import glob
import importlib.util
import re
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from parallelbench.tasks.code import sandbox
from parallelbench.tasks.code.sandbox import RUNNER, run_code

pytestmark = pytest.mark.usefixtures("sandboxed")

WRONG = "def double(x):\n    return 5\n"
RIGHT = "def double(x):\n    return 2 * x\n"
TESTS = "assert double(2) == 4\n"


SENDING = """
import json, os, stat, sys, threading, types
def sent(*message):
    data = json.dumps(message).encode()
    for fd in range(3, 20):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode): os.write(fd, len(data).to_bytes(8, "big") + data)
        except OSError: pass
CODE = "import os, sys\\nfor fd in range(3, 20):\\n try: os.write(fd, b'Rpassed')\\n except OSError: pass\\nos._exit(0)"
EXEC = [["builtin", "exec"], ["named", "builtins", "exec"], ["mine", "exec"], ["module", "os"]]
def peer(): return next(f.f_locals["self"] for f in frames() if "send" in vars(type(f.f_locals.get("self", 0))) or
    hasattr(f.f_locals.get("self", 0), "given"))
def frames():
    frame = sys._getframe()
    while frame := frame.f_back: yield frame
class Lie(int):
    __eq__ = __lt__ = __gt__ = lambda *_: True
    __hash__ = int.__hash__
class Reduced:
    def __reduce__(self): return exec, (CODE,)
    __reduce_ex__ = lambda self, _: (exec, (CODE,))
"""
# each is what a wrong `double` does before it returns 5, or in place of that; TRUSTED hands it functions and objects
CHEATS = {
    "exec by name": "for name in EXEC: sent('ask', 'call', [name, ['tuple', [CODE]], ['dict', None, []]])",
    "exec by name, as lists": "for name in EXEC: sent('ask', 'call', [name, ['list', None, [CODE]], ['dict', []]])",
    "import by name": "sent('ask', 'call', [['named', 'importlib', 'import_module'], ['tuple', ['os']], ['dict', 0]])",
    "globals of what was given": "for key in range(9): sent('ask', 'get', [['yours', key], '__globals__'])",
    "class of what was given": "for key in range(9): sent('ask', 'get', [['yours', key], '__class__'])",
    "owner of what was given": "for key in range(9): sent('ask', 'get', [['yours', key], '__self__'])",
    "code of what was given": "for key in range(9): sent('ask', 'set', [['yours', key], '__code__', None])",
    "load in the tests' process": "sent('ask', 'load', [['tuple', []], ['tuple', []]])",
    "other operations": "sent('ask', 'isinstance', [['yours', 0], 1]); sent('ask', 'eval', ['1']); sent('ask')",
    "answers of exec": "return sys.modules['peers'].Peer.pack and exec",
    "an answer by name": "[sent('answer', ['named', *name], []) for name in (['builtins', 'exec'], ['os', '_exit'])]",
    "an answer of a module": "sent('answer', ['named', 'os', ''], [])",
    "an answer of another kind": "sent('answer', {'__class__': 'int'}, []); sent('answer'); sent(5); sent()",
    "state of what was not shared": "sent('answer', 4, [[0, [4]], [-1, [4]], [99, []]])",
    "a value made by exec": "sent('answer', ['value', 'builtins.exec', [CODE]], [])",
    "an exception that carries": "e = ValueError(exec, CODE); e.x = types.CodeType; e.__traceback__ = None; raise e",
    "an exception of exec": "sent('raise', ['error', ['named', 'builtins', 'exec'], ['tuple', [CODE]], {}, ''], [])",
    "no exception": "sent('raise', 4, []); sent('raise', ['named', 'builtins', 'SystemExit'], [])",
    "an end of the tests": "raise SystemExit(0)",
    "an import that failed": "raise ModuleNotFoundError('no numpy', name='numpy')",
    "an import that failed, as a class": "sent('raise', ['named', 'builtins', 'ModuleNotFoundError'], [])",
    "a class of exceptions": "sent('raise', ['class', 0, 'tests', 'double', []], [])",
    "a record with code for names": "sent('answer', ['record', ['x', 'a=exec(CODE)'], [4]], [])",
    "pickles": "return Reduced()",
    "lying number": "return Lie(5)",
    "lying keys": "return {Lie(5): Lie(5)}",
    "descriptors": "[os.write(int(fd), b'Rpassed') for fd in os.listdir('/proc/self/fd') if int(fd) > 2]",
    "descriptor in the arguments": "[os.write(int(word), b'Rpassed') for word in sys.argv if word.isdigit()]",
    "every small descriptor": "[os.write(fd, b'passed') for fd in range(3, 20)]",
    "leaving": "os._exit(0)",
    "recursion": "double(x)",
    "deep answer": "a = []\n    for _ in range(10**5): a = [a]\n    return a",
    "thread that answers": "threading.Thread(target=sent, args=('answer', 4, [])).start() if 0 else None",
    "trace": "sys.modules['jail'].LIBC.ptrace(16, os.getppid(), 0, 0)",
    "signal": "os.kill(os.getppid(), 2)",
    "built-ins": "__builtins__['AssertionError'] = type('Fine', (Warning,), {})",
    "unittest": "import unittest; unittest.TestCase.assertEqual = lambda *_: None",
}
# what the tests of a careless author hand over
TRUSTED = """
import functools, operator, unittest
class Box:
    def __init__(self): self.seen = []
    def put(self, value): self.seen.append(value)
    def secret(self): return wanted
wanted = 4
box = Box()
answer = double(2, box, lambda f, *args: f(*args), functools.partial(max, 1), (n for n in [1]), [wanted])
unittest.TestCase().assertEqual(answer, wanted)
assert answer == 4 and wanted == 4 and not answer != 4
assert operator.eq(double(3, box, print, len, iter([]), []), 6)
"""


def cheats(name: str) -> bool:
    program = f"{SENDING}\ndef double(x, *given):\n    {CHEATS[name]}\n    return 5\n"
    outcome = run_code(program, TRUSTED, asked=["double"], timeout_s=5.0)
    assert outcome.reason != "timed_out" or name == "recursion"
    return outcome.passed


def test_the_trusting_tests_can_be_passed() -> None:
    assert run_code(SENDING + "def double(x, *given):\n    return 2 * x\n", TRUSTED, asked=["double"]).passed


def test_no_code_reaches_the_tests_process() -> None:
    tried = ("exec by name", "globals of what was given", "an answer by name", "an import that failed, as a class")
    assert not [name for name in tried if cheats(name)]
    flood = SENDING + "for name in EXEC: sent('ask', 'call', [name, ['tuple', [CODE]], ['dict', None, []]])\n" + WRONG
    assert not run_code(flood, TESTS, asked=["double"]).passed


@pytest.mark.slow
def test_no_cheat_passes() -> None:
    assert not [name for name in CHEATS if cheats(name)]


def test_what_the_tests_hand_over_runs_with_plain_values_only() -> None:
    """A call-back gets what the program sends: data, objects of its own, or what the tests gave, never a built-in."""
    seen = "def double(x, call): return [call(v) for v in (exec, eval, open, __import__, type, int, len, sent)]\n"
    tests = "kinds = []\ndef call(value):\n    kinds.append(type(value).__name__ if value is not int else 'int')\n"
    tests += "double(2, call)\nassert kinds == ['Remote'] * 5 + ['int'] + ['Remote'] * 2, kinds\n"
    outcome = run_code(SENDING + seen, tests, asked=["double"])
    assert outcome.passed, outcome.stderr


def test_a_verdict_needs_the_token() -> None:
    """Even bytes on the tests' own descriptor are no verdict: here the tests write them, as a program never could."""
    tests = (
        "import os\nfor fd in range(3, 20):\n    try: os.write(fd, b'passed')\n    except OSError: pass\nos._exit(0)"
    )
    assert run_code(RIGHT, tests).reason != "passed"


SOCKETS = """
import platform, sys
LIBC = sys.modules["jail"].LIBC
def double(base):
    numbers = NUMBERS[platform.machine() != "x86_64"]
    return [number for number in numbers if LIBC.syscall(base + number, -1, -1, -1, -1, -1, -1) != -1]
assert LIBC.syscall(53, 1, 2, 0, bytes(bytearray(8))) == -1
"""


def test_no_sockets_by_number() -> None:
    """x86-64 and aarch64: socket, socketpair, connect, bind, listen, accept, accept4, send*, recv*, options, shutdown;
    nor by the numbers of x32."""
    numbers = [[41, 53, 42, 49, 50, 43, 288, 44, 46, 307, 45, 47, 299, 48, 54, 55, 51, 52]]
    numbers.append([198, 199, 203, 200, 201, 202, 242, 206, 211, 269, 207, 212, 243, 210, 208, 209, 204, 205])
    outcome = run_code(f"NUMBERS = {numbers}\n{SOCKETS}", "assert double(0) == double(0x40000000) == []\n")
    assert outcome.passed, outcome.stderr


def test_another_architecture_is_killed() -> None:
    """The filter begins with the architecture, so calls by i386's numbers (`int 0x80`) end the process."""
    jail = RUNNER.with_name("jail.py").read_text()
    assert '(EQUAL, arch, 0, "kill")' in jail and jail.index("(LOAD, 4, 0, 0)") < jail.index("(LOAD, 0, 0, 0)")


def test_the_allowed_numbers_are_those_of_the_kernel() -> None:
    headers = [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h")]
    if not all(header.exists() for header in headers):
        pytest.skip("no kernel headers here")
    spec = importlib.util.spec_from_file_location("jail", RUNNER.with_name("jail.py"))
    assert spec and spec.loader
    jail = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(jail)
    entries = [entry.split(":") for entry in jail.ALLOWED]
    entries += [[name, str(of[0]), str(of[1])] for name, of in {**jail.LIMITED, "clone": jail.CLONE}.items()]
    for column, header in enumerate(headers):
        found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
        numbers = dict(found) | ({"newfstatat": dict(found)["fstatat"]} if column else {})
        assert [entry for entry in entries if numbers.get(entry[0], "0") != entry[1 + column]] == []


BOMBS = {
    "deep folders": "import os\nfor i in range(20000): os.mkdir('d'); os.chdir('d')",
    "deep folders of long names": "import os\nfor i in range(2000): os.mkdir('d' * 250); os.chdir('d' * 250)",
    "many files": "for i in range(10**6): open(str(i), 'w').close()",
    "many bytes": "for i in range(300): open(str(i), 'wb').write(bytes(1 << 20))",
    "closed folders": "import os\nos.makedirs('a/b')\nos.mkdir('a/c', 0)\nos.symlink('b', 'a/d')\nos.umask(511)",
}


@pytest.fixture
def without_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("runner.py", "peers.py", "jail.py"):
        source = RUNNER.with_name(name).read_text()
        assert name != "runner.py" or "jail.enter_namespaces()" in source
        (tmp_path / name).write_text(source.replace("jail.enter_namespaces()", "pass"))
    monkeypatch.setattr(sandbox, "RUNNER", tmp_path / "runner.py")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    (tmp_path / "temp").mkdir()
    return tmp_path / "temp"


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_folders_without_namespaces(bomb: str, without_namespaces: Path) -> None:
    began = time.perf_counter()
    outcome = run_code(f"{bomb}\n{RIGHT}", TESTS, timeout_s=8.0)
    assert outcome.passed == (bomb == BOMBS["closed folders"]) and time.perf_counter() - began < 15
    assert glob.glob(f"{without_namespaces}/*") == []


def test_a_program_may_use_its_folder(without_namespaces: Path) -> None:
    assert run_code("import os\nos.mkdir('a')\nopen('a/x', 'w').write('1')\n" + RIGHT, TESTS).passed


def test_the_first_program_that_defines_what_is_asked_counts() -> None:
    assert run_code("Solution\n" + RIGHT, TESTS, alternatives=[RIGHT], asked=["double"]).passed
    assert run_code("def other(): pass", TESTS, alternatives=["double = 3", RIGHT], asked=["double"]).passed
    assert not run_code(WRONG, TESTS, alternatives=[RIGHT], asked=["double"]).passed
    assert run_code("raise SystemExit\n", TESTS, alternatives=[RIGHT], asked=["double"]).reason == "exited"
    assert "NameError" in run_code("Solution", TESTS, alternatives=["x = 1"], asked=["double"]).stderr


LIBRARY = """
import collections, datetime, enum, json
from decimal import Decimal
from fractions import Fraction
class Point:
    def __init__(self, x, y): self.x, self.y = x, y
    def __eq__(self, other): return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)
    def __hash__(self): return hash((self.x, self.y))
    def __lt__(self, other): return self.x < other.x
    def __add__(self, other): return Point(self.x + other.x, self.y + other.y)
    def __str__(self): return f"({self.x}, {self.y})"
class Own(Exception):
    def __init__(self, code, more):
        super().__init__(f"code {code}")
        self.code = code
class Narrow(Own): pass
class Colour(enum.Enum): RED = 1
Pair = collections.namedtuple("Pair", "a b")
def same(x): return x
def half(n): return Fraction(n, 2), Decimal(n) / 2, datetime.date(2024, 2, n), range(n), {n: 1}.keys(), {n, 1}, n * 1j
def kept(n): return collections.deque([1, n], maxlen=2), collections.Counter("aab"), Pair(1, n)
def reverse(xs): xs.reverse()
def grow(d): d.setdefault("a", []).append(1); return d
def raises(): raise Narrow(3, 4)
def loads(): return json.loads("{")
def points(): return [Point(2, 1), Point(1, 2)]
def total(pair): return pair.a + pair.b
def numbers():
    n = 0
    while True:
        yield n
        n += 1
def walk(node):
    found = []
    while node:
        found.append(node.value)
        node.seen = True
        node = node.next
    return found
"""
LIBRARY_TESTS = """
import collections, datetime, itertools, json
from decimal import Decimal
from fractions import Fraction
class Node:
    def __init__(self, value, following=None): self.value, self.next, self.seen = value, following, False
assert half(3) == (1.5, Decimal("1.5"), datetime.date(2024, 2, 3), range(3), {3}, {1, 3}, 3j)
assert [type(v) for v in half(3)] == [Fraction, Decimal, datetime.date, range, type({}.keys()), set, complex]
assert same(datetime.datetime(2024, 1, 1, 3)) - datetime.datetime(2024, 1, 1) == datetime.timedelta(hours=3)
assert kept(3) == (collections.deque([1, 3]), {"a": 2, "b": 1}, (1, 3)) and kept(3)[1].most_common(1) == [("a", 2)]
assert kept(2)[0].maxlen == 2 and kept(2)[2].b == 2 and total(Pair(3, 4)) == 7
a, b = [1], [2]
both = [a, b]
assert reverse(both) is None and both == [[2], [1]] and both[0] is b
nothing = {}
assert grow(nothing) is nothing and nothing == {"a": [1]} and grow(nothing)["a"] == [1, 1]
loop = []
loop.append(loop)
assert same(loop) is loop
for kind in (Own, Narrow, Exception):
    try:
        raises()
    except kind as error:
        assert str(error) == "code 3" and error.code == 3 and type(error).__name__ == "Narrow"
    else:
        raise AssertionError
try:
    loads()
except json.JSONDecodeError as error:
    assert error.pos == 1
assert sorted(points()) == [Point(1, 2), Point(2, 1)] and points()[0] != Point(0, 0) and {Point(1, 2)} == {Point(1, 2)}
assert str(Point(1, 2)) == f"{Point(1, 2)}" == "(1, 2)" and Point(1, 2) + Point(1, 1) == Point(2, 3)
assert isinstance(points()[0], Point) and not isinstance(3, Point) and same(Colour.RED) is Colour.RED
assert list(itertools.islice(numbers(), 3)) == [0, 1, 2] and next(numbers()) == 0
node = Node(1, Node(2))
assert walk(node) == [1, 2] and node.next.seen
"""


def test_values_of_the_library_compare_as_within_one_process() -> None:
    outcome = run_code(LIBRARY, LIBRARY_TESTS)
    assert outcome.passed, outcome.stderr


def test_packages_are_named() -> None:
    tests = "import numpy as np\nassert np.allclose(double(2), 4)\n"
    with pytest.raises(ValueError, match=r"the tests import 'numpy', which they may not; .*packages=\[numpy\]"):
        run_code(RIGHT, tests)
    assert run_code("import numpy\n" + RIGHT, TESTS).reason == "failed"
    with pytest.raises(ValueError, match=r"packages='no_such' is not installed"):
        run_code(RIGHT, TESTS, packages=["no_such"])
    if not find_spec("numpy"):
        pytest.skip("numpy is not installed")
    assert run_code(RIGHT, tests, packages=["numpy"]).passed
    assert not run_code(WRONG, tests, packages=["numpy"]).passed
    arrays = "import numpy as np\ndef double(x): return np.array(x) * 2\n"
    given = "import numpy as np\nassert (double(np.array([1, 2])) == np.array([2, 4])).all() and double(2) == 4"
    assert run_code(arrays, given, packages=["numpy"]).passed
    assert "PermissionError" in run_code(f"open({sandbox.__file__!r})\n{RIGHT}", TESTS, packages=["numpy"]).stderr
