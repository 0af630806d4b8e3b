"""What every depth-recurrent language model offers, whatever its layers are.

    e      = prelude(tokens)
    s_0    ~ the model's noise
    s_i    = core(adapter[s_{i-1}, e])      i = 1 .. r
    logits = head(coda(s_r))

Prelude, core and coda are causal stacks, each with its own K/V by canvas column. At any depth the core attends to the
last K/V of earlier columns, so a column can be iterated while those before it still move.
"""

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dllm.kv import ColumnCache
from dllm.text import TextModel
from dllm.validation import Checked, Count

Stack = Literal["prelude", "core", "coda"]


@dataclass(frozen=True)
class Depth(Checked):
    """Layers of prelude, core and coda, and the number of recurrences (r) that generation takes by default."""

    prelude: Count = 1
    core: Count = 2
    coda: Count = 1
    recurrences: Count = 8


class DepthCache:
    """K/V of a batch of texts, for each stack.

    every_pass: keep that of each pass of the core and not of the last alone. Pass i then attends to what pass i of
        earlier columns left, or their last pass if they had fewer; see `settle`.
    """

    def __init__(self, depth: Depth, rows: int, length: int, device: torch.device, *, every_pass: bool = False) -> None:
        columns = torch.arange(length, device=device).expand(rows, -1)
        self.prelude, self.coda = (ColumnCache(layers, columns) for layers in (depth.prelude, depth.coda))
        self.core, self.every_pass = [ColumnCache(depth.core, columns)], every_pass

    def of(self, stack: Stack, step: int) -> ColumnCache:
        """step: which pass of the core, from 0."""
        if stack != "core":
            return self.prelude if stack == "prelude" else self.coda
        while self.every_pass and len(self.core) <= step:
            self.core.append(copy.deepcopy(self.core[-1]))
        return self.core[step if self.every_pass else 0]

    def settle(self, columns: Int[Tensor, "B W"], passes: int) -> None:
        """Says that these columns have had their last pass: later passes attend to what it left."""
        for later in self.core[passes:]:
            later.take(self.core[passes - 1], columns)


@dataclass(frozen=True)
class Place:
    """Where the columns of a forward belong. A shorter row repeats its last column, with the same input.

    columns: canvas columns, ascending.
    rows: those of the cache. None means every row in order.
    """

    cache: DepthCache
    columns: Int[Tensor, "B W"]
    rows: Int[Tensor, " B"] | None = None

    @cached_property
    def mask(self) -> Bool[Tensor, "B 1 W T"]:
        """Each column attends to itself and those before."""
        length = self.cache.prelude.positions.shape[1]
        return (torch.arange(length, device=self.columns.device) <= self.columns[..., None])[:, None]


class RecurrentLM(TextModel, ABC):
    """A causal LM of recurrent depth.

    embed: of tokens; the head has the same weights.
    tokenizer: None for a model that is given token ids alone.
    eos_ids: any of these ends a text.
    width: numbers per state.
    max_length: columns that it was made for, None for no known limit.
    """

    embed: nn.Embedding

    def __init__(
        self,
        depth: Depth,
        tokenizer: PreTrainedTokenizerBase | None,
        name: str,
        *,
        eos_ids: tuple[int, ...],
        pad_id: int,
        width: int,
        max_length: int | None = None,
    ) -> None:
        super().__init__(tokenizer, name)
        self.depth = depth
        self.eos_ids, self.pad_id, self.width, self.max_length = eos_ids, pad_id, width, max_length

    @abstractmethod
    def run(self, stack: Stack, states: Tensor, place: Place | None, step: int = 0) -> Float[Tensor, "B W D"]:
        """One pass of a stack, with its norms. place: None for whole texts without K/V."""

    @abstractmethod
    def join(self, state: Tensor, injected: Tensor) -> Float[Tensor, "B W D"]:
        """The adapter: what the core is given."""

    @abstractmethod
    def initial(self, columns: int, rng: torch.Generator) -> Float[Tensor, "W D"]:
        """Initial states, float32 on the CPU."""

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    @property
    def vocab_size(self) -> int:
        return self.embed.num_embeddings

    def identity(self) -> str:
        return repr((self.depth, self.eos_ids, None if self.tokenizer is None else self.tokenizer.chat_template))

    def new_cache(self, rows: int, length: int, *, every_pass: bool = False) -> DepthCache:
        """An empty cache for texts of up to `length` columns."""
        return DepthCache(self.depth, rows, length, self.device, every_pass=every_pass)

    def inject(self, tokens: Int[Tensor, "B W"], place: Place | None = None) -> Float[Tensor, "B W D"]:
        """What each recurrence is given: the prelude's states."""
        return self.run("prelude", self.embed(tokens), place)

    def recur(
        self,
        state: Float[Tensor, "B W D"],
        injected: Float[Tensor, "B W D"],
        place: Place | None = None,
        step: int = 0,
    ) -> Float[Tensor, "B W D"]:
        """One pass of the core, the `step`-th of these columns. Its K/V replaces that of an earlier pass over them."""
        return self.run("core", self.join(state, injected), place, step)

    def leave(self, state: Float[Tensor, "B W D"]) -> Float[Tensor, "B W D"]:
        """A state as the coda is given it."""
        return state

    def read(
        self, state: Float[Tensor, "B W D"], place: Place | None = None, want: Int[Tensor, "B K"] | None = None
    ) -> Float[Tensor, "B K V"]:
        """Logits for the token after each column, or after those at places `want` among them."""
        hidden = self.run("coda", self.leave(state), place)
        if want is not None:
            hidden = hidden.gather(1, want[..., None].expand(-1, -1, self.width))
        return hidden @ self.embed.weight.T

    def noise(self, columns: int, first: int, seed: int) -> Float[Tensor, "W D"]:
        """Initial states of columns first .. first + columns - 1. A column's noise depends on the column and the seed
        alone."""
        drawn = [self.initial(1, torch.Generator().manual_seed(seed * 1_000_003 + first + i)) for i in range(columns)]
        return torch.cat([torch.empty(0, self.width), *drawn]).to(self.device, self.dtype)

    def next_logits(
        self, tokens: Int[Tensor, "B T"], where: Bool[Tensor, "B T"], rng: torch.Generator
    ) -> Float[Tensor, "N V"]:
        """Logits for the token after each marked column, in reading order, for training. The number of recurrences is
        drawn from 1 .. 2 * default - 1, and the initial states are random."""
        count = int(torch.randint(1, 2 * self.depth.recurrences, (), generator=rng))
        injected = self.inject(tokens)
        state = self.initial(tokens.numel(), rng).to(injected).view(injected.shape)
        for _ in range(count):
            state = self.recur(state, injected)
        return self.run("coda", self.leave(state), None)[where] @ self.embed.weight.T
