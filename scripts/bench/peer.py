"""The other side of released_code.py: decodes with the code of checkouts, by an interpreter with what it needs.

A line of JSON in, a line of JSON out: a cell of the table, and its tokens, forwards and CPU seconds.
"""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

Loop = Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"peer_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_generate_py(weights: str, fast_dllm: str, llada: str) -> tuple[nn.Module, dict[tuple[str, str], Loop]]:
    """Fast-dLLM's model, its loops by cache, and LLaDA's own loop where there is a checkout."""
    sys.path.insert(0, str(Path(fast_dllm) / "llada"))  # its files import one another by short names
    from model.modeling_llada import LLaDAModelLM  # type: ignore[import-not-found]

    theirs = module_of(Path(fast_dllm) / "llada" / "generate.py")
    found: dict[tuple[str, str], Loop] = {
        ("fast_dllm", "none"): theirs.generate,
        ("fast_dllm", "prefix"): theirs.generate_with_prefix_cache,
        ("fast_dllm", "dual"): theirs.generate_with_dual_cache,
    }
    if llada:
        found["llada", "none"] = module_of(Path(llada) / "generate.py").generate
    return LLaDAModelLM.from_pretrained(weights, torch_dtype=torch.float32), found


class OnCpu(SourceFileLoader):
    """Code that names its device."""

    def get_code(self, fullname: str) -> Any:
        return compile(self.get_data(self.path).replace(b'"cuda"', b'"cpu"'), self.path, "exec")


class Stub(ModuleType):
    """A library for several GPUs that is imported and not used."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return {"get_tensor_model_parallel_world_size": lambda: 1}.get(name, type(name, (nn.Module,), {}))


class Finder:
    """Imports dInfer's modules one by one: its packages import servers."""

    def __init__(self, checkout: str) -> None:
        self.folder = Path(checkout) / "python"

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        top, file = name.partition(".")[0], self.folder.joinpath(*name.split("."))
        if top in ("vllm", "sglang"):
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        if top != "dinfer":
            return None
        if file.is_dir():
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(file)]
            return spec
        source = str(file.with_suffix(".py"))
        return importlib.util.spec_from_file_location(name, source, loader=OnCpu(name, source))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def of_dinfer(weights: str, checkout: str) -> tuple[nn.Module, dict[tuple[str, str], Loop]]:
    """dInfer's model and its loop, one forward at a time, by cache; it has thresholds alone."""
    sys.meta_path.insert(0, Finder(checkout))  # type: ignore[arg-type]
    from dinfer.decoding import generate_uniform, parallel_strategy, utils  # type: ignore[import-not-found]
    from dinfer.model.modeling_llada import LLaDAModelLM  # type: ignore[import-not-found]

    model = LLaDAModelLM.from_pretrained(weights, torch_dtype=torch.float32)
    eos = json.loads((Path(weights) / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    utils.TokenArray.get_generated_tokens = lambda self: self.data  # with EOS

    def loop(cache: str) -> Loop:
        def decode(model: nn.Module, prompts: torch.Tensor, **cell: Any) -> torch.Tensor:
            decoder = parallel_strategy.ThresholdParallelDecoder(
                0, threshold=cell["threshold"], mask_id=cell["mask_id"], eos_id=eos
            )
            factory = None if cache == "none" else utils.KVCacheFactory(cache)
            llm = generate_uniform.BlockWiseDiffusionLLM(
                model, decoder, utils.BlockIteratorFactory(), early_stop=False, cache_factory=factory, maximum_unroll=1
            )
            return llm.generate(prompts, gen_length=cell["gen_length"], block_length=cell["block_length"])

        return decode

    return model, {("dinfer", cache): loop(cache) for cache in ("none", "prefix", "dual")}


def main(kind: str, weights: str, *checkouts: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what their code prints is no answer
    torch.set_num_threads(1)
    model, loops = (of_dinfer if kind == "dinfer" else of_generate_py)(weights, *checkouts)
    forwards: list[int] = []
    model.eval().register_forward_pre_hook(lambda *_: forwards.append(1))
    for line in sys.stdin:
        cell = json.loads(line)
        forwards.clear()
        began = time.process_time()
        loop = loops[cell.pop("peer"), cell.pop("cache")]
        out = loop(model, torch.tensor(cell.pop("prompts")), temperature=0.0, **cell)
        seconds = time.process_time() - began
        tokens = (out if isinstance(out, torch.Tensor) else out[0])[:, -cell["gen_length"] :]
        print(json.dumps([tokens.tolist(), len(forwards), seconds]), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
