"""Several blocks in flight (`decoders.running`) as decoders of a run."""

from dataclasses import dataclass

from decoders import Decoder, RunningSet, StopRule
from dllm.cache import CacheStrategy
from dllm.protocols import DenoisingLM, LanguageModel
from dllm.validation import Checked
from parallelbench.run.generator import DiffusionGenerator, Generator


@dataclass(frozen=True)
class Running(Checked):
    """A decoder with several blocks of each row in flight.

    running: when blocks are opened, and which must commit. decoder: what a block commits; any that leaves to the
        model what it sees (`Part.needs_one_block`).
    """

    running: RunningSet
    decoder: Decoder

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        """Raises ValueError for a model, cache or stop rule that knows one block only."""
        if not isinstance(model, DenoisingLM):
            raise ValueError(f"a running set needs a diffusion model, and {model.name!r} is none; use model=tiny_block")
        check_blocks(block_len)
        return DiffusionGenerator(model, self.decoder, cache, stop, block_len, seed, self.running)


def check_blocks(block_len: int | None) -> None:
    """Raises ValueError where a response is one block, so that no others can be in flight."""
    if block_len is None:
        raise ValueError(
            "block_length=null is one block for each response; give the length of one, as in block_length=32"
        )
