"""What the loop and a decoder exchange: `View` is what a decoder sees of a step, `Update` is what it writes, and `Part`
is what each of its parts may declare. `DecodedRow` is what the loop gives, `responses` what it is asked for."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, TypeVar, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoders.constraints.chain import Window
from decoders.logits import Logits
from decoders.noise import Noise
from dllm.soft import Soft
from dllm.spec import ModelSpec
from dllm.validation import Checked

Memory = dict[str, Tensor]  # per-row tensors [B, ...] of one decode call; updated in place, never shared between calls
NEVER = -1  # committed_at of a column that holds no commit
EVERYTHING = 2**30  # columns that no canvas has
T = TypeVar("T")
Confidence = Literal["prob", "margin", "entropy", "random", "left_to_right"]
ANY: tuple[Confidence, ...] = get_args(Confidence)


@dataclass(frozen=True)
class Shape:
    """Sizes a part needs to make its memory: B rows, W window columns, V vocabulary."""

    batch: int
    window: int
    vocab: int
    device: torch.device

    def zeros(self, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A part's empty memory, `[B, *sizes]`."""
        return torch.zeros((self.batch, *sizes), dtype=dtype, device=self.device)


@dataclass(frozen=True)
class View:
    """All that a decoder may know of a step: its window. It sees no model, no cache and no other row.

    tokens: the ids in the window.
    masked: positions that are still to be filled. They are live too.
    live: positions that may be written. They belong to the response, lie before the live end, and their row is not
        done.
    logits: for the masked positions of the window, with MASK at -inf. For all if a part declares `needs_decided`.
    step: forwards that the row has made in this window before this one. At 0 its memory starts anew.
    noise: random numbers that depend on the row and not on its place in the batch.
    spec: the model's special ids.
    start: the window's first column, counted from the response's first. Below 0 where it begins in the prompt.
    shadow: the probability of each present token where the model cannot see it. Set if a part declares `needs_shadow`.
    reference: what one token per forward would write here. Set if a part declares `needs_reference`.
    window: what constraints let rows write, of all open blocks of a prompt side by side. None: no row has one.
    forced: rows that must commit when their rule commits nothing. None: all.
    waiting: rows whose window lies after one that is not finished, and which therefore stay in it. None: no row.
    together: so many rows each are the open blocks of one prompt, whose surest mask is committed. None: it need not be.
    """

    tokens: Int[Tensor, "B W"]
    masked: Bool[Tensor, "B W"]
    live: Bool[Tensor, "B W"]
    logits: Logits
    step: Int[Tensor, " B"]
    noise: Noise
    spec: ModelSpec
    start: Int[Tensor, " B"]
    shadow: Float[Tensor, "B W"] | None = None
    reference: Int[Tensor, "B W"] | None = None
    window: Window | None = None
    forced: Bool[Tensor, " B"] | None = None
    waiting: Bool[Tensor, " B"] | None = None
    together: int | None = None


@dataclass(frozen=True)
class Candidates:
    """A token for every window position and how sure it is.

    tokens: the ids.
    confidence: higher is surer. What it measures is the decoder's choice (`decoders.propose`).
    """

    tokens: Int[Tensor, "B W"]
    confidence: Float[Tensor, "B W"]


@dataclass(frozen=True)
class Update:
    """What a step writes. Writing MASK remasks. Writing over a token edits.

    tokens: the ids to write.
    write: where to write them.
    hold: rows that stay for another forward in a window that is full. None: no row.
    soft: what positions show the model in the next forward. None: their token, and MASK or a token of noise.
    shown: that token of noise, for a model with `spec.noise`. None: a new one.
    sight: columns of the window that the next forward sees, from the left, or EVERYTHING. Logits after them mean
        nothing. None: all.
    accepted: positions that the rule's filter accepted. None: it has no filter.
    """

    tokens: Int[Tensor, "B W"]
    write: Bool[Tensor, "B W"]
    hold: Bool[Tensor, " B"] | None = None
    soft: Soft | None = None
    shown: Int[Tensor, "B W"] | None = None
    sight: Int[Tensor, " B"] | None = None
    accepted: Bool[Tensor, "B W"] | None = None


class Part(Checked):
    """What a part of a decoder may declare. The defaults are those of a part that has no memory and needs nothing.

    Every part derives from one of the five kinds below. A decoder asks its parts and the parts inside them.

    needs_shadow: the part reads `View.shadow`. That costs columns of the same forward and works with cache=none only.
    needs_reference: the part reads `View.reference`. The loop then decodes every prompt once before.
    needs_decided: the part reads logits at positions that are decided already. A decoder with a revision always gets
        them.
    needs_noise: the part shows undecided positions noise, which takes a model with `spec.noise`.
    needs_one_block: the part says what the model sees in its window or after it, or counts looks that a waiting window
        costs nothing for, so that it takes one block at a time.
    scale: confidences that the part can read, the usual one first (`Decoder.confidence`).
    steps: forwards per window that the part was given, 0 where it plans none. A row is given up after twice as many.
    empty_steps: as published, the rule or the revision may commit nothing in a step, which costs a forward; its `steps`
        bound them.
    tempered: as published, the decoder's temperature comes first: sampling filters and confidences see what it leaves.
    """

    needs_shadow: ClassVar[bool] = False
    needs_reference: ClassVar[bool] = False
    needs_decided: ClassVar[bool] = False
    needs_noise: ClassVar[bool] = False
    needs_one_block: ClassVar[bool] = False
    scale: ClassVar[tuple[Confidence, ...]] = ANY
    steps: int = 0
    empty_steps: ClassVar[bool] = False
    tempered: ClassVar[bool] = False

    @property
    def widest(self) -> int | None:
        """Columns of the widest window that it takes. None: any."""
        return None

    @property
    def identity(self) -> str:
        """A text that tells its learned weights from others, empty where it has none. A run is resumed with the same
        weights only."""
        return ""

    def parts(self) -> Sequence["Part"]:
        """The parts that it calls itself. What they declare counts too. It keeps their memory in its own."""
        return ()

    def check(self, spec: ModelSpec) -> None:
        """Raises ValueError when it cannot be used with a model."""

    def check_partners(self, rule: "CommitRule", revise: "Revise | None", confidence: Confidence) -> None:
        """Raises ValueError when it cannot be used with a decoder of this rule, this revision and this confidence."""

    def init(self, shape: Shape) -> Memory:
        """Empty memory for one decode call: tensors `[B, ...]`. The decoder zeroes the lines of a row that enters a
        window. May raise ValueError for a vocabulary that the part cannot use."""
        return {}


class LogitTransform(Part, ABC):
    """Changes the logits from which candidates are taken (credit, top-p, EOS suppression)."""

    @abstractmethod
    def __call__(self, view: View, logits: Logits, memory: Memory) -> Logits:
        """Other logits of the same positions; `logits` stay as they are. May write to `memory`."""


class Rescore(Part, ABC):
    """Changes the candidates' confidence, by which rules compare positions (position priors, noise in the order).

    orders: what it gives says which position comes first, and nothing else. It is for rules that count.
    """

    orders: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Candidates: ...


class CommitRule(Part, ABC):
    """Says which masked positions take their candidate. Where it says none, the decoder commits the surest one.

    A rule with a filter keeps what the filter accepted in `memory["accepted"]`, for stop rules.

    fixed_number: each step commits a number of tokens that is known in advance.
    commits_k: that number is the same in each step.
    block_is_knob: as published, the length of a block is what trades quality for speed.
    memoryless: what it commits depends on the candidates of the step alone, so that steps can be looked ahead of.
    """

    fixed_number: ClassVar[bool] = False
    commits_k: ClassVar[bool] = False
    block_is_knob: ClassVar[bool] = False
    memoryless: ClassVar[bool] = False

    @property
    def revision(self) -> "Revise | None":
        """The revision that belongs to it. None: any, or none."""
        return None

    @abstractmethod
    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        """Where to commit; positions that are not masked are ignored. May write to `memory`."""


class Revise(Part, ABC):
    """Turns the commits into the final update: may remask or edit live positions of the window.

    edits: it writes the likeliest token in place of another one.
    rewrites: it writes other tokens than candidates and MASK, so that no constraint can be kept.
    """

    edits: ClassVar[bool] = False
    rewrites: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update: ...


class SoftStep(Part, ABC):
    """What the positions that stay masked show the model in the next forward."""

    needs_one_block: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, view: View, logits: Logits, memory: Memory) -> Soft: ...


@dataclass(frozen=True)
class Drafted:
    """Drafts that one forward verified.

    forward: its number from 0. tokens: the drafts. accepted: how many of them were written, from the first. tied: the
    verifier's likeliest tokens after those were too close to tell, so that the next forward looks at them again.
    """

    forward: int
    tokens: list[int]
    accepted: int
    tied: bool = False


@dataclass(frozen=True)
class DecodedRow:
    """One decoded prompt.

    token_ids: the response up to its first EOS after its last fixed token of another kind, without that EOS.
    committed_at: per response column the forward (from 0) that wrote it, -1 where none did.
    nfe: forwards of this row.
    queried: columns that these forwards computed.
    stopped_by: "eos" (a stop rule ended it), "length" (its canvas was filled) or "max_steps".
    drafts: those that were verified. None for decoders that make none.
    """

    token_ids: list[int]
    committed_at: list[int]
    nfe: int
    queried: int
    stopped_by: str
    drafts: Sequence[Drafted] = ()

    @property
    def num_tokens(self) -> int:
        """Decoded tokens before EOS. Fixed tokens of a template do not count."""
        return sum(at != NEVER for at in self.committed_at[: len(self.token_ids)])

    @property
    def tokens_per_forward(self) -> float:
        """Decoded tokens before EOS per forward."""
        return self.num_tokens / self.nfe


def up_to_eos(tokens: Sequence[int], eos_ids: Sequence[int], gen_len: int) -> tuple[list[int], int]:
    """A row's tokens before its first EOS within its budget, and how many were decoded with that EOS."""
    tokens = tokens[:gen_len]
    length = next((i for i, token in enumerate(tokens) if token in eos_ids), len(tokens))
    return list(tokens[:length]), min(length + 1, len(tokens))


def decoded_row(answer: list[int], committed: Sequence[int], gen_len: int, nfe: int, queried: int) -> DecodedRow:
    stopped_by = "eos" if len(committed) > len(answer) else "length"
    return DecodedRow(answer, [*committed, *[NEVER] * (gen_len - len(committed))], nfe, queried, stopped_by)


@dataclass(frozen=True)
class Turn(Generic[T]):
    """One pass through the loop.

    live: the prompts, by their places in the queue, that were given a forward.
    ended: what came of those that ended with it.
    """

    live: Sequence[int]
    ended: Mapping[int, T]


def in_order(turns: Iterable[Turn[T]]) -> Iterator[T]:
    """What ends, in the order of the queue."""
    held, place = dict[int, T](), 0
    for turn in turns:
        held |= turn.ended
        while place in held:
            yield held.pop(place)
            place += 1


def without_gradients(turns: Iterator[T]) -> Iterator[T]:
    """The same, each made in inference mode. Between two of them the caller's own mode holds."""
    while True:
        with torch.inference_mode():
            try:
                turn = next(turns)
            except StopIteration:
                return
        yield turn


def responses(
    spec: ModelSpec,
    num_prompts: int,
    gen_len: int | Sequence[int] | None,
    templates: Sequence[Sequence[int]] | None,
    block_len: int,
) -> list[list[int]]:
    """What is to be decoded after each prompt: its template, or `gen_len` MASKs (one number, or one per prompt).

    A length that is no multiple of the block cuts the last window. Raises ValueError for lengths and templates that
    cannot be decoded.
    """
    if (gen_len is None) == (templates is None):
        raise ValueError("give either gen_len or templates, not both")
    if templates is None:
        if isinstance(gen_len, int):
            check_lengths(spec, gen_len, block_len)
        lengths = [gen_len] * num_prompts if isinstance(gen_len, int) else list(gen_len or ())
        templates = [[spec.mask_id] * length for length in lengths]
    if len(templates) != num_prompts:
        raise ValueError(f"{len(templates)} responses are described for {num_prompts} prompts; give one for each")
    check_block(spec, block_len)
    for row, template in enumerate(templates):
        if spec.mask_id not in template:
            raise ValueError(
                f"response {row} has no MASK (id {spec.mask_id}), so nothing to decode; give one for each token"
            )
    return [list(template) for template in templates]


def check_lengths(spec: ModelSpec, gen_len: int, block_len: int) -> None:
    """Raises ValueError when a generation of `gen_len` tokens in blocks of `block_len` is impossible for the model."""
    if gen_len < 1 or block_len < 1:
        raise ValueError(f"gen_length={gen_len}, block_length={block_len}; both are at least 1")
    check_block(spec, block_len)


def check_block(spec: ModelSpec, block_len: int) -> None:
    """Raises ValueError when the model cannot decode windows of `block_len` columns."""
    if block_len < 1:
        raise ValueError(f"block_length={block_len}; it is at least 1")
    if spec.block is not None and spec.block % block_len:
        raise ValueError(
            f"block_length={block_len}, but this block-causal model decodes blocks of {spec.block}; use that, or a "
            "divisor of it for sub-blocks"
        )
