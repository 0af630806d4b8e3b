"""Runs a program against its tests in two processes, both locked in: `sandbox` beside it starts it by path, it is never
imported and uses the standard library only.

The job comes from standard input in two parts: programs and limits, then, once the program's process has forked off,
the tests. So no memory of that process ever held the tests, and it has no way to the descriptor, named by the
argument, on which the tests' process answers: `R` once it is locked in, then what became of the program.
"""

import builtins
import json
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))
import jail
import peers

sys.path.pop(0)


def main() -> None:
    answer = int(sys.argv[1])
    job = json.loads(peers.read_part(0))
    if sys.platform == "linux":
        jail.enter_namespaces()
    (from_tests, to_program), (from_program, to_tests) = os.pipe(), os.pipe()
    tests_ends, program_ends = (from_program, to_program), (from_tests, to_tests)
    program = os.fork()
    for descriptor in program_ends if program else (*tests_ends, answer):
        os.close(descriptor)
    tests = json.loads(peers.read_part(0)) if program else {}
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    missing = jail.lock(job["timeout_s"], job["memory_mb"] << 20)
    if missing and not job["unsandboxed"]:
        sys.exit(f"no {' and no '.join(missing)}" if program else 1)
    if program == 0:
        serve_program(job["programs"], program_ends)
    os.write(answer, b"R")
    verdict = run_tests(peers.Peer(*tests_ends, {"call": peers.ON_REMOTE["call"]}), **tests)
    for descriptor in tests_ends:
        os.close(descriptor)  # the program's process ends with it
    _, status = os.waitpid(program, 0)
    if verdict == "gone":
        verdict = "crashed" if os.WIFSIGNALED(status) else "exited"
    os.write(answer, verdict.encode())


def serve_program(programs: Sequence[str], ends: tuple[int, int]) -> None:
    """Runs the program when asked to, answers for it until the tests are through, and ends the process."""
    peer = peers.Peer(*ends, peers.ON_REMOTE | {"load": lambda names: load(programs, names)})
    try:
        peer.serve()
    finally:
        os._exit(0)


def load(programs: Sequence[str], names: Sequence[str]) -> dict[str, object]:
    """Runs the program, and returns what it has of these names."""
    solution = types.ModuleType("solution")
    sys.modules["solution"] = solution
    exec(first_compiling(programs), vars(solution))
    return {name: vars(solution)[name] for name in names if name in vars(solution)}


def first_compiling(programs: Sequence[str]) -> types.CodeType:
    """The first program that compiles. Raises the first one's error when none does."""
    errors: list[Exception] = []
    for program in programs:
        try:
            return compile(program, "<program>", "exec")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            errors.append(error)
    raise errors[0]


def run_tests(peer: peers.Peer, tests: str, setup: str, asked: Sequence[str]) -> str:
    """What became of the program: passed, failed, exited, or gone when its process has ended."""
    try:
        code = compile(tests, "<tests>", "exec")
        scope: dict[str, Any] = {"__name__": "tests"}
        exec(first_compiling([setup, ""]), scope)  # a prompt may end too early to be code
        own = scope.keys() | vars(builtins).keys()
        names = peers.names_in(code) - own | set(asked)
        offered = peer.ask("load", sorted(names))
        scope |= {name: value for name, value in offered.items() if name in names and _is_itself(name, value)}
        exec(code, scope)
    except peers.Gone:
        return "gone"
    except SystemExit:
        return "exited"
    except BaseException as error:
        sys.__excepthook__(type(error), error, error.__traceback__)
        return "failed"
    return "gone" if peer.gone else "passed"


def _is_itself(name: str, value: object) -> bool:
    """Whether a module goes by its own name; what is no module may have any."""
    return not isinstance(value, types.ModuleType) or value.__name__ == name


if __name__ == "__main__":
    main()
