"""What a recorded reference does that our decoders do not (its model, caches, quirks), and our parts for a trace."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import dllm
from decoders import (
    NO_CACHE,
    BanEos,
    BlockEos,
    Credit,
    Decoder,
    DreamSchedule,
    EntropyThreshold,
    EosLast,
    Factor,
    FixedK,
    Hierarchical,
    Learn2PD,
    LoopRemask,
    LoopRule,
    MaskGit,
    Never,
    RunningConfidence,
    Schedule,
    StopRule,
    Threshold,
)
from decoders.ranking import take
from decoders.state import DecodeState
from decoders.types import Candidates, CommitRule, Confidence, Memory, Shape, View
from dllm.cache import CacheStrategy, Plan, Progress, WindowCache
from dllm.guidance import Guided
from dllm.spec import ModelSpec

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

    def __init__(self, folder: Path, spec: ModelSpec) -> None:
        self.weights = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.config = json.loads((folder / "config.json").read_text())
        self.spec = spec

    def new_kv(self, prompt_len: Tensor, length: int) -> TableKV:
        width = self.weights["Wk"].shape[1]
        return TableKV(*(torch.zeros(len(prompt_len), length, width, dtype=torch.float64) for _ in range(2)))

    def logits(
        self, canvas: Tensor, plan: Plan, want: Tensor, *, end: Tensor, kv: TableKV, soft: None = None
    ) -> Tensor:
        w, rows = self.weights, plan.rows[:, None]
        h0 = w["E"][canvas[rows, plan.query]] + w["P"][plan.query]
        kv.keys[rows, plan.query], kv.values[rows, plan.query] = h0 @ w["Wk"], h0 @ w["Wv"]
        q, k, v = (_heads(x) for x in (h0 @ w["Wq"], kv.keys[plan.rows], kv.values[plan.rows]))
        score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        dead = torch.arange(canvas.shape[1]) >= end[plan.rows][:, None, None, None]
        attended = score.masked_fill(dead, float("-inf")).softmax(-1) @ v
        h1 = h0 + attended.transpose(1, 2).flatten(2) @ w["Wo"]
        h2 = h1 + torch.tanh(h1 @ w["W1"] + w["b1"]) @ w["W2"]
        r = h2 / (h2.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        logits = self.config.get("logit_scale", 1.0) * (r @ w["U"].T)
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
class Unshifted:
    """A cache that forgets the token shift: the reference's cached calls start at the block, not one column before."""

    cache: WindowCache

    def check(self, spec: ModelSpec) -> None:
        self.cache.check(spec)

    def plan(self, progress: Progress, spec: ModelSpec) -> Iterator[Plan]:
        return self.cache.plan(progress, replace(spec, shift=0))


@dataclass(frozen=True)
class PublishedFactor:
    """The factor rule with the published code's quirk: a first failure at the very last rank is accepted."""

    rule: Factor

    def init(self, shape: Shape) -> Memory:
        return {}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Tensor:
        chosen = self.rule(view, candidates, memory)
        number = chosen.sum(1, keepdim=True).clamp(min=1)  # the surest always goes
        return torch.where(number == view.masked.sum(1, keepdim=True) - 1, view.masked, chosen)


@dataclass(frozen=True)
class FirstFromFullPass:
    """Fast-dLLM's Dream block file: the full pass writes a block's first token, whatever the rule says of it."""

    rule: CommitRule

    def init(self, shape: Shape) -> Memory:
        return self.rule.init(shape)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Tensor:
        first = torch.arange(view.masked.shape[1]) == 0
        return torch.where((view.step == 0)[:, None], first, self.rule(view, candidates, memory))


@dataclass(frozen=True)
class DelayingThreshold:
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
class FillEos:
    """dInfer's early stop in its Fast-dLLM file: writes EOS into all columns behind the first one at once, over tokens
    too, and attends to them while it fills the rest of the block. With a cache it does not look after a full pass."""

    cached: bool

    def __call__(self, state: DecodeState) -> Tensor:
        columns = torch.arange(state.canvas.shape[1])
        found = (state.canvas == state.spec.eos_ids[0]) & (columns >= state.prompt_len[:, None])
        found &= (state.step > 0)[:, None] | (not self.cached)
        first = torch.where(found.any(1), found.int().argmax(1), len(columns))
        state.canvas[(columns > first[:, None]) & (columns < state.end[:, None])] = state.spec.eos_ids[0]
        masks_left = (state.canvas.gather(1, state.columns) == state.spec.mask_id).any(1)
        return torch.where(masks_left, state.end, torch.minimum(state.end, first + 1))


class Peeking:
    """A model that also keeps what it predicts for every masked column of the call: (column, token, probability).

    stale_suffix: cached calls attend to what the last full pass attended to, also behind a cut made since.
    """

    def __init__(self, model: Any, stale_suffix: bool) -> None:
        self.model, self.spec, self.new_kv = model, model.spec, model.new_kv
        self.stale_suffix = stale_suffix
        self.attended = torch.zeros(0)
        self.seen: list[tuple[int, int, float]] = []

    def logits(self, canvas: Tensor, plan: Plan, want: Tensor, *, end: Tensor, kv: Any) -> Tensor:
        if plan.query[0, 0] == 0 or not self.stale_suffix:
            self.attended = end
        logits = self.model.logits(canvas, plan, plan.query, end=self.attended, kv=kv)
        probs, tokens = logits[0].softmax(-1).max(-1)
        columns = plan.query[0]
        masked = canvas[0, columns] == self.spec.mask_id
        picked = (values[masked].tolist() for values in (columns, tokens, probs))
        self.seen = list(zip(*picked, strict=True))
        place = torch.zeros_like(canvas[0]).scatter_(0, columns, torch.arange(len(columns)))
        return logits[:, place[want[0]]]  # dead columns, which the call leaves out, get some other column's


@dataclass(frozen=True)
class PredictedEotp:
    """Learn2PD's EoTP: cut after the first EoT that the filter accepts, else after the surest one predicted anywhere
    (in its cached functions within the block)."""

    model: Peeking
    rule: CommitRule
    within_block: bool

    def __call__(self, state: DecodeState) -> Tensor:
        eos = state.spec.eos_ids[0]
        block_end = int(state.start) + state.window if self.within_block else state.canvas.shape[1]
        ends = [(column, p) for column, token, p in self.model.seen if token == eos and column < block_end]
        if not ends:
            return state.end
        taken = self.rule.accepted[0] if isinstance(self.rule, RecordedFilter) else torch.zeros(state.window).bool()
        inside = state.columns[0, taken].tolist()
        first = min((column for column, _ in ends if column in inside), default=None)
        cut = max(ends, key=lambda pair: pair[1])[0] if first is None else first
        return state.end.clamp(max=cut + 1)


class RecordedFilter:
    """Learn2PD's rule with the recorded stand-in filter, and its schedule's surest beside it."""

    def __init__(self, folder: Path, tau: float, schedule: Schedule) -> None:
        self.rule, self.schedule = Learn2PD(tau, str(folder / "models" / "filter_standin")), schedule

    def init(self, shape: Shape) -> Memory:
        return self.schedule.init(shape)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Tensor:
        self.accepted = self.rule(view, candidates, memory) & view.masked
        return self.accepted | self.schedule(view, candidates, memory)


def load_model(folder: Path, trace: dict) -> Any:
    """The trace's model with the trace's own special ids, shift and guidance."""
    eos = trace["eos_id"] if trace["eos_id"] in range(200) else 198
    spec = ModelSpec(trace["mask_id"], (eos,), 197, shift=1 if trace["shift_logits"] else 0)
    model: Any = (
        TableModel(folder / "models" / trace["model"], spec)
        if trace["model"].startswith("table")
        else dllm.load(folder / "models" / trace["model"], spec=spec)
    )
    guidance = trace["params"].get("cfg_scale") or 0
    return Guided(model, guidance) if guidance else model


def translate(folder: Path, trace: dict) -> tuple[Any, Decoder, CacheStrategy, StopRule]:
    """Our model, decoder, cache and stop rule for a trace's parameters."""
    p, group = trace["params"], trace["id"].split("/")[0]
    model, stop = load_model(folder, trace), BlockEos() if p.get("early_stop") else Never()
    if group == "dinfer_fastdllm" and p.get("early_stop"):
        stop = FillEos(cached=bool(p.get("use_cache")))
    decoder = _decoder(folder, group, p)
    if group == "learn2pd" and p["_fn"] != "l2p":
        model = Peeking(model, stale_suffix=p["_fn"] == "dual")
        stop = PredictedEotp(model, decoder.rule, within_block=p["_fn"] in ("prefix", "dual"))
    return model, decoder, _cache(group, p), stop


def _cache(group: str, p: dict) -> CacheStrategy:
    if p.get("vicinity"):
        before, after, warmup = p["vicinity"]
        return WindowCache(before, after, warmup=warmup + 1)  # an iteration with a refresh makes two passes
    named = "dual" if p.get("dual_cache") else "prefix" if p.get("use_cache") else p.get("cache")
    cache = CACHES[p.get("_fn", named)]
    if group == "fastdllm_dream_block":
        return Unshifted(WindowCache(0, 0 if p.get("dual_cache") else None))
    return cache


def _decoder(folder: Path, group: str, p: dict) -> Decoder:
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
        return Decoder(DreamSchedule(steps), confidence=order, at_least_one=False)
    if group == "fastdllm_dream_block":
        if p["alg"] == "confidence_threshold":
            return Decoder(FirstFromFullPass(Threshold(p["threshold"])))
        rule = FirstFromFullPass(DreamSchedule(per_block))  # any other order is silently entropy
        return Decoder(rule, confidence="entropy", at_least_one=False)
    if group == "parallelbench_dream" and steps and tau is None and p.get("factor") is None:
        return Decoder(DreamSchedule(per_block), confidence=order, at_least_one=False)
    if group == "parallelbench_rcr":
        schedule = MaskGit(per_block, p["mode"])
        if not p["overtime_conf"]:
            return Decoder(schedule, at_least_one=False)
        return Decoder(FixedK("all"), revise=RunningConfidence(schedule))
    if group == "parallelbench_remdm":
        after = max(min(int(block * 7 / 8), block - 1), 1)
        shared = {"steps": per_block, "extra": p["remdm_steps"], "redo": p["remdm_number"], "after": after}
        return Decoder(LoopRule(**shared), revise=LoopRemask(**shared), at_least_one=False)
    if group == "learn2pd":
        schedule = Schedule(per_block)
        return Decoder(schedule if p["_fn"] == "eot" else RecordedFilter(folder, p["_accept_thres"], schedule))
    by_entropy = group.startswith("dparallel")
    if tau is not None and by_entropy:
        return Decoder(EntropyThreshold(tau), confidence="entropy")
    confidence: Confidence = "margin" if order == "margin" else "prob"
    if p.get("factor") is not None:
        return Decoder(PublishedFactor(Factor(p["factor"])), confidence=confidence)
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
