"""Decoding with causal models: the autoregressive baseline, one token per forward, and what serves the requests of its
relatives.

Costs are those of `Generation`. nfe: forwards in which a sample took part up to its own EOS; the one over the prompt
counts and gives the first token. queried: columns that these forwards computed, without padding: the prompt, then one
per forward and drafted token. committed_at: the forward that gave each token.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from decoders import NO_CACHE, Generation, StopRule, StrictEos
from decoders.constraints.held import from_left
from decoders.constraints.patterns import Constraint
from decoders.generation import encode
from decoders.noise import numbered, row_seeds
from decoders.types import DecodedRow, Turn, in_order
from decoders.verified.rounds import Verified, verify_queue
from dllm.cache import CacheStrategy
from dllm.causal import CausalLM, CausalStream
from dllm.model import DiffusionLM
from dllm.protocols import LanguageModel
from dllm.recurrent import RecurrentLM
from parallelbench.records.facts import Facts
from parallelbench.records.trace import Step
from parallelbench.run.generator import (
    Generator,
    Request,
    describe_model,
    described,
    draws_of,
    fingerprint,
    fitting_prompt_len,
)
from parallelbench.run.recorder import commit_steps

Loop = Callable[
    [Sequence[Sequence[int]], Sequence[int], Sequence[int], int, Sequence[Constraint | None]],
    Iterator[Turn[DecodedRow]],
]
"""Prompts, each one's budget of tokens, which sample of it is asked for, how many are decoded at once, and what each
answer is held to, to turns."""


@dataclass(frozen=True)
class Autoregressive:
    """Greedy decoding, a token per forward, with the model's own K/V of all columns before it, in the loop that also
    verifies drafts. A context-causal diffusion model is decoded in its causal mode."""

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        causal = check_causal("decoder=ar", model, cache, stop)
        stream = CausalStream(causal, drafts=False)
        facts = Facts(is_baseline=True, is_autoregressive=True)
        return CausalGenerator(causal, verifying(stream, Verified(), seed), facts)


def verifying(stream: CausalStream, how: Verified, seed: int) -> Loop:
    def loop(
        prompts: Sequence[Sequence[int]],
        gen_lens: Sequence[int],
        draws: Sequence[int],
        slots: int,
        constraints: Sequence[Constraint | None],
    ) -> Iterator[Turn[DecodedRow]]:
        held = from_left(stream.model, constraints, gen_lens)
        return verify_queue(stream, how, prompts, gen_lens, row_seeds(seed, prompts, draws), slots, held)

    return loop


@dataclass(frozen=True)
class CausalGenerator:
    """Serves requests with a causal LM, of fixed or of recurrent depth or of two modes, and a loop for it. facts: what
    the loop states. drafter: another model that drafts."""

    model: CausalLM | RecurrentLM | DiffusionLM
    loop: Loop
    facts: Facts
    drafter: DiffusionLM | None = None

    def prompt_len(self, request: Request) -> int:
        if request.constraint is not None:
            if isinstance(self.model, RecurrentLM):
                raise ValueError(
                    "the samplers of depth-recurrent models keep no constraints; leave the constraint out, or use "
                    "another model, such as model=tiny_ar decoder=ar"
                )
            from_left(self.model, [request.constraint], [request.gen_len])
        return fitting_prompt_len(self.model, request)

    def warm_up(self, batch: Sequence[Request]) -> None:
        """Two forwards outside all timing."""
        short = [replace(request, gen_len=min(2, request.gen_len), constraint=None) for request in batch]
        for _ in self.stream(short, len(batch)):
            pass

    def __call__(self, batch: Sequence[Request]) -> Sequence[Generation]:
        return list(in_order(self.stream(batch, len(batch))))

    def traced(
        self, batch: Sequence[Request], tell: Callable[[Step], None] | None = None
    ) -> Sequence[tuple[Generation, list[Step]]]:
        """Steps without probabilities and candidates, which these loops do not show. They are told at the end."""
        eos_ids = self.model.spec.eos_ids if isinstance(self.model, DiffusionLM) else self.model.eos_ids
        rows = [(generation, commit_steps(generation, eos_ids[0])) for generation in self(batch)]
        for step in chain.from_iterable(steps for _, steps in rows):
            if tell is not None:
                tell(step)
        return rows

    def describe(self) -> dict[str, object]:
        drafter = {} if self.drafter is None else {"drafter": self.drafter.name}
        return {**describe_model(self.model, self.facts), **drafter}

    def fingerprint(self) -> str:
        return fingerprint(self.model, "" if self.drafter is None else fingerprint(self.drafter))

    def turns(
        self,
        prompts: Sequence[Sequence[int]],
        gen_lens: Sequence[int],
        slots: int,
        draws: Sequence[int] | None = None,
        constraints: Sequence[Constraint | None] | None = None,
    ) -> Iterator[Turn[DecodedRow]]:
        """Decodes prompts, at most `slots` at once. draws: as in `decode`. constraints: what answers are held to."""
        draws = numbered(map(tuple, prompts)) if draws is None else draws
        return self.loop(prompts, gen_lens, draws, slots, constraints or [None] * len(prompts))

    def stream(self, requests: Sequence[Request], slots: int) -> Iterator[Turn[Generation]]:
        prompts = [encode(self.model, request.messages, i) for i, request in enumerate(requests)]
        gen_lens = [request.gen_len for request in requests]
        constraints = [request.constraint for request in requests]
        return described(self.model, self.turns(prompts, gen_lens, slots, draws_of(requests, prompts), constraints))


def check_causal(name: str, model: LanguageModel, cache: CacheStrategy, stop: StopRule) -> CausalLM | DiffusionLM:
    """The model of an autoregressive loop of this name. Raises ValueError unless the loop can use it, the cache and the
    stop rule."""
    if not isinstance(model, CausalLM | DiffusionLM) or not (isinstance(model, CausalLM) or model.spec.context_causal):
        raise ValueError(
            f"{name} needs an autoregressive model, and {model.name!r} is "
            f"{'depth-recurrent' if isinstance(model, RecurrentLM) else 'a diffusion model'}; use model=tiny_ar or "
            "model=causal, model=tiny_draft for decoder=self_spec, another model with spec.context_causal=true, or a "
            "denoising decoder such as decoder=threshold"
        )
    if cache != NO_CACHE:
        raise ValueError(f"{name} keeps the K/V of all columns itself, so {cache} has nothing to do; use cache=none")
    if stop != StrictEos():
        raise ValueError(f"{name} stops at its first EOS, which {stop} does not describe; use stop=strict_eos")
    return model
