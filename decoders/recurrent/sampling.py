"""What the samplers of depth-recurrent models draw from logits."""

import math
from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor

from decoders.logits import Logits
from decoders.noise import Noise
from decoders.propose import draw
from dllm.validation import Checked, Interval, NonNegative, Number


@dataclass(frozen=True)
class Draws(Checked):
    """The likeliest token (temperature 0), or a sample of the tempered distribution: of its top_k likeliest tokens (0:
    of all), of those the fewest whose probabilities reach top_p, and of those the ones that are at least min_p times as
    likely as the likeliest."""

    temperature: NonNegative = 0.0
    top_k: Number = 0
    top_p: Annotated[float, Interval("(0, 1]")] = 1.0
    min_p: Annotated[float, Interval("[0, 1)")] = 0.0

    def __call__(self, logits: Float[Tensor, "B W V"], noise: Noise) -> Int[Tensor, "B W"]:
        if self.temperature == 0:
            return logits.argmax(-1)
        kept = Logits(logits.float() / self.temperature)
        if self.top_k:
            kept = kept.top_k(self.top_k)
        if self.top_p < 1:
            kept = kept.top_p(self.top_p)
        if self.min_p:
            best = kept.top[0]
            kept = kept.each(
                lambda here, most: here.masked_fill(here < most[:, None] + math.log(self.min_p), float("-inf")), best
            )
        return draw(kept, noise, 1.0)
