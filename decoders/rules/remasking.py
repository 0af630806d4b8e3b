"""Rules that have a revision of their own: a step fills, and what it fills may be masked again by the same settings."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoders.remask import confidences, keep, remask
from decoders.rules.ranking import lowest, take
from decoders.rules.schedules import masks_at_start
from decoders.types import Candidates, CommitRule, Confidence, Memory, Revise, Shape, Update, View
from dllm.spec import ModelSpec
from dllm.validation import Count, Fraction, Number, Positive


def _check_own(revise: Revise, own: CommitRule, rule: CommitRule) -> None:
    """Raises ValueError for a revision together with another rule than the one that it belongs to."""
    if rule != own:
        raise ValueError(f"{type(revise).__name__} is the revision of {own}, not of {rule}; use Decoder({own})")


@dataclass(frozen=True)
class Wino(CommitRule):
    """WINO (arXiv 2507.18578). Wide in: a step commits confidences above tau, at most clamp(0.7 * masks, 5, 20) of
    them. Narrow out: the revision masks again what a forward that cannot see it does not confirm.

    tau: of a commit.
    keep: a committed token that is less probable than this at its shadow (`View.shadow`) is doubted.
    """

    tau: Positive = 0.6
    keep: Fraction = 0.9
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    @property
    def revision(self) -> Revise:
        return NarrowOut(self)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        limit = (0.7 * view.masked.sum(1)).long().clamp(5, 20)
        return (candidates.confidence > self.tau) & take(view, candidates, limit)


@dataclass(frozen=True)
class NarrowOut(Revise):
    """The revision of `Wino`: a step that commits more than one token masks the doubted ones, the least likely first.

    It masks fewer than the step before committed, so that a row makes progress.
    """

    rule: Wino
    needs_shadow: ClassVar[bool] = True
    needs_one_block: ClassVar[bool] = True

    def check_partners(self, rule: CommitRule, revise: Revise | None, confidence: Confidence) -> None:
        _check_own(self, self.rule, rule)

    def check(self, spec: ModelSpec) -> None:
        if spec.noise:
            raise ValueError("this decoder shows MASK next to its tokens, which a uniform-state model never saw")

    def init(self, shape: Shape) -> Memory:
        return {"last": shape.zeros(dtype=torch.long)}

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        assert view.shadow is not None
        doubted = view.live & ~view.masked & (view.shadow < self.rule.keep)
        new = write.sum(1)
        back = lowest(view.shadow, doubted, torch.where(new > 1, memory["last"] - 1, 0))
        memory["last"].copy_(new)
        return remask(view, candidates, write, back)


@dataclass(frozen=True)
class LoopMdm(CommitRule):
    """ParallelBench's port of ReMDM (arXiv 2503.00307): near the end of a block, extra steps do some tokens again.

    The rule commits the schedule's number of tokens, or `redo` in an extra step. Before each extra step its revision
    masks the `redo` tokens of lowest confidence.

    steps: forwards of the schedule.
    extra: number of extra steps.
    redo: tokens that each of them does again.
    after: steps of the schedule that come before the first extra one.
    """

    steps: Count = 32
    extra: Number = 4
    redo: Count = 1
    after: Count = 28
    empty_steps: ClassVar[bool] = True

    @property
    def revision(self) -> Revise:
        return LoopRemask(self)

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
    """The revision of `LoopMdm`."""

    rule: LoopMdm

    def check_partners(self, rule: CommitRule, revise: Revise | None, confidence: Confidence) -> None:
        _check_own(self, self.rule, rule)

    def init(self, shape: Shape) -> Memory:
        return confidences(shape)

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        stored = keep(memory, write, candidates)
        committed = view.live & (~view.masked | write)
        number = torch.where(self.rule.is_extra(view.step + 1), self.rule.redo, 0)
        return remask(view, candidates, write, lowest(stored, committed, number))


@dataclass(frozen=True)
class ReMdm(CommitRule):
    """ReMDM's sampler (arXiv 2503.00307) over `steps` forwards per block: masks are filled, and tokens masked, at
    random.

    Let a_t = i / steps be the unmasked fraction before step i, and a_s the fraction after it.

        P(mask a token again) = sigma                                  sigma <= bound = min(1, (1 - a_s) / a_t)
        P(fill a mask)        = (a_s - (1 - sigma) a_t) / (1 - a_t)

    kind: "cap" is sigma = min(eta, bound). "rescale" is eta * bound. "conf" is eta * bound * softmax(-confidence at
        commit) over the tokens, and 0 for masks.

    Its quality comes from steps > tokens, so it is not a fast decoder. The rule fills and its revision masks.
    """

    steps: Count = 32
    kind: Literal["cap", "rescale", "conf"] = "cap"
    eta: Fraction = 0.04
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)
    empty_steps: ClassVar[bool] = True

    @property
    def revision(self) -> Revise:
        return ReMdmRemask(self)

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
    """The revision of `ReMdm`."""

    rule: ReMdm

    def check_partners(self, rule: CommitRule, revise: Revise | None, confidence: Confidence) -> None:
        _check_own(self, self.rule, rule)

    def init(self, shape: Shape) -> Memory:
        return confidences(shape)

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        _, after, bound = self.rule.times(view)
        old = view.live & ~view.masked
        sigma = self.rule.sigma(bound)
        if self.rule.kind == "conf":
            weight = (-memory["confidence"]).masked_fill(~old, float("-inf")).softmax(1)
            sigma = (bound * self.rule.eta * weight).nan_to_num(0)  # a row without tokens has no weights
        back = old & (view.noise.uniform(old.shape[1], stream="remdm mask") < sigma) & (after < 1)
        keep(memory, write, candidates)
        update = remask(view, candidates, write, back)
        return Update(update.tokens, update.write, hold=(after < 1)[:, 0])
