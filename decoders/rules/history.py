"""Rules that remember earlier steps of the window: what has become stable, and how far the model sees."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoders.compose import or_surest, surest
from decoders.rules.basic import SHARES, FixedK
from decoders.types import Candidates, CommitRule, Confidence, Memory, Part, Shape, View
from dllm.validation import Count, Interval, NonNegative, Number, Positive


@dataclass(frozen=True)
class Klass(CommitRule):
    """KLASS (arXiv 2511.05664): confidence >= tau, and KL(p_t || p_{t-1}) < kl in each of the last `history` steps.

    A window's first step has no predecessor and counts as unstable. Memory: the previous distribution, as large as the
    logits.

    take: of such positions all, the surest ("max_conf") or the one that moved least ("min_kl").
    block: columns of the authors' blocks. The window is then the whole answer (block_length=null) and is filled block
        by block, from left to right. What a block's columns did before its turn counts too, from its step `history` - 1
        on. None: a window knows only its own steps, as with every other rule here.
    """

    tau: Positive = 0.9
    kl: Positive = 0.01
    history: Count = 2
    block: Count | None = None
    take: Literal["all", "max_conf", "min_kl"] = "all"
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    def init(self, shape: Shape) -> Memory:
        numbers = {name: shape.zeros(dtype=torch.long) for name in ("block", "since")}
        stable = shape.zeros(shape.window, dtype=torch.long)
        return {"log_prob": shape.zeros(shape.window, shape.vocab), "stable": stable, **numbers}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        divergence = _divergence(view, memory["log_prob"])
        calm = (divergence < self.kl) & (view.step > 0)[:, None]
        stable = memory["stable"]
        stable.copy_(torch.where(calm, stable + 1, 0))
        ready = view.masked & (candidates.confidence >= self.tau) & (stable >= self.history)
        if self.block is None:
            return self._taken(ready, candidates, divergence)
        block = torch.arange(view.masked.shape[1], device=ready.device) // self.block
        turn = torch.where(view.masked, block, block[-1]).amin(1)
        stays = (turn == memory["block"]) & (view.step > 0)
        memory["since"].copy_(torch.where(stays, memory["since"] + 1, 0))
        memory["block"].copy_(turn)
        inside = view.masked & (block == turn[:, None])
        ready = ready & inside & (memory["since"] >= self.history - 1)[:, None]
        return self._taken(ready, candidates, divergence) | surest(
            candidates.confidence, inside & ~ready.any(1, keepdim=True)
        )

    def _taken(self, ready: Bool[Tensor, "B W"], candidates: Candidates, divergence: Tensor) -> Bool[Tensor, "B W"]:
        if self.take == "all":
            return ready
        return surest(candidates.confidence if self.take == "max_conf" else -divergence, ready)


def _divergence(view: View, previous: Float[Tensor, "B W V"]) -> Float[Tensor, "B W"]:
    """KL(p_t || p_{t-1}) in nats. Replaces the previous log-probabilities by the present ones."""
    logits = view.logits
    present = (logits.values - logits.log_norm[..., None]).clamp_(min=-1e4)  # MASK is at -inf
    difference = previous.neg_().add_(present)
    divergence = torch.linalg.vecdot(present.exp(), difference.to(present.dtype))
    previous.copy_(present)
    return divergence


@dataclass(frozen=True)
class DynamicThreshold(CommitRule):
    """Dynamic-dLLM's APD: a threshold per token. It falls while the runner-up is weak and rises with change.

        tau_i <- tau_i - fall * (1 - p2_i) + rise * (1 - cos(p_t, p_{t-1}))        from tau

    p2 is the second probability. The paper's weights are tuned per model; the defaults are ours. Memory: the previous
    distribution, as large as the logits.
    """

    tau: Positive = 0.9
    fall: NonNegative = 0.02
    rise: NonNegative = 0.1
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    def init(self, shape: Shape) -> Memory:
        return {"prob": shape.zeros(shape.window, shape.vocab), "shift": shape.zeros(shape.window, dtype=torch.float64)}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        previous, shift = memory["prob"], memory["shift"]
        prob = view.logits.probs().to(previous.dtype)
        cosine = torch.linalg.vecdot(prob, previous) / (prob.norm(dim=-1) * previous.norm(dim=-1)).clamp(min=1e-30)
        change = torch.where((view.step > 0)[:, None], 1 - cosine, 0)
        second = view.logits.top_prob() - view.logits.margin()
        shift += self.rise * change - self.fall * (1 - second)
        previous.copy_(prob)
        return candidates.confidence >= self.tau + shift


@dataclass(frozen=True)
class Horizon(CommitRule):
    """SlowFast sampling as its paper's text reads (arXiv 2506.10848): slow until the model's horizon is stable, then
    fast up to it. What the authors released is `SlowFast`.

    Slow: a step commits the surest `slow` positions. It notes the horizon, the farthest position with confidence > see.
    Fast: a step commits all confidences > tau in the span, and at least its surest, until the span is full.

    The span goes up to the mean of the last two horizons. It begins once their variance is below 1, or after `patience`
    steps. After it the rule is slow again. The order of phases is our reading.
    """

    tau: Positive = 0.85
    see: Annotated[float, Interval("[0, 1)")] = 0.1
    slow: Count = 1
    patience: Count = 8
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    def init(self, shape: Shape) -> Memory:
        return {name: shape.zeros() for name in ("horizon", "span", "waited")}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        horizon, span, waited = memory["horizon"], memory["span"], memory["waited"]
        position = torch.arange(view.masked.shape[1], device=view.masked.device)
        inside = view.masked & (position < span[:, None])
        fast = inside.any(1)  # the last horizon's span is not full yet
        seen = view.masked & (candidates.confidence > self.see)
        farthest = torch.where(seen, position + 1, 0).amax(1).to(horizon.dtype)
        steady = (waited > 0) & ((farthest - horizon).square() / 4 < 1)
        ready = ~fast & (steady | (waited + 1 >= self.patience))
        span.copy_(torch.where(ready, ((farthest + horizon) / 2).ceil(), span))
        waited.copy_(torch.where(fast | ready, 0, waited + 1))
        horizon.copy_(farthest)
        quick = inside & (candidates.confidence > self.tau)
        quick = or_surest(quick, candidates.confidence, inside)
        return torch.where(fast[:, None], quick, FixedK(self.slow)(view, candidates, memory))


@dataclass(frozen=True)
class Prophet(CommitRule):
    """Early commit (Prophet, arXiv 2508.19982): fills all masks once the mean gap between the two best logits is wide.

    gaps: what it must reach in the first, second and last third of the window.
    base: the rule that decides until then.

    Deviation: the gap is that of the window's masks. That of the authors' code is of an answer region, which a prompt
    must mark (`AnswerGap`).
    """

    gaps: Sequence[NonNegative] = (7.5, 5.0, 2.5)
    base: CommitRule = field(default_factory=FixedK)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.gaps) != 3:
            raise ValueError(f"gaps={list(self.gaps)} of Prophet; give three logit gaps, one for each third")

    def parts(self) -> Sequence[Part]:
        return (self.base,)

    def init(self, shape: Shape) -> Memory:
        return self.base.init(shape)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        masks, live = view.masked.sum(1), view.live.sum(1).clamp(min=1)
        wide = self.is_wide(view, view.masked, 3 * (live - masks) // live)
        return self.base(view, candidates, memory) | wide[:, None]

    def is_wide(self, view: View, where: Bool[Tensor, "B W"], third: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
        """Whether the mean gap of the positions of `where` reaches what this third asks for; not where there are none.
        third: 0, 1, 2; more counts as 2."""
        first, second = view.logits.two_best.unbind(-1)
        gap = ((first - second) * where).sum(1) / where.sum(1).clamp(min=1)
        early, middle, late = self.gaps
        return (gap >= torch.where(third < 1, early, torch.where(third == 1, middle, late))) & where.any(1)


@dataclass(frozen=True)
class AnswerGap(CommitRule):
    """Prophet as its authors released it: the gap is that of an answer region, of columns that are decided already too,
    its thirds are those of the steps, and the whole answer is filled.

    The window is the whole answer (block_length=null), and Prophet's `base` fills it in blocks (`InBlocks`).

    at: the region's first column. columns: how many it has. steps: of the whole answer, that `base` would take.
    """

    needs_decided: ClassVar[bool] = True
    needs_one_block: ClassVar[bool] = True
    prophet: Prophet = field(default_factory=Prophet)
    at: Number = 0
    columns: Count = 5
    steps: Count = 32

    def parts(self) -> Sequence[Part]:
        return (self.prophet,)

    def init(self, shape: Shape) -> Memory:
        return self.prophet.init(shape)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        column = torch.arange(view.live.shape[1], device=view.live.device)
        region = view.live & (column >= self.at) & (column < self.at + self.columns)
        wide = self.prophet.is_wide(view, region, 3 * (view.step + 1) // self.steps)
        return self.prophet.base(view, candidates, memory) | wide[:, None]


@dataclass(frozen=True)
class RunningMean(CommitRule):
    """Saber's adaptive acceleration (arXiv 2510.18165): confidences above the mean of those committed so far.

    The first step of a block has no mean and commits the surest.
    """

    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    def init(self, shape: Shape) -> Memory:
        return {name: shape.zeros(dtype=torch.float64) for name in ("sum", "number")}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        total, number = memory["sum"], memory["number"]
        mean = torch.where(number > 0, total / number.clamp(min=1), float("inf"))
        write = view.masked & (candidates.confidence > mean[:, None])
        write = or_surest(write, candidates.confidence, view.masked)
        total += torch.where(write, candidates.confidence, 0).sum(1)
        number += write.sum(1)
        return write


@dataclass(frozen=True)
class WarmThreshold(CommitRule):
    """A threshold that starts at 1 and falls by `rate` per step down to tau (dInfer's iteration smoothing).

    As released it continues falling through all blocks of an answer: `InBlocks` with the clock of the window.
    """

    tau: Positive = 0.9
    rate: NonNegative = 0.02
    scale: ClassVar[tuple[Confidence, ...]] = SHARES

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        return candidates.confidence >= (1 - self.rate * view.step).clamp(min=self.tau)[:, None]
