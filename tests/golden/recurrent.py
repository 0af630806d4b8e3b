"""Recorded logits and decodes of Huginn's code, against ours."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

import dllm
from decoders.recurrent import AdaptiveDepth, DiffusionForcing
from dllm.recurrent import Place, RavenLM
from tests.golden.numbers import first_difference

RULES = {"latent-diff": "last", "token-stability": "stability", "fixed": "fixed"}
EXITS = {"latent-diff": "latent", "kl": "kl"}
NAMES = {  # of parameters that mean the same
    "inner_recurrence": "inner", "max_wavefront": "wavefront", "exit_t": "eps", "ema_embeds": "eta",
    "state_noise_mixing": "beta", "dampened_state_mixer": "damped", "num_steps": "recurrences",
    "continuous_compute": "continuous", "full_prefill": "prefill", "headway": "headway",
    "max_diffusion_steps": "rounds",
}  # fmt: skip


def decode_step(model: RavenLM, ids: Tensor, state: Tensor, place: Place, passes: int) -> Tensor:
    injected = model.inject(ids, place)
    for step in range(passes):
        state = model.recur(state, injected, place, step)
    return model.read(state, place)


def check_recurrent_logits(folder: Path, group: str, name: str) -> str | None:
    """The prelude, logits and states after 1 to 16 passes, and decoding on both kinds of K/V."""
    about = json.loads((folder / group / f"{name}.json").read_text())
    recorded = load_file(folder / group / f"{name}.safetensors")
    model = dllm.load(folder / "models" / about["model"])
    ids, first = recorded["ids"], recorded["state"]
    injected = model.inject(ids)
    pairs = {"prelude": (injected, recorded["prelude"])}
    for count in about["recurrences"]:
        state = first
        for _ in range(count):
            state = model.recur(state, injected)
        pairs |= {
            f"logits_r{count}": (model.read(state), recorded[f"logits_r{count}"]),
            f"latents_r{count}": (model.leave(state), recorded[f"latents_r{count}"]),
        }
    state = torch.zeros_like(first)
    for _ in range(4):
        state = model.recur(state, injected)
    pairs["logits_zero_r4"] = (model.read(state), recorded["logits_zero_r4"])
    for case, every_pass, passes in (("cached_full", True, 4), ("cached_latest_m4_compress_s4", False, 6)):
        length = ids.shape[1]
        cache, columns = model.new_cache(len(ids), length, every_pass=every_pass), torch.arange(length)
        spans = [columns[:20], *columns[20:].split(1)]
        logits = [
            decode_step(model, ids[:, span], first[:, span], Place(cache, span.expand(len(ids), -1)), count)
            for span, count in zip(spans, [4, *[passes] * (length - 20)], strict=True)
        ]
        pairs[case] = (torch.cat(logits, 1), recorded[case])
    return first_difference(pairs)


def with_noise(model: RavenLM, draws: Iterator[Tensor] | None) -> RavenLM:
    """The model whose initial states are the recorded ones, in the order in which they were drawn; zeros without."""

    def noise(columns: int, first: int, seed: int) -> Tensor:
        if draws is None or columns == 0:
            return torch.zeros(columns, model.width)
        drawn = next(draws)
        assert len(drawn) == columns, f"{len(drawn)} recorded states for {columns} columns"
        return drawn

    model.noise = noise  # type: ignore[method-assign]
    return model


def recorded_draws(path: Path, trace: dict[str, Any], row: int) -> list[Tensor] | None:
    if trace["noise"] is None:
        return None
    noise, draws, at = load_file(path.parent / trace["noise"]), [], 0
    for shape in noise["shapes"].tolist():
        count = shape[0] * shape[1] * shape[2]
        draws.append(noise["noise"][at : at + count].view(shape)[row].float())
        at += count
    return draws


def used(draws: list[Tensor], trace: dict[str, Any]) -> Iterator[Tensor]:
    """Without those of columns that the published sampler drew but had no room for. Order: the prompt, the first open
    column, then in each round what is mixed in and the new column."""
    p, queue = trace["params"], iter(draws)
    for _ in range(2 if p.get("full_prefill", True) else 1):
        yield next(queue)
    for step in trace["steps"]:
        if p.get("state_noise_mixing", 0.5) > 0:
            yield next(queue)
        if not p.get("continuous_compute"):
            drawn = next(queue)
            if step["headway"]:
                yield drawn


def check_wavefront(folder: Path, path: Path, trace: dict[str, Any]) -> str | None:
    """Tokens, and the round that froze each."""
    p = trace["params"]
    options = {ours: p[theirs] for theirs, ours in NAMES.items() if theirs in p}
    options["mixer"] = "sqrt" if p.get("sqrt_mixer") else "linear"
    options["freeze"] = RULES[p.get("freeze_strategy", "latent-diff")]
    sampler = DiffusionForcing(**options, released=True)
    draws = recorded_draws(path, trace, 0)
    model = with_noise(dllm.load(folder / "models" / trace["model"]), None if draws is None else used(draws, trace))
    (prompt,), length = trace["prompt_ids"], p["max_new_tokens"]
    (row,) = sampler.decode(model, [prompt], [length])
    eos = p.get("eos_token_id")
    theirs = trace["output_ids"][0][len(prompt) :][:length]
    theirs = theirs[: theirs.index(eos)] if eos in theirs else theirs
    if row.token_ids != theirs:
        return f"tokens differ: {theirs}, ours {row.token_ids}"
    before = sampler.recurrences if sampler.prefill else 0
    frozen = [step["frozen"] - len(prompt) for step in trace["steps"]]
    rounds = [next((i for i, n in enumerate(frozen) if n > place), None) for place in range(len(theirs))]
    ours = [(at + 1 - before) // sampler.inner - 1 for at in row.committed_at[: len(theirs)]]
    if sampler.prefill:
        rounds, ours = rounds[1:], ours[1:]  # the first token is the prompt's
    return None if ours == rounds else f"frozen in rounds {rounds}, ours {ours}"


def check_depth_first(folder: Path, path: Path, trace: dict[str, Any]) -> str | None:
    """Tokens, and the passes of the core that they took."""
    p, prompts = trace["params"], trace["prompt_ids"]
    chosen = {"exit": EXITS[p["criterion"]], "threshold": p["exit_threshold"]} if "criterion" in p else {}
    sampler = AdaptiveDepth(p["num_steps"], continuous=p.get("continuous_compute", False), **chosen)
    for number, (prompt, output) in enumerate(zip(prompts, trace["output_ids"], strict=True)):
        draws = recorded_draws(path, trace, number)
        model = with_noise(dllm.load(folder / "models" / trace["model"]), None if draws is None else iter(draws))
        (row,) = sampler.decode(model, [prompt], [p["max_new_tokens"]])
        theirs = output[len(prompt) :]
        theirs = next((theirs[:i] for i, token in enumerate(theirs) if token in model.eos_ids), theirs)
        if row.token_ids != theirs:
            return f"row {number}: tokens differ: {theirs}, ours {row.token_ids}"
        if row.nfe != trace["core_passes"] and len(theirs) == p["max_new_tokens"]:
            return f"row {number}: {trace['core_passes']} passes, ours {row.nfe}"
    return None
