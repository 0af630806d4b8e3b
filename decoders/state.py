"""The state of one decode call: the canvas and where each row stands. Only this file slices or moves windows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoders.logits import Logits
from decoders.noise import Noise, row_seeds
from decoders.types import Update, View
from dllm.cache import Progress
from dllm.soft import Soft, SoftInput
from dllm.spec import ModelSpec

NEVER = -1  # committed_at of a column that holds no commit


@dataclass
class DecodeState:
    """B rows over a right-padded canvas of T columns; a row's window is `window` columns from `start`.

    prompt_len, start, end, step, seeds, nfe, queried: `[B]`. end: live end (exclusive), which stop rules may lower.
    step: forwards made in the current window. nfe: forwards of the row; queried: columns recomputed for it.
    committed_at: the forward (from 0) that last wrote a column, `[B, T]`. soft: what undecided positions of the present
    windows show the model. Block-causal windows lie on the model's
    grid, so the first may begin inside the prompt.
    """

    spec: ModelSpec
    canvas: Int[Tensor, "B T"]
    prompt_len: Int[Tensor, " B"]
    start: Int[Tensor, " B"]
    end: Int[Tensor, " B"]
    step: Int[Tensor, " B"]
    done: Bool[Tensor, " B"]
    first: Bool[Tensor, " B"]
    seeds: Int[Tensor, " B"]
    nfe: Int[Tensor, " B"]
    queried: Int[Tensor, " B"]
    committed_at: Int[Tensor, "B T"]
    window: int
    soft: Soft | None = None

    @classmethod
    def begin(
        cls,
        spec: ModelSpec,
        prompts: Sequence[Sequence[int]],
        gen_len: int,
        block_len: int,
        seeds: Sequence[int],
        device: torch.device,
    ) -> "DecodeState":
        """Prompts followed by `gen_len` MASKs. Raises ValueError for lengths that cannot be decoded."""
        check_lengths(spec, gen_len, block_len)
        if not prompts:
            raise ValueError("no prompts given; give at least one")
        for row, prompt in enumerate(prompts):
            if not len(prompt):
                raise ValueError(f"prompt {row} is empty; a canvas needs at least one prompt token")
        prompt_len = torch.tensor([len(prompt) for prompt in prompts])
        start = prompt_len if spec.block is None else prompt_len // block_len * block_len
        end = prompt_len + gen_len
        # every window, also a last one cut short by `end`, lies inside the canvas
        num_windows = (end - start + block_len - 1) // block_len
        length = int((start + num_windows * block_len).max())
        canvas = torch.full((len(prompts), length), spec.pad_id)
        columns = torch.arange(length)
        canvas[(columns >= prompt_len[:, None]) & (columns < end[:, None])] = spec.mask_id
        for row, prompt in enumerate(prompts):
            canvas[row, : len(prompt)] = torch.as_tensor(prompt)
        zeros = torch.zeros(len(prompts), dtype=torch.long, device=device)
        return cls(
            spec=spec,
            canvas=canvas.to(device),
            prompt_len=prompt_len.to(device),
            start=start.to(device),
            end=end.to(device),
            step=zeros.clone(),
            done=zeros.bool(),
            first=~zeros.bool(),
            seeds=torch.tensor(seeds, dtype=torch.long, device=device),
            nfe=zeros.clone(),
            queried=zeros.clone(),
            committed_at=torch.full_like(canvas, NEVER, device=device),
            window=block_len,
        )

    def progress(self) -> Progress:
        """A copy on the CPU: the one transfer of a step."""
        start, end, step, first, done = torch.stack((self.start, self.end, self.step, self.first, self.done)).cpu()
        return Progress(start, end, step, first.bool(), done.bool(), self.window)

    @property
    def columns(self) -> Int[Tensor, "B W"]:
        """Canvas columns of each row's window; those of a row that is done stay inside the canvas."""
        offsets = torch.arange(self.window, device=self.canvas.device)
        start = self.start.clamp(max=self.canvas.shape[1] - self.window)
        return start[:, None] + offsets

    @property
    def soft_input(self) -> SoftInput | None:
        """The soft step of rows that are still in the window it was made for."""
        if self.soft is None:
            return None
        columns = self.columns
        masked = (self.canvas.gather(1, columns) == self.spec.mask_id) & (columns < self.end[:, None])
        return SoftInput(self.soft, columns, masked & (self.step > 0)[:, None])

    def view(self, logits: Float[Tensor, "B W V"], shadow: Float[Tensor, "B W"] | None = None) -> View:
        """What the decoder may see of this step."""
        columns = self.columns
        tokens = self.canvas.gather(1, columns)
        live = (columns >= self.prompt_len[:, None]) & (columns < self.end[:, None]) & ~self.done[:, None]
        masked = live & (tokens == self.spec.mask_id)
        noise = Noise(row_seeds(self.seeds, self.nfe))
        return View(tokens, masked, live, Logits(logits), self.step, noise, self.spec, shadow)

    def apply_(self, view: View, update: Update) -> None:
        """Writes an update into the canvas, live positions only, and keeps its soft step."""
        columns, write = self.columns, update.write & view.live
        self.canvas.scatter_(1, columns, torch.where(write, update.tokens, view.tokens))
        self.soft = update.soft
        at = torch.where(update.tokens == self.spec.mask_id, NEVER, self.nfe[:, None] - 1)  # remasked: holds none
        self.committed_at.scatter_(1, columns, torch.where(write, at, self.committed_at.gather(1, columns)))

    def advance_(self, hold: Bool[Tensor, " B"] | None = None) -> None:
        """Moves rows whose window is filled (and not held) to their next one, and finishes rows that have reached their
        live end."""
        columns = self.columns
        response = (columns >= self.prompt_len[:, None]) & (columns < self.end[:, None])
        pending = (self.canvas.gather(1, columns) == self.spec.mask_id) & response
        filled = ~pending.any(1) if hold is None else ~pending.any(1) & ~hold
        self.start = torch.where(filled & ~self.done, self.start + self.window, self.start)
        self.step = torch.where(filled, 0, self.step + 1)
        self.first = self.first & ~filled
        self.done = self.done | (self.start >= self.end)


def check_lengths(spec: ModelSpec, gen_len: int, block_len: int) -> None:
    """Raises ValueError when a generation of `gen_len` tokens in blocks of `block_len` is impossible for the model."""
    if gen_len < 1 or block_len < 1:
        raise ValueError(f"gen_length={gen_len}, block_length={block_len}; both are at least 1")
    if spec.block is not None and spec.block != block_len:
        raise ValueError(
            f"block_length={block_len}, but this block-causal model decodes blocks of {spec.block}; use that"
        )
    if gen_len % block_len:
        nearest = max(block_len, gen_len // block_len * block_len)
        raise ValueError(
            f"gen_length={gen_len} is not a multiple of block_length={block_len}; use gen_length={nearest}"
        )
