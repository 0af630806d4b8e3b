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
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from transformers.utils import logging as transformers_logging

from decoders import Ahead, RunningSet, decode
from decoders.state import DecodeState
from decoders.types import Update, View
from tests.golden.adapters import STAND_INS, FillEos, answer_lengths, common_params, shown, translate, window
from tests.golden.grids import SETUPS, check_both_ways, common
from tests.golden.in_blocks import CASES, case_of, decisions
from tests.golden.numbers import (
    check_block_logits,
    check_causal_logits,
    check_dimple_logits,
    check_logits,
    check_training,
)
from tests.golden.recurrent import check_depth_first, check_recurrent_logits, check_wavefront
from tests.golden.selection import check_file, replay_selection

GROUPS = {  # those that adapters.translate knows
    "d2f", "eb", "pc_sampler", "dus", "klass", "klass_dream", "slowfast", "wino", "fastdllm_v2", "fastdllm_v2_logits",
    "fastdllm_v2_train", "dus_levels", "huginn_ar", "huginn_diffusion", "huginn_logits",
    "dinfer_blockwise", "dinfer_credit_state", "dinfer_fastdllm", "dinfer_hierarchy_fn", "dinfer_vicinity",
    "dllm_dream_plain", "dparallel_dream", "dparallel_llada", "fastdllm_dream_block", "fastdllm_dream_plain",
    "fastdllm_llada", "fastdllm_llada_f6b35ec", "freedave", "learn2pd", "logits", "mlgsai_llada", "parallelbench_dream",
    "parallelbench_rcr", "parallelbench_remdm", "dimple", "dimple_logits", "llada2_logits", "sdar_logits", *CASES,
}  # fmt: skip

# oddities that are decodes like those of another group
EDGES = {
    "f6b35ec_prefix_low_threshold": "fastdllm_llada_f6b35ec",
    "fastdllm_prefix_low_threshold_wasted_call": "fastdllm_llada",
    "dinfer_threshold_mask_token_predicted": "dinfer_blockwise",
    "dinfer_blockwise_eos_in_prompt": "dinfer_blockwise",
    "mlgsai_block_longer_steps_than_tokens": "mlgsai_llada",
    "mlgsai_mask_token_predicted": "mlgsai_llada",
}


def blocks_of(trace: dict, step: dict) -> set[int]:
    """Blocks that a forward writes to (one prompt)."""
    return {
        (column - len(trace["prompt_ids"][0])) // trace["params"]["block_length"] for _, column, *_ in step["changes"]
    }


# why cases are not replayed: (group or all, test on the trace, reason)
NOT_REPLAYED: list[tuple[str, Callable[[dict], bool], str]] = [
    ("dinfer_credit_state", lambda t: True, "the reference's credit leaks from one request into the next"),
    (
        "dinfer_fastdllm",
        lambda t: t["params"].get("early_stop") and t["eos_id"] in t["prompt_ids"][0],
        "an EOS in the prompt overwrites all behind it",
    ),
    ("dinfer_blockwise", lambda t: bool(t["params"].get("start_block_align")), "its blocks begin inside the prompt"),
    (
        "fastdllm_v2",
        lambda t: len(t["prompt_ids"]) > 1 and t["params"]["use_block_cache"],
        "a row is refreshed when its neighbours need it",
    ),
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
    (
        "freedave",
        lambda t: bool(t["params"].get("eager_acceptance_mode")),
        "accepts drafts of the next block",
    ),
]

NUMBERS = {
    "a2d_logits": check_both_ways,
    "logits": check_logits,
    "dimple_logits": check_dimple_logits,
    "fastdllm_v2_logits": check_block_logits,
    "fastdllm_v2_train": check_training,
    "huginn_logits": check_recurrent_logits,
    "llada2_logits": check_causal_logits,
    "sdar_logits": check_causal_logits,
}
RECURRENT = {"huginn_ar": check_depth_first, "huginn_diffusion": check_wavefront}
ODD = (KeyError, ValueError, TypeError, IndexError, AttributeError, AssertionError, RuntimeError, OSError)
Changes = list[set[tuple[int, int]]]  # of one row, per forward: (response column, token)


def replay(folder: Path, group: str, trace: dict) -> tuple[str | None, int, bool]:
    """What differs from the recording, or None; the reference's forwards that we do not make; and whether all parts
    are the package's, for anyone to select."""
    p, loop = trace["params"], decode
    if group in CASES:
        case, trace = case_of(folder, group, trace), trace | {"steps": decisions(trace)}
        model, decoder, cache, stop, loop = case.model, case.decoder, case.cache, case.stop, case.loop
        prompts, lengths, width = trace["prompt_ids"], [case.length], case.window
    else:
        if group in SETUPS:
            setup = SETUPS[group](folder, trace)
            model, decoder, cache, stop = setup.model, setup.decoder, setup.cache, setup.stop
            if setup.running is not None:
                loop = partial(decode, spread=setup.running)
        else:
            model, decoder, cache, stop = translate(folder, group, trace)
        prompts = shown(folder, group, trace, model)
        lengths, width = answer_lengths(group, p, prompts), window(group, p)
    parts = (model, cache, stop, decoder.rule, decoder.revise)
    ours_alone = not any(type(part) in STAND_INS for part in parts)
    output = trace.get("output_canvas") or trace["output_ids"]
    ours: list[Changes] = [[] for _ in prompts]
    canvas = [[*prompt, *[trace["mask_id"]] * length] for prompt, length in zip(prompts, lengths, strict=True)]
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

    if "draft_steps" in p:
        loop = partial(decode, spread=Ahead(p["draft_steps"], match="subset", plan_by="reached"))
    if group == "d2f":
        running = RunningSet(None, p["block_add_threshold"], p["decoded_token_threshold"])
        loop = partial(decode, spread=running)
    writes = isinstance(stop, FillEos)  # which no rule of a user's may
    with patch("decoders.decode_job.check_stop") if writes else nullcontext():
        rows = loop(
            model,
            prompts,
            gen_len=lengths,
            block_len=width,
            decoder=decoder,
            cache=cache,
            stop=stop,
            on_step=keep,
        )
    idle_too = group in CASES or group in ("slowfast", "fastdllm_v2", "wino")
    wasted, dense = 0, decoder.at_least_one and not idle_too
    if "draft_steps" in p:
        return compare_ahead(trace, ours[0], canvas[0]), 0, ours_alone
    for row, decoded in enumerate(rows):
        difference, idle = compare(trace, row, ours[row][: decoded.nfe], canvas[row], dense)
        wasted = max(wasted, idle)
        if difference is not None:
            return difference, wasted, ours_alone
    return None, wasted, ours_alone


def compare_ahead(trace: dict, ours: Changes, canvas: list[int]) -> str | None:
    """Tokens, the changes of each forward, and the number of forwards. The reference writes what the model itself does
    in a state one forward later than we, but for a block's last token; without a threshold that is one token."""
    start = len(trace["prompt_ids"][0])
    theirs = [{(column - start, token) for _, column, token, *_ in step["changes"]} for step in trace["steps"]]
    if canvas != trace["output_ids"][0]:
        return "tokens differ"
    if len(ours) != len(theirs):
        return f"{len(theirs)} forwards of theirs, {len(ours)} of ours"
    ahead = trace["params"]["gen_length"] if "threshold" in trace["params"] else 1
    written, shown = set(), set()
    for number, (mine, other, later) in enumerate(zip(ours, theirs, [*theirs[1:], set()], strict=True)):
        written |= mine
        shown |= other
        if not shown <= written <= shown | later or len(written - shown) > ahead:
            return f"forward {number}: they have changed {sorted(shown)}, we {sorted(written)}"
    return None


def compare(trace: dict, row: int, ours: Changes, canvas: list[int], dense: bool) -> tuple[str | None, int]:
    """Tokens before EOS, the changes of each forward that made some, and the number of forwards.

    dense: each of our forwards changes something; else empty ones are made, as the reference makes them.
    """
    start = len(trace["prompt_ids"][row])
    steps = [
        step
        for step, later in zip(trace["steps"], [*trace["steps"][1:], {}], strict=True)
        if not later.get("uncond")  # two calls of guidance are one forward; the second one shows what changed
    ]
    recorded = [{(c[1] - start, c[2]) for c in step["changes"] if c[0] == row and c[1] >= start} for step in steps]
    eos = trace["eos_id"]
    answer = (trace.get("output_canvas") or trace["output_ids"])[row][start:]
    answer = answer[: answer.index(eos)] if eos in answer else answer
    alone = len(trace["prompt_ids"]) == 1
    theirs, made = ([changes for changes in all_ if changes] for all_ in (recorded, ours))
    while not alone and eos is not None and len(theirs) > len(made) and all(at > len(answer) for at, _ in theirs[-1]):
        theirs.pop()  # a finished row rides along with its batch
    if canvas[start : start + len(answer)] != answer:
        return f"row {row}: tokens differ", 0
    for number, (mine, other) in enumerate(zip(made, theirs, strict=False)):
        left, right = ({change for change in changes if change[0] < len(answer)} for changes in (mine, other))
        if left != right:
            return f"row {row}, forward {number}: they change {sorted(right)}, we {sorted(left)}", 0
    expected, mine = (theirs, made) if dense or not alone else (recorded, ours)
    if len(mine) != len(expected):
        return f"row {row}: {len(expected)} forwards of theirs, {len(mine)} of ours", 0
    return None, len(recorded) - len(expected)


def check(folder: Path, group: str, path: Path) -> tuple[str, str, int]:
    """("passed" | "passed with stand-ins" | "failed" | "skipped", why, idle forwards of the reference) of one case."""
    group = EDGES.get(path.stem, group)
    if group == "sdar_edge":
        return "skipped", "their schedule writes over the prompt or committed tokens, or raises", 0
    if group == "edge" or group.endswith("_edge"):
        return "skipped", "documents a crash or an oddity of the reference", 0
    if group not in GROUPS | SETUPS.keys() | NUMBERS.keys():
        return "skipped", "a group that this script does not know", 0
    if group in NUMBERS:
        difference = NUMBERS[group](folder, group, path.stem)
        return ("failed", difference, 0) if difference else ("passed", "", 0)
    if group == "dus_levels":
        _, different = check_file(path) or (0, [])
        return ("failed", f"cases {different}", 0) if different else ("passed", "", 0)
    trace = json.loads(path.read_text())
    if group in RECURRENT:
        difference = RECURRENT[group](folder, path, trace)
        return ("failed", difference, 0) if difference else ("passed", "", 0)
    trace["params"] = common(group, common_params(group, trace["params"]))
    for name, test, why in NOT_REPLAYED:
        if name in (group, "") and test(trace):
            return "skipped", why, 0
    difference, wasted, ours_alone = replay(folder, group, trace)
    if difference is not None:
        return "failed", difference, wasted
    return "passed" if ours_alone else "passed with stand-ins", "", wasted


def counted(counts: collections.Counter[str]) -> str:
    with_stand_ins = counts["passed with stand-ins"]
    passed = f"{counts['passed'] + with_stand_ins} passed ({with_stand_ins} with stand-ins)"
    return f"{passed}, {counts['failed']} failed, {counts['skipped']} skipped"


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
        idle, paths = 0, sorted((folder / group).glob("*.json"))
        for path in paths:
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
        print(f"{group}: {counted(counts)}. {'; '.join(lines)}".rstrip(), flush=True)
        total += counts
    agree = replay_selection(folder)
    print(counted(total))
    raise SystemExit(1 if total["failed"] or not agree else 0)


if __name__ == "__main__":
    main()
