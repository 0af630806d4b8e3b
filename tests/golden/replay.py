"""Replays recorded decodes of published implementations through our loop: `python -m tests.golden.replay DIR`.

DIR holds `golden-trace/1` files (one decode each: model, parameters, prompt, output, and the changes of every forward),
tiny models and logits. Output tokens and the changes of every forward must match. A reference's forwards that changed
nothing (wasted passes) are counted and named; ours must be as many as its others, or, where its schedule has empty
steps, as many as all. Prints a line per group and closes with `N passed, M failed, K skipped`; the single steps of
`tests/golden/selection.py` have lines of their own and do not count.
"""

import collections
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import logging as transformers_logging

import dllm
from decoders import decode
from decoders.state import DecodeState
from decoders.types import Update, View
from dllm.cache import Plan
from dllm.spec import ModelSpec
from tests.golden.adapters import TableModel, translate
from tests.golden.selection import replay_selection

GROUPS = {  # those that adapters.translate knows
    "dinfer_blockwise", "dinfer_credit_state", "dinfer_fastdllm", "dinfer_hierarchy_fn", "dinfer_vicinity",
    "dllm_dream_plain", "dparallel_dream", "dparallel_llada", "edge", "fastdllm_dream_block", "fastdllm_dream_plain",
    "fastdllm_llada", "fastdllm_llada_f6b35ec", "learn2pd", "logits", "mlgsai_llada", "parallelbench_dream",
    "parallelbench_rcr", "parallelbench_remdm",
}  # fmt: skip


def blocks_of(trace: dict, step: dict) -> set[int]:
    """Blocks that a forward writes to (one prompt)."""
    return {
        (column - len(trace["prompt_ids"][0])) // trace["params"]["block_length"] for _, column, *_ in step["changes"]
    }


# why cases are not replayed: (group or all, test on the trace, reason)
NOT_REPLAYED: list[tuple[str, Callable[[dict], bool], str]] = [
    ("edge", lambda t: True, "documents crashes and oddities of the references"),
    ("dinfer_credit_state", lambda t: True, "the reference's credit leaks from one request into the next"),
    (
        "dinfer_fastdllm",
        lambda t: t["params"].get("early_stop") and t["eos_id"] in t["prompt_ids"][0],
        "an EOS in the prompt overwrites all behind it",
    ),
    ("dinfer_blockwise", lambda t: bool(t["params"].get("start_block_align")), "its blocks begin inside the prompt"),
    ("", lambda t: t["attention_mask"] is not None, "left padding is not our canvas"),
    (
        "learn2pd",
        lambda t: any(len(blocks_of(t, step)) > 1 for step in t["steps"]),
        "with fewer masks than its schedule's number, its top-k takes a position of the next block",
    ),
    (
        "dinfer_blockwise",
        lambda t: t["params"].get("cache_update_freq") is not None,
        "refreshes by the request's unrolled iterations, each of several forwards",
    ),
    (
        "parallelbench_rcr",
        lambda t: t["params"]["overtime_conf"] and t["params"]["gen_length"] > t["params"]["block_length"],
        "masks tokens of earlier blocks again, outside the window",
    ),
]

ODD = (KeyError, ValueError, TypeError, IndexError, AttributeError, AssertionError, RuntimeError, OSError)
Changes = list[set[tuple[int, int]]]  # of one row, per forward: (response column, token)


def replay(folder: Path, trace: dict) -> tuple[str | None, int]:
    """What differs from the recording, or None; and the reference's forwards that we do not make."""
    model, decoder, cache, stop = translate(folder, trace)
    p, prompts = trace["params"], trace["prompt_ids"]
    ours: list[Changes] = [[] for _ in prompts]
    canvas = [[*prompt, *[trace["mask_id"]] * p["gen_length"]] for prompt in prompts]
    output = trace.get("output_canvas") or trace["output_ids"]
    whole = all(step["kind"] == "full" for step in trace["steps"])  # cached calls are recorded with their writes
    cuts = [whole and len(theirs) < len(full) for theirs, full in zip(output, canvas, strict=True)]

    def keep(state: DecodeState, view: View, update: Update) -> None:
        for row, (old, new) in enumerate(zip(canvas, state.canvas.tolist(), strict=True)):
            start = len(prompts[row])
            # a reference that cuts its canvas does not show what the same forward wrote behind the cut
            end = int(state.end[row]) if cuts[row] else len(old)
            changed = {(i - start, b) for i, (a, b) in enumerate(zip(old[:end], new, strict=False)) if a != b}
            ours[row].append(changed)
            canvas[row] = new[: len(old)]

    rows = decode(
        model,
        prompts,
        gen_len=p["gen_length"],
        block_len=p.get("block_length", p["gen_length"]),
        decoder=decoder,
        cache=cache,
        stop=stop,
        on_step=keep,
    )
    wasted = 0
    for row, decoded in enumerate(rows):
        difference, idle = compare(trace, row, ours[row][: decoded.nfe], canvas[row], decoder.at_least_one)
        wasted = max(wasted, idle)
        if difference is not None:
            return difference, wasted
    return None, wasted


def compare(trace: dict, row: int, ours: Changes, canvas: list[int], dense: bool) -> tuple[str | None, int]:
    """Tokens before EOS, the changes of each forward that made some, and the number of forwards.

    dense: each of our forwards changes something; else empty ones are made, as the reference makes them.
    """
    start = len(trace["prompt_ids"][row])
    recorded = [
        {(c[1] - start, c[2]) for c in step["changes"] if c[0] == row and c[1] >= start} for step in trace["steps"]
    ]
    theirs = [changes for changes in recorded if changes]
    eos = trace["eos_id"]
    answer = (trace.get("output_canvas") or trace["output_ids"])[row][start:]
    answer = answer[: answer.index(eos)] if eos in answer else answer
    if canvas[start : start + len(answer)] != answer:
        return f"row {row}: tokens differ", 0
    made = [changes for changes in ours if changes]
    for number, (mine, other) in enumerate(zip(made, theirs, strict=False)):
        left, right = ({change for change in changes if change[0] < len(answer)} for changes in (mine, other))
        if left != right:
            return f"row {row}, forward {number}: they change {sorted(right)}, we {sorted(left)}", 0
    expected = theirs if dense or len(trace["prompt_ids"]) > 1 else recorded
    mine = made if dense or len(trace["prompt_ids"]) > 1 else ours
    if len(mine) != len(expected):
        return f"row {row}: {len(expected)} forwards of theirs, {len(mine)} of ours", 0
    return None, len(recorded) - len(expected)


def check_logits(folder: Path, name: str) -> str | None:
    """Full, cached, prefix, dual and vicinity forwards of a model against its recorded logits, and its values in the
    cache (largest difference 1e-4). A shifted model's full forward must be the recorded one moved by a column."""
    about = json.loads((folder / "logits" / f"{name}.json").read_text())
    recorded = load_file(folder / "logits" / f"{name}.safetensors")
    model: Any
    if about["model"].startswith("table"):
        model = TableModel(folder / "models" / about["model"], ModelSpec(199, (198,), 197))
    else:
        model = dllm.load(folder / "models" / about["model"])
    spec = model.spec
    model.spec = replace(spec, shift=0)  # the recordings are not shifted

    def start(canvas: Tensor) -> Any:
        return model.new_kv(torch.ones(len(canvas), dtype=torch.long), canvas.shape[1])

    def forward(canvas: Tensor, kv: Any, first: int, stop: int) -> Tensor:
        rows = torch.arange(len(canvas))
        query = torch.arange(first, stop).expand(len(canvas), -1)
        plan = Plan(rows, query, torch.full_like(rows, stop - first), all_rows=True)
        return model.logits(canvas, plan, query, end=torch.full_like(rows, canvas.shape[1]), kv=kv)

    ids, before = recorded["full.ids"], recorded["cache.ids"]
    pairs = {"full": (forward(ids, start(ids), 0, ids.shape[1]), recorded["full.logits"])}
    if spec.shift:
        model.spec = spec
        pairs["shifted"] = (forward(ids, start(ids), 0, ids.shape[1])[:, 1:], recorded["full.logits"][:, :-1])
        model.spec = replace(spec, shift=0)
    kv = start(before)
    pairs["cache"] = (forward(before, kv, 0, before.shape[1]), recorded["cache.logits"])
    for number, layer in enumerate(getattr(kv, "layers", ())):
        theirs = recorded[f"cache.v{number}"]
        theirs = theirs if theirs.ndim == 4 else theirs.unflatten(-1, (-1, layer.values.shape[-1])).transpose(1, 2)
        pairs[f"values of layer {number}"] = (layer.values, theirs)
    for case in about["cases"]:
        canvas, kv, first = before.clone(), start(before), case.get("start")
        forward(canvas, kv, 0, canvas.shape[1])  # what the cached forward finds
        changes = {
            "dual": [("dual.ids_block_1", "dual.logits_1"), ("dual.ids_block_2", "dual.logits_2")],
            "prefix": [("prefix.ids_suffix", "prefix.logits")],
            "window": [("window.ids", "window.logits")],
        }
        for new, expected in changes.get(case["name"], []):
            stop = first + recorded[new].shape[1]
            canvas[:, first:stop] = recorded[new]
            pairs[expected] = (forward(canvas, kv, first, stop), recorded[expected])
    for case, (ours, theirs) in pairs.items():
        difference = float((ours - theirs)[~ours.isneginf()].abs().max())  # MASK is never offered
        if not difference <= 1e-4:
            return f"{case}: differs by {difference:.2g}"
    return None


def check(folder: Path, group: str, path: Path) -> tuple[str, str, int]:
    """("passed" | "failed" | "skipped", why, idle forwards of the reference) of one case."""
    if group not in GROUPS:
        return "skipped", "a group that this script does not know", 0
    if group == "logits":
        difference = check_logits(folder, path.stem)
        return ("failed", difference, 0) if difference else ("passed", "", 0)
    trace = json.loads(path.read_text())
    for name, test, why in NOT_REPLAYED:
        if name in (group, "") and test(trace):
            return "skipped", why, 0
    difference, wasted = replay(folder, trace)
    return ("failed", difference, wasted) if difference else ("passed", "", wasted)


@torch.inference_mode()
def main() -> None:
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "models").is_dir():
        print("error: give the directory of the recordings (with models/ in it)", file=sys.stderr)
        raise SystemExit(2)
    transformers_logging.disable_progress_bar()
    folder = Path(sys.argv[1])
    total: collections.Counter[str] = collections.Counter()
    groups = [path.name for path in folder.iterdir() if path.is_dir() and path.name not in ("models", "selection")]
    for group in sorted(groups):
        counts: collections.Counter[str] = collections.Counter()
        notes: collections.Counter[str] = collections.Counter()
        idle = 0
        for path in sorted((folder / group).glob("*.json")):
            try:
                outcome, why, wasted = check(folder, group, path)
            except ODD as error:  # a recording of another kind must not hide the rest
                outcome, why, wasted = "failed", f"cannot be replayed: {type(error).__name__}: {error}", 0
            counts[outcome] += 1
            idle += wasted
            if outcome == "skipped":
                notes[f"skipped: {why}"] += 1
            elif outcome == "failed":
                print(f"  FAILED {group}/{path.stem}: {why}")
        lines = [f"{number} {note}" for note, number in notes.items()]
        lines += [f"{idle} forwards of the reference changed nothing and are not made here"] if idle else []
        passed, failed, skipped = (counts[name] for name in ("passed", "failed", "skipped"))
        print(f"{group}: {passed} passed, {failed} failed, {skipped} skipped. {'; '.join(lines)}".rstrip(), flush=True)
        total += counts
    agree = replay_selection(folder)
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    raise SystemExit(1 if total["failed"] or not agree else 0)


if __name__ == "__main__":
    main()
