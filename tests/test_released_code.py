"""scripts/bench/released_code.py beside stand-ins for the checkouts, which decode with this library."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
LOOPS = """
from functools import partial
from decoders import Decoder, Never, Schedule, Threshold, decode
from dllm.cache import WindowCache
import torch
def run(cache, model, prompt, steps, gen_length, block_length, temperature, mask_id, threshold=None):
    rule = Schedule(steps * block_length // gen_length) if threshold is None else Threshold(threshold)
    canvases = []
    parts = {"decoder": Decoder(rule), "cache": cache, "stop": Never(), "gen_len": gen_length}
    keep = lambda state, view, update: canvases.append(state.canvas)
    (row,) = decode(model.inner, prompt.tolist(), block_len=block_length, on_step=keep, **parts)
    for _ in range(row.nfe + EXTRA):
        model()
    print("no answer")
    return canvases[-1], row.nfe
generate = partial(run, WindowCache(None, None))
generate_with_prefix_cache = partial(run, WindowCache(0, None))
generate_with_dual_cache = partial(run, WindowCache(0, 0))
"""


@pytest.mark.slow
def test_rows_tell_both_forwards_and_the_exit_code_whether_they_are_equal(tmp_path: Path) -> None:
    folder = tmp_path / "llada"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "modeling_llada.py").write_text(MODEL)
    sizes = "width=16 layers=1 vocab=600 prompt=4 gen=32 steps=4 repeats=1"
    command = [
        sys.executable,
        ROOT / "scripts" / "bench" / "released_code.py",
        *sizes.split(),
        f"python={sys.executable}",
    ]
    command += [f"fast_dllm={tmp_path}"]
    for extra, code in ((0, 0), (1, 2)):
        (folder / "generate.py").write_text(LOOPS.replace("EXTRA", str(extra)))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        found = [line.replace(",", "").split() for line in done.stdout.splitlines()[1:]]
        assert [row[:2] for row in found] == [
            ["fast_dllm", cache] for cache in ("none", "prefix", "dual") for _ in "12"
        ]
        assert all(int(row[4]) == int(row[3]) + extra for row in found)
        assert ("tokens or forwards differ" in done.stderr) == bool(extra)
