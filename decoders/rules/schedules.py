"""Rules that fix the number of forwards in advance: schedules over a block, in time or in space."""

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.rules.basic import SHARES
from decoders.rules.ranking import take
from decoders.types import ANY, Candidates, CommitRule, Confidence, Memory, Revise, Shape, View
from dllm.validation import Count, Fraction, Interval, Positive

Epsilon = Annotated[float, Interval("[1e-6, 1)")]  # the last of a schedule's times


def masks_at_start(view: View, memory: Memory) -> Int[Tensor, " B"]:
    """Masks that the window had in its first step. Kept in `memory["masks"]`, which the part's `init` makes."""
    masks = memory["masks"]
    masks.copy_(torch.where(view.step == 0, view.masked.sum(1), masks))
    return masks


@dataclass(frozen=True)
class Schedule(CommitRule):
    """LLaDA's block schedule (arXiv 2502.09992, section 2.4): a block of m masks in `steps` forwards.

    Each forward commits m // steps tokens, and the first m % steps forwards one more. Deviation: with fewer masks than
    steps there is one token per forward. The authors' code makes idle forwards.

    per: what m counts: the masks of the block's first step, or all columns of the "block", also those of a prompt that
        ends in it (SDAR, TraDo, LLaDA2.0). A step takes no more than are left. There, the authors' code writes over the
        prompt.
    spread: of what does not divide. "first" as above. "rounded": each forward commits its masks / the steps left,
        rounded (Tiny-A2D's block sampler, github.com/ZHZisZZ/dllm, whose float32 decides on halves).
    """

    steps: Count = 16
    per: Literal["masks", "block"] = "masks"
    spread: Literal["first", "rounded"] = "first"
    fixed_number: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spread == "rounded" and self.per == "block":
            raise ValueError("per='block' and spread='rounded' of Schedule: the latter counts masks; leave one out")

    def init(self, shape: Shape) -> Memory:
        return {"masks": shape.zeros(dtype=torch.long)}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        return take(view, candidates, self.number(view, memory))

    def number(self, view: View, memory: Memory) -> Int[Tensor, " B"]:
        """Tokens due in this step."""
        if self.spread == "rounded":
            share = _rounded_shares(self.steps, view.step.device)
            return (view.masked.sum(1) * share[view.step.clamp(max=self.steps - 1)]).round().long().clamp(min=1)
        masks = masks_at_start(view, memory)
        if self.per == "block":
            masks = torch.full_like(masks, view.masked.shape[1])
        return masks // self.steps + (view.step < masks % self.steps)


@lru_cache(maxsize=64)
def _rounded_shares(steps: int, device: torch.device) -> Tensor:
    """The share of the masks that each step takes, `[steps]`, as float32 divides the times."""
    times = (torch.arange(steps, -1, -1, dtype=torch.float64) / steps).float()
    times = 1 - (1 - times)
    return (1 - (times[1:] / times[:-1]).double()).to(device)


@dataclass(frozen=True)
class ThresholdOrSchedule(CommitRule):
    """LLaDA2.0 (arXiv 2512.15745): all confidences > tau if they are at least the schedule's number, else that number
    of the surest.

    steps: as in `Schedule` of a whole block. A block takes at most that many forwards.
    """

    steps: Count = 32
    tau: Positive = 0.95
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)

    def init(self, shape: Shape) -> Memory:
        return Schedule(self.steps).init(shape)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        due = Schedule(self.steps, "block").number(view, memory)
        sure = view.masked & (candidates.confidence > self.tau)
        return torch.where((sure.sum(1) >= due)[:, None], sure, take(view, candidates, due))


@dataclass(frozen=True)
class MaskGit(CommitRule):
    """MaskGIT's schedule (arXiv 2202.04200): floor(m * g((i + 1) / steps)) of a block's m masks are left after step i.

    mode: g(r) is 1 - r (linear), cos(pi r / 2) (cosine) or 1 - r^2 (pow2; any exponent).
    """

    steps: Count = 16
    mode: str = "cosine"
    empty_steps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"linear|cosine|pow[0-9]{1,3}(\.[0-9]{1,6})?", self.mode):
            raise ValueError(f"mode={self.mode!r} of MaskGit; give linear, cosine or pow2 (or another exponent)")

    def init(self, shape: Shape) -> Memory:
        return {"masks": shape.zeros(dtype=torch.long)}

    def left(self, view: View, memory: Memory) -> Int[Tensor, " B"]:
        """Masks that remain after this step."""
        masks = masks_at_start(view, memory)
        r = (view.step.double() + 1) / self.steps
        if self.mode == "cosine":
            ratio = (r * math.pi / 2).cos()
        else:
            ratio = 1 - r ** (1.0 if self.mode == "linear" else float(self.mode.removeprefix("pow")))
        return (masks * ratio.clamp(1e-6, 1)).long()

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        return take(view, candidates, view.masked.sum(1) - self.left(view, memory))


def _times(steps: int, eps: float, device: torch.device) -> Tensor:
    """Dream's times 1 = t_0 > ... > t_steps = eps, in float32 as in its code, which decides roundings."""
    return torch.linspace(1, eps, steps + 1, device=device)


@dataclass(frozen=True)
class DreamSchedule(CommitRule):
    """Dream's time schedule (arXiv 2508.15487): a step commits int(m * (1 - s / t)) of its m masks, the last step all.

    t and s are this and the next of steps + 1 times from 1 to eps. Confidence "prob" is Dream's maskgit_plus, "margin"
    its topk_margin, "entropy" its entropy. Steps may be empty (the first of 8 for 8 tokens is). The decoder's
    temperature is Dream's: it also tempers the confidences, and top-p and top-k follow it.

    per_step: in place of `steps`: as many as the window's masks / this, so that answers of several lengths have the
        same tokens per step on average (ParallelBench).
    """

    steps: Count = 16
    eps: Epsilon = 1e-3
    per_step: Count | None = None
    scale: ClassVar[tuple[Confidence, ...]] = ("entropy", *(kind for kind in ANY if kind != "entropy"))
    empty_steps: ClassVar[bool] = True
    fixed_number: ClassVar[bool] = True
    tempered: ClassVar[bool] = True

    def init(self, shape: Shape) -> Memory:
        return {} if self.per_step is None else {"masks": shape.zeros(dtype=torch.long)}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        share = self.share(view)
        if self.per_step is not None:
            steps = -(-masks_at_start(view, memory) // self.per_step)
            table = _shares(-(-view.masked.shape[1] // self.per_step), self.eps).to(steps.device)
            share = table[steps, torch.minimum(view.step, steps - 1).clamp(min=0)]
        return take(view, candidates, (view.masked.sum(1) * share).long())

    def share(self, view: View) -> Tensor:
        """1 - s / t of each row's step, `[B]`. It is 1 in the last step and later."""
        times = _times(self.steps, self.eps, view.masked.device)
        step = view.step.clamp(max=self.steps - 1)
        return torch.where(view.step >= self.steps - 1, 1.0, 1 - times[step + 1] / times[step])


@lru_cache(maxsize=64)
def _shares(most: int, eps: float) -> Tensor:
    """1 - s / t of step j of a schedule of n steps, `[n, j]`, for n up to `most`. It is 1 in the last step."""
    table = torch.ones(most + 1, max(most, 1))
    for steps in range(2, most + 1):
        times = _times(steps, eps, table.device)
        table[steps, : steps - 1] = 1 - times[1:-1] / times[:-2]
    return table


@dataclass(frozen=True)
class DreamOrigin(CommitRule):
    """Dream's "origin": each mask is filled by itself with probability 1 - s / t, and the last step fills all. Times
    and temperature are as in `DreamSchedule`. No confidence is read."""

    steps: Count = 16
    eps: Epsilon = 1e-3
    scale: ClassVar[tuple[Confidence, ...]] = ("prob",)
    empty_steps: ClassVar[bool] = True
    fixed_number: ClassVar[bool] = True
    tempered: ClassVar[bool] = True

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        share = DreamSchedule(self.steps, self.eps).share(view)[:, None]
        return view.masked & (view.noise.uniform(view.masked.shape[1], stream="origin") < share)


@dataclass(frozen=True)
class Dimple(CommitRule):
    """Dimple's confident decoding (arXiv 2505.16990): all confidences > gamma, else the time schedule's number.

    Let r = masks / live positions. The fallback takes the first time s < r that earlier steps have not passed and that
    yields int(masks * (1 - s / r)) >= 1 tokens, or all tokens where there is none. The last of `steps` forwards commits
    all.

    The number is taken in order of the decoder's confidence, which is `alg` of the authors' code: prob is maskgit_plus,
    margin topk_margin, entropy entropy, random origin, left_to_right autoregressive.

    above: what must be above gamma. "prob" is the candidate's probability before any temperature or sampling filter.
        "confidence" is the decoder's, as in the authors' code for margin and for entropy, whose -H is never above.
    fallback: where nothing is. "number" as above; "one" token, as in the authors' autoregressive; or "each" mask by
        itself with probability 1 - s / r, their origin-ratio.
    """

    gamma: Positive = 0.95
    steps: Count = 32
    eps: Epsilon = 1e-3
    above: Literal["prob", "confidence"] = "prob"
    fallback: Literal["number", "one", "each"] = "number"
    empty_steps: ClassVar[bool] = True
    tempered: ClassVar[bool] = True

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        prob = view.logits.prob(candidates.tokens) if self.above == "prob" else candidates.confidence
        sure = view.masked & (prob > self.gamma)
        masks, live = view.masked.sum(1), view.live.sum(1).clamp(min=1)
        ratio = (masks / live)[:, None]
        times = _times(self.steps, self.eps, masks.device)[:-1]  # the last one means all
        number = (masks[:, None] * (1 - times / ratio)).long()
        ahead = torch.arange(self.steps, device=masks.device) > view.step[:, None]
        valid = ahead & (times < ratio) & (number >= 1)
        if self.fallback == "each":
            share = 1 - torch.where(valid, times, 0).amax(1, keepdim=True) / ratio  # the first is the largest
            due = view.masked & (view.noise.uniform(view.masked.shape[1], stream="dimple") < share)
        else:
            number = torch.where(valid, number, masks[:, None]).amin(1)  # the first is the smallest
            due = take(view, candidates, number if self.fallback == "number" else torch.ones_like(number))
        few = torch.where(sure.any(1, keepdim=True), sure, due)
        return torch.where((view.step >= self.steps - 1)[:, None], view.masked, few)


@dataclass(frozen=True)
class Dilated(CommitRule):
    """DUS (arXiv 2506.19037): log2(W) steps over positions spaced ever closer, whatever their confidence.

    Step t = skip, skip + 1, ... commits the multiples of floor(W / base^t). Tokens of one step are far apart, where
    dependence is assumed weak. A last step shorter than the one before goes with it. The steps of 8 positions with base
    2 and skip 1:

        position   0  1  2  3  4  5  6  7
        step       0  2  1  2  0  2  1  2

    order: "dilated" as above, or "binary" (the middles of the spans that are left).
    by: "position" as above, or "confidence" (the same numbers of tokens, the surest first).
    keep: tokens of a step below this confidence wait for the last one. Deviation: the authors' remasking leaves them
        masked for good, because no later step of theirs holds them.
    """

    base: Annotated[int, Interval("[2, 1e6]")] = 2
    skip: Count = 1
    order: Literal["dilated", "binary"] = "dilated"
    by: Literal["position", "confidence"] = "position"
    keep: Fraction = 0.0
    block_is_knob: ClassVar[bool] = True

    def check_partners(self, rule: CommitRule, revise: Revise | None, confidence: Confidence) -> None:
        if self.keep and confidence not in SHARES:
            raise ValueError(f"keep={self.keep} of Dilated is of prob or margin, not of {confidence}; use prob")

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        width = view.masked.shape[1]
        levels = _binary(width) if self.order == "binary" else _dilated(width, self.base, self.skip)
        level = torch.tensor(levels).to(view.masked.device, non_blocking=True)
        step, last = view.step.clamp(max=max(levels))[:, None], max(levels)
        if self.by == "position":
            taken = view.masked & (level == step)
        else:
            taken = take(view, candidates, (level == step).sum(1))
        sure = candidates.confidence >= self.keep if self.keep else view.masked  # entropy is below 0
        return torch.where(step == last, view.masked, taken & sure)


@lru_cache(maxsize=64)
def _dilated(width: int, base: int, skip: int) -> list[int]:
    """Step (from 0) of each position: multiples of W // base^skip first, then of ever smaller spacings."""
    level = [-1] * width
    stride, step = max(width // base**skip, 1), 0
    while -1 in level:
        level = [step if old < 0 and at % stride == 0 else old for at, old in enumerate(level)]
        stride, step = max(stride // base, 1), step + 1
    return _merged(level)


@lru_cache(maxsize=64)
def _binary(width: int) -> list[int]:
    """Step (from 0) of each position: the middle of the window, then the middles of its halves, and so on."""
    level, spans, step = [-1] * width, [(0, width - 1)], 0
    while spans:
        halves = []
        for low, high in spans:
            middle = (low + high) // 2
            level[middle] = step
            halves += [(low, middle - 1), (middle + 1, high)]
        spans, step = [(low, high) for low, high in halves if low <= high], step + 1
    return _merged(level)


def _merged(level: list[int]) -> list[int]:
    """A last step shorter than the one before goes with it."""
    last = max(level)
    return [min(at, last - 1) for at in level] if 0 < level.count(last) < level.count(last - 1) else level
