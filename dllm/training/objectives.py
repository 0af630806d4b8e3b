"""Training objectives: a batch of clean canvases to a scalar loss. Frozen configs; the model comes as an argument."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from dllm.causal import CausalLM
from dllm.model import DiffusionLM
from dllm.plan import Plan
from dllm.recurrent import RecurrentLM
from dllm.spec import ModelSpec
from dllm.training.masking import content_columns, draw_groups, mask_response, rising
from dllm.validation import Checked, Count, Fraction, Interval


@dataclass(frozen=True)
class Batch:
    """Clean canvases, right-padded.

    canvas: token ids `[B, T]`.
    prompt_len: columns of each row's prompt.
    text_end: the column after the response's text, the EOS that ends it included (a cut text has none).
    end: the column after the response, which EOS fills up from its text on.
    packed: in rows that hold several prompts and answers, the columns of the answers `[B, T]`; prompt_len is then 0,
        text_end and end are where the last one ends. None: a prompt and an answer a row.
    order: the forward that wrote each column of a recorded decode `[B, T]`, of those that none wrote the last. None:
        the text was not decoded.

    For example a prompt of 3 tokens, an answer of 2 and a response of 4 columns: prompt_len 3, text_end 6, end 7.
    """

    canvas: Int[Tensor, "B T"]
    prompt_len: Int[Tensor, " B"]
    text_end: Int[Tensor, " B"]
    end: Int[Tensor, " B"]
    packed: Bool[Tensor, "B T"] | None = None
    order: Int[Tensor, "B T"] | None = None

    def between(self, first: Int[Tensor, " B"], last: Int[Tensor, " B"]) -> Bool[Tensor, "B T"]:
        """Columns from `first` on and before `last`."""
        columns = torch.arange(self.canvas.shape[1])
        return (columns >= first[:, None]) & (columns < last[:, None])

    @property
    def response(self) -> Bool[Tensor, "B T"]:
        """Raises ValueError for packed rows, which have several."""
        self.refuse_packed()
        return self.between(self.prompt_len, self.end)

    @property
    def text(self) -> Bool[Tensor, "B T"]:
        """The columns of answers, each with the EOS that ends it."""
        return self.between(self.prompt_len, self.text_end) if self.packed is None else self.packed

    def refuse_packed(self) -> None:
        if self.packed is not None:
            raise ValueError(
                "this objective takes a prompt and an answer a row; set data.pack=null, or objective=block_diffusion"
            )


def collate(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    response_lens: Sequence[int],
    pad_id: int,
    eos_id: int,
) -> Batch:
    """Clean canvases: each prompt, its answer and EOS up to its response length; PAD fills up the shorter rows."""
    prompt_len = torch.tensor([len(prompt) for prompt in prompts])
    lens = torch.tensor(response_lens)
    text_end = prompt_len + torch.minimum(torch.tensor([len(answer) + 1 for answer in answers]), lens)
    canvas = torch.full((len(prompts), int((prompt_len + lens).max())), pad_id)
    for row, (prompt, answer, length) in enumerate(zip(prompts, answers, response_lens, strict=True)):
        tokens = torch.tensor([*prompt, *answer, *[eos_id] * (length - len(answer))])
        canvas[row, : len(tokens)] = tokens
    return Batch(canvas, prompt_len, text_end, prompt_len + lens)


def join_batches(batches: Sequence[Batch], pad_id: int) -> Batch:
    """The rows of several batches as one."""
    canvas = pad_sequence([row for batch in batches for row in batch.canvas], batch_first=True, padding_value=pad_id)
    packed = None
    if any(batch.packed is not None for batch in batches):
        packed = pad_sequence([row for batch in batches for row in batch.text], batch_first=True)
    lens = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("prompt_len", "text_end", "end"))
    return Batch(canvas, *lens, packed=packed)


def take_rows(batch: Batch, rows: Int[Tensor, " R"]) -> Batch:
    """Some rows of a batch, no wider than they need."""
    end = batch.end[rows]
    width = int(end.max())
    packed = None if batch.packed is None else batch.packed[rows, :width]
    return Batch(batch.canvas[rows, :width], batch.prompt_len[rows], batch.text_end[rows], end, packed)


@dataclass(frozen=True)
class MaskedDiffusion(Checked):
    """LLaDA's fine-tuning loss: absorbing mask on the response, prompt clean, cross-entropy on masked tokens weighted
    by 1/t.

    content_fraction: share of rows in which only tokens outside `scaffold` are masked. Confidence-ordered decoding
        fills brackets, separators and EOS first, so this is what it visits. These rows use the same weights and are no
        longer a likelihood bound.
    blocks: sizes of the block that is learned, of which each batch draws one; None is the whole response. What is
        before the block is clean and what is after it is masked, as when a response is decoded block by block.
    stale: share of batches in which the block attends to what `cache=dual` keeps of the other columns: K/V of the
        canvas on which the block was all MASK (Fast-dLLM, arXiv 2505.22618, section 3.2), without a gradient.
    """

    content_fraction: Fraction = 0.5
    blocks: Sequence[Count | None] = (None,)
    stale: Fraction = 0.0
    scaffold: Sequence[int] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.blocks:
            raise ValueError("blocks=[] of MaskedDiffusion; give sizes, or null for the whole response")

    def __call__(self, model: DiffusionLM, batch: Batch, rng: torch.Generator) -> Float[Tensor, ""]:
        """Mean over rows of sum over masked tokens of cross-entropy / k."""
        is_stale = self.stale > 0 and float(torch.rand((), generator=rng)) < self.stale
        size = self.blocks[int(torch.randint(len(self.blocks), (), generator=rng)) if len(self.blocks) > 1 else 0]
        block, later = active_block(model.spec, batch, size, rng, "stopped")
        eligible = content_columns(block, batch.canvas, self.scaffold, self.content_fraction)
        masked, weight = mask_response(eligible, rng)
        canvas, prompt_len, end, masked, later, weight, block = (
            t.to(model.device) for t in (batch.canvas, batch.prompt_len, batch.end, masked, later, weight, block)
        )
        noisy = canvas.masked_fill(masked | later, model.spec.mask_id)
        if is_stale:
            logits = stale_logits(model, noisy, prompt_len, end, block, masked)
        else:
            logits = model.full_logits(noisy, prompt_len, end, masked)
        loss = F.cross_entropy(logits.float(), canvas[masked], reduction="none")
        return (loss * weight[masked]).sum() / len(canvas)


@dataclass(frozen=True)
class BlockDiffusion(Checked):
    """Fast-dLLM v2's loss (arXiv 2509.26328), which turns a causal LM into a block-diffusion LM: each block of the
    response is masked at a rate of its own, and a second view masks what the first one shows. The mean is over masked
    tokens, without a 1/t weight.

    least: the smallest rate.
    block_first: what the first column of a block is predicted from, with a token shift: the last column of the block
        before in its "noisy" view, as released, or "clean", as in decoding.
    eos_fill: whether the EOS after the text, up to the end of its block, are learned too. Released: the text and its
        EOS only.
    content_fraction: share of rows in which only tokens outside `scaffold` are masked, as in `MaskedDiffusion`.
    group: blocks at most that are masked together, for models that decode several blocks at once (MultiBD's MultiTF,
        arXiv 2606.29215). A block then sees those before it in its group as they are masked, at rates that rise from
        left to right. Groups are of random sizes from 1 on, and the second view draws masks of its own. Released:
        sizes from 2 on, the first rate drawn above a second uniform number, one view.
    """

    least: Annotated[float, Interval("(0, 1]")] = 1e-3
    block_first: Literal["noisy", "clean"] = "noisy"
    eos_fill: bool = False
    content_fraction: Fraction = 0.0
    group: Count = 1
    scaffold: Sequence[int] = ()

    def __call__(self, model: DiffusionLM, batch: Batch, rng: torch.Generator) -> Float[Tensor, ""]:
        """Mean cross-entropy over the masked tokens of both views."""
        spec, block = model.spec, model.spec.block
        if block is None:
            raise ValueError(
                f"model {model.name!r} has no blocks for block diffusion; give them: 'spec={{shift: 1, block: 8}}'"
            )
        columns = torch.arange(batch.canvas.shape[1])
        learned = batch.text
        if self.eos_fill:
            filled = spec.block_start(batch.text_end + block - 1, batch.prompt_len)
            learned = batch.response & (columns < filled[:, None])
        eligible = content_columns(learned, batch.canvas, self.scaffold, self.content_fraction)
        grid = spec.grid(batch.prompt_len)[:, None]
        number = ((columns - grid) // block).clamp(min=0)  # of each column's block; a cut first one learns nothing
        blocks, start = -(-len(columns) // block), None
        if self.group > 1:
            start = draw_groups((batch.prompt_len - grid[:, 0]) // block, blocks, self.group, rng)

        def draw() -> Bool[Tensor, "B T"]:
            rate = torch.rand(len(learned), blocks, generator=rng)
            rate = self.least + (1 - self.least) * (rate if start is None else rising(rate, start))
            return torch.rand(learned.shape, generator=rng) < rate.gather(1, number)

        chosen = draw()
        masked = torch.stack([chosen, ~chosen if start is None else draw()])
        return self.loss(model, batch, masked & eligible, start)

    def loss(
        self,
        model: DiffusionLM,
        batch: Batch,
        masked: Bool[Tensor, "V B T"],
        start: Int[Tensor, "B K"] | None = None,
    ) -> Float[Tensor, ""]:
        """The mean for views that mask these columns. Blocks after the text are left out of the forward. start: the
        first block of the group of each block of the canvas, None where each is one."""
        spec, block = model.spec, model.spec.block
        assert block is not None
        noisy = batch.canvas.masked_fill(masked, model.spec.mask_id)
        first, last = (spec.block_start(column, batch.prompt_len) for column in (batch.prompt_len, batch.text_end - 1))
        count = int((last - first).max()) + block
        ours = model.response_blocks(batch.prompt_len, count)
        within = ours.clamp(max=batch.canvas.shape[1] - 1)
        pick = within.expand(len(masked), -1, -1)
        noisy, masked = noisy.gather(2, pick), masked.gather(2, pick) & (ours < batch.canvas.shape[1])
        if model.spec.shift:
            masked = masked & (ours > 0)  # nothing predicts column 0
        target = batch.canvas.gather(1, within).expand(len(masked), -1, -1)[masked].to(model.device)
        grid = spec.grid(batch.prompt_len)[:, None]
        group_start = None if start is None else start.gather(1, (within - grid) // block) * block + grid
        group_start = None if group_start is None else group_start.to(model.device)
        noisy, clean, prompt_len, end = (t.to(model.device) for t in (noisy, batch.canvas, batch.prompt_len, batch.end))
        clean_before = self.block_first == "clean"
        logits = model.two_stream_logits(
            noisy, clean, prompt_len, end, clean_before=clean_before, group_start=group_start
        )
        return F.cross_entropy(logits[masked.to(model.device)].float(), target)


@dataclass(frozen=True)
class NextToken:
    """The usual loss of an autoregressive LM on the response, up to and with its first EOS."""

    scaffold: Sequence[int] = ()  # what every objective is given; not used

    def __call__(self, model: CausalLM | RecurrentLM, batch: Batch, rng: torch.Generator) -> Float[Tensor, ""]:
        """Mean over rows of the mean cross-entropy per token."""
        target = batch.text.clone()
        target[:, 0] = False  # nothing comes before it
        weight = target.float() / target.sum(1, keepdim=True)
        canvas, target, weight = (t.to(model.device) for t in (batch.canvas, target, weight))
        logits = model.next_logits(canvas[:, :-1], target[:, 1:], rng)
        loss = F.cross_entropy(logits.float(), canvas[target], reduction="none")
        return (loss * weight[target]).sum() / len(batch.canvas)


def active_block(
    spec: ModelSpec,
    batch: Batch,
    block_len: int | None,
    rng: torch.Generator,
    blocks: Literal["canvas", "text", "stopped"] = "canvas",
) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """The semi-autoregressive forward process: one block of each response, and what comes after it.

    Uniform among the blocks of the canvas, or of the text: block 0 to floor(tokens before EOS / block_len). "text": the
    last of these takes all the padding after it too. "stopped": it does not, as in a decode that stops at EOS. Blocks
    lie as in decoding: from the prompt's end, or on the grid of a block-causal model.
    """
    if spec.block is not None and (block_len is None or spec.block % block_len):
        raise ValueError(f"a block of {block_len}, but this block-causal model has blocks of {spec.block}; use that")
    if block_len is None:
        return batch.response, torch.zeros_like(batch.response)
    columns = torch.arange(batch.canvas.shape[1])
    prompt_len, end = batch.prompt_len[:, None], batch.end[:, None]
    origin = spec.window_start(prompt_len, prompt_len, block_len)
    last = ((end if blocks == "canvas" else batch.text_end[:, None]) - 1 - origin) // block_len
    chosen = (torch.rand(last.shape, generator=rng) * (last + 1)).long()
    start = origin + chosen * block_len
    stop = (start + block_len).minimum(end)
    stop = torch.where((chosen == last) & (blocks == "text"), end, stop)
    return (columns >= torch.maximum(start, prompt_len)) & (columns < stop), (columns >= stop) & (columns < end)


def stale_logits(
    model: DiffusionLM,
    canvas: Int[Tensor, "B T"],
    prompt_len: Int[Tensor, " B"],
    end: Int[Tensor, " B"],
    block: Bool[Tensor, "B T"],
    where: Bool[Tensor, "B T"],
) -> Float[Tensor, "N V"]:
    """Logits for the columns `where` of each row's block. The other columns have K/V from when the block was all MASK;
    only of the block, made as long in each row as in the longest, new ones are computed."""
    rows, columns = torch.arange(len(canvas), device=canvas.device), torch.arange(canvas.shape[1], device=canvas.device)
    width, stop = int(block.sum(1).max()), torch.where(block, columns + 1, 0).amax(1, keepdim=True)
    query = (stop - width).clamp(min=0) + columns[:width]
    kv = model.new_kv(prompt_len, canvas.shape[1])
    with torch.no_grad():
        plan = Plan(rows, columns.repeat(len(canvas), 1), torch.full_like(prompt_len, len(columns)), all_rows=True)
        model.logits(canvas.masked_fill(block, model.spec.mask_id), plan, query[:, :1], end=end, kv=kv)
    plan = Plan(rows, query, torch.full_like(prompt_len, width), all_rows=True)
    return model.logits(canvas, plan, query, end=end, kv=kv)[where.gather(1, query)]
