"""Our parts for recorded decodes of block-diffusion models and of decoders that read more than one block."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

import dllm
from decoders import (
    NO_CACHE,
    AnswerGap,
    BlockEos,
    Decoder,
    FixedK,
    InBlocks,
    InDel,
    LeftRun,
    Lookahead,
    Never,
    Prophet,
    RunningSet,
    Schedule,
    SelfDoubt,
    Smoothing,
    StopRule,
    StrictEos,
    Threshold,
    ThresholdOrSchedule,
    TokenEdit,
    WarmThreshold,
    decode,
)
from dllm.cache import BlockCache, CacheStrategy
from dllm.plan import Plan
from dllm.spec import ModelSpec
from tests.golden.adapters import TableModel

NEVER = Never()
STRICT = 1e-6  # a threshold of theirs that must be exceeded


@dataclass(frozen=True)
class Case:
    """What a recording is replayed with. length: columns after the prompt. window: columns per window."""

    model: Any
    decoder: Decoder
    length: int
    window: int
    cache: CacheStrategy = NO_CACHE
    stop: StopRule = NEVER
    loop: Callable[..., Any] = decode


class Biased:
    """A model with a constant added to some tokens' logits, as in the recordings of a model that never edits alone."""

    def __init__(self, model: Any, bias: dict[int, float]) -> None:
        self.model, self.bias = model, bias
        self.spec, self.passes = model.spec, model.passes
        self.new_kv, self.renew_kv = model.new_kv, model.renew_kv

    def logits(self, canvas: Tensor, plan: Plan, want: Tensor, *, end: Tensor, kv: Any, soft: Any = None) -> Tensor:
        logits = self.model.logits(canvas, plan, want, end=end, kv=kv, soft=soft)
        for token, bias in self.bias.items():
            logits[..., token] += bias
        return logits


def load(folder: Path, trace: dict, block: int | None = None, **more: Any) -> Any:
    """The trace's model with the trace's own special ids. block: columns of its causal blocks, from column 0 on."""
    eos = 198 if trace["eos_id"] is None else trace["eos_id"]
    spec = ModelSpec(trace["mask_id"], (eos,), 197, shift=1 if trace["shift_logits"] else 0, block=block, **more)
    path = folder / "models" / trace["model"]
    return TableModel(path, spec) if trace["model"].startswith("table") else dllm.load(path, spec=spec)


def case_of(folder: Path, group: str, trace: dict) -> Case:
    return CASES[group](folder, trace)


def decisions(trace: dict) -> list[dict]:
    """The recorded forwards that decide something: not those that only store a prompt's or a block's K/V."""
    return [step for step in trace["steps"] if step.get("role") not in ("prefill", "commit")]


def _whole_blocks(trace: dict) -> int:
    """Columns up to the end of the block in which prompt and answer end."""
    prompt, p = len(trace["prompt_ids"][0]), trace["params"]
    return -(-(prompt + p["gen_length"]) // p["block_length"]) * p["block_length"] - prompt


def _causal(folder: Path, trace: dict, decoder: Decoder, stop: StopRule, cache: CacheStrategy = NO_CACHE) -> Case:
    """A case of a block-causal model, which fills whole blocks."""
    block = trace["params"]["block_length"]
    return Case(load(folder, trace, block), decoder, _whole_blocks(trace), block, cache, stop)


def _stop(trace: dict, early: str) -> StopRule:
    """The end at an EOS: at once where the parameter `early` says so, else after its block."""
    if trace["eos_id"] is None:
        return Never()
    return StrictEos() if trace["params"].get(early) else BlockEos()


def _sdar(folder: Path, trace: dict) -> Case:
    p = trace["params"]
    rules = {
        "low_confidence_dynamic": ThresholdOrSchedule(p["denoising_steps"], p["confidence_threshold"]),
        "low_confidence_static": Schedule(p["denoising_steps"], per="block"),
        "sequential": Schedule(p["denoising_steps"], per="block"),
    }
    kind = p["remasking_strategy"]
    decoder = Decoder(rules[kind], confidence="left_to_right" if kind == "sequential" else "prob")
    return _causal(folder, trace, decoder, _stop(trace, "none"), BlockCache())


def _llada2(folder: Path, trace: dict) -> Case:
    p = trace["params"]
    return _causal(
        folder, trace, Decoder(ThresholdOrSchedule(p["steps"], p["threshold"])), _stop(trace, "eos_early_stop")
    )


def _llada21(folder: Path, trace: dict) -> Case:
    p = trace["params"]
    rule = Threshold(p["threshold"] + STRICT, least=p["num_to_transfer"])
    revise = TokenEdit(p["editing_threshold"], post=p["max_post_steps"])
    return _causal(folder, trace, Decoder(rule, revise=revise), _stop(trace, "eos_early_stop"))


def _indel(folder: Path, trace: dict) -> Case:
    p, block = trace["params"], trace["params"]["block_length"]
    model = load(folder, trace, block, delete_id=190, split_id=191)
    model = Biased(model, {190: p["_bias_delete"], 191: p["_bias_split"]})
    revise = InDel(p["threshold"], p["edit_threshold"], p["max_post_edit_steps"])
    return Case(model, Decoder(FixedK("all"), revise=revise), _whole_blocks(trace), block, stop=_stop(trace, "none"))


def _dmax(folder: Path, trace: dict) -> Case:
    revise = TokenEdit(0.0, post=None, settled=0.9)
    decoder = Decoder(LeftRun(trace["params"]["threshold"]), revise=revise, soft=SelfDoubt())
    return _causal(folder, trace, decoder, _stop(trace, "none"), BlockCache())


def _smoothed(folder: Path, trace: dict) -> Case:
    p = trace["params"]
    rule = InBlocks(WarmThreshold(p["threshold"], p["threshold_decay"]), p["block_length"], "window")
    soft = Smoothing(p["cont_weight_init"], p["cont_weight_growth"], p["cont_weight"])
    return Case(load(folder, trace), Decoder(rule, soft=soft), p["gen_length"], p["gen_length"])


def _lopa(folder: Path, trace: dict) -> Case:
    p = trace["params"]
    model = load(folder, trace, p["block_size"], prompt_block=True)
    decoder = Decoder(Threshold(p["skip_threshold"] + STRICT))
    running = RunningSet(None, p["block_add_threshold"], p["decoded_token_threshold"])
    loop = partial(decode, spread=Lookahead(p["branching_factor"], running))
    return Case(model, decoder, p["max_new_tokens"], p["block_size"], BlockCache(), loop=loop)


def _prophet(folder: Path, trace: dict) -> Case:
    p, length = trace["params"], trace["params"]["gen_length"]
    gaps = [p["early_exit_thresholds"][third] for third in ("early", "mid", "late")]
    base = InBlocks(Schedule(p["steps"] * p["block_length"] // length), p["block_length"])
    rule = AnswerGap(Prophet(gaps, base), at=p["_answer_at"], steps=p["steps"])
    return Case(load(folder, trace), Decoder(rule), length, length)


CASES: dict[str, Callable[[Path, dict], Case]] = {
    "dinfer_smooth": _smoothed,
    "dmax": _dmax,
    "indel": _indel,
    "llada2": _llada2,
    "llada21": _llada21,
    "lopa": _lopa,
    "prophet": _prophet,
    "sdar": _sdar,
}
