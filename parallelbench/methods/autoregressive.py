"""Autoregressive baselines, through transformers' `generate`: one token per forward, and prompt lookup, which drafts
what the text so far suggests and checks it in one forward.

Costs are those of `Generation`. nfe: forwards in which a sample took part up to its own EOS; the one over the prompt
counts and gives the first token. queried: columns that these forwards computed, without padding: the prompt, then one
per forward and drafted token. committed_at: the forward that gave each token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from decoders import NO_CACHE, Generation, StopRule, StrictEos
from decoders.generate import describe, encode
from decoders.loop import DecodedRow
from decoders.state import NEVER
from dllm.cache import CacheStrategy
from dllm.causal import CausalLM
from dllm.protocols import LanguageModel
from dllm.recurrent import RecurrentLM
from knobs import Count, Knobs
from parallelbench.records.trace import Step
from parallelbench.run.generator import Generator, Request, describe_model, fingerprint, fitting_prompt_len
from parallelbench.run.recorder import commit_steps

Loop = Callable[[Any, Sequence[Sequence[int]], Sequence[int]], list[DecodedRow]]
"""Model, prompts and each one's budget of tokens to decoded rows."""


@dataclass(frozen=True)
class Autoregressive:
    """Greedy decoding, a token per forward, with the K/V of all columns before it; batches are padded on the left."""

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        return CausalGenerator(check_causal("decoder=ar", model, cache, stop), self.decode, is_baseline=True)

    def decode(self, model: CausalLM, prompts: Sequence[Sequence[int]], gen_lens: Sequence[int]) -> list[DecodedRow]:
        width = max(map(len, prompts))
        padding = [width - len(prompt) for prompt in prompts]
        ids = [[model.pad_id] * left + list(prompt) for left, prompt in zip(padding, prompts, strict=True)]
        seen = [[0] * left + [1] * (width - left) for left in padding]
        tokens = _generate(model, ids, seen, max_new_tokens=max(gen_lens))
        rows = []
        for prompt, row, gen_len in zip(prompts, tokens, gen_lens, strict=True):
            answer, nfe = _up_to_eos(row, model.eos_ids, gen_len)
            rows.append(_decoded(answer, range(nfe), gen_len, nfe, len(prompt) + nfe - 1))
        return rows


@dataclass(frozen=True)
class PromptLookup(Knobs):
    """Prompt lookup decoding (Saxena 2023), transformers' variant: the up to `num_tokens` tokens behind the first
    earlier place of the longest n-gram, of at most `max_ngram`, that the text now ends with are drafted; a forward over
    them keeps those that greedy decoding would give, and one more. Lossless, up to ties of the logits.

    Rows are decoded one after the other, so a batch takes as long as all of them.
    """

    num_tokens: Count = 10
    max_ngram: Count = 2

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        causal = check_causal("decoder=prompt_lookup", model, cache, stop)
        if causal.backbone._is_stateful:
            raise ValueError(f"model {model.name!r} is recurrent and cannot take drafts back; use decoder=ar")
        return CausalGenerator(causal, self.decode)

    def decode(self, model: CausalLM, prompts: Sequence[Sequence[int]], gen_lens: Sequence[int]) -> list[DecodedRow]:
        return [self._decode_one(model, prompt, n) for prompt, n in zip(prompts, gen_lens, strict=True)]

    def _decode_one(self, model: CausalLM, prompt: Sequence[int], gen_len: int) -> DecodedRow:
        accepted, queried = _Accepted(), []
        hook = model.backbone.register_forward_pre_hook(
            lambda _module, _args, inputs: queried.append(inputs["input_ids"].shape[1]), with_kwargs=True
        )
        try:
            (tokens,) = _generate(
                model,
                [list(prompt)],
                [[1] * len(prompt)],
                streamer=accepted,
                max_new_tokens=gen_len,
                prompt_lookup_num_tokens=self.num_tokens,
                max_matching_ngram_size=self.max_ngram,
            )
        finally:
            hook.remove()
        answer, _ = _up_to_eos(tokens, model.eos_ids, gen_len)
        committed = [forward for forward, count in enumerate(accepted.counts) for _ in range(count)]
        return _decoded(answer, committed, gen_len, len(queried), sum(queried))


@dataclass(frozen=True)
class CausalGenerator:
    """Serves requests with a causal LM, of fixed or of recurrent depth, and a loop for it. is_baseline: see `Facts`."""

    model: CausalLM | RecurrentLM
    loop: Loop
    is_baseline: bool = False

    def prompt_len(self, request: Request) -> int:
        if request.gen_len < 1:
            raise ValueError(f"gen_length={request.gen_len}; give at least 1")
        return fitting_prompt_len(self.model, request)

    def warm_up(self, batch: Sequence[Request]) -> None:
        """Two forwards outside all timing."""
        self._decode(batch, [min(2, request.gen_len) for request in batch])

    def __call__(self, batch: Sequence[Request]) -> Sequence[Generation]:
        return self._decode(batch, [request.gen_len for request in batch])

    def traced(self, batch: Sequence[Request]) -> Sequence[tuple[Generation, list[Step]]]:
        """Steps without probabilities and candidates, which these loops do not show."""
        return [(generation, commit_steps(generation, self.model.eos_ids[0])) for generation in self(batch)]

    def describe(self) -> dict[str, object]:
        return {**describe_model(self.model), "is_baseline": self.is_baseline}

    def fingerprint(self) -> str:
        return fingerprint(self.model)

    def _decode(self, batch: Sequence[Request], gen_lens: Sequence[int]) -> Sequence[Generation]:
        prompts = [encode(self.model, request.messages, i) for i, request in enumerate(batch)]
        return list(describe(self.model, self.loop(self.model, prompts, gen_lens)))


def check_causal(name: str, model: LanguageModel, cache: CacheStrategy, stop: StopRule) -> CausalLM:
    """The model of an autoregressive loop of this name. Raises ValueError unless the loop can use it, the cache and the
    stop rule."""
    if not isinstance(model, CausalLM):
        raise ValueError(
            f"{name} needs an autoregressive model, and {model.name!r} is "
            f"{'depth-recurrent' if isinstance(model, RecurrentLM) else 'a diffusion model'}; "
            "use model=tiny_ar or model=causal, or a denoising decoder such as decoder=threshold"
        )
    if cache != NO_CACHE:
        raise ValueError(f"{name} keeps the K/V of all columns itself, so {cache} has nothing to do; use cache=none")
    if stop != StrictEos():
        raise ValueError(f"{name} stops at its first EOS, which {stop} does not describe; use stop=strict_eos")
    return model


class _Accepted(BaseStreamer):
    """How many tokens each forward gave; transformers puts the prompt first."""

    def __init__(self) -> None:
        self._puts: list[int] = []

    def put(self, value: Tensor) -> None:
        self._puts.append(value.numel())

    def end(self) -> None:
        pass

    @property
    def counts(self) -> Sequence[int]:
        return self._puts[1:]


def _generate(
    model: CausalLM,
    ids: Sequence[Sequence[int]],
    seen: Sequence[Sequence[int]],
    streamer: BaseStreamer | None = None,
    **settings: int,
) -> list[list[int]]:
    """Greedy tokens behind prompts of one length; rows that end before others are padded."""
    tokens = model.backbone.generate(  # type: ignore[operator]
        torch.tensor(ids, device=model.device),
        attention_mask=torch.tensor(seen, device=model.device),
        generation_config=GenerationConfig(
            do_sample=False, eos_token_id=list(model.eos_ids), pad_token_id=model.pad_id, **settings
        ),
        streamer=streamer,
    )
    return tokens[:, len(ids[0]) :].tolist()


def _up_to_eos(tokens: Sequence[int], eos_ids: Sequence[int], gen_len: int) -> tuple[list[int], int]:
    """A row's tokens before its first EOS within its budget, and how many were decoded with that EOS."""
    tokens = tokens[:gen_len]
    length = next((i for i, token in enumerate(tokens) if token in eos_ids), len(tokens))
    return list(tokens[:length]), min(length + 1, len(tokens))


def _decoded(answer: list[int], committed: Sequence[int], gen_len: int, nfe: int, queried: int) -> DecodedRow:
    stopped_by = "eos" if len(committed) > len(answer) else "length"
    return DecodedRow(answer, [*committed, *[NEVER] * (gen_len - len(committed))], nfe, queried, stopped_by)
