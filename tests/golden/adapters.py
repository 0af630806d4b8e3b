"""What a recorded reference does that our decoders do not (its model, caches, quirks), and our parts for a trace."""

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dllm
from decoders import (
    NO_CACHE,
    BanEos,
    BlockEos,
    Credit,
    Decoder,
    Dilated,
    Dimple,
    DreamSchedule,
    EntropyBound,
    EntropyThreshold,
    EosLast,
    Eotp,
    Factor,
    FirstAlone,
    FixedK,
    Hierarchical,
    Klass,
    Learn2PD,
    LoopMdm,
    MaskGit,
    Never,
    PositionPrior,
    RunningConfidence,
    Schedule,
    SlowFast,
    StopRule,
    StrictEos,
    Threshold,
    Wino,
)
from decoders.rules.ranking import take
from decoders.state import DecodeState
from decoders.types import Candidates, CommitRule, Confidence, Memory, Shape, View
from dllm.cache import BlockCache, CacheStrategy, SubBlockCache, WindowCache
from dllm.guidance import Guided
from dllm.plan import Plan
from dllm.spec import ModelSpec
from dllm.vision.pictures import Picture

CACHES = {
    "gen": NO_CACHE,
    None: NO_CACHE,
    "l2p": NO_CACHE,
    "eot": NO_CACHE,
    "l2peot": NO_CACHE,
    "prefix": WindowCache(0, None),
    "dual": WindowCache(0, 0),
}
ORDER: dict[str, Confidence] = {"topk_margin": "margin", "entropy": "entropy"}


@dataclass
class TableKV:
    """Keys and values `[B, T, D]` of the table model's one layer."""

    keys: Tensor
    values: Tensor


class TableModel:
    """The recorded one-layer attention model (float64), as the golden README defines it, behind our model interface."""

    passes = 1

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self.weights = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.config = json.loads((folder / "config.json").read_text())
        self.spec = spec

    def _after(self, h0: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """Logits of the columns `h0` over `keys` and `values`, of which each sees those in `seen`."""
        w = self.weights
        q, k, v = (_heads(x) for x in (h0 @ w["Wq"], keys, values))
        score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        attended = score.masked_fill(~seen, float("-inf")).softmax(-1) @ v
        h1 = h0 + attended.transpose(1, 2).flatten(2) @ w["Wo"]
        h2 = h1 + torch.tanh(h1 @ w["W1"] + w["b1"]) @ w["W2"]
        r = h2 / (h2.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return self.config.get("logit_scale", 1.0) * (r @ w["U"].T)

    def shadow_logits(self, canvas: Tensor, want: Tensor, prompt_len: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """WINO's forward: the wanted columns, and a MASK at each place that sees all but that column."""
        w, length = self.weights, canvas.shape[1]
        columns = torch.arange(length)
        here = w["E"][canvas] + w["P"][columns]
        shadow = w["E"][torch.full_like(want, self.spec.mask_id)] + w["P"][want]
        h0 = torch.cat([here, shadow], 1)
        live = (columns < end[:, None])[:, None, None]
        plain = nn.functional.pad(live.expand(-1, -1, length, -1), (0, want.shape[1]))
        blind = torch.cat(
            [
                live & (columns != want[..., None])[:, None],
                torch.ones(len(want), 1, *want.shape[1:] * 2).bool(),
            ],
            3,
        )
        logits = self._after(h0, h0 @ w["Wk"], h0 @ w["Wv"], torch.cat([plain, blind], 2))
        logits[..., self.spec.mask_id] = float("-inf")
        return logits.gather(1, want[..., None].expand(-1, -1, logits.shape[-1])), logits[:, length:]

    def new_kv(self, prompt_len: Tensor, length: int) -> TableKV:
        width = self.weights["Wk"].shape[1]
        return TableKV(*(torch.zeros(len(prompt_len), length, width, dtype=torch.float64) for _ in range(2)))

    def renew_kv(self, kv: TableKV, rows: Tensor, prompt_len: Tensor) -> None:
        kv.keys[rows], kv.values[rows] = 0, 0

    def logits(
        self, canvas: Tensor, plan: Plan, want: Tensor, *, end: Tensor, kv: TableKV, soft: None = None
    ) -> Tensor:
        w, rows = self.weights, plan.rows[:, None]
        h0 = w["E"][canvas[rows, plan.query]] + w["P"][plan.query]
        kv.keys[rows, plan.query], kv.values[rows, plan.query] = h0 @ w["Wk"], h0 @ w["Wv"]
        seen = torch.arange(canvas.shape[1]) < end[plan.rows][:, None, None, None]
        logits = self._after(h0, kv.keys[plan.rows], kv.values[plan.rows], seen)
        place = torch.zeros_like(canvas[plan.rows]).scatter_(
            1, plan.query, torch.arange(plan.query.shape[1]).expand_as(plan.query)
        )
        source = place.gather(1, (want - self.spec.shift).clamp(min=0))
        logits = logits.gather(1, source[..., None].expand(-1, -1, logits.shape[-1]))
        logits[..., self.spec.mask_id] = float("-inf")
        return logits


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


@dataclass(frozen=True)
class DelayingThreshold(CommitRule):
    """Fast-dLLM's plain Dream file: a schedule whose tokens below the threshold wait for a later step."""

    tau: float
    per_step: int

    def init(self, shape: Shape) -> Memory:
        return {"waiting": torch.zeros(shape.batch, dtype=torch.long)}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Tensor:
        due = self.per_step + memory["waiting"]
        best = take(view, candidates, torch.ones_like(due))
        kept = take(view, candidates, due) & ((candidates.confidence >= self.tau) | best)
        memory["waiting"].copy_(due - kept.sum(1))
        return kept


@dataclass(frozen=True)
class FillEos(StopRule):
    """dInfer's early stop in its Fast-dLLM file: writes EOS into all columns behind the first one at once, over tokens
    too, and attends to them while it fills the rest of the block. With a cache it does not look after a full pass."""

    cached: bool

    def __call__(self, state: DecodeState) -> Tensor:
        columns = torch.arange(state.canvas.shape[1])
        found = (state.canvas == state.spec.eos_ids[0]) & (columns >= state.prompt_len[:, None])
        found &= (state.step > 0)[:, None] | (not self.cached)
        first = torch.where(found.any(1), found.int().argmax(1), len(columns))
        state.canvas[(columns > first[:, None]) & (columns < state.end[:, None])] = state.spec.eos_ids[0]
        state._step_cache.valid.clear()  # a stop rule of ours writes nothing, so that what is kept stays right
        masks_left = (state.canvas.gather(1, state.columns) == state.spec.mask_id).any(1)
        return torch.where(masks_left, state.end, torch.minimum(state.end, first + 1))


class StaleSuffix:
    """A model whose cached calls attend to what the last full pass attended to, also behind a cut made since."""

    def __init__(self, model: Any) -> None:
        self.model, self.spec, self.passes = model, model.spec, model.passes
        self.new_kv, self.renew_kv = model.new_kv, model.renew_kv
        self.attended = torch.zeros(0)

    def logits(self, canvas: Tensor, plan: Plan, want: Tensor, *, end: Tensor, kv: Any) -> Tensor:
        if plan.query[0, 0] == 0:
            self.attended = end
        return self.model.logits(canvas, replace(plan, seen=None), want, end=self.attended, kv=kv)


@dataclass(frozen=True)
class ProbThreshold(CommitRule):
    """D2F's other orders: its threshold is on the probability, and the surest is that of the decoder's own measure."""

    tau: float

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Tensor:
        return view.logits.top_prob() > self.tau


@dataclass(frozen=True)
class FinishOpen(StopRule):
    """D2F's end: the blocks that are open when an EOS comes are filled, also those behind it, and no other."""

    def __call__(self, state: DecodeState) -> Tensor:
        columns = torch.arange(state.canvas.shape[1])
        ended = (state.spec.is_eos(state.canvas) & (columns >= state.prompt_len[:, None])).any(1) & ~state.done
        return torch.where(ended, (columns * state.free).amax(1) + 1, state.end)


STAND_INS = (DelayingThreshold, FillEos, StaleSuffix, ProbThreshold, FinishOpen)  # parts that only this replay has


def load_model(folder: Path, trace: dict, spec: ModelSpec | None = None) -> Any:
    """The trace's model with the trace's own special ids, shift and guidance, or with a spec."""
    eos = trace["eos_id"] if trace["eos_id"] in range(200) else 198
    flying = "block_add_threshold" in trace["params"]
    if flying and trace["eos_id"] is None:  # none of its tokens keeps blocks from opening
        eos = min(set(range(198)) - set(trace["output_ids"][0]))
    block = 32 if trace["interface"] == "fast_dllm_qwen" else trace["params"]["block_size"] if flying else None
    shift = 1 if trace["shift_logits"] else 0
    spec = spec or ModelSpec(trace["mask_id"], (eos,), 197, shift=shift, block=block, prompt_block=flying)
    model: Any = (
        TableModel(folder / "models" / trace["model"], spec)
        if trace["model"].startswith("table")
        else dllm.load(folder / "models" / trace["model"], spec=spec)
    )
    guidance = trace["params"].get("cfg_scale") or 0
    return Guided(model, guidance) if guidance else model


def window(group: str, p: dict) -> int:
    """Columns of our window: the reference's block, or its whole answer."""
    if group == "fastdllm_v2":
        return p["small_block_size"]
    return p["gen_length"] if group in ("klass", "klass_dream") else p.get("block_length", p["gen_length"])


def shown(folder: Path, group: str, trace: dict, model: Any) -> list[list[int]]:
    """The prompts, whose columns of a recorded picture are that picture's."""
    image = trace.get("extra", {}).get("image")
    if image is None:
        return trace["prompt_ids"]
    (prompt,) = trace["prompt_ids"]
    recorded = load_file(folder / group / image)
    return [pictured(model, prompt, recorded["pixel_values"], recorded["image_grid_thw"])]


def pictured(model: Any, prompt: list[int], patches: Tensor, grids: Tensor) -> list[int]:
    """A prompt with pictures in place of its runs of image tokens."""
    token, merged = model.backbone.config.image_token_id, model.backbone.config.vision_config.spatial_merge_size
    pieces = patches.split([math.prod(grid) for grid in grids.tolist()])
    columns = []
    for piece, (_, height, width) in zip(pieces, grids.tolist(), strict=True):
        columns += model.album.add(Picture(piece, height // merged, width // merged))
    fresh = iter(columns)
    return [next(fresh) if one == token else one for one in prompt]


def answer_lengths(group: str, p: dict, prompts: list[list[int]]) -> list[int]:
    """Columns to decode after each prompt. Fast-dLLM v2 makes whole blocks of 32 from the longest prompt on, and the
    token that the last one's own forward gives."""
    if group != "fastdllm_v2":
        return [p["gen_length"]] * len(prompts)
    blocks = max(map(len, prompts)) // 32 + p["max_new_tokens"] // 32
    return [blocks * 32 + 1 - len(prompt) for prompt in prompts]


def translate(folder: Path, group: str, trace: dict) -> tuple[Any, Decoder, CacheStrategy, StopRule]:
    """Our model, decoder, cache and stop rule for a trace's parameters."""
    p = trace["params"]
    model, stop = load_model(folder, trace), BlockEos() if p.get("early_stop") else Never()
    if group == "fastdllm_v2" and trace["eos_id"] is not None:
        stop = StrictEos() if p["_fn"] == "generate" else BlockEos()
    if group == "dinfer_fastdllm" and p.get("early_stop"):
        stop = FillEos(cached=bool(p.get("use_cache")))
    if group == "d2f" and trace["eos_id"] is not None:
        stop = FinishOpen()
    decoder = _decoder(folder, group, p)
    if group == "learn2pd" and p["_fn"] != "l2p":
        stop = Eotp("window" if p["_fn"] in ("prefix", "dual") else "query")
        model = StaleSuffix(model) if p["_fn"] == "dual" else model
    return model, decoder, _cache(group, p), stop


def common_params(group: str, p: dict) -> dict:
    """A trace's parameters by the names that most references have for them."""
    if group == "dimple":
        return {**p, "gen_length": p["max_new_tokens"]}
    if group == "d2f":
        return {**p, "gen_length": p["max_new_tokens"], "block_length": p["block_size"]}
    if group != "freedave":
        return p
    kept = {key: value for key, value in p.items() if key not in ("_fn", "use_cache", "dual_cache", "decoding_steps")}
    tau = {"threshold": p["confidence_threshold"]} if "confidence_threshold" in p else {}
    return {**kept, **tau, "gen_length": p["max_gen_length"], "cache": "dual" if p["dual_cache"] else "prefix"}


def _cache(group: str, p: dict) -> CacheStrategy:
    if group == "dimple":
        return WindowCache(None, None, freeze_prompt=True) if p["use_cache"] else NO_CACHE
    if group == "fastdllm_v2":
        return SubBlockCache(first_token=True) if p["use_block_cache"] else BlockCache(first_token=True)
    if group == "d2f":
        return BlockCache()
    if p.get("vicinity"):
        before, after, warmup = p["vicinity"]
        return WindowCache(before, after, warmup=warmup + 1)  # an iteration with a refresh makes two passes
    named = "dual" if p.get("dual_cache") else "prefix" if p.get("use_cache") else p.get("cache")
    cache = CACHES[p.get("_fn", named)]
    if group == "fastdllm_dream_block":
        return WindowCache(0, 0 if p.get("dual_cache") else None, look_back=False)
    return cache


def _decoder(folder: Path, group: str, p: dict) -> Decoder:
    if group in METHODS:
        return METHODS[group](folder, p)
    block = p.get("block_length", p["gen_length"])
    blocks = p["gen_length"] // block
    steps, tau = p.get("steps") or 0, p.get("threshold")
    per_block = steps // blocks
    order = ORDER.get(p.get("alg", ""), "prob")
    if group == "dinfer_hierarchy_fn" and tau is None:
        return Decoder(Schedule(per_block))
    if "_decoder" in p or group == "dinfer_hierarchy_fn":
        return _dinfer(p.get("_decoder") or {"kind": "hierarchy", **p})
    if group in ("dllm_dream_plain", "fastdllm_dream_plain"):
        if p["alg"] == "confidence_threshold":
            return Decoder(DelayingThreshold(p["threshold"], p["gen_length"] // steps))
        return Decoder(DreamSchedule(steps), confidence=order)
    if group == "fastdllm_dream_block":
        if p["alg"] == "confidence_threshold":
            return Decoder(FirstAlone(Threshold(p["threshold"])))
        rule = FirstAlone(DreamSchedule(per_block))  # any other order is silently entropy
        return Decoder(rule, confidence="entropy")
    if group == "parallelbench_dream" and steps and tau is None and p.get("factor") is None:
        return Decoder(DreamSchedule(per_block), confidence=order)
    if group == "parallelbench_rcr":
        schedule = MaskGit(per_block, p["mode"])
        if not p["overtime_conf"]:
            return Decoder(schedule)
        return Decoder(FixedK("all"), revise=RunningConfidence(schedule))
    if group == "parallelbench_remdm":
        after = max(min(int(block * 7 / 8), block - 1), 1)
        shared = {"steps": per_block, "extra": p["remdm_steps"], "redo": p["remdm_number"], "after": after}
        return Decoder(LoopMdm(**shared))
    if group == "learn2pd":
        filter = str(folder / "models" / "filter_standin")  # weights as recorded
        rule = Schedule(per_block) if p["_fn"] == "eot" else Learn2PD(p["_accept_thres"], filter, per_block)
        return Decoder(rule)
    by_entropy = group.startswith("dparallel")
    if tau is not None and by_entropy:
        return Decoder(EntropyThreshold(tau), confidence="entropy")
    confidence: Confidence = "margin" if order == "margin" else "prob"
    if p.get("factor") is not None:
        return Decoder(Factor(p["factor"], released=True), confidence=confidence)
    if tau is not None:
        return Decoder(Threshold(tau), confidence=confidence)
    rule = Schedule(per_block) if per_block else FixedK(1)
    if p.get("logits_eos_inf"):
        return Decoder(rule, transforms=(BanEos(),))
    if p.get("confidence_eos_eot_inf"):
        return Decoder(rule, rescore=(EosLast(),))
    return Decoder(rule, confidence="entropy" if by_entropy and p.get("_fn") in ("prefix", "dual") else "prob")


def _dinfer(kind: dict) -> Decoder:
    if kind["kind"] == "credit":
        part = Credit(kind["credit_alpha"], kind["decay_beta"], kind["boost_gamma"], slots=None)
        return Decoder(Threshold(kind["threshold"]), transforms=(part,))
    if kind["kind"] == "hierarchy":
        high, low = kind.get("threshold"), kind.get("low_threshold")
        return Decoder(Hierarchical(2.0 if high is None else high, 0.0 if low is None else low))
    return Decoder(Threshold(kind["threshold"]))


def _eb(folder: Path, p: dict) -> Decoder:
    return Decoder(EntropyBound(p["gamma"]), confidence="entropy")


def _pc_sampler(folder: Path, p: dict) -> Decoder:
    counts = Path(tempfile.mkdtemp()) / "counts.safetensors"
    (frequencies,) = load_file(folder / p["_baseline"]).values()
    save_file({"counts": frequencies}, counts)
    prior = PositionPrior(p["lambd"], p["alpha"], str(counts))
    return Decoder(Schedule(p["steps"] * p["block_length"] // p["gen_length"]), rescore=(prior,))


def _dus(folder: Path, p: dict) -> Decoder:
    if "n_transfer" in p:
        return Decoder(Dilated(by="confidence"))
    return Decoder(Dilated(p["base"], p["base_skip"], p["scheduler"]))


def _klass(folder: Path, p: dict) -> Decoder:
    block = p.get("block_length")
    return Decoder(Klass(p["conf_threshold"], p["kl_threshold"], p["kl_history_length"], block, p["unmask_strategy"]))


def _slowfast(folder: Path, p: dict) -> Decoder:
    part = SlowFast(
        p["high_confidence_threshold"],
        p["cycle_len_confidence_threshold"],
        p["k_exploration_steps"],
        p["cycle_length_stability_window"],
        p["cycle_length_stability_std_dev_threshold"],
    )
    return Decoder(FixedK("all"), revise=part)


def _wino(folder: Path, p: dict) -> Decoder:
    return Decoder(Wino(p["threshold"], p["threshold_back"]))


def _fast_dllm_v2(folder: Path, p: dict) -> Decoder:
    return Decoder(Threshold(p["threshold"] + 1e-6))  # theirs must be exceeded, also where it is 1


def _freedave(folder: Path, p: dict) -> Decoder:
    if "threshold" in p:
        return Decoder(Threshold(p["threshold"]))
    return Decoder(FixedK(1), confidence="left_to_right" if p.get("alg_temp") == -1 else "prob")


def _dimple(folder: Path, p: dict) -> Decoder:
    orders: dict[str, Confidence] = {"autoregressive": "left_to_right", "maskgit_plus": "prob", **ORDER}
    order, alone = orders[p["alg"]], p["alg"] == "autoregressive"
    if p["decoding_pipeline"] == "dream":
        rule = FixedK(1) if alone else DreamSchedule(p["steps"])
        return Decoder(rule, confidence=order)
    above = "confidence" if order in ("margin", "entropy") else "prob"
    never = 2.0  # above every probability
    rule = Dimple(p.get("alg_p_threshold") or never, p["steps"], above=above, fallback="one" if alone else "number")
    return Decoder(rule, confidence=order)


def _d2f(folder: Path, p: dict) -> Decoder:
    if p["sampling_strategy"] == "confidence":
        return Decoder(Threshold(p["skip_threshold"] + 1e-6))  # theirs must be exceeded
    order = {"margin_confidence": "margin", "neg_entropy": "entropy"}[p["sampling_strategy"]]
    return Decoder(ProbThreshold(p["skip_threshold"]), confidence=order)


METHODS: dict[str, Callable[[Path, dict], Decoder]] = {
    "dimple": _dimple,
    "d2f": _d2f,
    "dus": _dus,
    "eb": _eb,
    "fastdllm_v2": _fast_dllm_v2,
    "freedave": _freedave,
    "klass": _klass,
    "klass_dream": _klass,
    "pc_sampler": _pc_sampler,
    "slowfast": _slowfast,
    "wino": _wino,
}
