"""Decoding beside the released code of Fast-dLLM and of LLaDA: CPU seconds on the same weights, theirs over ours.

    python scripts/bench/released_code.py fast_dllm=CHECKOUT python=PYTHON [llada=CHECKOUT] [layers=2] [width=128]
        [vocab=126464] [prompt=64] [gen=128] [steps=16] [threshold=22] [repeats=3]

The checkouts are folders of github.com/NVlabs/Fast-dLLM and github.com/ML-GSAI/LLaDA, whose generate.py runs on
Fast-dLLM's model file. python is an interpreter with the libraries that this file needs (torch, einops and
transformers 4.49). Weights are random, in LLaDA's layout, float32; their head is scaled so that confidences vary.
`steps` are those of a block of 32, `threshold` is in hundredths.

Both sides stay loaded, have one thread, and decode in turn. Before a row is printed, tokens and forwards of both are
compared; where they differ the script ends with exit code 2. Ratios are medians, with the least and the largest.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save_file

import dllm
from decoders import NO_CACHE, Decoder, Never, Schedule, Threshold, decode
from dllm.cache import WindowCache
from parallelbench.report.options import split_options, whole_number
from parallelbench.wiring.exits import explained

BLOCK = 32
CACHES = {"none": NO_CACHE, "prefix": WindowCache(0, None), "dual": WindowCache(0, 0)}
SIZES = {"layers": 2, "width": 128, "vocab": 126_464, "prompt": 64, "gen": 128, "steps": 16, "threshold": 22}
DEFAULTS = {"fast_dllm": "", "llada": "", "python": "", "repeats": "3", **{k: str(v) for k, v in SIZES.items()}}
Answer = tuple[list[list[int]], int, float]


def write_weights(folder: Path, layers: int, width: int, vocab: int) -> None:
    """A random checkpoint in LLaDA's layout, with its special ids as far from the end of the vocabulary."""
    rng, inner = torch.Generator().manual_seed(0), 2 * width
    shapes = {"q_proj": (width, width), "k_proj": (width, width), "v_proj": (width, width), "attn_out": (width, width)}
    shapes |= {"ff_proj": (inner, width), "up_proj": (inner, width), "ff_out": (width, inner)}
    named = {f"blocks.{i}.{name}": shape for i in range(layers) for name, shape in shapes.items()}
    tensors = {name: torch.randn(shape, generator=rng) * shape[1] ** -0.5 for name, shape in named.items()}
    tensors["wte"] = torch.randn(vocab, width, generator=rng)
    tensors["ff_out"] = torch.randn(vocab, width, generator=rng) * 7 * width**-0.5  # logits of standard deviation 7
    norms = ["ln_f", *(f"blocks.{i}.{name}_norm" for i in range(layers) for name in ("attn", "ff"))]
    tensors |= {name: torch.ones(width) for name in norms}
    weights = {f"model.transformer.{name}.weight": tensor for name, tensor in tensors.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "block_type": "llama",
        "activation_type": "silu",
    }
    config |= {"d_model": width, "n_heads": 4, "n_kv_heads": 4, "n_layers": layers, "mlp_hidden_size": inner}
    config |= {"vocab_size": vocab, "embedding_size": vocab, "max_sequence_length": 4096, "weight_tying": False}
    config |= {"rope": True, "rope_full_precision": True, "rope_theta": 500_000.0, "alibi": False}
    config |= {"layer_norm_type": "rms", "rms_norm_eps": 1e-5, "attention_layer_norm": False, "include_bias": False}
    config |= {"include_qkv_bias": False, "bias_for_layer_norm": False, "block_group_size": 1, "flash_attention": False}
    config |= {"attention_dropout": 0.0, "residual_dropout": 0.0, "embedding_dropout": 0.0, "scale_logits": False}
    config |= {"mask_token_id": vocab - 128, "eos_token_id": vocab - 383, "pad_token_id": vocab - 383}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


class Peer:
    """A process that runs peer.py."""

    def __init__(self, python: str, *arguments: str) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        plain = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
        command = [python, str(Path(__file__).with_name("peer.py")), *arguments]
        self.process = subprocess.Popen(command, env=os.environ | plain, **pipes)

    def __call__(self, **cell: Any) -> Answer:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(cell), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise ValueError("the peer's process ended; what it said is above")
        tokens, forwards, seconds = json.loads(line)
        return tokens, forwards, seconds


def ours(model: Any, cell: dict[str, Any], decoder: Decoder, compared: bool) -> Answer:
    """compared: the whole response, which costs an observer; else what the loop returns, which ends at an EOS."""
    canvases: list[torch.Tensor] = []
    observer = (lambda state, view, update: canvases.append(state.canvas)) if compared else None
    parts = {"gen_len": cell["gen_length"], "block_len": BLOCK, "cache": CACHES[cell["cache"]], "stop": Never()}
    began = time.process_time()
    rows = decode(model, cell["prompts"], decoder=decoder, on_step=observer, **parts)
    seconds = time.process_time() - began
    tokens = canvases[-1][:, -cell["gen_length"] :].tolist() if compared else [row.token_ids for row in rows]
    return tokens, rows[0].nfe, seconds


def compare(model: Any, peer: Peer, cell: dict[str, Any], decoder: Decoder, repeats: int) -> str:
    """A row of the table. Raises ValueError when tokens or forwards differ."""
    mine, theirs = ours(model, cell, decoder, compared=True), peer(**cell)
    for what, one, other in zip(("tokens", "forwards"), mine, theirs, strict=False):
        if one != other:
            raise ValueError(f"{cell['peer']}, cache={cell['cache']}, {decoder.rule}: the {what} differ")
    pairs = [(ours(model, cell, decoder, compared=False)[2], peer(**cell)[2]) for _ in range(repeats)]
    ratios, tokens = sorted(other / one for one, other in pairs), cell["gen_length"]
    speeds = (f"{tokens / statistics.median(side):8.1f}" for side in zip(*pairs, strict=True))
    ratio = f"{statistics.median(ratios):6.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    return f"{cell['peer']:10} {cell['cache']:7} {decoder.rule!s:24} {mine[1]:8} {' '.join(speeds)}   {ratio}"


def main(arguments: list[str]) -> None:
    paths, options = split_options(arguments, DEFAULTS, needs_paths=False)
    if paths or not (options["fast_dllm"] and options["python"]):
        raise ValueError("name a checkout and an interpreter: fast_dllm=FOLDER python=PROGRAM")
    size = {name: whole_number(name, options[name]) for name in (*SIZES, "repeats")}
    torch.set_num_threads(1)
    prompts = torch.randint(0, size["vocab"] // 2, (1, size["prompt"]), generator=torch.Generator().manual_seed(1))
    shared = {"prompts": prompts.tolist(), "gen_length": size["gen"], "block_length": BLOCK}
    shared |= {"steps": size["steps"] * size["gen"] // BLOCK, "mask_id": size["vocab"] - 128}
    tau = size["threshold"] / 100
    with TemporaryDirectory() as folder:
        write_weights(Path(folder), size["layers"], size["width"], size["vocab"])
        model = dllm.load(folder)
        peer = Peer(options["python"], folder, options["fast_dllm"], *filter(None, [options["llada"]]))
        print(f"{'peer':10} {'cache':7} {'rule':24} forwards  tok/s (CPU) ours, theirs   theirs / ours")
        for name in ("fast_dllm", *(["llada"] if options["llada"] else [])):
            for cache in CACHES if name == "fast_dllm" else ["none"]:
                cell = {**shared, "peer": name, "cache": cache}
                print(compare(model, peer, cell, Decoder(Schedule(size["steps"])), size["repeats"]), flush=True)
                if name == "fast_dllm":
                    cell["threshold"] = tau
                    print(compare(model, peer, cell, Decoder(Threshold(tau)), size["repeats"]), flush=True)


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
