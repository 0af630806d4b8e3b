"""The diffusion-forcing sampler for depth-recurrent models (Geiping, Yang, Su: arXiv 2510.14961): a wavefront of
columns is iterated at once, later ones on drafts of earlier ones, and what has converged is frozen.

Costs are counted in passes of the recurrent core, one after the other: `nfe` is their number, so ordinary decoding with
r recurrences has r per token and tokens per forward of 1 / r; compare within one model. queried: columns computed by
these passes, the prompt's included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from conf.knobs import Count, In, Knobs, Number, Share, Weight
from decoders import NO_CACHE, StopRule, StrictEos
from decoders.loop import DecodedRow
from decoders.state import NEVER
from dllm.cache import CacheStrategy
from dllm.protocols import LanguageModel
from dllm.recurrent import DepthCache, RecurrentLM
from parallelbench.methods.autoregressive import CausalGenerator
from parallelbench.run.generator import Generator


@dataclass(frozen=True)
class DiffusionForcing(Knobs):
    """Each round gives every active column `inner` recurrences, drafts the token behind each, freezes those that stand
    still (their state moved by less than `eps`, relative to its norm, over the round), and lets one more column in.

    Defaults are the released ones.

    wavefront: columns active at most; 1 with inner = recurrences is ordinary decoding.
    eta: share of the old injected state kept where a draft changed.
    beta: noise mixed into a column's state, divided by 1 + the recurrences it has had.
    recurrences: after as many a column counts as converged; 0: the model's own number.
    freeze: all columns before the last one that stands still, even those that do not ("last", as released), or the
        longest prefix that stands still and whose drafts are what it was computed from ("prefix", the paper's).
    """

    inner: Count = 4
    wavefront: Count = 128
    eps: Weight = 0.03
    eta: Annotated[float, In("[0, 1)")] = 0.1
    beta: Share = 0.5
    recurrences: Number = 0
    freeze: Literal["last", "prefix"] = "last"

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        if not isinstance(model, RecurrentLM):
            raise ValueError(
                f"diffusion forcing needs a depth-recurrent model, and {model.name!r} is none; use model=tiny_recurrent"
            )
        if cache != NO_CACHE or stop != StrictEos():
            raise ValueError(
                "diffusion forcing keeps its own K/V and stops at its first EOS; use cache=none stop=strict_eos"
            )
        return CausalGenerator(model, lambda model, prompts, lens: self.decode(model, prompts, lens, seed))

    @torch.inference_mode()
    def decode(
        self, model: RecurrentLM, prompts: Sequence[Sequence[int]], gen_lens: Sequence[int], seed: int = 0
    ) -> list[DecodedRow]:
        """One prompt after the other."""
        return [self._decode_one(model, list(prompt), n, seed) for prompt, n in zip(prompts, gen_lens, strict=True)]

    def _decode_one(self, model: RecurrentLM, prompt: list[int], gen_len: int, seed: int) -> DecodedRow:
        full = self.recurrences or model.depth.recurrences
        cache, nfe, queried = DepthCache(), full, full * len(prompt)
        injected = model.inject(torch.tensor([prompt], device=model.device), cache)
        state = model.noise(len(prompt), 0, seed)
        for _ in range(full):
            state = model.recur(state, injected, cache)
        tokens = [
            int(model.read(state, cache)[0, -1].argmax())
        ]  # what follows the frozen columns: settled, then drafts
        committed = [nfe - 1]
        frozen = len(prompt)
        state, spent, injected = state[:, :0], torch.zeros(0, dtype=torch.long), injected[:, :0]
        answer: list[int] = []
        while tokens[0] not in model.eos_ids and len(answer) + 1 < gen_len:
            active = tokens[: min(self.wavefront, gen_len - len(answer) - 1)]
            new = len(active) - state.shape[1]
            state = torch.cat([state, model.noise(new, frozen + state.shape[1], seed)], dim=1)
            spent = torch.cat([spent, torch.zeros(new, dtype=torch.long)])
            cache.keep(frozen)
            fresh = model.inject(torch.tensor([active], device=model.device), cache)
            fresh[:, : injected.shape[1]] = (1 - self.eta) * fresh[:, : injected.shape[1]] + self.eta * injected
            injected = fresh
            before = state
            if self.beta:
                share = (self.beta / (1 + spent)).to(state)[None, :, None]
                noise = model.noise(len(active), frozen, seed + 1 + nfe)
                state = torch.where(
                    spent[None, :, None].to(state.device) > 0, (1 - share) * state + share * noise, state
                )
            for _ in range(self.inner):
                state = model.recur(state, injected, cache)
                nfe, queried = nfe + 1, queried + len(active)
            spent = spent + self.inner
            drafts = model.read(state, cache)[0].argmax(-1).tolist()
            moved = (state - before).norm(dim=-1)[0] / state.norm(dim=-1)[0]
            settled = ((moved < self.eps).cpu() | (spent >= full)).tolist()
            written = [active[0], *drafts]
            count = self._frozen(settled, active, written)
            count = next((i for i in range(1, count) if written[i] in model.eos_ids), count)
            answer += written[:count]
            committed += [nfe - 1] * count
            frozen += count
            tokens = written[count:]
            state, spent, injected = state[:, count:], spent[count:], injected[:, count:]
        if tokens[0] in model.eos_ids:
            stopped = "eos"
        else:
            answer, stopped = [*answer, tokens[0]], "length"
        committed = committed[: len(answer) + (stopped == "eos")]
        return DecodedRow(answer, [*committed, *[NEVER] * (gen_len - len(committed))], nfe, queried, stopped)

    def _frozen(self, settled: Sequence[bool], active: Sequence[int], written: Sequence[int]) -> int:
        """How many of the first active columns are frozen. written: the tokens of the columns after this round."""
        if self.freeze == "last":
            last = max((i for i, still in enumerate(settled) if still), default=0)
            return last if len(active) > 1 else int(settled[0])
        count = 0
        while count < len(active) and settled[count] and active[count] == written[count]:
            count += 1
        return count
