"""The theory of parallel decoding, ideal models that go through the real loop, and the shipped model, by setting."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from decoders import NO_CACHE, Decoder, FixedK, Never, Threshold, decode, generate
from decoders.rules.ranking import take
from decoders.types import Candidates, CommitRule, Memory, View
from dllm.exact import ExactModel, Permutations, Posterior
from dllm.model import DiffusionLM
from parallelbench.stats.intervals import Value, bounded
from parallelbench.studies.bounds import accuracy, kl_bound, posterior, threshold_accuracy, total_correlation
from parallelbench.studies.ideal import COLD
from parallelbench.tasks import WaitingLine
from parallelbench.tasks.waiting_line import parse_lenient

OPEN = ("shuffle", "replace_random")  # the tasks with many answers: elsewhere all is certain
RESPONSE_LENS = (24, 32, 40, 48)  # tokens of an answer and its EOS in tiny's training


@dataclass(frozen=True)
class Cell:
    """One row of theory.csv.

    n, k: items, and items per step.
    tau: 0 greedy, 1 sampling.
    total_correlation, kl_bound: bits.
    accuracy_closed, accuracy_ideal: of the closed form and the ideal model.
    accuracy_argmax: the ideal model's, where all ties go to the first token and not to a random one (tau = 0 only).
    """

    task: str
    n: int
    k: int
    tau: int
    total_correlation: float
    kl_bound: float
    accuracy_closed: float
    accuracy_ideal: Value
    accuracy_argmax: float | None


@dataclass(frozen=True)
class Edge:
    """One row of thresholds.csv: greedy decoding of every token of probability >= gamma. Ties go to the first token."""

    task: str
    n: int
    gamma: float
    accuracy_closed: float
    accuracy_ideal: Value
    accuracy_random_ties: float


@dataclass(frozen=True)
class Shipped:
    """One row of tiny.csv: tiny, and the ideal model of the built-in task, whose shuffle may not keep the order.

    accuracy_any_order: counts the unchanged order as a shuffle too, as the closed forms do.
    """

    task: str
    n: int
    k: int
    tau: int
    accuracy_ideal: float
    accuracy_tiny: Value
    accuracy_any_order: Value


@dataclass(frozen=True)
class FirstNames(CommitRule):
    """Commits the k surest first names per step. Once all stand, it commits the rest, which they determine. So a person
    counts as one item, and decoding takes one step more.

    Windows start with `["` and hold a first name, a last name and a mark per person: positions 1, 4, 7 ... are first
    names.
    """

    k: int

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        first = view.masked & (torch.arange(view.masked.shape[1], device=view.masked.device) % 3 == 1)
        chosen = take(replace(view, masked=first), candidates, torch.full_like(view.step, self.k))
        return torch.where(first.any(1, keepdim=True), chosen, view.masked)


def cell(task: str, n: int, k: int, tau: int, samples: int) -> Cell:
    """Closed form and ideal model for one setting, in random order of items. Ties at tau = 0 are broken at random.
    Where nothing but the order is random, a tenth of the samples is decoded."""
    ideal, seed, few = posterior(task, n), [n, k, tau], max(20, samples // 10)
    samples = samples if task in OPEN else few
    reached = _valid(ideal, Decoder(FixedK(k), temperature=1.0 if tau else COLD, confidence="random"), samples, seed)
    argmax = None if tau else _valid(ideal, Decoder(FixedK(k), confidence="random"), few, seed).value
    lost, closed = (total_correlation(task, n), kl_bound(task, n, k)), accuracy(task, n, k, tau)
    return Cell(task, n, k, tau, *lost, closed, reached, argmax)


def edge(task: str, n: int, gamma: float, samples: int) -> Edge:
    """Closed form and ideal model for one threshold."""
    ideal = posterior(task, n)
    reached = _valid(ideal, Decoder(Threshold(gamma)), samples, [n])
    random = _valid(ideal, Decoder(Threshold(gamma), temperature=COLD), samples, [n]).value
    closed = threshold_accuracy(task, n, gamma)
    return Edge(task, n, gamma, closed, reached, random)


def tiny(model: DiffusionLM, task: str, n: int, k: int, tau: int, samples: int, ideal_samples: int) -> Shipped:
    """The shipped model infilling lists whose punctuation and length are given, k persons per step (FirstNames)."""
    line = WaitingLine(task, (n,))
    drawn = line.samples(samples, seed=0)
    people = n * 3 + 1
    length = next((size for size in RESPONSE_LENS if size > people), people + 1)
    eos = str(model.tokenizer.eos_token) if model.tokenizer is not None else ""
    template = '["' + '", "'.join(["[MASK][MASK]"] * n) + '"]' + eos * (length - people)
    decoded = generate(
        model,
        [sample.messages for sample in drawn],
        decoder=Decoder(FirstNames(k), temperature=float(tau), confidence="random"),
        stop=Never(),
        templates=[template] * samples,
        block_len=length,
        batch_size=50,
    )
    scores = [line.score(sample, out.text)["score"] for sample, out in zip(drawn, decoded, strict=True)]
    unmoved = [parse_lenient(out.text) == sample.data["people"] for sample, out in zip(drawn, decoded, strict=True)]
    kept = [bool(score) or (task == "shuffle" and same) for score, same in zip(scores, unmoved, strict=True)]
    strict, lax = (bounded(np.array(valid, dtype=float), 0, 1) for valid in ([score == 1 for score in scores], kept))
    ideal = Permutations(n, identity=False) if task == "shuffle" else posterior(task, n)
    decoder = Decoder(FixedK(k), temperature=1.0 if tau else COLD, confidence="random")
    best = _valid(ideal, decoder, ideal_samples, [n, k, tau])
    return Shipped(task, n, k, tau, best.value, strict, lax)


def _valid(ideal: Posterior, decoder: Decoder, samples: int, seed: Sequence[int]) -> Value:
    """Share of valid answers among decodes of an ideal model, with its interval. Each prompt is a seed of its own."""
    rows = decode(
        ExactModel(ideal),
        [[sample, *seed] for sample in range(samples)],
        gen_len=ideal.length,
        block_len=ideal.length,
        decoder=decoder,
        cache=NO_CACHE,
        stop=Never(),
    )
    return bounded(ideal.valid(torch.tensor([row.token_ids for row in rows])).double().numpy(), 0, 1)
