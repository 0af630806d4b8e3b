"""Samplers of depth-recurrent models (`decoders.recurrent`) as decoders of a run."""

from collections.abc import Iterator, Sequence

import decoders
from decoders import NO_CACHE, StopRule, StrictEos
from decoders.constraints.patterns import Constraint
from decoders.types import DecodedRow, Turn
from dllm.cache import CacheStrategy
from dllm.protocols import LanguageModel
from dllm.recurrent import RecurrentLM
from parallelbench.methods.autoregressive import CausalGenerator
from parallelbench.records.facts import Facts
from parallelbench.run.generator import Generator


class DiffusionForcing(decoders.DiffusionForcing):
    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        return _generator("diffusion forcing", self, model, cache, stop, seed)


class AdaptiveDepth(decoders.AdaptiveDepth):
    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        return _generator("adaptive depth", self, model, cache, stop, seed)


def _generator(
    what: str,
    sampler: DiffusionForcing | AdaptiveDepth,
    model: LanguageModel,
    cache: CacheStrategy,
    stop: StopRule,
    seed: int,
) -> Generator:
    """Raises ValueError unless the sampler can use the model, the cache and the stop rule."""
    if not isinstance(model, RecurrentLM):
        raise ValueError(
            f"{what} needs a depth-recurrent model, and {model.name!r} is none; use model=tiny_recurrent or "
            "model=huginn"
        )
    if cache != NO_CACHE or stop != StrictEos():
        raise ValueError(f"{what} keeps its own K/V and stops at its first EOS; use cache=none stop=strict_eos")

    def loop(
        prompts: Sequence[Sequence[int]],
        gen_lens: Sequence[int],
        draws: Sequence[int],
        slots: int,
        constraints: Sequence[Constraint | None],
    ) -> Iterator[Turn[DecodedRow]]:
        """A batch of `slots` prompts in each turn."""
        for first in range(0, len(prompts), slots):
            batch = slice(first, first + slots)
            rows = sampler.decode(model, prompts[batch], gen_lens[batch], draws[batch], seed=seed)
            yield Turn(range(first, first + len(rows)), dict(enumerate(rows, first)))

    return CausalGenerator(model, loop, Facts())
