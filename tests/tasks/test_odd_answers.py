"""Whole answers to HumanEval's kind of task: those that would pass without solving it or do harm do neither, and right
ones in unusual forms pass."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallelbench.tasks.code import sandbox
from parallelbench.tasks.code.sandbox import RUNNER
from parallelbench.tasks.code.tasks import HumanEval

pytestmark = pytest.mark.usefixtures("sandboxed")

HEAD = 'from typing import List\n\n\ndef double(x):\n    """Twice x."""\n'
PLAIN = """
assert candidate(2) == 4
assert candidate([1]) == [1, 1] and sorted(candidate("ab")) == list("aabb")
assert abs(candidate(0.5) - 1) < 1e-6 and not candidate(0)
"""


@pytest.fixture
def scored(tmp_path: Path) -> Callable[..., float]:
    """The score of an answer by tests of `candidate`."""

    def score(answer: str, tests: str, **settings: Any) -> float:
        body = "".join(f"    {line}\n" for line in tests.strip().splitlines())
        row = {"task_id": "own/0", "prompt": HEAD, "entry_point": "double", "test": f"def check(candidate):\n{body}"}
        (tmp_path / "rows.jsonl").write_text(json.dumps(row))
        task = HumanEval(str(tmp_path / "rows.jsonl"), **settings)
        (sample,) = task.samples(1, 0)
        return task.score(sample, answer)["score"]

    return score


WRONG = "def double(x):\n    return 5\n"
PEER = """
import gc, json, os, sys, types
def double(x):
    frame = sys._getframe()
    while not hasattr(peer := frame.f_locals.get("self"), "operations"):
        frame = frame.f_back
    {}
    return 5
"""
SENT = """
import json, os, stat
def double(x):
    data = json.dumps({}).encode()
    for fd in range(3, 20):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode): os.write(fd, len(data).to_bytes(8, "big") + data)
        except OSError: pass
    return 5
"""
CASE = """
import unittest
class Case(unittest.TestCase):
    def test_two(self): self.assertEqual(candidate(2), 4)
suite = unittest.defaultTestLoader.loadTestsFromTestCase(Case)
assert unittest.TextTestRunner().run(suite).wasSuccessful()
"""
WITH_MODULE = "assert math.isclose(candidate(2), 4)"
MAPPED = "assert all(map(lambda x: candidate(x) == 2 * x, [1, 2]))"
CHEATS: dict[str, tuple[str, str]] = {
    "class whose metaclass equals everything": (
        "class Meta(type):\n    __eq__ = __ne__ = __lt__ = __instancecheck__ = lambda *_: True\n"
        "    __hash__ = type.__hash__\nclass Sure(metaclass=Meta): pass\ndouble = lambda x: Sure",
        PLAIN,
    ),
    "number with operators of its own": (
        "class Any(int):\n    __eq__ = __lt__ = lambda *_: True\n    __hash__ = int.__hash__\n"
        "    __sub__ = __rsub__ = __abs__ = lambda *_: Any()\ndouble = lambda x: Any(7)",
        PLAIN,
    ),
    "iteration that ends in a map": ("def double(x): raise StopIteration", MAPPED),
    "iteration that ends in a comparison": (
        "class Odd:\n    def __bool__(self): raise StopIteration\ndouble = lambda x: Odd()",
        "assert all(map(lambda x: bool(candidate(x)) and candidate(x) == 2, [1, 2]))",
    ),
    "skipped test": ("import unittest\ndef double(x): raise unittest.SkipTest", CASE),
    "skipped test by a class of its own": (
        "import unittest\nclass Mine(unittest.SkipTest): pass\ndef double(x): raise Mine",
        CASE,
    ),
    "unittest patched": (f"import unittest\nunittest.TestCase.assertEqual = lambda *_: None\n{WRONG}", CASE),
    "library's module as a class": (f"class math:\n    isclose = lambda *_: True\n{WRONG}", WITH_MODULE),
    "library's module as an object": (
        f"import types\nmath = types.SimpleNamespace(isclose=lambda *_: True)\n{WRONG}",
        WITH_MODULE,
    ),
    "library's module replaced": (
        "import sys, types\nsys.modules['math'] = math = types.ModuleType('math')\n"
        f"math.isclose = lambda *_: True\n{WRONG}",
        WITH_MODULE,
    ),
    "module that is not of this system": (f"import types\nwinreg = types.ModuleType('winreg')\n{WRONG}", "winreg.X"),
    "class of a package that is not there": (SENT.format("['answer', ['named', 'numpy', 'ndarray'], []]"), PLAIN),
    "operations replaced": (PEER.format("peer.operations.update(eq=lambda *_: True, bool=lambda *_: True)"), PLAIN),
    "own messages": (PEER.format("peer.send = lambda message: os.write(1, b'passed')"), PLAIN),
    "objects of the tests": (
        PEER.format("[setattr(o, 'is_tests', False) for o in gc.get_objects() if type(o) is type(peer)]"),
        PLAIN,
    ),
    "reads of what the tests hold": (
        PEER.format(
            "[peer.ask('get', type('R', (), {'_key': k})(), n) for k in range(9) for n in ('f_globals', 'gi_frame')]"
        ),
        PLAIN,
    ),
    "pickle for a message": (
        "import os, pickle\nclass Run:\n    def __reduce__(self): return os._exit, (0,)\n"
        "for fd in range(3, 20):\n    try: os.write(fd, pickle.dumps(Run()))\n    except OSError: pass\n" + WRONG,
        PLAIN,
    ),
    "trace function that changes locals": (
        "import ctypes, sys\ndef traced(frame, *_):\n    frame.f_locals.update(value=4)\n    return traced\n"
        f"sys.settrace(traced)\nsys.setprofile(traced)\n{WRONG}",
        PLAIN,
    ),
    "own finder and importer": (
        "import builtins, sys\nbuiltins.__import__ = lambda *_, **__: None\nsys.meta_path.clear()\n"
        f"sys.path_hooks.clear()\nsys.modules.clear()\n{WRONG}",
        PLAIN,
    ),
    "finaliser": (
        "import os\nclass Last:\n    def __del__(self): os._exit(0)\n"
        "def double(x):\n    Last()\n    return 5\nimport atexit\natexit.register(os._exit, 0)",
        PLAIN,
    ),
    "callback of the garbage collector": (
        f"import gc, os\ngc.callbacks.append(lambda *_: os._exit(0))\n{WRONG}\ngc.collect()",
        PLAIN,
    ),
    "handlers of signals": (
        "import os, signal\nfor number in (signal.SIGALRM, signal.SIGPIPE, signal.SIGTERM, signal.SIGXCPU):\n"
        f"    signal.signal(number, lambda *_: os._exit(0))\nsignal.raise_signal(signal.SIGTERM)\n{WRONG}",
        PLAIN,
    ),
    "stopped process": (f"import signal\nsignal.raise_signal(signal.SIGSTOP)\n{WRONG}", PLAIN),
    "threads that stay": (
        "import os, threading, time\ndef talk():\n    while True:\n        os.write(1, b'Rpassed')\n"
        f"        time.sleep(0.01)\nfor _ in range(4): threading.Thread(target=talk).start()\n{WRONG}",
        PLAIN,
    ),
    "processes that stay": (
        "import multiprocessing, os\ndef double(x):\n    for start in (os.fork, os.forkpty, "
        "lambda: os.posix_spawn('/bin/sleep', ['sleep', '9'], {}), multiprocessing.Process(target=print).start):\n"
        "        try: start()\n        except OSError: pass\n    return 5",
        PLAIN,
    ),
    "sockets": (
        "import socket, _socket\ndef double(x):\n    for make in (_socket.socketpair, _socket.socket, socket.socket):\n"
        "        try: make().send(b'x')\n        except OSError: pass\n    return 5",
        PLAIN,
    ),
    "descriptors closed and reopened": (
        f"import os\nos.closerange(3, 64)\nfor _ in range(9): os.open('x', os.O_RDWR | os.O_CREAT)\n{WRONG}",
        PLAIN,
    ),
    "output that is a verdict": (
        "import sys\nprint('passed\\nR\\nRpassed')\nprint('no Landlock', file=sys.stderr, flush=True)\nsys.exit(1)",
        PLAIN,
    ),
    "memory": (f"hoard = [bytearray(1 << 20) for _ in range(10**6)]\n{WRONG}", PLAIN),
    "memory of the tests": ("def double(x): return [b'x' * (1 << 27)]", PLAIN),
    "range without end": ("def double(x): return range(10**18)", PLAIN),
    "numbers without end": ("import itertools\ndef double(x): return itertools.count()", PLAIN),
    "deep recursion": ("def double(x): return [double(x)]", PLAIN),
    "endless loop when called": ("def double(x):\n    while True: pass", PLAIN),
    "endless loop in a comparison": (
        "class Slow:\n    def __bool__(self):\n        while True: pass\ndouble = lambda x: Slow()",
        "assert not candidate(0) and candidate(2) == 4",
    ),
    "deep folders": (f"import os\nfor _ in range(10**4): os.mkdir('d'); os.chdir('d')\n{WRONG}", PLAIN),
    "call of the kernel": (
        "import sys\njail = sys.modules['jail']\njail.refuse = lambda *_: None\n"
        f"for number in (57, 58, 56, 59, 101, 231): jail.LIBC.syscall(number, 0, 0, 0, 0)\n{WRONG}",
        PLAIN,
    ),
    "crash": ("import sys\ndef double(x): sys.modules['ctypes'].string_at(0)", PLAIN),
    "tests of its own": (
        f"METADATA = {{}}\ndef check(candidate): pass\n{WRONG}assert double(2) == 5\ncheck(double)",
        PLAIN,
    ),
    "assertions switched off": (
        f"import sys\nsys.flags = None\nAssertionError = SystemExit\n__debug__\n{WRONG}",
        PLAIN,
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_neither_passes_nor_harms(
    name: str, scored: Callable[..., float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves neither files nor processes."""
    answer, tests = CHEATS[name]
    temp, runner = tmp_path / "temp", tmp_path / "code" / RUNNER.name
    shutil.copytree(RUNNER.parent, runner.parent)
    temp.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    monkeypatch.setattr(sandbox, "RUNNER", runner)
    began = time.perf_counter()
    assert scored(f"```python\n{answer}\n```", tests, timeout_s=2.0) == 0
    assert time.perf_counter() - began < 10
    assert list(temp.iterdir()) == [] and running(runner) == []


def running(script: Path) -> list[Path]:
    """Processes of a script that are still there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            found += [path] if os.fsencode(script) in path.read_bytes() else []
    return found


def test_what_the_cheats_face_can_be_passed(scored: Callable[..., float]) -> None:
    for tests in (PLAIN, CASE, MAPPED, f"import math\n{WITH_MODULE}"):
        assert scored("```python\ndef double(x):\n    return 2 * x\n```", tests) == 1
    assert scored("```python\nimport math\ndef double(x):\n    return 2 * x\n```", WITH_MODULE) == 1


TWO = "assert candidate(2) == 4"
DOUBLE = "def double(x):\n    return 2 * x"
# right answers: a text, or Python for a block of its own, and tests
HONEST: dict[str, tuple[str, str]] = {
    "object": ("class Twice:\n    def __call__(self, x):\n        return 2 * x\ndouble = Twice()", TWO),
    "partial function": ("import functools, operator\ndouble = functools.partial(operator.mul, 2)", TWO),
    "class": ("class double(int):\n    def __new__(cls, x):\n        return super().__new__(cls, 2 * x)", TWO),
    "generator": (
        "def double(x):\n    yield from (2 * i for i in x)",
        "assert list(candidate([1, 2])) == [2, 4] and sum(candidate([3])) == 6 and 8 in candidate([3, 4])",
    ),
    "iterator": (
        "class double:\n    def __init__(self, x): self.left = x\n    def __iter__(self): return self\n"
        "    def __next__(self):\n        if not self.left: raise StopIteration\n        return 2 * self.left.pop(0)",
        "assert list(candidate([1, 2])) == [2, 4]\nends = candidate([1])\n"
        "assert next(ends) == 2 and next(ends, None) is None\n"
        "try:\n    next(ends)\nexcept StopIteration:\n    pass\nelse:\n    assert False",
    ),
    "decorators": (
        "import functools\ndef logged(f):\n    @functools.wraps(f)\n    def inner(*args, **named):\n"
        "        print('called', args)\n        return f(*args, **named)\n    return inner\n"
        f"@logged\n@functools.lru_cache(maxsize=None)\n{DOUBLE}",
        "assert candidate(x=2) == candidate(2) == 4",
    ),
    "data class": (
        "from dataclasses import dataclass, field\n@dataclass(order=True)\nclass Pair:\n    x: int\n"
        "    seen: list = field(default_factory=list)\ndef double(x):\n    return Pair(2 * x)",
        "assert candidate(2).x == 4 and candidate(2).seen == [] and repr(candidate(1)) == 'Pair(x=2, seen=[])'\n"
        "assert candidate(1) < candidate(2) == candidate(2) and max(candidate(1), candidate(3)).x == 6",
    ),
    "named tuple": (
        "from typing import NamedTuple\nclass Pair(NamedTuple):\n    x: int\n    y: int = 0\n"
        "def double(x):\n    return Pair(2 * x)",
        "assert candidate(2) == (4, 0) and candidate(1)._asdict() == {'x': 2, 'y': 0}\n"
        "x, y = candidate(3)\nassert (x, y) == (6, 0)",
    ),
    "operators": (
        "class Vector:\n    def __init__(self, x): self.x = x\n    def __add__(self, o): return Vector(self.x + o.x)\n"
        "    def __eq__(self, o): return self.x == o.x\n    def __len__(self): return self.x\n"
        "    def __getitem__(self, i): return list(range(self.x))[i]\ndef double(x):\n    return Vector(2 * x)",
        "assert candidate(1) + candidate(2) == candidate(3) and len(candidate(2)) == 4\n"
        "assert candidate(2)[1:3] == [1, 2] and candidate(2)[-1] == 3 and list(candidate(1)) == [0, 1]",
    ),
    "decimal": (
        "from decimal import Decimal\ndef double(x):\n    return (2 * Decimal(str(x))).quantize(Decimal('0.01'))",
        "from decimal import Decimal\nassert candidate(1.1) == Decimal('2.20') and round(candidate(0.5)) == 1\n"
        "assert abs(float(candidate(0.1)) - 0.2) < 1e-9",
    ),
    "fraction": (
        "from fractions import Fraction\ndef double(x):\n    return 2 * Fraction(x)",
        "assert candidate('1/3') == 2 / 3 or abs(candidate('1/3') - 2 / 3) < 1e-9\nassert candidate(0.25) == 0.5\n"
        "assert candidate('1/4').denominator == 2 and -abs(candidate(2)) == -4",
    ),
    "dictionaries of the library": (
        "from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict\ndef double(x):\n"
        "    d = defaultdict(lambda: 7, x)\n    return Counter(x), OrderedDict(x), d, UserDict(x), ChainMap(x)",
        "given = {'b': 1, 'a': 2}\nassert all(one == given for one in candidate(given))\n"
        "assert candidate(given)[0].most_common(1) == [('a', 2)] and list(candidate(given)[1]) == ['b', 'a']\n"
        "assert candidate(given)[2]['c'] == 7",
    ),
    "lists of the library": (
        "import array\nfrom collections import UserList, deque\ndef double(x):\n"
        "    return deque(x, maxlen=2), UserList(x), array.array('i', x)",
        "import array\nfrom collections import deque\na, b, c = candidate([1, 2])\n"
        "assert (a, b, c) == (deque([1, 2]), [1, 2], array.array('i', [1, 2])) and a.maxlen == 2",
    ),
    "dates": (
        "from datetime import datetime, timedelta, timezone\ndef double(x):\n"
        "    return datetime(2024, 2, 28, tzinfo=timezone.utc) + timedelta(days=2 * x)",
        "import datetime\nassert candidate(1) == datetime.datetime(2024, 3, 1, tzinfo=datetime.timezone.utc)\n"
        "assert (candidate(2) - candidate(1)).days == 2 and candidate(1).strftime('%d.%m.') == '01.03.'",
    ),
    "enumerations": (
        "import enum\nclass Size(enum.IntEnum):\n    TWO = 2\n    FOUR = 4\nclass Kind(enum.Enum):\n    A = 4\n"
        "def double(x):\n    return Size(2 * x), Kind(2 * x)",
        "size, kind = candidate(2)\nassert size == 4 and kind.value == 4 and kind.name == 'A'",
    ),
    "bytes and numbers": (
        "import cmath, math\ndef double(x):\n"
        "    return bytearray(b'ab'), cmath.sqrt(-4), math.factorial(500), math.nan",
        "import math\na, b, c, d = candidate(0)\nassert (a, b, c) == (b'ab', 2j, math.factorial(500)) and d != d",
    ),
    "asynchronous helpers": (
        "import asyncio\nasync def one(x):\n"
        "    await asyncio.sleep(0.001)\n    return await asyncio.to_thread(int, x)\n"
        "def double(x):\n    async def both():\n        return await asyncio.gather(one(x), one(x))\n"
        "    return sum(asyncio.run(both()))",
        f"{TWO}\n{TWO}",
    ),
    "coroutine without a loop": (
        "async def one(x):\n    return 2 * x\ndef double(x):\n    try:\n        one(x).send(None)\n"
        "    except StopIteration as end:\n        return end.value",
        TWO,
    ),
    "threads": (
        "from concurrent.futures import ThreadPoolExecutor\ndef double(x):\n    with ThreadPoolExecutor(4) as pool:\n"
        "        return list(pool.map(lambda i: 2 * i, x))",
        "assert candidate([1, 2, 3]) == [2, 4, 6]",
    ),
    "temporary file": (
        "import tempfile\ndef double(x):\n    with tempfile.TemporaryFile('w+') as file:\n"
        "        file.write(str(x))\n        file.seek(0)\n        return 2 * int(file.read())",
        TWO,
    ),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10**6)\ndef double(x):\n    return 2 + double(x - 1) if x else 0",
        "assert candidate(20000) == 40000",
    ),
    "exception of its own": (
        "class Negative(ValueError): pass\ndef double(x):\n"
        "    if x < 0:\n        raise Negative(f'{x} is below zero')\n"
        "    return 2 * x",
        "try:\n    candidate(-1)\nexcept ValueError as error:\n"
        "    assert 'below' in str(error)\nelse:\n    assert False",
    ),
    "in place": (
        "def double(x):\n    x[:] = [2 * i for i in x]",
        "a = [1, 2]\nassert candidate(a) is None and a == [2, 4]",
    ),
    "closure": (
        "def double(x):\n    n = 0\n    def inner():\n        nonlocal n\n        n += 2 * x\n        return n\n"
        "    return inner",
        "count = candidate(1)\nassert count() == 2 and count() == 4 and candidate(3)() == 6",
    ),
    "call-backs": (
        "def double(x, key=None):\n    return [2 * i for i in sorted(x, key=key)]",
        "assert candidate([1, -3, 2], key=abs) == [2, 4, -6] == candidate([2, 1, -3], key=lambda i: i * i)",
    ),
    "pattern matching": (
        "def double(x):\n    match x:\n        case [first, *rest]:\n            return [2 * first, *double(rest)]\n"
        "        case _:\n            return []",
        "assert candidate([1, 2]) == [2, 4]",
    ),
    "output and warnings": (
        "import logging, sys, warnings\ndef double(x):\n    warnings.warn('slow')\n    logging.error('x')\n"
        "    print('passed' * 1000)\n    print('e', file=sys.stderr)\n    return 2 * x",
        TWO,
    ),
    "import of the future": (f"from __future__ import annotations\n\ndef double(x: List[int] | N):{DOUBLE[14:]}", TWO),
    "helpers behind": ("def double(x):\n    return times(x) * TWO\ndef times(x):\n    return x\nTWO = 2", TWO),
    "main": (f"{DOUBLE}\nif __name__ == '__main__':\n    print(double(int(input())))", TWO),
    "tabs": ("def double(x):\n\tif x:\n\t\treturn 2 * x\n\treturn 0", TWO),
    "spaces that do not break": ("def double(x):\n\u00a0\u00a0\u00a0 return\u00a02 * x", TWO),
    "marks without width": (f"\ufeff\u200b{DOUBLE}", TWO),
    "helper in a block before": (
        "First a helper:\n```python\ndef times(x, n):\n    return x * n\n```\nThen:\n```python\n"
        "def double(x):\n    return times(x, 2)\n```\nUse it:\n```python\nprint(double(2))\n```",
        TWO,
    ),
    "imports in a block before": (
        "```python\nimport math\n```\n```python\ndef double(x):\n    return math.floor(2 * x)\n```\n"
        "```bash\npython solution.py\n```",
        TWO,
    ),
    "example that fails": (f"```python\n{DOUBLE}\n```\n```python\nassert double(2) == 5\n```", TWO),
    "second try": (f"```python\ndef double(x)\n    return x\n```\nA colon lacks:\n```python\n{DOUBLE}\n```", TWO),
    "body between prose": ("The body:\n\n```\nreturn 2 * x\n```\nIt doubles.", TWO),
    "quoted": ("> Here:\n>\n> ~~~py\n> def double(x):\n>     return 2 * x\n> ~~~", TWO),
    "steps": (f"1. Take x.\n2. Double it.\n\n```python\n{DOUBLE}\n```\n\n3. `double(2)` is 4.", TWO),
    "tags": (f'<solution>\n<code lang="python">\n{DOUBLE}\n</code>\n</solution>', TWO),
}


@pytest.mark.parametrize("name", HONEST)
def test_a_right_answer_passes(name: str, scored: Callable[..., float]) -> None:
    answer, tests = HONEST[name]
    is_text = "```" in answer or "~~~" in answer or answer.startswith("<")
    assert scored(answer if is_text else f"```python\n{answer}\n```", tests) == 1


def test_arrays_where_they_are_allowed(scored: Callable[..., float]) -> None:
    pytest.importorskip("numpy")
    arrays = "import numpy as np\ndef double(x):\n    return 2 * np.asarray(x)"
    tests = (
        "import numpy as np\nassert (candidate([1, 2]) == np.array([2, 4])).all() and candidate([1]).tolist() == [2]"
    )
    numbers = "import numpy as np\ndef double(x):\n    return 2 * np.mean(x)"
    wanted = "assert candidate([1, 2]) == 3 and isinstance(candidate([1]), float)"
    for answer, those in ((arrays, tests), (numbers, wanted)):
        assert scored(f"```python\n{answer}\n```", those, packages=["numpy"]) == 1
        assert scored(f"```python\n{answer.replace('2 *', '3 *')}\n```", those, packages=["numpy"]) == 0
