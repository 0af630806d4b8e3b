"""Verified decoding: greedy text is that of one token per forward, sampled text has the exact joint distribution, and
what a round costs and accepts is told."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from scipy.stats import chi2
from transformers import LlamaConfig, LlamaForCausalLM

import dllm
from decoders import Never, StrictEos
from decoders.logits import inverse_cdf
from decoders.loop import DecodedRow
from decoders.noise import Noise, row_seeds
from decoders.spread import NO_CACHE
from decoders.verified import accept, rounds
from decoders.verified.accept import Sampling, Verdict, accept_greedy
from decoders.verified.drafters import Drafter, LookupDrafts, MaskDrafts, Proposal, Text
from decoders.verified.rounds import Verified, verify
from dllm import DiffusionLM, ModelSpec
from dllm.causal import CausalStream
from parallelbench.methods.autoregressive import Autoregressive
from parallelbench.methods.verified import FreeDave, LinearSpec, SelfSpec
from parallelbench.records.record import Record, Run
from parallelbench.report.drafts import draft_lines
from parallelbench.run.generator import Request, make_generator
from parallelbench.stats.metrics import aggregate
from parallelbench.tasks import builtin_tasks

VOCAB, EOS, MASK = 8, 6, 7  # so few tokens that drafts of random weights are often right
PROMPTS, GEN_LENS = [[0, 1, 2, 3, 4], [3, 3], [5], [4, 0, 5, 1, 1, 2, 0]], [24, 7, 16, 1]
MASK_DRAFTS = [MaskDrafts("none"), MaskDrafts("last", masks=2), MaskDrafts("all"), MaskDrafts("all", masks=2)]


@cache
def make_model(seed: int = 0, shift: int = 1, scale: float = 0.5) -> DiffusionLM:
    """A context-causal model of two layers, float64, so that a tie is none of rounding."""
    sizes = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=2, initializer_range=scale, bos_token_id=None, eos_token_id=None)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone = LlamaForCausalLM(config).double()
    return DiffusionLM(backbone, ModelSpec(MASK, (EOS,), 0, shift, 4, context_causal=True), name="small").eval()


def run(
    model: DiffusionLM, drafter: Drafter | None, prompts: list, gen_lens: list[int], **how: object
) -> list[DecodedRow]:
    return verify(CausalStream(model), Verified(drafter, **how), prompts, gen_lens, row_seeds(0, prompts))


@torch.no_grad()
def next_logits(model: DiffusionLM, rows: list[list[int]]) -> torch.Tensor:
    """What the model's causal mode says behind rows of one length, by one whole forward."""
    columns = torch.arange(len(rows[0]))
    hidden = model.backbone.model(
        torch.tensor(rows), attention_mask=(columns <= columns[:, None])[None, None], position_ids=columns[None]
    ).last_hidden_state
    logits = model.backbone.lm_head(hidden[:, -1])
    logits[:, MASK] = float("-inf")
    return logits


@cache
def textbook(seed: int, shift: int, row: int) -> list[int]:
    """The likeliest token behind the last column of a whole causal forward, until EOS (which is returned)."""
    ids = list(PROMPTS[row])
    while len(ids) < len(PROMPTS[row]) + GEN_LENS[row]:
        ids.append(int(next_logits(make_model(seed, shift), [ids])[0].argmax()))
        if ids[-1] == EOS:
            break
    return ids[len(PROMPTS[row]) :]


class Corrupted(Drafter):
    """Drafts five tokens of the text that greedy decoding writes, some of them changed."""

    def __init__(self, seed: int, share: float) -> None:
        texts = [PROMPTS[row] + textbook(seed, 1, row) for row in range(len(PROMPTS))]
        self.by_prompt = {tuple(text[: len(PROMPTS[row])]): text for row, text in enumerate(texts)}
        self.share, self.rng = share, torch.Generator().manual_seed(seed)

    def size(self, stream: CausalStream) -> int:
        return 5

    def propose(self, text: Text) -> Proposal:
        drafts = []
        for row, prompt_len, last in zip(
            text.canvas.tolist(), text.prompt_len.tolist(), text.last.tolist(), strict=True
        ):
            rest = self.by_prompt[tuple(row[:prompt_len])][last + 1 :]
            drafts.append((rest + [0] * 5)[:5])
        tokens = torch.tensor(drafts)
        wrong = torch.rand(tokens.shape, generator=self.rng) < self.share
        zeros = torch.zeros_like(text.last)
        return Proposal(torch.where(wrong, (tokens + 1) % EOS, tokens), None, zeros + 5, zeros)


@pytest.mark.parametrize("drafter", [None, *MASK_DRAFTS, LookupDrafts(), LookupDrafts(3, 1)], ids=repr)
@pytest.mark.parametrize(("seed", "shift"), [(0, 1), (2, 0)])
def test_greedy_text_is_the_textbook_loops_batched_and_alone(seed: int, shift: int, drafter: Drafter | None) -> None:
    model = make_model(seed, shift)
    rows = run(model, drafter, PROMPTS, GEN_LENS)
    for row, (prompt, gen_len, decoded) in enumerate(zip(PROMPTS, GEN_LENS, rows, strict=True)):
        text = textbook(seed, shift, row)
        ended = text[-1] == EOS
        assert decoded.token_ids == (text[:-1] if ended else text)
        assert decoded.stopped_by == ("eos" if ended else "length")
        written = [at for at in decoded.committed_at if at >= 0]
        assert written == sorted(written) and len(written) == len(text) and len(decoded.committed_at) == gen_len
        assert decoded.nfe == written[-1] + 1
        if drafter is None:
            assert (decoded.nfe, decoded.queried) == (len(text), len(prompt) + len(text) - 1)
        assert [decoded] == run(model, drafter, [prompt], [gen_len])


@pytest.mark.parametrize("drafter", [None, MASK_DRAFTS[1], MASK_DRAFTS[3]], ids=repr)
def test_prompts_of_other_lengths_may_enter_apart(drafter: Drafter | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, widths = make_model(), list[int]()
    together = run(model, drafter, PROMPTS, GEN_LENS)
    monkeypatch.setattr("dllm.plan.PADDING", 0)
    watch = model.backbone.model.register_forward_pre_hook(
        lambda _module, _args, given: widths.append(len(given["inputs_embeds"])), with_kwargs=True
    )
    assert run(model, drafter, PROMPTS, GEN_LENS) == together
    watch.remove()
    assert widths[: len(PROMPTS)] == [1] * len(PROMPTS)  # their prompts differ in length


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_wrong_drafts_cost_forwards_and_change_nothing(seed: int, share: float) -> None:
    model = make_model(seed)
    for row, decoded in enumerate(run(model, Corrupted(seed, share), PROMPTS, GEN_LENS)):
        text = textbook(seed, 1, row)
        assert decoded.token_ids == [token for token in text if token != EOS]
        if share == 0:  # the first forward has no drafts: those are asked for before it too
            assert decoded.nfe == -(-len(text) // 6) and all(d.accepted == len(d.tokens) for d in decoded.drafts[:-1])
        if share == 1:
            assert decoded.nfe == len(text) and not any(d.accepted for d in decoded.drafts)
        assert sum(d.accepted for d in decoded.drafts) + decoded.nfe >= len(text)


def test_drafts_of_every_outcome_are_ready_where_others_start_again() -> None:
    """Over some models: one forward a round beats two, and drafts for every outcome beat those for one."""
    forwards = Counter()
    for seed in (0, 2, 4):
        for drafter in (None, MaskDrafts("none"), MaskDrafts("last"), MaskDrafts("all")):
            next = "" if drafter is None else drafter.next
            forwards[next] += sum(row.nfe for row in run(make_model(seed), drafter, PROMPTS, GEN_LENS))
    assert forwards["all"] < forwards["last"] <= forwards["none"] < forwards[""]


def test_a_near_tie_is_looked_at_again_in_a_forward_of_its_own() -> None:
    """With a tie of 1000 everything is near: each forward over several columns is followed by one over one."""
    model = make_model(1)
    plain, tied = (run(model, MaskDrafts("last"), PROMPTS, GEN_LENS, tie=tie) for tie in (0.0, 1e3))
    assert [row.token_ids for row in tied] == [row.token_ids for row in plain]
    assert not any(draft.tied for row in plain for draft in row.drafts)
    assert all(draft.tied and not draft.accepted for row in tied for draft in row.drafts) and len(tied[1].drafts) > 3
    logits = torch.tensor([[[5.0, 4.0, 0], [0, 3.0, 2.9], [9.0, 0, 0]]])
    verdict = accept_greedy(logits, torch.tensor([[0, 1]]), torch.tensor([2]), torch.tensor([0.2]))
    assert (verdict.accepted.tolist(), verdict.tied.tolist()) == ([1], [True])
    verdict = accept_greedy(logits, torch.tensor([[0, 1]]), torch.tensor([2]), torch.tensor([0.05]))
    assert (verdict.accepted.tolist(), verdict.token.tolist(), verdict.tied.tolist()) == ([2], [0], [False])


def joint(model: DiffusionLM, prompt: list[int], length: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every text of at most `length` tokens, its EOS included, by the chain rule."""
    found, open_ = {}, {(): 1.0}
    for _ in range(length):
        probs = sampling.probs(next_logits(model, [[*prompt, *text] for text in open_])[:, None])[:, 0]
        grown = {
            (*text, token): prob * float(row[token])
            for (text, prob), row in zip(open_.items(), probs, strict=True)
            for token in range(VOCAB)
        }
        found |= {text: prob for text, prob in grown.items() if text[-1] == EOS and prob}
        open_ = {text: prob for text, prob in grown.items() if text[-1] != EOS and prob}
    return found | open_


def p_value(draws: Counter, expected: dict[tuple[int, ...], float]) -> float:
    """Pearson's chi-square; texts of less than 5 expected draws are one cell. 0 for a text that cannot be."""
    total = sum(draws.values())
    if draws.keys() - expected.keys():
        return 0.0
    cells = [(draws[text], total * prob) for text, prob in expected.items()]
    cells.sort(key=lambda cell: cell[1])
    rare = [cell for cell in cells if cell[1] < 5]
    pooled = [(sum(seen for seen, _ in rare), sum(prob for _, prob in rare))] if rare else []
    cells = pooled + cells[len(rare) :]
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells if mean)
    return float(chi2.sf(statistic, len(cells) - 1))


def sample(drafter: Drafter | None, sampling: Sampling, draws: int, length: int, shift: int = 1) -> Counter:
    stream, texts = CausalStream(make_model(5, shift, 0.3)), Counter()
    for first in range(0, draws, 5000):
        seeds = range(first, min(first + 5000, draws))
        rows = verify(stream, Verified(drafter, sampling), [PROMPTS[0]] * len(seeds), [length] * len(seeds), seeds)
        texts.update(tuple(row.token_ids + [EOS] * (row.stopped_by == "eos")) for row in rows)
    return texts


SAMPLINGS = [Sampling(1.0), Sampling(0.7, 0.8)]
SAMPLED = [None, *MASK_DRAFTS, LookupDrafts(3, 1)]


@pytest.mark.parametrize(("drafter", "sampling"), [*zip(SAMPLED, SAMPLINGS * 3, strict=True)], ids=repr)
def test_samples_have_the_joint_distribution_of_the_model(drafter: Drafter | None, sampling: Sampling) -> None:
    expected = joint(make_model(5, 1, 0.3), PROMPTS[0], 3, sampling)
    assert sum(expected.values()) == pytest.approx(1)
    assert p_value(sample(drafter, sampling, 4000, 3), expected) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
@pytest.mark.parametrize("drafter", SAMPLED, ids=repr)
def test_a_hundred_thousand_samples_have_it_too(drafter: Drafter | None, sampling: Sampling, shift: int) -> None:
    expected = joint(make_model(5, shift, 0.3), PROMPTS[0], 4, sampling)
    found = p_value(sample(drafter, sampling, 100_000, 4, shift), expected)
    print(f"{drafter}, {sampling}, shift {shift}: {len(expected)} texts, p = {found:.3f}")
    assert found > 1e-4


def without_residual(p: torch.Tensor, drafts: torch.Tensor, count: torch.Tensor, q: object, noise: Noise) -> Verdict:
    """An inexact sampler: behind a rejected draft it draws from p itself."""
    exact = accept.accept_sampled(p, drafts, count, q, noise)
    target = p[torch.arange(len(p)), exact.accepted]
    return replace(exact, token=inverse_cdf(target, noise.uniform(1, stream="verified token")[:, 0]))


def likeliest(p: torch.Tensor, drafts: torch.Tensor, count: torch.Tensor, q: object, noise: Noise) -> Verdict:
    """An inexact sampler: it keeps drafts that are the likeliest token, as greedy decoding does."""
    agrees = (drafts == p[:, :-1].argmax(-1)) & (torch.arange(drafts.shape[1]) < count[:, None])
    kept = agrees.long().cumprod(1).sum(1)
    token = inverse_cdf(p[torch.arange(len(p)), kept], noise.uniform(1, stream="verified token")[:, 0])
    return Verdict(kept, token, torch.zeros_like(agrees.any(1)))


@pytest.mark.parametrize("inexact", [without_residual, likeliest])
def test_inexact_samplers_fail_that_test(inexact: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "accept_sampled", inexact)
    expected = joint(make_model(5, 1, 0.3), PROMPTS[0], 3, SAMPLINGS[0])
    assert p_value(sample(MaskDrafts("all"), SAMPLINGS[0], 4000, 3), expected) < 1e-6


def test_what_does_not_fit_is_refused() -> None:
    for wrong in ({"masks": 0}, {"masks": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            MaskDrafts(**wrong)
    for wrong in ({"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Sampling(**wrong)
    with pytest.raises(ValueError, match="tie=-1"):
        Verified(tie=-1.0)
    with pytest.raises(ValueError, match=r"masks=1 draft nothing .* at least 2"):
        run(make_model(0, 0), MaskDrafts(masks=1), PROMPTS, GEN_LENS)
    with pytest.raises(ValueError, match="prompt 1 has 0 tokens"):
        run(make_model(), None, [[1], []], [4, 4])


def test_another_model_drafts_for_an_autoregressive_one() -> None:
    """Copied lines, which tiny drafts well: the verifier's own text in fewer forwards, and both models are counted."""
    suite = builtin_tasks()["waiting_line/copy"].samples(2, 0)
    drafter, verifier = dllm.load("tiny"), dllm.load("tiny-ar")
    parts = {"cache": NO_CACHE, "stop": StrictEos(), "block_len": None, "seed": 0}
    requests = [Request(sample.messages, 32) for sample in suite]
    slow = make_generator(verifier, Autoregressive(), **parts)
    fast = make_generator(drafter, LinearSpec(verifier="tiny-ar"), **parts)
    for ours, theirs in zip(fast(requests), slow(requests), strict=True):
        assert ours.text == theirs.text and ours.token_ids == theirs.token_ids
        assert ours.tokens_per_forward > 2 and ours.nfe == 2 * len(ours.drafts)
    assert fast.describe()["model"] == "tiny-ar" and fast.describe()["drafter"] == "tiny"
    assert fast.fingerprint() != slow.fingerprint()
    (generation, steps), *_ = fast.traced(requests)
    assert [step.accepted for step in steps] == [draft.accepted for draft in generation.drafts]
    shown = [(*step.writes[: step.accepted], *step.rejected) for step in steps]
    drafts = [draft.tokens for draft in generation.drafts]
    assert [[token for _, token, _ in tokens] for tokens in shown] == drafts
    columns = [column for tokens in shown for column, _, _ in tokens]
    assert all(0 <= column < 32 for column in columns)


def test_methods_refuse_models_that_do_not_fit() -> None:
    parts = {"cache": NO_CACHE, "stop": StrictEos(), "block_len": None, "seed": 0}
    tiny, causal = dllm.load("tiny"), dllm.load("tiny-ar")

    def refused(message: str, model: object, method: object, **other: object) -> None:
        with pytest.raises(ValueError, match=message):
            make_generator(model, method, **(parts | other))

    refused(r"'tiny' is a diffusion model; .*spec.context_causal=true", tiny, SelfSpec())
    refused("'tiny-ar' has no MASKs to draft with; use decoder=prompt_lookup", causal, SelfSpec())
    refused("'tiny-ar' is no diffusion model, so it does not draft", causal, LinearSpec(verifier="tiny-ar"))
    for message, kind, knob in (
        ("masks=0 of LinearSpec", LinearSpec, {"masks": 0}),
        ("temperature=-1.0 of SelfSpec", SelfSpec, {"temperature": -1.0}),
        ("states=0 of FreeDave", FreeDave, {"states": 0}),
        ("tau=0.9 is of prob or margin, not of entropy", FreeDave, {"tau": 0.9, "confidence": "entropy"}),
        ("match=subset is another rule with a threshold alone", FreeDave, {"match": "subset"}),
    ):
        with pytest.raises(ValueError, match=message):
            kind(**knob)
    refused("use stop=strict_eos", make_model(), SelfSpec(), stop=Never())
    refused("'tiny-ar' is none; use model=tiny", causal, FreeDave())
    with pytest.raises(ValueError, match="'tiny' has no causal mode"):
        CausalStream(tiny)
    refused("drafts in another vocabulary", make_model(), LinearSpec(verifier="tiny-ar"))


def test_acceptance_is_told_by_task_and_offset() -> None:
    rounds = {"a/x": [[[0, 3, 3, 0], [1, 3, 0, 1]]], "a/y": [[[1, 2, 1, 0]], []]}
    records = [make_record(task, drafts) for task, samples in rounds.items() for drafts in samples]
    rows = aggregate(records)
    assert rows["a/x"]["accepted"].value == 1.5 and rows["a/y"]["accepted"].value == 1
    assert rows["all"]["accepted"].value == pytest.approx(4 / 3)
    assert "accepted" not in aggregate([make_record("a/x", ())])["all"]
    run = Run(Path("runs/a"), {}, {}, records)
    text = "\n".join(draft_lines(["first"], [run], {"first": rows}))
    assert "| first | all | 3 | 2.7 | 1.33 [" in text and "| 67 | 33 | 50 |  |" in text
    assert "0: 33, 1: 33, 3: 33 | 1 |" in text
    assert draft_lines(["first"], [run], {"first": aggregate([make_record("a/x", ())])}) == []


def make_record(task: str, drafts: Sequence[Sequence[int]]) -> Record:
    numbers = {"num_tokens": 4, "scores": {"score": 1.0, "score_strict": 1.0}, "nfe": 2, "queried": 8}
    texts = dict.fromkeys(("id", "task_version", "prompt", "prompt_sha", "target", "completion", "batch"), "")
    rest = {"data": {}, "token_ids": [1] * 4, "committed_at": [0, 0, 0, 1], "stopped_by": "eos"}
    rest |= {"latency_s": 1.0, "share_s": 1.0}
    return Record(task=task, batch_size=1, drafts=drafts, **numbers, **texts, **rest)
