"""The other side of released_code.py: decodes with the code of checkouts, by an interpreter with what it needs.

A line of JSON in, a line of JSON out: a cell of the table, and its tokens, forwards and CPU seconds.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"peer_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loops(fast_dllm: Path, llada: Path | None) -> dict[tuple[str, str], Callable[..., Any]]:
    """Their loops by peer and cache."""
    theirs = module_of(fast_dllm / "llada" / "generate.py")
    found = {
        ("fast_dllm", "none"): theirs.generate,
        ("fast_dllm", "prefix"): theirs.generate_with_prefix_cache,
        ("fast_dllm", "dual"): theirs.generate_with_dual_cache,
    }
    return found if llada is None else {**found, ("llada", "none"): module_of(llada / "generate.py").generate}


def main(weights: str, fast_dllm: str, llada: str = "") -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what their code prints is no answer
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path(fast_dllm) / "llada"))  # its files import one another by short names
    from model.modeling_llada import LLaDAModelLM  # type: ignore[import-not-found]

    model, forwards = LLaDAModelLM.from_pretrained(weights, torch_dtype=torch.float32).eval(), []
    model.register_forward_pre_hook(lambda *_: forwards.append(1))
    found = loops(Path(fast_dllm), Path(llada) if llada else None)
    for line in sys.stdin:
        cell = json.loads(line)
        forwards.clear()
        began = time.process_time()
        loop = found[cell.pop("peer"), cell.pop("cache")]
        out = loop(model, torch.tensor(cell.pop("prompts")), temperature=0.0, **cell)
        seconds = time.process_time() - began
        tokens = (out if isinstance(out, torch.Tensor) else out[0])[:, -cell["gen_length"] :]
        print(json.dumps([tokens.tolist(), len(forwards), seconds]), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
