"""Verified decoding (`decoders.verified`) as decoders of a run: prompt lookup, and drafts by diffusion.

Greedy text is that of decoder=ar. Costs count the forwards that verify and those that draft, of either model.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from decoders import (
    Ahead,
    CommitRule,
    Decoder,
    FixedK,
    Lookahead,
    LookupDrafts,
    MaskDrafts,
    ModelDrafts,
    RunningSet,
    Sampling,
    StopRule,
    Threshold,
    Verified,
)
from decoders.rules.basic import Tau
from decoders.types import Confidence
from decoders.verified.ahead import Match, PlanBy
from dllm.cache import CacheStrategy
from dllm.causal import CausalStream, load_causal
from dllm.model import DiffusionLM
from dllm.protocols import DenoisingLM, LanguageModel
from dllm.validation import Checked, Count, Interval, NonNegative
from parallelbench.methods.autoregressive import CausalGenerator, check_causal, verifying
from parallelbench.methods.running import check_blocks
from parallelbench.records.facts import Facts
from parallelbench.run.generator import DiffusionGenerator, Generator


@dataclass(frozen=True)
class PromptLookup(Checked):
    """Prompt lookup decoding (Saxena 2023): the up to `num_tokens` tokens after the first earlier place of the longest
    n-gram, of at most `max_ngram`, that the text now ends with are drafted; a forward over them keeps those that greedy
    decoding would give, and one more."""

    num_tokens: Count = 10
    max_ngram: Count = 2

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        how = Verified(LookupDrafts(self.num_tokens, self.max_ngram))
        return _generator("decoder=prompt_lookup", model, how, cache, stop, seed, is_autoregressive=True)


@dataclass(frozen=True)
class SelfSpec(Checked):
    """One forward a round, of a model with a causal mode and MASKs that draft: it verifies the drafts of the round
    before, and its MASKs draft the next ones after each number of them that may be accepted.

    next: "all" as said; "last" drafts only after the last draft, so that a round after a rejected one has none.
    masks: MASKs of a group, null for as many as the model's block has. A group of g drafts g tokens in a model with
        token shift, g - 1 without, where its first MASK stands for the verifier's own token.
    temperature, top_p: of samples; they are distributed as those of one token per forward.
    """

    next: Literal["last", "all"] = "all"
    masks: Count | None = None
    temperature: NonNegative = 0.0
    top_p: Annotated[float, Interval("(0, 1]")] = 1.0

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        how = Verified(MaskDrafts(self.next, self.masks), Sampling(self.temperature, self.top_p))
        return _generator("decoder=self_spec", model, how, cache, stop, seed)


@dataclass(frozen=True)
class LinearSpec(Checked):
    """Two forwards a round: one drafts, one verifies. Its drafting forward also computes the last settled column, which
    gives the next token for certain, so a round with c accepted drafts writes c + 2 tokens.

    verifier: an autoregressive model that verifies what the model drafts, by name or folder; its text is written. null:
        the model's own causal mode verifies.
    masks: tokens that one forward drafts, null for 8, or as many MASKs as the model's own block has.
    temperature, top_p: as in `SelfSpec`.
    """

    verifier: str | None = None
    masks: Count | None = None
    temperature: NonNegative = 0.0
    top_p: Annotated[float, Interval("(0, 1]")] = 1.0

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        sampling = Sampling(self.temperature, self.top_p)
        if self.verifier is None:
            how = Verified(MaskDrafts("none", self.masks), sampling)
            return _generator("decoder=linear_spec", model, how, cache, stop, seed)
        if not isinstance(model, DiffusionLM):
            raise ValueError(
                f"model {model.name!r} is no diffusion model, so it does not draft for verifier={self.verifier}; use "
                "model=tiny"
            )
        how = Verified(ModelDrafts(model, 8 if self.masks is None else self.masks), sampling)
        verifier = load_causal(self.verifier, device=model.device, dtype=model.dtype)
        return _generator("decoder=linear_spec", verifier, how, cache, stop, seed, model)


@dataclass(frozen=True)
class FreeDave(Checked):
    """The tokens of decoder=fixed (k=1) or decoder=threshold in fewer forwards, for diffusion models: a forward looks
    at `states` states of a row at once, those that the one before expects after none, one, two, ... more tokens, and
    continues from the last that the model itself would have reached. Costs `states` times the columns.
    `decoders.verified.ahead` says more.

    tau: steps commit what a threshold does, null for one token.
    match: with a threshold, "exact" keeps its text; "subset" also continues from states that have a part of what a step
        commits, which takes fewer forwards and gives another text.
    plan_by: "all" states of a forward say which the next one looks at; by "reached" only the last that was reached.
    confidence: the order, as in `Decoder`; with a threshold "prob" or "margin".
    """

    states: Count = 4
    tau: Tau | None = None
    match: Match = "exact"
    plan_by: PlanBy = "all"
    confidence: Literal["prob", "margin", "entropy", "left_to_right"] = "prob"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau is not None and self.confidence not in ("prob", "margin"):
            raise ValueError(f"tau={self.tau} is of prob or margin, not of {self.confidence}; use confidence=prob")
        if self.tau is None and self.match == "subset":
            raise ValueError("match=subset is another rule with a threshold alone; give tau, or match=exact")

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        rule = FixedK(1) if self.tau is None else Threshold(self.tau)
        denoising, decoder = _denoising("freedave", model), Decoder(rule, confidence=self.confidence)
        spread = Ahead(self.states, self.match, self.plan_by)
        return DiffusionGenerator(denoising, decoder, cache, stop, block_len, seed, spread, text_of=self.text_of)

    @property
    def text_of(self) -> str:
        """As in `Facts`."""
        if self.match == "subset":
            return ""
        order = "" if self.confidence == "prob" else f" confidence={self.confidence}"
        return ("fixed k=1" if self.tau is None else f"threshold tau={self.tau}") + order


@dataclass(frozen=True)
class LoPA(Checked):
    """A commit rule that looks ahead, for diffusion models: a forward looks at a row and at `branches` states next to
    it, each with one of the surest undecided tokens written, and continues from that in which the model is surest of
    what is left. Costs up to `branches` + 1 times the columns. Nothing verifies the token, so it trades quality for
    speed.

    running: when blocks are opened, and which must commit; null for one block at a time. rule, confidence, temperature:
        as in `Decoder`.
    """

    branches: Count = 4
    running: RunningSet | None = None
    rule: CommitRule = field(default_factory=Threshold)
    confidence: Confidence = "prob"
    temperature: NonNegative = 0.0

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        denoising = _denoising("lopa", model)
        decoder = Decoder(self.rule, confidence=self.confidence, temperature=self.temperature)
        if self.running is not None:
            check_blocks(block_len)
        spread = Lookahead(self.branches, self.running)
        return DiffusionGenerator(denoising, decoder, cache, stop, block_len, seed, spread)


def _denoising(name: str, model: LanguageModel) -> DenoisingLM:
    if not isinstance(model, DenoisingLM):
        raise ValueError(f"decoder={name} needs a diffusion model, and {model.name!r} is none; use model=tiny")
    return model


def _generator(
    name: str,
    model: LanguageModel,
    how: Verified,
    cache: CacheStrategy,
    stop: StopRule,
    seed: int,
    drafter: DiffusionLM | None = None,
    *,
    is_autoregressive: bool = False,
) -> Generator:
    """Raises ValueError for a model that cannot verify, or whose drafts it cannot verify."""
    causal = check_causal(name, model, cache, stop)
    stream = CausalStream(causal)
    if how.drafter is not None:
        how.drafter.size(stream)
    facts = Facts(is_autoregressive=is_autoregressive, text_of="" if how.sampling.temperature else "ar")
    return CausalGenerator(causal, verifying(stream, how, seed), facts, drafter)
