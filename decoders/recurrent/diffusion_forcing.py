"""The diffusion-forcing sampler for depth-recurrent models (Geiping, Yang, Su: arXiv 2510.14961): a wavefront of
columns is iterated at once, later ones on drafts of earlier ones, and what has converged is frozen.

Costs are counted in passes of the recurrent core, one after the other: `nfe` is their number, so ordinary decoding with
r recurrences has r per token and tokens per forward of 1 / r; compare within one model. queried: columns computed by
these passes, the prompt's included. Of a batch each pass computes all fronts; a row's cost is as if it were alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from decoders.noise import Noise, row_seeds
from decoders.recurrent.sampling import Draws
from decoders.types import DecodedRow, decoded_row, up_to_eos
from dllm.recurrent import DepthCache, Place, RecurrentLM
from dllm.validation import Checked, Count, Fraction, Interval, NonNegative, Number


@dataclass
class Front:
    """Where one row is. Columns before `base` are frozen; the front is the W columns from there on.

    seed: of its tokens.
    state: of the front's columns.
    injected: what the recurrences of the front's columns were given in the last round. Columns that came later lack it.
    base: number of frozen columns.
    tokens: inputs of the columns from `base` on. After the front they are drafts for columns to come.
    given: how many of these tokens, from the first, are no drafts. It is at least 1.
    age: passes that each column of the front has had.
    stable: rounds in which its token did not change.
    past: the front's states at the ends of the last two rounds, each with the column that it is taken to begin at.
    answer: tokens of the response that are frozen.
    committed: the pass that settled each response token.
    rounds, nfe, queried: made so far; passes and columns of them.
    """

    prompt: list[int]
    gen_len: int
    seed: int
    state: Float[Tensor, "W D"]
    injected: Float[Tensor, "V D"]
    base: int = 0
    tokens: list[int] = field(default_factory=list)
    given: int = 1
    age: list[int] = field(default_factory=list)
    stable: list[int] = field(default_factory=list)
    past: list[tuple[int, Tensor]] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    rounds: int = 0
    nfe: int = 0
    queried: int = 0

    @property
    def settled(self) -> int:
        """Response tokens that will not change."""
        return self.base + self.given - len(self.prompt)

    def follows(self, eos_ids: Sequence[int]) -> bool:
        """Whether EOS is what comes after the frozen columns."""
        return self.base >= len(self.prompt) and self.tokens[0] in eos_ids

    def freeze(self, count: int, written: Sequence[int]) -> None:
        """The first `count` columns of the front keep their tokens and leave it."""
        self.answer += written[max(0, len(self.prompt) - self.base) : count]
        self.base, self.given = self.base + count, max(self.given - count, 1)
        self.tokens, self.age, self.stable = list(written[count:]), self.age[count:], self.stable[count:]
        self.commit()

    def commit(self) -> None:
        self.committed += [self.nfe - 1] * (self.settled - len(self.committed))


@dataclass(frozen=True)
class DiffusionForcing(Checked):
    """Each round gives every active column `inner` recurrences, drafts the token after each, freezes columns, and lets
    `headway` more in, the first on its neighbour's draft and others on random tokens.

    Defaults are the released ones but for `released`.

    wavefront: columns active at most; 1 with inner = recurrences is ordinary decoding.
    eps: a state that moved by less over the round, relative to its norm, is at rest.
    eta: share of the old injected state that is kept (momentum).
    beta: share of noise mixed into a column's state each round.
    damped: beta is divided by 1 + the recurrences that the column has had.
    mixer: (1 - share) s + share n ("linear"), or with the roots of the shares ("sqrt").
    recurrences: passes over the prompt; after as many a column counts as standing still. 0: the model's own number.
    freeze: all columns before the last one that is at rest, even those that are not ("last"); the longest prefix that
        is at rest and whose drafts are what it was computed from ("prefix", the paper's); as "last", of columns whose
        states change at an even pace ("acceleration"), or whose tokens stayed for more rounds than make `recurrences`
        ("stability"); a column after two rounds more than make `recurrences` ("fixed").
    headway: columns that enter per round.
    continuous: a new column begins with the state of the last one, not with noise.
    prefill: whether the prompt is computed first, with all recurrences. If not, the front begins at its first token.
    rounds: at most.
    released: also what the published sampler does and its paper does not say. After a round that froze n columns it
        compares each state with that of the column n to its right; a new column's injected state is shrunk to 1 - eta;
        no column counts as standing still for its number of passes; the front grows before it is frozen, and past the
        end of the answer.
    temperature, top_k, top_p, min_p: see `Draws`. Drafts are drawn anew in each round.
    """

    inner: Count = 4
    wavefront: Count = 128
    eps: NonNegative = 0.03
    eta: Annotated[float, Interval("[0, 1)")] = 0.1
    beta: Fraction = 0.5
    damped: bool = True
    mixer: Literal["linear", "sqrt"] = "linear"
    recurrences: Number = 0
    freeze: Literal["last", "prefix", "acceleration", "stability", "fixed"] = "last"
    headway: Count = 1
    continuous: bool = False
    prefill: bool = True
    rounds: Count = 4096
    released: bool = False
    temperature: NonNegative = 0.0
    top_k: Number = 0
    top_p: Annotated[float, Interval("(0, 1]")] = 1.0
    min_p: Annotated[float, Interval("[0, 1)")] = 0.0

    @cached_property
    def draws(self) -> Draws:
        return Draws(self.temperature, self.top_k, self.top_p, self.min_p)

    def _frozen(self, still: Sequence[bool], active: Sequence[int], written: Sequence[int]) -> int:
        """How many of the first active columns are frozen. written: the tokens of the columns after this round."""
        if self.freeze in ("prefix", "fixed"):
            agree = [self.freeze == "fixed" or a == b for a, b in zip(active, written, strict=False)]
            ready = [a and b for a, b in zip(still, agree, strict=True)]
            return next((i for i, one in enumerate(ready) if not one), len(ready))
        if len(active) == 1 and not self.released:  # the token after the only column cannot change any more
            return int(still[0])
        return max((i for i, one in enumerate(still) if one), default=0)

    @torch.inference_mode()
    def decode(
        self,
        model: RecurrentLM,
        prompts: Sequence[Sequence[int]],
        gen_lens: Sequence[int],
        draws: Sequence[int] | None = None,
        seed: int = 0,
    ) -> list[DecodedRow]:
        """All fronts at once. draws: as in `decode`. Raises ValueError for a prompt longer than the front that should
        begin with it."""
        longest = max(map(len, prompts))
        if not self.prefill and longest > self.wavefront:
            raise ValueError(
                f"prefill=false and a prompt of {longest} tokens, which wavefront={self.wavefront} columns cannot hold"
            )
        none = torch.empty(0, model.width, device=model.device, dtype=model.dtype)
        rows = zip(prompts, gen_lens, row_seeds(seed, prompts, draws), strict=True)
        fronts = [Front(list(prompt), gen_len, own, none, none) for prompt, gen_len, own in rows]
        length = max(len(front.prompt) + front.gen_len for front in fronts)
        length += self.wavefront + self.headway if self.released else 0
        run = _Run(
            self, model, fronts, model.new_cache(len(fronts), length), self.recurrences or model.depth.recurrences, seed
        )
        run.start()
        while live := [i for i, front in enumerate(fronts) if not run.has_ended(front)]:
            run.round(live)
        return [run.row(front) for front in fronts]


@dataclass(frozen=True)
class _Run:
    """One call. full: the number of recurrences. seed: of the states."""

    options: DiffusionForcing
    model: RecurrentLM
    fronts: Sequence[Front]
    cache: DepthCache
    full: int
    seed: int

    def start(self) -> None:
        """The prompts, in passes of their own, and the first token after each; or fronts that begin with them."""
        if self.options.prefill:
            self._prefill()
        for front in self.fronts:
            if not self.options.prefill:
                front.tokens, front.given = front.prompt, len(front.prompt)
            self._widen(front, front.state, 0)
            front.past = [(0 if self.options.released else front.base, front.state)]

    def _prefill(self) -> None:
        model, device = self.model, self.model.device
        prompts = [torch.tensor(front.prompt, device=device) for front in self.fronts]
        place = Place(self.cache, padded([torch.arange(len(prompt), device=device) for prompt in prompts]))
        injected = model.inject(padded(prompts), place)
        state = padded([model.noise(len(prompt), 0, self.seed) for prompt in prompts])
        for _ in range(self.full):
            state = model.recur(state, injected, place)
        last = torch.tensor([[len(prompt) - 1] for prompt in prompts], device=device)
        drafts = self._draw(model.read(state, place, last), range(len(prompts)))
        for front, tokens in zip(self.fronts, drafts, strict=True):
            front.base, front.tokens = len(front.prompt), tokens
            front.nfe, front.queried = self.full, self.full * len(front.prompt)
            front.commit()

    def has_ended(self, front: Front) -> bool:
        done = front.settled >= front.gen_len or front.follows(self.model.eos_ids)
        return done or front.rounds >= self.options.rounds

    def round(self, live: Sequence[int]) -> None:
        """`inner` recurrences of the fronts of these rows, and what follows from them."""
        model, options, device = self.model, self.options, self.model.device
        fronts = [self.fronts[i] for i in live]
        spans = [torch.arange(front.base, front.base + len(front.state), device=device) for front in fronts]
        rows = None if len(live) == len(self.fronts) else torch.tensor(live, device=device)
        place = Place(self.cache, padded(spans), rows)
        inputs = [torch.tensor(front.tokens[: len(front.state)], device=device) for front in fronts]
        fresh = model.inject(padded(inputs), place)
        for front, new in zip(fronts, fresh, strict=True):
            old, new = front.injected, new[: len(front.state)].clone()
            new[: len(new) if options.released and front.rounds else len(old)] *= 1 - options.eta
            new[: len(old)] += options.eta * old
            front.injected = new
        injected = padded([front.injected for front in fronts])
        state = padded([self._mixed(front) for front in fronts])
        for _ in range(options.inner):
            state = model.recur(state, injected, place)
        for front in fronts:
            front.rounds += 1
            front.nfe, front.queried = front.nfe + options.inner, front.queried + options.inner * len(front.state)
        drafts = self._draw(model.read(state, place), live)
        for front, new, tokens in zip(fronts, state, drafts, strict=True):
            self._advance(front, new[: len(front.state)], tokens[: len(front.state)])

    def _mixed(self, front: Front) -> Float[Tensor, "W D"]:
        """The front's states with their share of noise."""
        beta, state = self.options.beta, front.state
        if beta == 0:
            return state
        # the first column after a prompt counts the prompt's recurrences, as released
        behind = len(front.prompt) - front.base if self.options.prefill else -1
        had = [age + self.full * (place == behind) for place, age in enumerate(front.age)]
        share = beta / (1 + torch.tensor(had)) if self.options.damped else torch.full((len(had),), beta)
        share = share.to(state)[:, None]
        noise = self.model.noise(len(state), front.base, self.seed + 1 + front.nfe)
        if self.options.mixer == "sqrt":
            return (1 - share).sqrt() * state + share.sqrt() * noise
        return (1 - share) * state + share * noise

    def _advance(self, front: Front, state: Float[Tensor, "W D"], drafts: Sequence[int]) -> None:
        """Freezes columns and lets others in. drafts: the token after each column."""
        known, prompt_left = front.tokens[: len(state)], max(1, len(front.prompt) - front.base)
        written = [*known[: front.given], *drafts[front.given - 1 :]]
        front.stable = [n + (a == b) for n, a, b in zip(front.stable, known, written, strict=False)]
        front.age = [age + self.options.inner for age in front.age]
        count = self.options._frozen(self._still(front, state), known, written)
        count = next((i for i in range(prompt_left, count) if written[i] in self.model.eos_ids), count)
        begin = front.base
        front.freeze(count, [*written, *self._guesses(front)])
        front.injected = front.injected[count:]
        self._widen(front, state, count)
        front.past = [*front.past[-1:], (begin if self.options.released else front.base, front.state)]

    def _still(self, front: Front, state: Float[Tensor, "W D"]) -> list[bool]:
        """Which columns stand still, by the chosen rule."""
        options, enough = self.options, self.full // self.options.inner
        if options.freeze == "stability":
            return [rounds > enough for rounds in front.stable]
        if options.freeze == "fixed":
            return [age // options.inner >= enough + 2 for age in front.age]
        needed = 2 if options.freeze == "acceleration" else 1
        change = state.new_zeros(0)
        if len(front.past) >= needed:
            before = [states[front.base - begin :] for begin, states in front.past[-needed:]]
            common = min(len(state), *map(len, before))
            now, *others = (states[:common] for states in (state, *reversed(before)))
            moved = now - others[0] if needed == 1 else now - 2 * others[0] + others[1]
            change = moved.norm(dim=-1) / now.norm(dim=-1)
        still = [*(change < options.eps).tolist(), *[False] * (len(state) - len(change))]
        return still if options.released else [a or age >= self.full for a, age in zip(still, front.age, strict=True)]

    def _widen(self, front: Front, state: Float[Tensor, "W D"], frozen: int) -> None:
        """Gives the front the states that are left of `state` after the frozen columns, and those of new columns."""
        options, model = self.options, self.model
        room = options.wavefront
        if options.released:
            room -= frozen
            room = room if model.max_length is None else min(room, model.max_length - front.base)
        else:
            room = min(room, len(front.prompt) + front.gen_len - 1 - front.base)
        left = state[frozen:]
        new = max(0, min(len(front.tokens), room) - len(left))
        if options.continuous and len(state) >= options.headway:
            fresh = state[-options.headway :][:new]
        else:
            fresh = model.noise(new, front.base + len(left), self.seed)
        front.state = torch.cat([left, fresh])
        front.age += [0] * new
        front.stable += [0] * new

    def _guesses(self, front: Front) -> list[int]:
        """Random tokens for columns that no draft reaches."""
        more = self.options.headway - 1
        draw = self._noise([front]).uniform(more, stream="headway") if more else torch.empty(1, 0)
        return (draw[0] * self.model.vocab_size).long().tolist()

    def _draw(self, logits: Float[Tensor, "B W V"], rows: Sequence[int]) -> list[list[int]]:
        return self.options.draws(logits, self._noise([self.fronts[i] for i in rows])).tolist()

    def _noise(self, fronts: Sequence[Front]) -> Noise:
        seeds = [front.seed for front in fronts]
        steps = [front.rounds for front in fronts]
        return Noise(*(torch.tensor(numbers, device=self.model.device) for numbers in (seeds, steps)))

    def row(self, front: Front) -> DecodedRow:
        tokens = [*front.answer, *front.tokens[: front.settled - len(front.answer)]][: front.gen_len]
        answer, decoded = up_to_eos(tokens, self.model.eos_ids, front.gen_len)
        row = decoded_row(answer, front.committed[:decoded], front.gen_len, front.nfe, front.queried)
        return row if decoded in (len(answer) + 1, front.gen_len) else replace(row, stopped_by="max_steps")


def padded(parts: Sequence[Tensor]) -> Tensor:
    """Rows of different lengths as one tensor; shorter ones repeat their last."""
    width = torch.arange(max(map(len, parts)), device=parts[0].device)
    return torch.stack([part[width.clamp(max=len(part) - 1)] for part in parts])
