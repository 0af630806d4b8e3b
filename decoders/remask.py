"""Revisions: committed tokens are masked again, or replaced, when later evidence speaks against them.

For the loop to end, each step of a row must make progress, or the number of its steps must be bounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from conf.knobs import Count, In, Number, Positive, Share, Weight
from decoders.noise import noise_tokens
from decoders.rules.ranking import lowest, take
from decoders.rules.schedules import MaskGit, masks_at_start
from decoders.types import Candidates, CommitRule, Memory, Part, Revise, Shape, Update, View
from dllm.spec import ModelSpec


def _confidences(shape: Shape) -> Memory:
    """Memory for the confidence of each position at its commit."""
    return {"confidence": shape.zeros(shape.window, dtype=torch.float64)}


def _keep(memory: Memory, write: Bool[Tensor, "B W"], candidates: Candidates) -> Float[Tensor, "B W"]:
    """Stores the confidences of the new commits. Returns all stored ones."""
    stored = memory["confidence"]
    stored.copy_(torch.where(write, candidates.confidence, stored))
    return stored


def _remask(view: View, candidates: Candidates, write: Bool[Tensor, "B W"], back: Bool[Tensor, "B W"]) -> Update:
    """Commits `write` and masks `back` again. A position in both stays masked."""
    tokens = torch.where(back, view.spec.mask_id, candidates.tokens)
    return Update(tokens, (write & ~back) | (back & ~view.masked))


@dataclass(frozen=True)
class ConfidenceDrop(Revise):
    """Saber's backtracking (arXiv 2510.18165): masks the tokens that have lost most confidence since their commit.

    A step masks one token per `mu` new commits, at least 1, and only tokens that have lost confidence. It also masks
    fewer than it commits, so that it makes progress. The paper leaves that open.
    """

    mu: Annotated[float, In("[1, 1e6]")] = 4.0

    def init(self, shape: Shape) -> Memory:
        return _confidences(shape)

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        old = view.live & ~view.masked
        drop = memory["confidence"] - view.logits.prob(view.tokens)
        new = write.sum(1)
        number = torch.minimum((new / self.mu).long().clamp(min=1), (new - 1).clamp(min=0))
        back = lowest(-drop, old & (drop > 0), number)
        _keep(memory, write, candidates)
        return _remask(view, candidates, write, back)


@dataclass(frozen=True)
class Wino(Revise):
    """WINO's narrow-out (arXiv 2507.18578): masks tokens that a forward which cannot see them does not confirm.

    A committed token is doubted when its probability at its shadow (`View.shadow`) is below `keep`. A step that commits
    more than one token masks the doubted ones, the least likely first. It masks fewer than the step before committed,
    so that a row makes progress. Use with `WideIn`.
    """

    keep: Share = 0.9
    needs_shadow: ClassVar[bool] = True
    needs_one_block: ClassVar[bool] = True

    def check(self, spec: ModelSpec) -> None:
        if spec.noise:
            raise ValueError("this decoder shows MASK beside its tokens, which a uniform-state model never saw")

    def init(self, shape: Shape) -> Memory:
        return {"last": shape.zeros(dtype=torch.long)}

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        assert view.shadow is not None
        doubted = view.live & ~view.masked & (view.shadow < self.keep)
        new = write.sum(1)
        back = lowest(view.shadow, doubted, torch.where(new > 1, memory["last"] - 1, 0))
        memory["last"].copy_(new)
        return _remask(view, candidates, write, back)


@dataclass(frozen=True)
class WideIn(CommitRule):
    """WINO's wide-in: confidences above tau, at most clamp(0.7 * masks, 5, 20) of them. Confidence: prob."""

    tau: Positive = 0.6

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        limit = (0.7 * view.masked.sum(1)).long().clamp(5, 20)
        return (candidates.confidence > self.tau) & take(view, candidates, limit)


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
    past_eos: whether what stands behind a window's first EOS is edited too, as published. Nobody reads it.
    remask: whether what stands behind a window's first edit is masked again, and not edited (ours). It was decided
        behind a wrong token. A step that edits is then one of the `post`, so that a row makes progress.
    """

    tau: Weight = 0.5
    post: Number | None = 16
    settled: Share | None = None
    past_eos: bool = True
    remask: bool = False

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
        return _confidences(shape) | self.schedule.init(shape)

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        stored = _keep(memory, write, candidates)
        back = lowest(stored, view.live, self.schedule.left(view, memory))
        return _remask(view, candidates, write, back)


@dataclass(frozen=True)
class LoopRule(CommitRule):
    """ParallelBench's port of ReMDM (arXiv 2503.00307): near the end of a block, extra steps do some tokens again.

    This rule commits the schedule's number of tokens, or `redo` in an extra step. Before each extra step `LoopRemask`
    masks the `redo` tokens of lowest confidence. Give both the same values.

    steps: forwards of the schedule.
    extra: number of extra steps.
    redo: tokens that each of them does again.
    after: steps of the schedule that come before the first extra one.
    """

    steps: Count = 32
    extra: Number = 4
    redo: Count = 1
    after: Count = 28

    def init(self, shape: Shape) -> Memory:
        return {"masks": shape.zeros(dtype=torch.long)}

    def is_extra(self, step: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
        """Whether each row's step, from 0 in its window, is one of the extra ones."""
        first = min(self.after, self.steps)
        return (step >= first) & (step < first + self.extra)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        masks = masks_at_start(view, memory)
        extra = self.is_extra(view.step)
        turn = torch.where(view.step < min(self.after, self.steps), view.step, view.step - self.extra)
        number = torch.where(extra, self.redo, masks // self.steps + (turn < masks % self.steps))
        return take(view, candidates, number)


@dataclass(frozen=True)
class LoopRemask(Revise):
    """The remasking that belongs to a `LoopRule` of the same values."""

    steps: Count = 32
    extra: Number = 4
    redo: Count = 1
    after: Count = 28

    @property
    def _rule(self) -> LoopRule:
        return LoopRule(self.steps, self.extra, self.redo, self.after)

    def init(self, shape: Shape) -> Memory:
        return _confidences(shape)

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        stored = _keep(memory, write, candidates)
        committed = view.live & (~view.masked | write)
        number = torch.where(self._rule.is_extra(view.step + 1), self.redo, 0)
        return _remask(view, candidates, write, lowest(stored, committed, number))


@dataclass(frozen=True)
class ReMdmRule(CommitRule):
    """ReMDM's sampler (arXiv 2503.00307) over `steps` forwards per block: masks are filled, and tokens masked, at
    random.

    Let a_t = i / steps be the unmasked fraction before step i, and a_s the fraction after it.

        P(mask a token again) = sigma                                  sigma <= bound = min(1, (1 - a_s) / a_t)
        P(fill a mask)        = (a_s - (1 - sigma) a_t) / (1 - a_t)

    kind: "cap" is sigma = min(eta, bound). "rescale" is eta * bound. "conf" is eta * bound * softmax(-confidence at
        commit) over the tokens, and 0 for masks.

    Its quality comes from steps > tokens, so it is not a fast decoder. This rule fills and `ReMdmRemask` masks. Give
    both the same values, and the decoder at_least_one=False.
    """

    steps: Count = 32
    kind: Literal["cap", "rescale", "conf"] = "cap"
    eta: Share = 0.04

    def times(self, view: View) -> tuple[Float[Tensor, "B 1"], Float[Tensor, "B 1"], Float[Tensor, "B 1"]]:
        """a_t, a_s and the bound of sigma."""
        before = (view.step.double() / self.steps).clamp(max=1)[:, None]
        after = ((view.step.double() + 1) / self.steps).clamp(max=1)[:, None]
        return before, after, ((1 - after) / before.clamp(min=1e-9)).clamp(max=1)

    def sigma(self, bound: Float[Tensor, "B 1"]) -> Float[Tensor, "B 1"]:
        """sigma of masks. It is that of tokens too, unless kind is "conf"."""
        return {"cap": bound.clamp(max=self.eta), "rescale": self.eta * bound, "conf": 0 * bound}[self.kind]

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        before, after, bound = self.times(view)
        fill = (after - (1 - self.sigma(bound)) * before) / (1 - before).clamp(min=1e-9)
        # the last step fills all that is left
        return view.masked & ((view.noise.uniform(view.masked.shape[1], stream="remdm fill") < fill) | (after >= 1))


@dataclass(frozen=True)
class ReMdmRemask(Revise):
    """The remasking that belongs to a `ReMdmRule` of the same values."""

    steps: Count = 32
    kind: Literal["cap", "rescale", "conf"] = "cap"
    eta: Share = 0.04

    @property
    def _rule(self) -> ReMdmRule:
        return ReMdmRule(self.steps, self.kind, self.eta)

    def init(self, shape: Shape) -> Memory:
        return _confidences(shape)

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        _, after, bound = self._rule.times(view)
        old = view.live & ~view.masked
        sigma = self._rule.sigma(bound)
        if self.kind == "conf":
            weight = (-memory["confidence"]).masked_fill(~old, float("-inf")).softmax(1)
            sigma = (bound * self.eta * weight).nan_to_num(0)  # a row without tokens has no weights
        back = old & (view.noise.uniform(old.shape[1], stream="remdm mask") < sigma) & (after < 1)
        _keep(memory, write, candidates)
        update = _remask(view, candidates, write, back)
        return Update(update.tokens, update.write, hold=(after < 1)[:, 0])


@dataclass(frozen=True)
class Renoise(Revise):
    """Uniform-state diffusion (DiffusionGemma): shows accepted candidates and new noise in the next forward, and writes
    the likeliest tokens of all positions at once: when they have been the same for `stable` steps more and their mean
    entropy is below `confident` nats, or after `steps` forwards.

    Until then all positions stay undecided, so a step may go back on anything. The rule says what is accepted
    (`EntropyBound`). Needs a model with `spec.noise`; a decoder with temperature 1, confidence entropy and at_least_one
    false; `Cooling` and `SelfCondition` are the released other parts.
    """

    needs_noise: ClassVar[bool] = True
    needs_one_block: ClassVar[bool] = True
    steps: Count = 48
    stable: Number = 1
    confident: Weight = 0.005

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
