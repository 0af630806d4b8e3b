"""The autoregressive baseline, one token per forward, through transformers' `generate`.

Costs are those of `Generation`. nfe: forwards in which a sample took part up to its own EOS; the one over the prompt
counts and gives the first token. queried: columns that these forwards computed, without padding: the prompt, then one
per forward and drafted token. committed_at: the forward that gave each token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from decoders import NO_CACHE, Generation, StopRule, StrictEos
from decoders.generation import describe, encode
from decoders.noise import row_seeds
from decoders.types import DecodedRow, decoded_row, up_to_eos
from decoders.verified.rounds import Verified, verify
from dllm.cache import CacheStrategy
from dllm.causal import CausalLM, CausalStream
from dllm.model import DiffusionLM
from dllm.protocols import LanguageModel
from dllm.recurrent import RecurrentLM
from parallelbench.records.facts import Facts
from parallelbench.records.trace import Step
from parallelbench.run.generator import Generator, Request, describe_model, draws_of, fingerprint, fitting_prompt_len
from parallelbench.run.recorder import commit_steps

Loop = Callable[[Any, Sequence[Sequence[int]], Sequence[int], Sequence[int]], list[DecodedRow]]
"""Model, prompts, each one's budget of tokens and which sample of it is asked for, to decoded rows."""


@dataclass(frozen=True)
class Autoregressive:
    """Greedy decoding, a token per forward, with the K/V of all columns before it; batches are padded on the left.

    A context-causal diffusion model is decoded in its causal mode, by the loop that also verifies drafts.
    """

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        causal = check_causal("decoder=ar", model, cache, stop)
        facts = Facts(is_baseline=True, is_autoregressive=True)
        return CausalGenerator(causal, lambda model, prompts, lens, _: self.decode(model, prompts, lens), facts)

    def decode(
        self, model: CausalLM | DiffusionLM, prompts: Sequence[Sequence[int]], gen_lens: Sequence[int]
    ) -> list[DecodedRow]:
        """Rows of prompts (token ids), each of at most its own `gen_lens` tokens and up to its first EOS."""
        if isinstance(model, DiffusionLM):
            return verify(CausalStream(model), Verified(), prompts, gen_lens, row_seeds(0, prompts))
        rows = [torch.tensor(list(prompt), device=model.device) for prompt in prompts]
        ids, seen = (
            pad_sequence(parts, batch_first=True, padding_value=value, padding_side="left")
            for parts, value in ((rows, model.pad_id), ([torch.ones_like(row) for row in rows], 0))
        )
        greedy = GenerationConfig(
            do_sample=False,
            eos_token_id=list(model.eos_ids),
            pad_token_id=model.pad_id,
            max_new_tokens=max(gen_lens),
        )
        tokens = model.backbone.generate(  # type: ignore[operator]
            ids, attention_mask=seen, generation_config=greedy
        )
        decoded = []
        for prompt, row, gen_len in zip(prompts, tokens[:, ids.shape[1] :].tolist(), gen_lens, strict=True):
            answer, nfe = up_to_eos(row, model.eos_ids, gen_len)
            decoded.append(decoded_row(answer, range(nfe), gen_len, nfe, len(prompt) + nfe - 1))
        return decoded


@dataclass(frozen=True)
class CausalGenerator:
    """Serves requests with a causal LM, of fixed or of recurrent depth or of two modes, and a loop for it. facts: what
    the loop states. drafter: another model that drafts."""

    model: CausalLM | RecurrentLM | DiffusionLM
    loop: Loop
    facts: Facts
    drafter: DiffusionLM | None = None

    def prompt_len(self, request: Request) -> int:
        return fitting_prompt_len(self.model, request)

    def warm_up(self, batch: Sequence[Request]) -> None:
        """Two forwards outside all timing."""
        self._decode(batch, [min(2, request.gen_len) for request in batch])

    def __call__(self, batch: Sequence[Request]) -> Sequence[Generation]:
        return self._decode(batch, [request.gen_len for request in batch])

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

    def _decode(self, batch: Sequence[Request], gen_lens: Sequence[int]) -> Sequence[Generation]:
        prompts = [encode(self.model, request.messages, i) for i, request in enumerate(batch)]
        return list(describe(self.model, self.loop(self.model, prompts, gen_lens, draws_of(batch, prompts))))


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
