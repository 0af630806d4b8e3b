"""Replays recorded decodes of published implementations through our loop: `python scripts/replay_golden.py DIR`.

DIR holds `golden-trace/1` files (one decode each: model, parameters, prompt, output, and the changes of every
forward), tiny models and logits. Output tokens and per-forward commits must match; forwards that changed nothing (a
reference's wasted passes) are counted and named, not replayed. Prints a line per group and closes with `N passed, M
failed, K skipped`.
"""

import collections
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import dllm
from decoders import (
    NO_CACHE,
    BlockEos,
    Credit,
    Decoder,
    EntropyThreshold,
    Factor,
    FixedK,
    Never,
    Schedule,
    Threshold,
    decode,
)
from decoders.loop import DecodedRow
from decoders.state import DecodeState
from decoders.types import Candidates, Memory, Shape, Update, View
from dllm.cache import CacheStrategy, Plan, WindowCache
from dllm.spec import ModelSpec

CACHES = {"gen": NO_CACHE, None: NO_CACHE, "prefix": WindowCache(0, None), "dual": WindowCache(0, 0)}

# why cases are not replayed: (group, test on the trace, reason)
NOT_REPLAYED: list[tuple[str, Callable[[dict], bool], str]] = [
    ("edge", lambda t: True, "documents crashes and oddities of the references"),
    ("learn2pd", lambda t: True, "needs the learned filter, which is not built yet"),
    ("parallelbench_rcr", lambda t: True, "needs running-confidence remasking, which is not built yet"),
    ("parallelbench_remdm", lambda t: True, "needs ReMDM's remasking, which is not built yet"),
    ("dinfer_fastdllm", lambda t: t["params"]["early_stop"], "fills all after a first EOS at once and attends to it"),
    ("dinfer_hierarchy_fn", lambda t: True, "needs the hierarchical rule, which is not built yet"),
    ("dinfer_vicinity", lambda t: True, "a refresh of several full steps at the start is not built yet"),
    ("dinfer_credit_state", lambda t: True, "the reference's credit leaks from one request into the next"),
    ("dllm_dream_plain", lambda t: True, "needs Dream's time schedule, which is not built yet"),
    ("fastdllm_dream_plain", lambda t: True, "needs Dream's time schedule, which is not built yet"),
    ("fastdllm_dream_block", lambda t: True, "the reference commits a block's first token without its rule"),
    ("parallelbench_dream", lambda t: t["params"].get("steps") is not None, "needs Dream's time schedule"),
    ("mlgsai_llada", lambda t: t["params"].get("cfg_scale", 0) > 0, "needs classifier-free guidance"),
    ("mlgsai_llada", lambda t: any(k.endswith("_inf") and v for k, v in t["params"].items()), "needs EOS suppression"),
    ("mlgsai_llada", lambda t: t["attention_mask"] is not None, "left padding is not our canvas"),
    ("dinfer_blockwise", lambda t: t["params"]["_decoder"]["kind"] == "hierarchy", "needs the hierarchical rule"),
    (
        "dinfer_blockwise",
        lambda t: bool(t["params"].get("start_block_align")),
        "aligned blocks on a bidirectional model",
    ),
    ("dinfer_blockwise", lambda t: t["params"].get("cache_update_freq") is not None, "its refresh costs two forwards"),
]


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

    def logits(self, canvas: Tensor, plan: Plan, want: Tensor, *, end: Tensor, kv: TableKV) -> Tensor:
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
class PublishedFactor:
    """The factor rule with the published code's quirk: a first failure at the very last rank is accepted."""

    rule: Factor

    def init(self, shape: Shape) -> Memory:
        return {}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Tensor:
        chosen = self.rule(view, candidates, memory)
        number = chosen.sum(1, keepdim=True).clamp(min=1)  # the surest always goes
        return torch.where(number == view.masked.sum(1, keepdim=True) - 1, view.masked, chosen)


def load_model(folder: Path, trace: dict) -> Any:
    """The trace's model with the trace's own special ids and shift."""
    eos = trace["eos_id"] if trace["eos_id"] in range(200) else 198
    spec = ModelSpec(trace["mask_id"], (eos,), 197, shift=int(trace["shift_logits"]))
    if trace["model"].startswith("table"):
        return TableModel(folder / "models" / trace["model"], spec)
    return dllm.load(folder / "models" / trace["model"], spec=spec)


def translate(trace: dict) -> tuple[Decoder, CacheStrategy]:
    """Our decoder and cache for a trace's parameters."""
    p = trace["params"]
    blocks = p["gen_length"] // p.get("block_length", p["gen_length"])
    named = "dual" if p.get("dual_cache") else "prefix" if p.get("use_cache") else p.get("cache")
    cache = CACHES[p.get("_fn", named)]
    steps = p.get("steps")
    if "_decoder" in p:
        kind = dict(p["_decoder"])
        if kind["kind"] == "credit":
            part = Credit(kind["credit_alpha"], kind["decay_beta"], kind["boost_gamma"], slots=None)
            return Decoder(Threshold(kind["threshold"]), transforms=(part,)), cache
        return Decoder(Threshold(kind["threshold"])), cache
    by_entropy = trace["id"].startswith("dparallel")
    if p.get("threshold") is not None and by_entropy:
        return Decoder(EntropyThreshold(p["threshold"]), confidence="entropy"), cache
    confidence = "margin" if p.get("alg") == "topk_margin" else "prob"
    if p.get("factor") is not None:
        return Decoder(PublishedFactor(Factor(p["factor"])), confidence=confidence), cache
    if p.get("threshold") is not None:
        return Decoder(Threshold(p["threshold"]), confidence=confidence), cache
    ordered_by_entropy = by_entropy and p.get("_fn") in ("prefix", "dual")
    rule = Schedule(steps // blocks) if steps else FixedK(1)
    return Decoder(rule, confidence="entropy" if ordered_by_entropy else "prob"), cache


def replay(folder: Path, trace: dict) -> str | None:
    """What differs from the recording, or None."""
    decoder, cache = translate(trace)
    p = trace["params"]
    canvas: list[list[int]] = []

    def keep(state: DecodeState, view: View, update: Update) -> None:
        canvas[:] = state.canvas.tolist()

    rows = decode(
        load_model(folder, trace),
        trace["prompt_ids"],
        gen_len=p["gen_length"],
        block_len=p.get("block_length", p["gen_length"]),
        decoder=decoder,
        cache=cache,
        stop=BlockEos() if p.get("early_stop") else Never(),
        on_step=keep,
    )
    for row, ours in enumerate(rows):
        difference = compare(trace, row, ours, canvas[row])
        if difference is not None:
            return difference
    return None


def compare(trace: dict, row: int, ours: DecodedRow, canvas: list[int]) -> str | None:
    """Commits per forward (those that changed this row) and tokens before EOS."""
    start = len(trace["prompt_ids"][row])
    theirs = [
        {(c[1] - start, c[2]) for c in step["changes"] if c[0] == row and c[1] >= start} for step in trace["steps"]
    ]
    theirs = [changes for changes in theirs if changes]  # a reference's wasted passes change nothing
    eos = trace["eos_id"]
    answer = (trace.get("output_canvas") or trace["output_ids"])[row][start:]
    answer = answer[: answer.index(eos)] if eos in answer else answer
    if canvas[start : start + len(answer)] != answer:
        return f"row {row}: tokens differ"
    forwards = collections.defaultdict(set)
    for column, at in enumerate(ours.committed_at):
        forwards[at].add(column)
    for number, changes in enumerate(theirs):
        columns = {column for column, _ in changes if column < len(answer)}
        mine = {column for column in forwards[number] if column < len(answer)}
        if columns != mine:
            return f"row {row}, forward {number}: they commit {sorted(columns)}, we {sorted(mine)}"
    if ours.nfe != len(theirs):
        return f"row {row}: {len(theirs)} forwards that changed something, we make {ours.nfe}"
    return None


def check_logits(folder: Path, name: str) -> str | None:
    """Full, cached, prefix and dual forwards of a tiny checkpoint against its recorded logits (largest difference
    1e-4)."""
    about = json.loads((folder / "logits" / f"{name}.json").read_text())
    model = dllm.load(folder / "models" / about["model"])
    model.spec = replace(model.spec, shift=0)  # the recordings are not shifted
    recorded = load_file(folder / "logits" / f"{name}.safetensors")
    ids = recorded["full.ids"]
    pairs = {"full": (model.full_logits(ids, torch.ones(len(ids), dtype=torch.long)), recorded["full.logits"])}
    canvas = recorded["cache.ids"].clone()
    length = canvas.shape[1]
    kv, end = model.new_kv(torch.tensor([1]), length), torch.tensor([length])

    def forward(first: int, stop: int) -> Tensor:
        query = torch.arange(first, stop)[None]
        plan = Plan(torch.tensor([0]), query, torch.tensor([stop - first]), all_rows=True)
        return model.logits(canvas, plan, query, end=end, kv=kv)

    pairs["cache"] = (forward(0, length), recorded["cache.logits"])
    starts = {case["name"]: case.get("start") for case in about["cases"]}
    if isinstance(starts.get("dual"), int):
        first, width = starts["dual"], recorded["dual.ids_block_1"].shape[1]
        for number in (1, 2):
            canvas[:, first : first + width] = recorded[f"dual.ids_block_{number}"]
            pairs[f"dual {number}"] = (forward(first, first + width), recorded[f"dual.logits_{number}"])
        canvas = recorded["cache.ids"].clone()
        forward(0, length)
    if isinstance(starts.get("prefix"), int):
        canvas[:, starts["prefix"] :] = recorded["prefix.ids_suffix"]
        pairs["prefix"] = (forward(starts["prefix"], length), recorded["prefix.logits"])
    vocab = [i for i in range(model.backbone.config.vocab_size) if i != model.spec.mask_id]
    for case, (ours, theirs) in pairs.items():
        difference = float((ours[..., vocab] - theirs[..., vocab]).abs().max())
        if difference > 1e-4:
            return f"{case}: logits differ by {difference:.2g}"
    return None


@torch.inference_mode()
def main() -> None:
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "models").is_dir():
        print("error: give the directory of the recordings (with models/ in it)", file=sys.stderr)
        raise SystemExit(2)
    folder = Path(sys.argv[1])
    total: collections.Counter[str] = collections.Counter()
    for group in sorted(
        path.name for path in folder.iterdir() if path.is_dir() and path.name not in ("models", "selection")
    ):
        counts: collections.Counter[str] = collections.Counter()
        notes: collections.Counter[str] = collections.Counter()
        for path in sorted((folder / group).glob("*.json")):
            if group == "logits":
                is_table = path.stem.startswith("table")
                difference = None if is_table else check_logits(folder, path.stem)
                reason = "table model, see the decodes" if is_table else None
            else:
                trace = json.loads(path.read_text())
                reasons = [why for name, test, why in NOT_REPLAYED if name == group and test(trace)]
                reason = reasons[0] if reasons else None
                difference = None if reason else replay(folder, trace)
            counts["skipped" if reason else "failed" if difference else "passed"] += 1
            notes[reason or ""] += bool(reason)
            if difference:
                print(f"  FAILED {group}/{path.stem}: {difference}")
        why = "; ".join(f"{number} skipped: {reason}" for reason, number in notes.items() if reason)
        print(f"{group}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped. {why}")
        total += counts
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    raise SystemExit(1 if total["failed"] else 0)


if __name__ == "__main__":
    main()
