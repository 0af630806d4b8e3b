"""scripts/bench/released_code.py beside stand-ins for the checkouts, which decode with this library."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHES = ("none", "prefix", "dual")
MODEL = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import dllm, torch
class LLaDAModelLM(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, folder, torch_dtype):
        self = cls()
        self.inner = dllm.load(folder)
        return self
    def forward(self): ...
"""
DECODE = """
from decoders import Decoder, Never, Schedule, Threshold, decode
from dllm.cache import WindowCache
def decoded(model, cache, rule, prompts, gen_length, block_length):
    canvases = []
    parts = {"decoder": Decoder(rule), "cache": cache, "stop": Never(), "gen_len": gen_length}
    keep = lambda state, view, update: canvases.append(state.canvas)
    rows = decode(model.inner, prompts.tolist(), block_len=block_length, on_step=keep, **parts)
    for _ in range(max(row.nfe for row in rows) + EXTRA):
        model()
    print("no answer")
    return canvases[-1]
"""
LOOPS = """
from functools import partial
def run(cache, model, prompt, steps, gen_length, block_length, temperature, mask_id, threshold=None):
    rule = Schedule(steps * block_length // gen_length) if threshold is None else Threshold(threshold)
    return decoded(model, cache, rule, prompt, gen_length, block_length), None
generate = partial(run, WindowCache(None, None))
generate_with_prefix_cache = partial(run, WindowCache(0, None))
generate_with_dual_cache = partial(run, WindowCache(0, 0))
"""
DINFER = {
    "model/modeling_llada": "from vllm.distributed import get_tensor_model_parallel_world_size as world\n"
    "from vllm.layers import Linear\nclass Mine(Linear): ...\n"
    + MODEL.replace("dllm.load(folder)", 'dllm.load(folder, device=["cuda"][world() - 1])'),
    "decoding/parallel_strategy": "from types import SimpleNamespace\n"
    "def ThresholdParallelDecoder(temperature, **given): return SimpleNamespace(**given)",
    "decoding/utils": """
class TokenArray:
    def get_generated_tokens(self): return self.data[self.data != 0]
def BlockIteratorFactory(): ...
def KVCacheFactory(name): return name
""",
    "decoding/generate_uniform": """
from .utils import TokenArray
CACHES = {None: WindowCache(None, None), "prefix": WindowCache(0, None), "dual": WindowCache(0, 0)}
class BlockWiseDiffusionLLM:
    def __init__(self, model, decoder, iterators, early_stop, cache_factory, maximum_unroll):
        assert (early_stop, maximum_unroll) == (False, 1)
        self.given = model, CACHES[cache_factory], Threshold(decoder.threshold)
    def generate(self, prompts, gen_length, block_length):
        array = TokenArray()
        array.data = decoded(*self.given, prompts, gen_length, block_length)
        return array.get_generated_tokens()
""",
}


@pytest.mark.slow
def test_rows_tell_both_forwards_and_the_exit_code_whether_they_are_equal(tmp_path: Path) -> None:
    folder = tmp_path / "llada"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "modeling_llada.py").write_text(MODEL)
    server = tmp_path / "python" / "dinfer"
    (server / "__init__.py").parent.mkdir(parents=True)
    (server / "__init__.py").write_text("raise ImportError('servers')")
    sizes = "width=16 layers=1 vocab=600 prompt=4 gen=32 steps=4 repeats=1 batch=2"
    command = [
        sys.executable,
        ROOT / "scripts" / "bench" / "released_code.py",
        *sizes.split(),
        f"python={sys.executable}",
    ]
    command += [f"fast_dllm={tmp_path}", f"dinfer={tmp_path}"]
    for extra, code in ((0, 0), (1, 2)):
        shared = DECODE.replace("EXTRA", str(extra))
        (folder / "generate.py").write_text(shared + LOOPS)
        for name, source in DINFER.items():
            (server / name).parent.mkdir(exist_ok=True)
            (server / f"{name}.py").write_text(shared + source if name.endswith("uniform") else source)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        found = [line.replace(",", "").split() for line in done.stdout.splitlines()[1:]]
        rows = [("fast_dllm", cache) for cache in CACHES for _ in range(2)] + [("dinfer", cache) for cache in CACHES]
        assert [(row[0], row[1]) for row in found] == rows
        assert all(int(row[4]) == int(row[3]) + extra for row in found)
        assert ("tokens or forwards differ" in done.stderr) == bool(extra)
