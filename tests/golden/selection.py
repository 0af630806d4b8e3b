"""Replays recorded single steps of published rules (`selection/*.json`): `python -m tests.golden.selection DIR`.

Each file holds cases of one published function: given logits or confidences, which positions it takes with which
tokens, or how many in each step. Ours must agree in every case. Prints a line per file.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from decoders import (
    Credit,
    Decoder,
    Dilated,
    DreamSchedule,
    EntropyThreshold,
    Factor,
    FixedK,
    Hierarchical,
    MaskGit,
    Schedule,
    Threshold,
    TopK,
    TopP,
)
from decoders.logits import Logits
from decoders.noise import Noise
from decoders.propose import propose
from decoders.types import Candidates, CommitRule, Confidence, Memory, Rescore, Shape, View
from dllm.spec import ModelSpec


@dataclass(frozen=True)
class NeverMask(Rescore):
    """The references leave MASK in the softmax; dInfer then drops the positions that predict it."""

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Candidates:
        dropped = candidates.tokens == view.spec.mask_id
        return replace(candidates, confidence=candidates.confidence.masked_fill(dropped, float("-inf")))


ORDER: dict[str, Confidence] = {
    "maskgit_plus": "prob",
    "topk_margin": "margin",
    "entropy": "entropy",
    "dparallel_entropy": "entropy",
}


def start(decoder: Decoder, logits: Tensor) -> list[Memory]:
    batch, window, vocab = logits.shape
    return decoder.init(Shape(batch, window, vocab, logits.device))


def make_view(logits: Tensor, masked: Tensor, mask_id: int = 11, step: int = 0) -> View:
    steps = torch.full((len(masked),), step)
    spec = ModelSpec(mask_id, (0,), 0)
    live, noise = torch.ones_like(masked), Noise(steps, steps)
    return View(masked * mask_id, masked, live, Logits(logits), steps, noise, spec, steps * 0)


def check_step(case: dict, decoder: Decoder, expected: str = "transfer") -> bool:
    """Positions taken, and the tokens there."""
    masked = torch.tensor(case["mask"])
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    view = make_view(logits, masked, case["mask_id"])
    update = decoder.step(view, start(decoder, logits))
    taken, tokens = torch.tensor(case[expected]), torch.tensor(case["x0"])
    return update.write.equal(taken) and update.tokens[taken].equal(tokens[taken])


def check_counts(case: dict, rule: CommitRule) -> bool:
    """Tokens per step."""
    masks = case["masks"]
    window = max(masks, 1)
    logits = torch.zeros(1, window, 4)
    masked = (torch.arange(window) < masks)[None]
    memory, counts = rule.init(Shape(1, window, 4, logits.device)), []
    for step in range(case["steps"]):
        view = make_view(logits, masked, 3, step)
        taken = rule(view, Candidates(view.tokens, torch.zeros(masked.shape)), memory) & masked
        counts.append(int(taken.sum()))
        masked = masked & ~taken
    return counts == case["counts"]


def check_factor_rule(case: dict) -> bool:
    """With ties only the number of positions means something."""
    confidence = torch.tensor([case["conf"]], dtype=torch.float64)
    view = make_view(torch.zeros(*confidence.shape, 4), torch.ones_like(confidence, dtype=torch.bool), 3)
    taken = Factor(case["factor"], released=True)(view, Candidates(view.tokens, confidence), {})[0]
    taken[confidence.argmax()] = True  # the decoder's own guarantee
    return int(taken.sum()) == case["n_transferred"] and (case["ties"] or taken.tolist() == case["transfer"])


def check_confidence(case: dict) -> bool:
    """Confidence and token after Dream's filters."""
    logits = torch.tensor([case["logits"]], dtype=torch.float64)
    view = make_view(logits, torch.ones(logits.shape[:2], dtype=torch.bool))
    filtered = view.logits
    for part in (case.get("top_p") and TopP(case["top_p"]), case.get("top_k") and TopK(case["top_k"])):
        filtered = part(view, filtered, {}) if part else filtered
    ours = propose(view, filtered, 0.0, ORDER[case["alg"]])
    theirs = torch.tensor([case["conf"]], dtype=torch.float64)
    theirs = -theirs if case["alg"] == "dparallel_entropy" else theirs
    return ours.tokens[0].tolist() == case["x0"] and bool((ours.confidence - theirs).abs().max() < 1e-5)


def check_credit(case: dict) -> bool:
    """Credits, fused confidences and commits of consecutive steps on one block."""
    p = case["params"]
    part = Credit(p["credit_alpha"], p["decay_beta"], p["boost_gamma"], slots=None)
    decoder = Decoder(Threshold(p["threshold"]), transforms=(part,))
    memory: list[Memory] | None = None
    block = slice(case["block_start"], case["block_end"])
    for number, step in enumerate(case["iterations"]):
        logits = torch.tensor(step["logits"])
        before, after = (torch.tensor(step[name])[:, block] for name in ("x_before", "x_after"))
        masked = before == case["mask_id"]
        view = make_view(logits, masked, case["mask_id"], number)
        memory = memory or start(decoder, logits)
        update = decoder.step(view, memory)
        if not torch.where(update.write, update.tokens, before).equal(after):
            return False
        credit = torch.zeros_like(memory[0]["credit"])
        for row, position, token, value in step["credit_nonzero"]:
            credit[row, position, token] = value
        if (memory[0]["credit"] - credit).abs().max() > 1e-5:
            return False
    return True


def dinfer_hierarchy(case: dict) -> bool:
    high, low = case["threshold"], case["low_threshold"]
    decoder = Decoder(Hierarchical(2.0 if high is None else high, 0.0 if low is None else low))
    return all(check_step(case, decoder, name) for name in ("transfer", "transfer_fast_v2") if name in case)


def fastdllm(case: dict) -> bool:
    return check_step(case, Decoder(FixedK(case["k"]) if "k" in case else Threshold(case["threshold"])))


def check_levels(case: dict) -> bool:
    """Positions of each step of a block from `start` to `end` (inclusive), dilated and with the last step merged."""
    width = case["end"] - case["start"] + 1
    rule, masked, taken = Dilated(case["base"], case["skip_exp"]), torch.ones(1, width, dtype=torch.bool), []
    while masked.any():
        view = make_view(torch.zeros(1, width, 4), masked, 3, len(taken))
        now = rule(view, Candidates(view.tokens, torch.ones(masked.shape)), {})
        taken.append((now[0].nonzero()[:, 0] + case["start"]).tolist())
        masked = masked & ~now
    return taken == [sorted(level) for level in case["merged"]]


CHECKS: dict[str, Callable[[dict], bool]] = {
    "dinfer_credit": check_credit,
    "levels": check_levels,
    "dinfer_hierarchy": dinfer_hierarchy,
    "dinfer_threshold": lambda c: check_step(c, Decoder(Threshold(c["threshold"]), rescore=(NeverMask(),))),
    "dparallel_entropy": lambda c: check_step(
        c, Decoder(EntropyThreshold(c["entropy_threshold"]), confidence="entropy")
    ),
    "dream_confidence": check_confidence,
    "factor": lambda c: check_step(c, Decoder(Factor(c["factor"], released=True))),
    "factor_rule": check_factor_rule,
    "fastdllm_threshold_topk": fastdllm,
    "schedule_dream": lambda c: check_counts(c, DreamSchedule(c["steps"], c["eps"])),
    "schedule_llada": lambda c: check_counts(c, Schedule(c["steps"])),
    "schedule_maskgit": lambda c: check_counts(c, MaskGit(c["steps"], c["mode"])),
}


def check_file(path: Path) -> tuple[int, list[int]] | None:
    """Number of cases and those that differ; None for a function that we do not know."""
    if path.stem not in CHECKS:
        return None
    cases = json.loads(path.read_text())["cases"]
    return len(cases), [number for number, case in enumerate(cases) if not CHECKS[path.stem](case)]


@torch.inference_mode()
def replay_selection(folder: Path) -> bool:
    """Prints a line per file; whether all known cases agree."""
    good = True
    for path in sorted(folder.glob("selection/*.json")):
        try:
            outcome = check_file(path)
        except (KeyError, ValueError, TypeError) as error:  # one odd file must not hide the rest
            print(f"selection/{path.stem}: cannot be replayed: {type(error).__name__}: {error}")
            good = False
            continue
        if outcome is None:
            print(f"selection/{path.stem}: skipped, a function that this script does not know")
            continue
        number, different = outcome
        good = good and not different
        print(
            f"selection/{path.stem}: {number - len(different)} of {number} cases agree"
            + (f"; not {different}" if different else "")
        )
    return good


def main() -> None:
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "selection").is_dir():
        print("error: give the directory of the recordings (with selection/ in it)", file=sys.stderr)
        raise SystemExit(2)
    raise SystemExit(0 if replay_selection(Path(sys.argv[1])) else 1)


if __name__ == "__main__":
    main()
