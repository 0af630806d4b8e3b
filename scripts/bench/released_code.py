"""Decoding compared with the released code of Fast-dLLM, LLaDA and dInfer: CPU seconds on the same weights, theirs over
ours.

    python scripts/bench/released_code.py fast_dllm=CHECKOUT python=PYTHON [llada=CHECKOUT] [dinfer=CHECKOUT]
        [layers=2] [width=128] [vocab=126464] [prompt=64] [gen=128] [batch=1] [steps=4] [threshold=40] [repeats=3]
        [compile=0] [cache=none,prefix,dual]

The checkouts are folders of github.com/NVlabs/Fast-dLLM, github.com/ML-GSAI/LLaDA and github.com/inclusionAI/dInfer.
LLaDA's generate.py runs on Fast-dLLM's model file. python is an interpreter with the libraries that these need (torch,
einops and transformers 4.49; dInfer's vllm and sglang are imported and not used). Weights are random, in LLaDA's
layout, float32; their head is scaled so that confidences vary. `steps` are those of a block of 32, `threshold` is in
hundredths. compile=1 compiles our transformer, and leaves theirs compiled where they compile it.

All sides stay loaded, have one thread, and decode in turn. Ratios are those of a forward's seconds, medians with the
least and the largest. Tokens and forwards are compared first. Where tokens differ, a row has no ratio. Where either
differs, the script ends with exit code 2: dInfer, for one, runs a forward on a block that is already decided.
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
SIZES = {"layers": 2, "width": 128, "vocab": 126_464, "prompt": 64, "gen": 128, "batch": 1, "steps": 4, "threshold": 40}
COUNTS = {**SIZES, "repeats": 3, "compile": 0}
CHECKOUTS = ("fast_dllm", "llada", "dinfer")
DEFAULTS = dict.fromkeys((*CHECKOUTS, "python"), "") | {"cache": ",".join(CACHES)}
DEFAULTS |= {name: str(count) for name, count in COUNTS.items()}
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

    def __init__(self, python: str, compiled: bool, *arguments: str) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        plain = {"PYTHONPATH": "", "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": str(int(not compiled))}
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
    return tokens, max(row.nfe for row in rows), seconds


def compare(model: Any, peer: Peer, cell: dict[str, Any], decoder: Decoder, repeats: int) -> tuple[bool, str]:
    """Whether tokens and forwards are equal, and a row of the table."""
    mine, theirs = ours(model, cell, decoder, compared=True), peer(**cell)
    about = f"{cell['peer']:10} {cell['cache']:7} {decoder.rule!s:21} {mine[1]:4}, {theirs[1]:4}  "
    if mine[0] != theirs[0]:
        return False, f"{about} the tokens differ"
    pairs = [(ours(model, cell, decoder, compared=False)[2], peer(**cell)[2]) for _ in range(repeats)]
    each = [(one / mine[1], other / theirs[1]) for one, other in pairs]
    ratios, tokens = sorted(other / one for one, other in each), cell["gen_length"] * len(cell["prompts"])
    speeds = " ".join(f"{tokens / statistics.median(side):8.1f}" for side in zip(*pairs, strict=True))
    ratio = f"{statistics.median(ratios):6.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    return mine[1] == theirs[1], f"{about} {speeds}   {ratio}"


def main(arguments: list[str]) -> None:
    paths, options = split_options(arguments, DEFAULTS, needs_paths=False)
    if paths or not (options["fast_dllm"] and options["python"]):
        raise ValueError("name a checkout and an interpreter: fast_dllm=FOLDER python=PROGRAM")
    size = {name: whole_number(name, options[name], least=int(name != "compile")) for name in COUNTS}
    compiled, caches = bool(size["compile"]), options["cache"].split(",")
    if not set(caches) <= set(CACHES):
        raise ValueError(f"cache={options['cache']}; give some of {', '.join(CACHES)}, with commas")
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, size["vocab"] // 2, (size["batch"], size["prompt"]), generator=rng)
    shared = {"prompts": prompts.tolist(), "gen_length": size["gen"], "block_length": BLOCK}
    shared |= {"steps": size["steps"] * size["gen"] // BLOCK, "mask_id": size["vocab"] - 128}
    tau = size["threshold"] / 100
    rules = {
        "schedule": (Decoder(Schedule(size["steps"])), {}),
        "threshold": (Decoder(Threshold(tau)), {"threshold": tau, "steps": size["gen"]}),  # theirs end after as many
    }
    equal = True
    with TemporaryDirectory() as folder:
        write_weights(Path(folder), size["layers"], size["width"], size["vocab"])
        model = dllm.load(folder, compile=compiled)
        generate_py = Peer(options["python"], compiled, "generate_py", folder, options["fast_dllm"], options["llada"])
        rows = [("fast_dllm", cache, rule, generate_py) for cache in caches for rule in rules]
        if options["llada"] and "none" in caches:
            rows.append(("llada", "none", "schedule", generate_py))
        if options["dinfer"]:
            dinfer = Peer(options["python"], compiled, "dinfer", folder, options["dinfer"])
            rows += [("dinfer", cache, "threshold", dinfer) for cache in caches]
        print(f"{'peer':10} {'cache':7} {'rule':21} forwards   tok/s (CPU): ours, theirs   a forward: theirs / ours")
        for name, cache, rule, peer in rows:
            decoder, told = rules[rule]
            same, row = compare(model, peer, {**shared, "peer": name, "cache": cache, **told}, decoder, size["repeats"])
            equal &= same
            print(row, flush=True)
    if not equal:
        raise ValueError("tokens or forwards differ; the rows above say where")


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
