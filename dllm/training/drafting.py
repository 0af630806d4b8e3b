"""Teaching a causal LM to draft: MASK columns after any of its columns guess what it would write next.

The clean stream is the causal LM itself. After an anchor, a column of it, comes a group of drafted columns, which see
the clean columns up to the anchor and each other (`ModelSpec.context_causal`). Their targets are the model's own
distributions, one causal pass over the text gives all of them, or the text's tokens. With an adapter for drafted
columns only (`Lora.active`) nothing has to be learned anew and no gradient goes through the clean stream: its prompt
and text cost one forward. Groups and masks: multi-token prediction by gated LoRA (Samragh et al. 2507.11851); total
variation as the loss, since it is the share of drafts that verification rejects (Uno); small groups first.

For example with shift 1, anchor column 7 and a group of 3: column 7 predicts 8, the causal LM's own next token; the
MASKs at 8, 9 and 10 predict 9, 10 and 11. A group of 4 that shows the token at 9 begins with column 7 itself, which is
drafted then: 7 predicts the MASK at 8, having seen 9; 9 and 10 predict 10 and 11; 8 has no target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from dllm.model import DiffusionLM
from dllm.training.objectives import Batch
from dllm.validation import Checked, Count, Fraction, Interval, NonNegative

CHUNK = 64  # columns whose logits exist at a time; those of all columns at once are hundreds of MB, and slower


@dataclass(frozen=True)
class Drafting(Checked):
    """Mean over drafted columns of tv * TV + kl * KL + label * CE, a column's weight falling by `decay` from one of a
    group to the next. After a text that ends with EOS the target is EOS, since decoding by confidence fills that too.

    TV, KL: total variation between a column's distribution and the clean stream's at the column it stands for, and
        KL(clean || drafted). TV is least where all of the probability is on the likeliest token, so it makes
        confidences too high; KL is least where they are right.
    CE: cross-entropy to the text's token.
    decay: a draft counts only if those before it are accepted.
    groups: sizes of groups; a batch has groups of one size, drawn with `group_weights`.
    anchors: groups per row, after columns drawn among those that predict its text.
    reveal: share of groups that may show the tokens of some columns after their first MASK, as after decoding by
        confidence. With shift 1 such a group begins with the anchor itself, which predicts that MASK. Which are shown
        is drawn; a group without any is like the others, and with shift 1 one of size 2 always is. The clean stream
        knows nothing of what is shown, so columns before a shown one have the text's tokens as targets.
    causal: weight of the clean stream's own next-token loss, for a model whose clean stream is trained too.
    """

    tv: NonNegative = 1.0
    kl: NonNegative = 0.1
    label: NonNegative = 0.0
    decay: Annotated[float, Interval("(0, 1]")] = 0.8
    groups: Sequence[Count] = (2, 4, 8)
    group_weights: Sequence[NonNegative] = (0.2, 0.4, 0.4)
    anchors: Count = 16
    reveal: Fraction = 0.0
    causal: NonNegative = 0.0
    scaffold: Sequence[int] = ()  # what every objective is given; not used

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tv + self.kl + self.label == 0:
            raise ValueError("tv=0, kl=0 and label=0 of Drafting; give weights that are not all 0")
        if not self.groups or len(self.groups) != len(self.group_weights):
            raise ValueError(
                f"groups={list(self.groups)}, group_weights={list(self.group_weights)}; give sizes, each a weight"
            )

    def __call__(self, model: DiffusionLM, batch: Batch, rng: torch.Generator) -> Float[Tensor, ""]:
        if not model.spec.context_causal:
            raise ValueError(
                f"model {model.name!r} has no drafted columns; "
                "give them: 'spec={shift: 1, block: 8, context_causal: true}'"
            )
        batch.refuse_packed()
        shift, mask_id = model.spec.shift, model.spec.mask_id
        size = self.groups[int(torch.multinomial(torch.tensor(self.group_weights).double(), 1, generator=rng))]
        anchor = draw_anchors(batch, self.anchors, rng)
        text, end = _followed_by_eos(batch, model.spec.eos_ids, size + shift)
        place, draw = torch.arange(size), lambda n: torch.rand(*anchor.shape, n, generator=rng)
        columns = anchor[..., None] + 1 - shift + place  # [B, N, g], of a group that shows tokens
        shown = (draw(size) < draw(1)) & (place > shift) & (columns < end[:, None, None])
        revealed = (draw(1) < self.reveal) & shown.any(-1, keepdim=True)
        shown = (shown | (place < shift)) & revealed
        columns = columns + shift * ~revealed
        target = columns + shift
        tokens, labels = (text.gather(1, where.flatten(1)).view_as(where) for where in (columns, target))
        known_behind = shown.flip(-1).cummax(-1).values.flip(-1)
        answer_known, known_behind = (F.pad(known, (0, shift))[..., shift:] for known in (shown, known_behind))
        counted = (target < end[:, None, None]) & ~answer_known
        weight = (self.decay**place).expand_as(columns)[counted]
        soft = (~known_behind & (target < batch.text_end[:, None, None]))[counted]
        anchor, labels, inside = columns[..., 0] - 1, labels[counted], batch.canvas.shape[1] - 1

        device = model.device
        canvas, anchor, columns, counted, weight, soft, labels = (
            t.to(device) for t in (batch.canvas, anchor, columns, counted, weight, soft, labels)
        )
        drafted = tokens.to(device).masked_fill(~shown.to(device), mask_id)
        clean, hidden = two_pass_hidden(model, canvas, anchor, drafted, grad=self.causal > 0)
        source = (columns + shift - 1).clamp(max=inside).flatten(1)
        meant = clean.gather(1, source[..., None].expand(-1, -1, clean.shape[-1])).view_as(hidden)
        # sorted, so that most chunks with a label in them need no distribution of the clean stream
        order = soft.int().argsort(stable=True)
        weight, columns_of = weight[order], (hidden[counted], meant[counted].detach(), labels, soft)
        parts = [whole[order].split(CHUNK) for whole in columns_of]
        chunks = zip(*parts, strict=True)
        loss = torch.cat([checkpoint(self._of_columns, model, *chunk, use_reentrant=False) for chunk in chunks])
        total = (loss * weight).sum() / weight.sum().clamp(min=1e-6)
        if self.causal:
            where = batch.between(batch.prompt_len.clamp(min=1), batch.text_end)[:, 1:].to(device)
            logits = _log_softmax(model, clean[:, :-1][where])
            total = total + self.causal * F.nll_loss(logits, canvas[:, 1:][where])
        return total

    def _of_columns(
        self,
        model: DiffusionLM,
        hidden: Float[Tensor, "N D"],
        meant: Float[Tensor, "N D"],
        labels: Int[Tensor, " N"],
        soft: Bool[Tensor, " N"],
    ) -> Float[Tensor, " N"]:
        """Each drafted column's loss. meant: the state of the clean column that it stands for; soft: whether the
        target is that one's distribution, else the label."""
        log_q = _log_softmax(model, hidden)
        of_text = F.nll_loss(log_q, labels, reduction="none")
        if not (self.tv or self.kl) or not soft.any():
            return of_text * (self.label + self.tv + self.kl)
        with torch.no_grad():
            log_p = _log_softmax(model, meant)
            p = log_p.exp()
        gap = torch.zeros_like(of_text)
        if self.tv:
            gap = gap + self.tv * 0.5 * (p - log_q.exp()).abs().sum(-1)
        if self.kl:
            gap = gap + self.kl * (p * (log_p - log_q)).nan_to_num().sum(-1)
        return self.label * of_text + torch.where(soft, gap, of_text * (self.tv + self.kl))


def _followed_by_eos(batch: Batch, eos_ids: Sequence[int], count: int) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """The canvas with each text's last token after it too and in `count` more columns, and where what is known of a
    row ends: after these if that token is EOS, else where the text does."""
    last = batch.canvas.gather(1, batch.text_end[:, None] - 1)
    canvas = F.pad(batch.canvas, (0, count))
    behind = torch.arange(canvas.shape[1]) >= batch.text_end[:, None]
    ends = torch.isin(last[:, 0], torch.tensor(eos_ids))
    return torch.where(behind, last, canvas), batch.text_end + count * ends.long()


def draw_anchors(batch: Batch, count: int, rng: torch.Generator) -> Int[Tensor, "B N"]:
    """For each row `count` of the columns that predict its text, from the one before it to its last but one, each once
    before one comes again."""
    first = (batch.prompt_len - 1).clamp(min=0)
    span = (batch.text_end - 1 - first).clamp(min=1)[:, None]
    order = torch.rand(batch.canvas.shape, generator=rng)
    order = order.masked_fill(torch.arange(order.shape[1]) >= span, 2.0).argsort(1)
    return first[:, None] + order.gather(1, torch.arange(count) % span)


def two_pass_hidden(
    model: DiffusionLM,
    canvas: Int[Tensor, "B T"],
    anchor: Int[Tensor, "B N"],
    drafted: Int[Tensor, "B N G"],
    grad: bool,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B N G D"]]:
    """Hidden states of the clean columns, and of groups of drafted columns, each after its anchor. The clean stream
    attends backwards and keeps its K/V; a group sees those up to its anchor (-1: none) and its own columns. grad:
    whether a gradient goes through the clean stream."""
    (batch, length), (_, groups, size) = canvas.shape, drafted.shape
    device, decoder = canvas.device, model.backbone.get_decoder()
    embed, kv = model.backbone.get_input_embeddings(), DynamicCache()
    columns = torch.arange(length, device=device)

    def hidden_of(tokens: Tensor, seen: Tensor, places: Tensor) -> Tensor:
        parts = {"inputs_embeds": embed(tokens), "attention_mask": seen[:, None], "position_ids": places}
        return decoder(**parts, past_key_values=kv, use_cache=True).last_hidden_state

    with torch.set_grad_enabled(grad and torch.is_grad_enabled()):
        if model.gate is not None:
            model.gate.open_at(length)
        clean = hidden_of(canvas, (columns <= columns[:, None]).expand(batch, -1, -1), columns.expand_as(canvas))
    if model.gate is not None:
        model.gate.open_at(0)
    place = anchor.repeat_interleave(size, 1)  # [B, N * G]
    group = torch.arange(groups, device=device).repeat_interleave(size)
    to_clean: Bool[Tensor, "B Q T"] = columns <= place[..., None]
    to_group = (group == group[:, None]).expand(batch, -1, -1)
    offset = torch.arange(1, size + 1, device=device).repeat(groups)
    hidden = hidden_of(drafted.flatten(1), torch.cat([to_clean, to_group], -1), place + offset)
    return clean, hidden.view(batch, groups, size, -1)


def _log_softmax(model: DiffusionLM, hidden: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]:
    """Log-probabilities; MASK is none of the candidates."""
    return model.head(hidden).float().log_softmax(-1)
