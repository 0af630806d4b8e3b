"""Python commands in processes of their own, forked from one that has imported the large libraries once, but nothing of
ours. So a command has its own folder, environment and streams, and starts several CPU seconds sooner. Not for tests of
starting, of killing or of closed streams."""

import atexit
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import Any, NoReturn


def run(
    *command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` gives for `python COMMAND` with captured text. command: -m MODULE, -c CODE or a script, and
    its arguments."""
    words = [str(word) for word in command]
    asked = {"words": words, "cwd": str(cwd or Path.cwd()), "env": {**os.environ} if env is None else env}
    with TemporaryFile("w+") as request, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        json.dump(asked, request)
        request.seek(0)
        to_server = server()
        socket.send_fds(to_server, [b"."], [file.fileno() for file in (request, out, err)])
        code = to_server.recv(16)
        assert code, "the server of forked commands has ended"
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([sys.executable, *words], int(code), out.read(), err.read())


@cache
def server() -> socket.socket:
    """The socket of this process's server, which ends with it."""
    ours, theirs = socket.socketpair()
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, __file__, str(theirs.fileno())]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], **streams)
    theirs.close()

    def close() -> None:
        ours.close()
        process.wait()

    atexit.register(close)
    return ours


def serve(asking: socket.socket) -> None:
    """Forks a child for each request, until the other side closes."""
    import hydra  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2ForCausalLM  # noqa: F401

    torch.set_num_threads(1)
    path = sys.path[1:]  # without the folder of this file
    while True:
        message, files, _, _ = socket.recv_fds(asking, 1, 3)
        if not message:
            return
        child = os.fork()
        if child == 0:
            asking.close()
            end(become, files, path)
        for file in files:
            os.close(file)
        asking.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def become(files: list[int], path: list[str]) -> None:
    """The command of a request. files: the request, stdout and stderr. path: of modules, without PYTHONPATH."""
    with open(files[0]) as request:
        asked = json.load(request)
    os.dup2(files[1], 1)
    os.dup2(files[2], 2)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    first, *rest = asked["words"]
    below = [folder for folder in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if folder]
    if first == "-c":
        main = sys.modules["__main__"] = ModuleType("__main__")
        sys.path[:], sys.argv = ["", *below, *path], ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif first == "-m":
        sys.path[:], sys.argv = [asked["cwd"], *below, *path], rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[:], sys.argv = [str(Path(first).parent), *below, *path], [first, *rest]
        runpy.run_path(first, run_name="__main__")


def end(command: Callable[..., None], *arguments: Any) -> NoReturn:
    """Does the command and ends as an interpreter does, but for taking all modules apart, which takes a second."""
    code = 0
    try:
        command(*arguments)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
