"""Revisions: committed tokens are masked again, or replaced, when later evidence speaks against them.

For the loop to end, each step of a row must make progress, or the number of its steps must be bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from decoders.noise import noise_tokens
from decoders.rules.ranking import lowest
from decoders.rules.schedules import MaskGit
from decoders.types import Candidates, Confidence, Memory, Part, Revise, Shape, Update, View
from dllm.validation import Count, Fraction, Interval, NonNegative, Number

ROUNDED = 1e-5  # what float32 may add to the probability of the same token in the same context


def confidences(shape: Shape) -> Memory:
    """Memory for the confidence of each position at its commit."""
    return {"confidence": shape.zeros(shape.window, dtype=torch.float64)}


def keep(memory: Memory, write: Bool[Tensor, "B W"], candidates: Candidates) -> Float[Tensor, "B W"]:
    """Stores the confidences of the new commits. Returns all stored ones."""
    stored = memory["confidence"]
    stored.copy_(torch.where(write, candidates.confidence, stored))
    return stored


def remask(view: View, candidates: Candidates, write: Bool[Tensor, "B W"], back: Bool[Tensor, "B W"]) -> Update:
    """Commits `write` and masks `back` again. A position in both stays masked."""
    tokens = torch.where(back, view.spec.mask_id, candidates.tokens)
    return Update(tokens, (write & ~back) | (back & ~view.masked))


@dataclass(frozen=True)
class ConfidenceDrop(Revise):
    """Saber's backtracking (arXiv 2510.18165): masks the tokens that have lost most confidence since their commit.

    A step masks one token per `mu` new commits, at least 1, and only tokens that have lost confidence. It also masks
    fewer than it commits, so that it makes progress. The paper leaves that open. A loss below what float32 rounds is
    none: the confidence of a column that sees nothing new may differ by 1e-7 with the other rows of the batch.
    """

    mu: Annotated[float, Interval("[1, 1e6]")] = 4.0
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    def init(self, shape: Shape) -> Memory:
        return confidences(shape)

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        old = view.live & ~view.masked
        drop = memory["confidence"] - view.logits.prob(view.tokens)
        new = write.sum(1)
        number = torch.minimum((new / self.mu).long().clamp(min=1), (new - 1).clamp(min=0))
        back = lowest(-drop, old & (drop > ROUNDED), number)
        keep(memory, write, candidates)
        return remask(view, candidates, write, back)


@dataclass(frozen=True)
class TokenEdit(Revise):
    """LLaDA2.1's editing (arXiv 2602.08676): a committed token gives way to another one with a probability above tau.

    Once a window is full, it is looked at again until nothing changes, at most `post` times; looks while it waits for
    another window cost no forward and do not count. It is for models that were trained to edit, and for those whose
    decided columns predict as an autoregressive model does (`ModelSpec.context_causal`): with tau=0 their text becomes
    the greedy one, if `post` is above the window's columns and the stop rule waits for a full window. Another masked
    model never saw wrong tokens in its input.

    post: None counts the window's steps from the first on, and takes as many as it has columns (DMax).
    settled: a full window is left, too, once all its likeliest tokens have at least this probability. None: it is not.
    past_eos: whether what is after a window's first EOS is edited too, as published. Nobody reads it.
    remask: whether what is after a window's first edit is masked again, and not edited (ours). It was decided
        after a wrong token. A step that edits is then one of the `post`, so that a row makes progress.
    """

    tau: NonNegative = 0.5
    post: Number | None = 16
    settled: Fraction | None = None
    past_eos: bool = True
    remask: bool = False
    edits: ClassVar[bool] = True
    rewrites: ClassVar[bool] = True

    def init(self, shape: Shape) -> Memory:
        return {"post": shape.zeros(dtype=torch.long)}

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        best, post = view.logits.top[1], memory["post"]
        most = view.tokens.shape[1] if self.post is None else self.post
        edit = view.live & ~view.masked & (best != view.tokens) & (view.logits.top_prob() > self.tau)
        if self.remask:
            may = post < most if view.waiting is None else (post < most) | view.waiting
            edit &= may[:, None]
        tokens, seen = torch.where(edit, best, candidates.tokens), view.live
        if not self.past_eos:
            ends = view.live & view.spec.is_eos(torch.where(write | edit, tokens, view.tokens))
            seen = view.live & (ends.cumsum(1) <= ends)
            edit &= seen
        left = view.masked & ~write
        write = write | edit
        if self.remask:
            behind = view.live & (edit.cumsum(1) > edit)
            tokens, left = torch.where(behind, view.spec.mask_id, tokens), left | behind
            write = torch.where(behind, ~view.masked, write)
        full = ~left.any(1)
        more = post < most if self.post is not None else view.step + 1 < most
        hold = full & (write & seen).any(1) & more
        if self.settled is not None:
            hold &= (view.live & (view.logits.top_prob() < self.settled)).any(1)
        look = full | edit.any(1) if self.remask else full
        post += look if view.waiting is None else look & ~view.waiting
        return Update(tokens, write, hold=hold)


@dataclass(frozen=True)
class RunningConfidence(Revise):
    """RCR (MDPO, arXiv 2508.13148): fills everything, then masks the least confident again, as many as MaskGIT's
    schedule says.

    Use with `FixedK("all")`. A token's confidence is that of its commit, so an early commit is reconsidered as long as
    surer ones come. Deviation: the published code also masks tokens of earlier blocks.
    """

    schedule: MaskGit = field(default_factory=lambda: MaskGit(16, "linear"))

    def parts(self) -> Sequence[Part]:
        return (self.schedule,)

    def init(self, shape: Shape) -> Memory:
        return confidences(shape) | self.schedule.init(shape)

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        stored = keep(memory, write, candidates)
        back = lowest(stored, view.live, self.schedule.left(view, memory))
        return remask(view, candidates, write, back)


@dataclass(frozen=True)
class Renoise(Revise):
    """Uniform-state diffusion (DiffusionGemma): shows accepted candidates and new noise in the next forward, and writes
    the likeliest tokens of all positions at once: when they have been the same for `stable` steps more and their mean
    entropy is below `confident` nats, or after `steps` forwards.

    Until then all positions stay undecided, so a step may go back on anything. The rule says what is accepted
    (`EntropyBound`). Needs a model with `spec.noise`, and a decoder with temperature 1; `Cooling` and `SelfCondition`
    are the released other parts.
    """

    needs_noise: ClassVar[bool] = True
    rewrites: ClassVar[bool] = True
    needs_one_block: ClassVar[bool] = True
    scale: ClassVar[tuple[Confidence, ...]] = ("entropy",)
    empty_steps: ClassVar[bool] = True
    steps: Count = 48
    stable: Number = 1
    confident: NonNegative = 0.005

    def init(self, shape: Shape) -> Memory:
        return {"best": shape.zeros(shape.window, dtype=torch.long), "same": shape.zeros(dtype=torch.long)}

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        best, same = view.logits.top[1], memory["same"]
        unchanged = ((best == memory["best"]) | ~view.masked).all(1) & (view.step > 0)
        same.copy_(torch.where(unchanged, same + 1, 0))
        memory["best"].copy_(best)
        entropy = -(candidates.confidence * view.masked).sum(1) / view.masked.sum(1).clamp(min=1)
        done = ((same >= self.stable) & (entropy < self.confident)) | (view.step + 1 >= self.steps)
        fresh = noise_tokens(view.noise, view.tokens.shape[1], view.spec.noise, "renoise")
        return Update(best, view.masked & done[:, None], shown=torch.where(write, candidates.tokens, fresh))
