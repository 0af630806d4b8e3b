"""An 8B checkpoint decodes in the memory of its weights: opt-in, for it writes 16 GB.

DLLM_FULL_SIZE=EMPTY_FOLDER pytest -m slow tests/dllm/test_full_size.py
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from test_published import FOLDER, llada

from dllm.shipped import ASSETS
from parallelbench.records.record import read_run

HERE = os.environ.get("DLLM_FULL_SIZE")
SHARD = 2_500_000_000  # bytes


def write_random_llada(folder: Path) -> int:
    """LLaDA-8B-Instruct's published names, shapes and settings, random weights in bfloat16; returns their bytes. The
    tokenizer is that of tiny."""
    config = json.loads((FOLDER / "LLaDA-8B-Instruct.json").read_text())
    rng, total = torch.Generator().manual_seed(0), 0
    shards: list[dict[str, torch.Tensor]] = [{}]
    index: dict[str, str] = {}

    def flush() -> None:
        name = f"model-{len(shards):05d}.safetensors"
        save_file(shards[-1], folder / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(shards[-1], name))
        shards[-1].clear()

    for name, shape in llada(config).items():
        weight = torch.empty(shape, dtype=torch.bfloat16)
        shards[-1][name] = weight.fill_(1) if len(shape) == 1 else weight.normal_(std=0.02, generator=rng)
        total += weight.nbytes
        if sum(t.nbytes for t in shards[-1].values()) > SHARD:
            flush()
            shards.append({})
    flush()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    for file in ASSETS.joinpath("tiny").glob("*token*"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text(json.dumps(config))
    return total


@pytest.mark.slow
@pytest.mark.skipif(HERE is None, reason="set DLLM_FULL_SIZE to a folder with 17 GB of room")
def test_an_8b_checkpoint_decodes_in_the_memory_of_its_weights(tmp_path) -> None:
    folder = Path(str(HERE))
    weights = write_random_llada(folder)
    model = ["model=local", f"model.name_or_path={folder}", "model.dtype=bfloat16", "+model.chat_template=plain"]
    decode = ["cache=dual", "decoder=threshold", "gen_length=32", "block_length=32", "stop=never"]
    out = tmp_path / "out"
    command = [sys.executable, "-m", "parallelbench", "run", *model, *decode]
    subprocess.run([*command, "suite.tasks=waiting_line/copy", "limit=1", f"out_dir={out}"], check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    (record,) = read_run(out).records
    assert len(record.token_ids) == 32
    assert peak < 1.15 * weights, f"{peak / 1e9:.2f} GB for {weights / 1e9:.2f} GB of weights"
