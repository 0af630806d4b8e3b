"""One token after the other from a depth-recurrent model, each with as many recurrences as it needs (arXiv 2502.05171,
section 6.1): what diffusion forcing is measured against.

Costs are counted in passes of the core, as `diffusion_forcing` counts them. Deviations from the released code: exits
are those on states and on predictions; prompts of a batch follow one another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from decoders.noise import Noise, row_seeds
from decoders.recurrent.sampling import Draws
from decoders.types import DecodedRow, decoded_row
from dllm.recurrent import Place, RecurrentLM
from dllm.validation import Checked, Interval, NonNegative, Number


@dataclass(frozen=True)
class AdaptiveDepth(Checked):
    """Each recurrence attends to the same recurrence of earlier columns, or to their last if they had fewer.

    recurrences: per token at most; 0: the model's own number.
    exit: after a pass that changed the columns' states by less than `threshold`, relative to their norms and in the
        mean ("latent"), or the prediction by less, in nats of KL divergence ("kl"); never before the last ("none").
    continuous: a token's first state is the last one of the token before, not noise. As released, that state is
        normalised with exit=none.
    temperature, top_k, top_p, min_p: see `Draws`.
    """

    recurrences: Number = 0
    exit: Literal["none", "latent", "kl"] = "none"
    threshold: NonNegative = 0.03
    continuous: bool = False
    temperature: NonNegative = 0.0
    top_k: Number = 0
    top_p: Annotated[float, Interval("(0, 1]")] = 1.0
    min_p: Annotated[float, Interval("[0, 1)")] = 0.0

    @torch.inference_mode()
    def decode(
        self,
        model: RecurrentLM,
        prompts: Sequence[Sequence[int]],
        gen_lens: Sequence[int],
        draws: Sequence[int] | None = None,
        seed: int = 0,
    ) -> list[DecodedRow]:
        """One prompt after the other. draws: as in `decode`."""
        rows = zip(prompts, gen_lens, row_seeds(seed, prompts, draws), strict=True)
        return [self._decode_one(model, list(prompt), gen_len, seed, own) for prompt, gen_len, own in rows]

    def _decode_one(self, model: RecurrentLM, prompt: list[int], gen_len: int, seed: int, own: int) -> DecodedRow:
        """seed: of its states. own: of its tokens."""
        cache = model.new_cache(1, len(prompt) + gen_len, every_pass=True)
        draws = Draws(self.temperature, self.top_k, self.top_p, self.min_p)
        seeds = torch.tensor([own], device=model.device)
        tokens, first, nfe, queried = prompt, 0, 0, 0
        answer: list[int] = []
        committed: list[int] = []
        state = None
        while len(answer) < gen_len:
            columns = torch.arange(first, first + len(tokens), device=model.device)[None]
            if state is None:
                state = model.noise(len(tokens), first, seed)[None]
            state, logits, passes = self._think(model, tokens, state, Place(cache, columns))
            cache.settle(columns, passes)
            nfe, queried = nfe + passes, queried + passes * len(tokens)
            committed.append(nfe - 1)
            token = int(draws(logits, Noise(seeds, torch.full_like(seeds, len(answer)))))
            if token in model.eos_ids:
                break
            answer.append(token)
            first, tokens = first + len(tokens), [token]
            last = model.leave(state[:, -1:]) if self.exit == "none" else state[:, -1:]
            state = last if self.continuous else None
        return decoded_row(answer, committed, gen_len, nfe, queried)

    def _think(
        self, model: RecurrentLM, tokens: list[int], state: Float[Tensor, "1 W D"], place: Place
    ) -> tuple[Tensor, Float[Tensor, "1 1 V"], int]:
        """The columns' last states, logits for the token after them, and how many passes they took."""
        injected = model.inject(torch.tensor([tokens], device=model.device), place)
        want = torch.full((1, 1), len(tokens) - 1, device=model.device)
        most = self.recurrences or model.depth.recurrences
        uniform = torch.full((1, 1, model.vocab_size), 1 / model.vocab_size, device=model.device)
        before, logits, passes = uniform.log(), None, 0
        while passes < most:
            old, state = state, model.recur(state, injected, place, passes)
            passes += 1
            if self.exit == "kl":
                logits = model.read(state, place, want)
                log_prob = logits.float().log_softmax(-1)
                change = (before.exp() * (before - log_prob)).sum()
                before = log_prob
            else:
                change = ((state - old).norm(dim=-1) / state.norm(dim=-1)).mean()
            if self.exit != "none" and change < self.threshold:
                break
        return state, model.read(state, place, want) if logits is None else logits, passes
