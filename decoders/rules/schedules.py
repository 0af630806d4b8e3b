"""Rules whose number of forwards is fixed in advance: schedules over a block, in time or in space."""

import math
import re
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.ranking import take
from decoders.types import Candidates, Memory, Shape, Stateless, View

_ORIGIN = 21  # noise stream


def check_steps(steps: int) -> None:
    """Raises ValueError unless a number of forwards per block is possible."""
    if steps < 1:
        raise ValueError(f"steps={steps} per block; give a whole number >= 1")


def masks_at_start(view: View, memory: Memory) -> Int[Tensor, " B"]:
    """Masks of the window in its first step, kept in `memory["masks"]`, which the part's `init` makes."""
    masks = memory["masks"]
    masks.copy_(torch.where(view.step == 0, view.masked.sum(1), masks))
    return masks


@dataclass(frozen=True)
class Schedule:
    """LLaDA's block schedule: a block of m masks in `steps` forwards, m // steps each and one more in the first m %
    steps.

    arXiv 2502.09992, section 2.4 and the authors' generate.py. Fewer masks than steps: one per forward, and no idle
    forwards (the authors' code makes them).
    """

    steps: int = 32

    def __post_init__(self) -> None:
        check_steps(self.steps)

    def init(self, shape: Shape) -> Memory:
        return {"masks": torch.zeros(shape.batch, dtype=torch.long, device=shape.device)}

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        return take(view, candidates, self.number(view, memory))

    def number(self, view: View, memory: Memory) -> Int[Tensor, " B"]:
        """Tokens due in this step."""
        masks = masks_at_start(view, memory)
        return masks // self.steps + (view.step < masks % self.steps)


@dataclass(frozen=True)
class ThresholdOrSchedule(Schedule):
    """LLaDA2.0 (arXiv 2512.15745): all confidences > tau if at least the schedule's number, else that number of the
    surest.

    Confidence: prob. `steps` as in Schedule, so a block takes at most that many forwards.
    """

    tau: float = 0.95

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if not self.tau > 0:
            raise ValueError(f"tau={self.tau}; a confidence threshold is positive")

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        due = self.number(view, memory)
        sure = view.masked & (candidates.confidence > self.tau)
        return torch.where((sure.sum(1) >= due)[:, None], sure, take(view, candidates, due))


@dataclass(frozen=True)
class MaskGit:
    """MaskGIT's schedule (arXiv 2202.04200): floor(m * g((i + 1) / steps)) of a block's m masks are left after step i.

    mode: linear g = 1 - r, cosine cos(pi r / 2), pow2 1 - r^2 (any exponent). A step may commit nothing: use with
    at_least_one=False.
    """

    steps: int = 16
    mode: str = "cosine"

    def __post_init__(self) -> None:
        if self.steps < 1 or not re.fullmatch(r"linear|cosine|pow\d+(\.\d+)?", self.mode):
            raise ValueError(f"steps={self.steps}, mode={self.mode!r}; steps >= 1, mode linear, cosine or pow2")

    def init(self, shape: Shape) -> Memory:
        return {"masks": torch.zeros(shape.batch, dtype=torch.long, device=shape.device)}

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
class DreamSchedule(Stateless):
    """Dream's time schedule (arXiv 2508.15487): a step commits int(m * (1 - s / t)) of its m masks, the last one all.

    t, s: this and the next of steps + 1 times from 1 to eps. Confidence prob is its maskgit_plus, margin its
    topk_margin, entropy its entropy. Steps may be empty (the first of 8 for 8 tokens is): use with at_least_one=False.
    """

    steps: int = 32
    eps: float = 1e-3

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if not 0 < self.eps < 1:
            raise ValueError(f"eps={self.eps}; the last time lies in (0, 1)")

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        return take(view, candidates, (view.masked.sum(1) * self.share(view)).long())

    def share(self, view: View) -> Tensor:
        """1 - s / t of each row's step, `[B]`, 1 in the last and later."""
        times = _times(self.steps, self.eps, view.masked.device)
        step = view.step.clamp(max=self.steps - 1)
        return torch.where(view.step >= self.steps - 1, 1.0, 1 - times[step + 1] / times[step])


@dataclass(frozen=True)
class DreamOrigin(DreamSchedule):
    """Dream's "origin": each mask is filled with probability 1 - s / t by itself, the last step all."""

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        return view.masked & (view.noise.uniform(view.masked.shape[1], stream=_ORIGIN) < self.share(view)[:, None])


@dataclass(frozen=True)
class Dimple(Stateless):
    """Dimple's confident decoding (arXiv 2505.16990): all confidences > gamma, else the time schedule's number.

    With r = masks / live positions, the fallback takes the first time s < r, but none that earlier steps had passed,
    that yields int(masks * (1 - s / r)) >= 1 tokens, or all where none does. The last of `steps` forwards commits all.
    Confidence: prob of the untempered distribution (rescore with OriginalProb when sampling).
    """

    gamma: float = 0.95
    steps: int = 32
    eps: float = 1e-3

    def __post_init__(self) -> None:
        check_steps(self.steps)
        if not self.gamma > 0 or not 0 < self.eps < 1:
            raise ValueError(f"gamma={self.gamma}, eps={self.eps}; gamma > 0, eps in (0, 1)")

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        sure = view.masked & (candidates.confidence > self.gamma)
        masks, live = view.masked.sum(1), view.live.sum(1).clamp(min=1)
        ratio = (masks / live)[:, None]
        times = _times(self.steps, self.eps, masks.device)[:-1]  # the last one means all
        number = (masks[:, None] * (1 - times / ratio)).long()
        ahead = torch.arange(self.steps, device=masks.device) > view.step[:, None]
        valid = ahead & (times < ratio) & (number >= 1)
        number = torch.where(valid, number, masks[:, None]).amin(1)  # the first is the smallest
        few = torch.where(sure.any(1, keepdim=True), sure, take(view, candidates, number))
        return torch.where((view.step >= self.steps - 1)[:, None], view.masked, few)


@dataclass(frozen=True)
class Dilated(Stateless):
    """DUS (arXiv 2506.19037): log2(W) steps over positions spaced ever closer, whatever their confidence.

    Step t = 1, 2, ... commits the masked positions k (from 0) with k mod max(1, floor(W / base^t)) = 0, so tokens of
    one step are far apart, where dependence is assumed weak.
    """

    base: int = 2

    def __post_init__(self) -> None:
        if self.base < 2:
            raise ValueError(f"base={self.base}; the spacing shrinks by a whole number >= 2 per step")

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        width = view.masked.shape[1]
        stride = (width / self.base ** (view.step.double() + 1)).long().clamp(min=1)[:, None]
        return view.masked & (torch.arange(width, device=stride.device) % stride == 0)
