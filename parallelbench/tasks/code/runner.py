"""Runs a program against its tests in two processes, both locked in: `sandbox` next to it starts it by path, it is
never imported and uses the standard library only.

The job comes from standard input in two parts: programs and limits, then, once the program's process has forked off,
the tests. So no memory of that process ever held the tests, nor the token that a verdict must begin with, and it has no
way to the descriptor on which the tests' process answers: `R` once it is locked in, then the token and what became of
the program.
"""

import ast
import builtins
import contextlib
import importlib
import importlib.util
import json
import os
import socket
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))
import jail
import peers

sys.path.pop(0)


def main() -> None:
    answer = int(sys.argv.pop())
    job = json.loads(read_part(0))
    sys.meta_path.append(Finder(job["packages"]))
    for package in job["packages"]:
        importlib.import_module(package)
    if sys.platform == "linux":
        jail.enter_namespaces()
    (from_tests, to_program), (from_program, to_tests) = os.pipe(), os.pipe()
    tests_ends, program_ends = (from_program, to_program), (from_tests, to_tests)
    program = os.fork()
    for descriptor in program_ends if program else (*tests_ends, answer):
        os.close(descriptor)
    rest = json.loads(read_part(0)) if program else {}
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    missing = jail.lock(job["timeout_s"], job["memory_mb"] << 20, job["readable"])
    if missing and not job["unsandboxed"]:
        sys.exit(f"no {' and no '.join(missing)}" if program else 1)
    if program == 0:
        serve_program(job["programs"], program_ends)
    os.write(answer, b"R")
    token = rest.pop("token")
    verdict = run_tests(Channel(*tests_ends), **rest)
    for descriptor in tests_ends:
        os.close(descriptor)  # the program's process ends with it
    _, status = os.waitpid(program, 0)
    if verdict == "gone":
        verdict = "crashed" if os.WIFSIGNALED(status) else "exited"
    os.write(answer, (token + verdict).encode())


class Finder:
    """Finds the packages of a job by their files."""

    def __init__(self, packages: Mapping[str, str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        file = self.packages.get(name)
        if file is None:
            return None
        inner = [os.path.dirname(file)] if os.path.basename(file).startswith("__init__.") else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inner)


class PipeEnd:
    """What asyncio's event loop wants of a pair of sockets, which it only wakes itself with, and which is refused here:
    the first is read, the second written."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def fileno(self) -> int:
        return self.descriptor

    def setblocking(self, flag: bool) -> None:
        os.set_blocking(self.descriptor, flag)

    def recv(self, size: int) -> bytes:
        return os.read(self.descriptor, size)

    def send(self, data: bytes) -> int:
        return os.write(self.descriptor, data)

    def close(self) -> None:
        os.close(self.descriptor)


class Channel:
    """Messages as JSON through two pipes."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.gone = False

    def send(self, message: list[Any]) -> None:
        data = json.dumps(message).encode()
        data = len(data).to_bytes(8, "big") + data
        with contextlib.suppress(OSError, ValueError):  # more output than allowed
            sys.stdout.flush()
        try:
            while data:
                data = data[os.write(self.sink, data) :]
        except BrokenPipeError:
            self.gone = True
            raise peers.Gone from None

    def receive(self) -> list[Any]:
        try:
            return json.loads(read_part(self.source))
        except EOFError:
            self.gone = True
            raise peers.Gone from None


def read_part(source: int) -> bytes:
    """The next part: its length in 8 bytes, then itself. Raises EOFError where it is cut off."""
    return _read(source, int.from_bytes(_read(source, 8), "big"))


def _read(source: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = os.read(source, min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def serve_program(programs: Sequence[str], ends: tuple[int, int]) -> None:
    """Runs the program when asked to, answers for it until the tests are through, and ends the process."""
    socket.socketpair = lambda *_: map(PipeEnd, os.pipe())  # type: ignore[assignment]
    channel = Channel(*ends)
    peer = peers.Peer(channel.send, channel.receive, is_tests=False)
    peer.operations["load"] = lambda names, asked: load(programs, names, asked)
    try:
        peer.serve()
    finally:
        os._exit(0)


def load(programs: Sequence[str], names: Sequence[str], asked: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """Runs the first program that can be run and defines what is asked. Returns what it has of these names, and which
    of them are modules of that name. Raises the first program's error when none does."""
    errors: list[Exception] = []
    for program in programs:
        solution = sys.modules["solution"] = types.ModuleType("solution")
        try:
            exec(compile(program, "<program>", "exec"), vars(solution))
        except Exception as error:
            errors.append(error)
            continue
        lacking = [name for name in asked if not callable(vars(solution).get(name))]
        if not lacking:
            found = {name: vars(solution)[name] for name in names if name in vars(solution)}
            modules = [name for name, value in found.items() if isinstance(value, types.ModuleType)]
            modules = [name for name in modules if found.pop(name).__name__ == name]
            return found, modules
        errors.append(NameError(f"name {lacking[0]!r} is not defined"))
    raise errors[0]


def first_compiling(codes: Sequence[str]) -> types.CodeType:
    """The first code that compiles. Raises the first one's error when none does."""
    errors: list[Exception] = []
    for code in codes:
        try:
            return compile(code, "<tests>", "exec")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            errors.append(error)
    raise errors[0]


def run_tests(channel: Channel, tests: str, setup: str, asked: Sequence[str]) -> str:
    """What became of the program: passed, failed, exited, or gone when its process has ended; or `imports` and what
    the tests could not import."""
    try:
        code = compile(tests, "<tests>", "exec")
        scope: dict[str, Any] = {"__name__": "tests"}
        exec(first_compiling([setup, ""]), scope)  # a prompt may end too early to be code
        own = scope.keys() | vars(builtins).keys()
        names = names_in(code) - own | set(asked)
        peer = peers.Peer(channel.send, channel.receive, is_tests=True)
        offered, modules = peer.ask("load", sorted(names), list(asked))
        scope |= {name: value for name, value in offered.items() if name in names}
        known = (names & sys.stdlib_module_names) - set(asked)
        used = {name for name in known & offered.keys() if is_used_as_module(name, tests)}
        scope |= {name: peers.library(name) for name in known & {*modules, *used}}
        exec(code, scope)
    except peers.Gone:
        return "gone"
    except SystemExit:
        return "exited"
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
        if isinstance(error, ImportError) and peers.BROUGHT not in vars(error):
            return f"imports {error.name or error}"
        return "failed"
    return "gone" if channel.gone else "passed"


def is_used_as_module(name: str, tests: str) -> bool:
    """Whether all that tests take from a name is what the library's module of that name has. Then they mean the module,
    and not a class of the program's with functions of the same names."""
    nodes = (node for node in ast.walk(ast.parse(tests)) if isinstance(node, ast.Attribute))
    taken = {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == name}
    return bool(taken) and taken <= set(dir(peers.library(name)))


def names_in(code: types.CodeType) -> set[str]:
    """The global names that a code object and those within it may use."""
    inner: Iterable[types.CodeType] = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(names_in, inner))


if __name__ == "__main__":
    main()
