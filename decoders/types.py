"""The vocabulary between the loop and a decoder: what it sees (View), what it says (Update), and the parts it is made
of, each of which declares what it needs (Part)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoders.logits import Logits
from decoders.noise import Noise
from dllm.soft import Soft
from dllm.spec import ModelSpec
from knobs import Knobs

Memory = dict[str, Tensor]  # per-row tensors [B, ...] of one decode call; updated in place, never shared between calls
EVERYTHING = 2**30  # columns that no canvas has
Confidence = Literal["prob", "margin", "entropy", "random", "left_to_right"]


@dataclass(frozen=True)
class Shape:
    """Sizes a part needs to make its memory: B rows, W window columns, V vocabulary."""

    batch: int
    window: int
    vocab: int
    device: torch.device


@dataclass(frozen=True)
class View:
    """All that a decoder may know of a step: its window, no model, no cache, no neighbours in the batch.

    tokens: the window. masked: positions to be filled. live: positions that may be written (response, before the live
    end, row not done); masked implies live. logits: for the window, MASK at -inf. step: forwards made in this window
    before; at 0 a row's memory starts anew. noise: randomness that depends on the row, not on its place in the batch.
    spec: the model's special ids. shadow: probability of each present token where the model cannot see it, for a
    decoder that asks for it (`Part.needs_shadow`). reference: what one token per forward would write here, for one
    that asks for it (`Part.needs_reference`).
    """

    tokens: Int[Tensor, "B W"]
    masked: Bool[Tensor, "B W"]
    live: Bool[Tensor, "B W"]
    logits: Logits
    step: Int[Tensor, " B"]
    noise: Noise
    spec: ModelSpec
    shadow: Float[Tensor, "B W"] | None = None
    reference: Int[Tensor, "B W"] | None = None


@dataclass(frozen=True)
class Candidates:
    """A token for every window position and how sure it is (higher is surer; what it measures is the decoder's
    choice)."""

    tokens: Int[Tensor, "B W"]
    confidence: Float[Tensor, "B W"]


@dataclass(frozen=True)
class Update:
    """Tokens to write, and where. Writing MASK remasks, writing over a token edits.

    hold: rows that stay in their window although it is filled, for another forward. soft: what undecided positions show
    the model in that forward. sight: how many columns of the window that forward sees, or
    EVERYTHING; it sees nothing behind them, and the logits there mean nothing. accepted:
    what the rule's filter accepted, whatever else goes with it.
    """

    tokens: Int[Tensor, "B W"]
    write: Bool[Tensor, "B W"]
    hold: Bool[Tensor, " B"] | None = None
    soft: Soft | None = None
    sight: Int[Tensor, " B"] | None = None
    accepted: Bool[Tensor, "B W"] | None = None


class Part(Knobs):
    """What a part of a decoder may declare. The defaults are those of a part without memory that needs nothing.

    Every part derives from one of the five kinds below. The decoder asks all of its parts and the parts inside them.

    needs_shadow: it reads `View.shadow`, which costs columns of the same forward and works with cache=none only.
    needs_reference: it reads `View.reference`, for which the loop decodes every prompt once before.
    steps: forwards per window that it was given, 0 where it plans none. A row gets twice as many before it is given up.
    """

    needs_shadow: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    steps: int = 0

    @property
    def widest(self) -> int | None:
        """Columns of the widest window that it takes, None for any."""
        return None

    @property
    def identity(self) -> str:
        """Tells its learned weights from others: a run is resumed with the same ones only. Empty without any."""
        return ""

    def parts(self) -> Sequence["Part"]:
        """The parts that it calls itself; what they declare counts too. Their memory is its own affair."""
        return ()

    def init(self, shape: Shape) -> Memory:
        """Empty memory for one decode call: tensors `[B, ...]`, zeroed for a row that enters a window. May raise
        ValueError for a vocabulary that it cannot use."""
        return {}


class LogitTransform(Part, ABC):
    """Changes the logits from which candidates are taken (credit, top-p, EOS suppression)."""

    @abstractmethod
    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits: ...


class Rescore(Part, ABC):
    """Changes the candidates' confidence, by which rules compare positions (position priors, noise in the order)."""

    @abstractmethod
    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Candidates: ...


class CommitRule(Part, ABC):
    """Says which masked positions take their candidate. May say none: the decoder then commits the surest one.

    A rule with a filter keeps what that accepted in `memory["accepted"]`, for stop rules.
    """

    @abstractmethod
    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]: ...


class Revise(Part, ABC):
    """Turns the commits into the final update: may remask or edit live positions of the window."""

    @abstractmethod
    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update: ...


class SoftStep(Part, ABC):
    """What the positions that stay masked show the model in the next forward."""

    @abstractmethod
    def __call__(self, view: View, logits: Logits, memory: Memory) -> Soft: ...
