"""What the loop must know of a model and its weights do not say: special ids, token shift, block structure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Int
from torch import Tensor

from dllm.shipped import SPEC_FILE
from dllm.validation import Checked, Count, Number

Columns = TypeVar("Columns", Tensor, np.ndarray)  # column numbers, on the device or on the host


@dataclass(frozen=True)
class ModelSpec(Checked):
    """Every special number of a model is here.

    mask_id, pad_id: token ids. pad_id fills dead columns only.
    eos_ids: any of these ends a text.
    shift: 1 if the hidden state of column p - 1 predicts column p (Dream, Fast-dLLM v2), else 0.
    block: columns per block of a block-causal model, on a grid that begins at column 0 unless `prompt_block` or
        `prompt_grid` says otherwise. None for a bidirectional model.
    context_causal: whether, in a model with blocks, only drafted columns look ahead. A row's drafted columns are its
        first MASK and all after it. Those before are settled: they attend only to columns before them, and are what
        they are in a causal LM. For example [A B M C] in one block: A and B are settled, M and C see all four. With
        shift 1, B predicts M and has to see C: where the first MASK's block has a token after it, the column before
        that MASK is drafted too.
    prompt_block: whether, in a model with blocks, the prompt is a block of its own, after which the grid begins (D2F).
    prompt_grid: whether, in a model with blocks, one of them ends where the prompt ends: the grid begins at column
        prompt_len mod block, and a first block that is cut holds the prompt's first columns (Tiny-A2D, OPDLM).
    response_position: RoPE position of the first response column, None to count on from the prompt. A fixed one keeps
        the distance from a prompt's start to its response constant.
    mix: canvas neighbours on each side that a learned input mix sees (0: none; see `dllm.layers.NeighbourMix`).
    delete_id, split_id: tokens by which a model that edits drops a column or makes one (LLaDA2.2). None: it has none.
    noise: 0 for absorbing masks: an undecided column shows MASK. For uniform-state diffusion the number n of ids that
        noise is drawn from: an undecided column shows one of 0 .. n - 1. MASK then only stands for "undecided" on the
        canvas, so mask_id is n or more and no model is given it.
    kv: whether the K/V of columns can be kept between forwards. False for encoders (BERT), which compute all again.
    """

    mask_id: Number
    eos_ids: tuple[Number, ...]
    pad_id: Number
    shift: Literal[0, 1] = 0
    block: Count | None = None
    context_causal: bool = field(default=False, repr=False)  # models saved before had none: `identity` names it
    prompt_block: bool = field(default=False, repr=False)
    response_position: Number | None = None
    mix: Literal[0, 1] = 0
    kv: bool = True
    delete_id: Number | None = field(default=None, repr=False)
    split_id: Number | None = field(default=None, repr=False)
    noise: Number = field(default=0, repr=False)  # models saved before had none
    prompt_grid: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eos_ids:
            raise ValueError("eos_ids is empty; name the id that ends a text")
        if self.mask_id in self.eos_ids or self.mask_id == self.pad_id:
            raise ValueError(f"mask_id={self.mask_id} is also EOS or PAD; a dLLM needs a mask token of its own")
        if self.noise and self.mask_id < self.noise:
            raise ValueError(f"mask_id={self.mask_id} is among the {self.noise} ids of noise; give an id after them")
        if self.noise and self.context_causal:
            raise ValueError("context_causal=true looks for MASK, which a model with noise never sees; leave one out")
        if self.context_causal and self.block is None:
            raise ValueError("context_causal=true needs a model with blocks; set spec.block")
        if self.prompt_block and (self.block is None or self.context_causal):
            raise ValueError("prompt_block=true needs a model with blocks and without context_causal; set spec.block")
        if self.prompt_block and self.prompt_grid:
            raise ValueError("prompt_block=true makes the prompt one block and prompt_grid=true several; choose one")

    def grid(self, prompt_len: Columns) -> Columns:
        """The column at which the grid of blocks begins, for prompts of these lengths."""
        if self.prompt_grid and self.block is not None:
            return prompt_len % self.block
        return prompt_len if self.prompt_block else prompt_len * 0

    def block_start(self, columns: Columns, prompt_len: Columns) -> Columns:
        """The first column of the block that holds each of these columns, none of them inside a prompt's own block.
        Below 0 for columns before the grid, whose block is cut."""
        assert self.block is not None
        return self.window_start(columns, prompt_len, self.block)

    def window_start(self, columns: Columns, prompt_len: Columns, width: int) -> Columns:
        """The first column of the window of `width` columns that holds each of these columns. Windows begin where the
        prompt ends, or lie on the grid of blocks."""
        origin = prompt_len if self.block is None else self.grid(prompt_len)
        return (columns - origin) // width * width + origin

    def check_vocab(self, vocab_size: int) -> None:
        """Raises ValueError when a special id does not fit the vocabulary."""
        edits = {"delete_id": (self.delete_id,), "split_id": (self.split_id,)}
        ids = {"mask_id": (self.mask_id,), "eos_ids": self.eos_ids, "pad_id": (self.pad_id,), **edits}
        for name, token_ids in ids.items():
            for token_id in token_ids:
                if token_id is not None and not 0 <= token_id < vocab_size:
                    raise ValueError(f"{name}={token_id} is outside the vocabulary of {vocab_size} tokens")

    def is_eos(self, tokens: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Where a text ends."""
        return is_one_of(tokens, self.eos_ids)

    def save(self, folder: Path) -> None:
        """Writes `dllm.json` into a folder that exists."""
        (folder / SPEC_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path, known: Mapping[str, Any] | None = None) -> "ModelSpec":
        """Reads `dllm.json`. known: the fields that it may leave out. Raises ValueError, naming the file, when it is
        not a spec."""
        try:
            fields = {**(known or {}), **cls.fields_of(path)}
            return cls(**{**fields, "eos_ids": tuple(fields["eos_ids"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path} is not a model spec: {error}") from error

    @staticmethod
    def fields_of(path: Path) -> dict[str, Any]:
        """What `dllm.json` says. Raises ValueError, naming the file, when it is no object of JSON."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(fields, dict):
                raise ValueError(f"it holds a {type(fields).__name__} where an object belongs")
            return fields
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a model spec: {error}") from error


def is_one_of(tokens: Int[Tensor, "..."], ids: Sequence[int]) -> Bool[Tensor, "..."]:
    """Which tokens are among the ids. Compares with plain numbers: a tensor of ids would have to be sent to the
    device."""
    return reduce(or_, [tokens == token_id for token_id in ids])
