"""Our parts for recordings of blocks that end with the prompt, of blocks in flight, and of K/V that are kept late."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import dllm
from decoders import NO_CACHE, Decoder, EntropyThreshold, Never, RunningSet, Schedule, StopRule, StrictEos
from dllm.cache import BlockCache, CacheStrategy, DelayedCache
from dllm.spec import ModelSpec
from tests.golden.adapters import load_model
from tests.golden.numbers import first_difference, forward, start


@dataclass(frozen=True)
class Setup:
    """Our parts for a trace, and the running set where several blocks are in flight."""

    model: Any
    decoder: Decoder
    cache: CacheStrategy = NO_CACHE
    stop: StopRule = field(default_factory=Never)
    running: RunningSet | None = None


def common(group: str, p: dict) -> dict:
    """A trace's parameters by the names that most references have for them."""
    if group in ("bd3lm", "d3llm"):
        return {**p, "gen_length": p["max_new_tokens"], "block_length": p["block_size"]}
    return p


def _dkv_decode(folder: Path, trace: dict) -> Setup:
    p = trace["params"]
    rule = Schedule(p["steps"] * p["block_length"] // p["gen_length"])
    return Setup(load_model(folder, trace), Decoder(rule), DelayedCache(p["cache_reloading_step"], entry=2))


def _bd3lm(folder: Path, trace: dict) -> Setup:
    p = trace["params"]
    spec = ModelSpec(trace["mask_id"], (_eos(trace),), 197, block=p["block_size"], prompt_grid=True)
    blocks = -(-p["max_new_tokens"] // p["block_size"])
    steps = p.get("steps_per_block") or -(-p["steps"] // blocks)
    decoder = Decoder(Schedule(steps, spread="rounded"))
    stop = Never() if trace["eos_id"] is None else StrictEos()
    return Setup(dllm.load(folder / "models" / trace["model"], spec=spec), decoder, BlockCache(), stop)


def _d3llm(folder: Path, trace: dict) -> Setup:
    p = trace["params"]
    spec = ModelSpec(trace["mask_id"], (_eos(trace),), 197)
    early = bool(p["early_stop"]) and trace["eos_id"] is not None
    running = RunningSet(None, p["block_add_threshold"], None, surest_of_all=True, fill_eos=early)
    model = load_model(folder, trace, spec)
    return Setup(model, Decoder(EntropyThreshold(p["threshold"]), confidence="entropy"), running=running)


def _eos(trace: dict) -> int:
    """The trace's EOS, or a token that its answer does not hold."""
    held = {trace["mask_id"], 197, *trace["output_ids"][0], *(c[2] for step in trace["steps"] for c in step["changes"])}
    return min(set(range(200)) - held) if trace["eos_id"] is None else trace["eos_id"]


def check_both_ways(folder: Path, group: str, name: str) -> str | None:
    """A model's logits with blocks from column 0 on, and without blocks."""
    about = json.loads((folder / group / f"{name}.json").read_text())
    recorded = load_file(folder / group / f"{name}.safetensors")
    ids, pairs = recorded["ids"], {}
    for case, block in (("block", about["block_size"]), ("full", None)):
        spec = ModelSpec(199, (198,), 197, block=block)
        model: Any = dllm.load(folder / "models" / about["model"], spec=spec)
        pairs[case] = (forward(model, ids, start(model, ids), 0, ids.shape[1]), recorded[case])
    return first_difference(pairs)


SETUPS: dict[str, Callable[[Path, dict], Setup]] = {"bd3lm": _bd3lm, "d3llm": _d3llm, "dkv_decode": _dkv_decode}
