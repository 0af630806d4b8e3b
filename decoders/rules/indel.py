"""Editing that moves tokens: a block drops a token, or makes room for one, while it is filled (LLaDA2.2)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.rules.basic import check_takes_all
from decoders.rules.ranking import take
from decoders.types import Candidates, CommitRule, Confidence, Memory, Revise, Shape, Update, View
from dllm.spec import ModelSpec
from dllm.validation import Fraction, NonNegative, Number


@dataclass(frozen=True)
class InDel(Revise):
    """LLaDA2.2's editing (github.com/inclusionAI/LLaDA2.X), with an edit budget: it decides alone, and its rule is
    `FixedK("all")`. For models with DELETE and SPLIT tokens (`spec.delete_id`, `spec.split_id`).

    While columns are left that were masked when the window was entered, the masks above tau take their token, or the
    surest of them: one more than there are masks that edits have made, so that the former grow fewer. After that all
    masks do. A token gives way to another one with a probability above `edit`. Of what is written, DELETE drops its
    column, and the window ends in one more MASK; SPLIT becomes MASK and the token that stood there, and what moves out
    of the window is lost:

        before    A       B      C  D        before    A      B      C  D
        written   DELETE                     written          SPLIT
        after     B       C      D  MASK     after     A      MASK   B  C

    budget: steps with none of the former masks left, all told. The last one writes neither DELETE nor SPLIT, and so
        does a step after as many as the window has columns, and `budget` more.

    A window that looks as it did before writes something else at the least sure place that would change: the likeliest
    token that it has not written there yet.
    """

    needs_one_block: ClassVar[bool] = True
    rewrites: ClassVar[bool] = True
    tau: Fraction = 0.5
    edit: NonNegative = 0.0
    budget: Number = 16

    def check(self, spec: ModelSpec) -> None:
        if spec.delete_id is None or spec.split_id is None:
            raise ValueError(
                "decoder=indel needs a model with DELETE and SPLIT tokens; give +model.spec.delete_id=ID "
                "+model.spec.split_id=ID, or use decoder=edit"
            )

    def check_partners(self, rule: CommitRule, revise: Revise | None, confidence: Confidence) -> None:
        check_takes_all(self, rule)

    def init(self, shape: Shape) -> Memory:
        steps = shape.window + self.budget + 2
        made = {name: shape.zeros(steps, shape.window, dtype=torch.long) for name in ("states", "written")}
        former = shape.zeros(shape.window, dtype=torch.bool)
        return {"former": former, "post": shape.zeros(dtype=torch.long), **made}

    def __call__(self, view: View, candidates: Candidates, write: Bool[Tensor, "B W"], memory: Memory) -> Update:
        assert view.spec.delete_id is not None and view.spec.split_id is not None, "check refuses others"
        edits = [view.spec.delete_id, view.spec.split_id]
        width, former = view.tokens.shape[1], torch.where((view.step == 0)[:, None], view.masked, memory["former"])
        waiting = former & view.masked
        left, masks = waiting.sum(1), view.masked.sum(1)
        memory["post"] += left == 0
        spent = memory["post"] >= self.budget if self.budget else left == 0
        last = spent | (view.step >= width + self.budget)

        (_, best), prob = view.logits.top, view.logits.top_prob()
        number = 1 + masks - left
        sure = view.masked & (prob > self.tau)
        chosen = torch.where((sure.sum(1) >= number)[:, None], sure, take(view, Candidates(best, prob), number))
        if not self.budget:
            last = last | ~(waiting & ~chosen).any(1)
        chosen = torch.where((last | (left == 0))[:, None], view.masked, chosen)
        edit = view.live & ~view.masked & (best != view.tokens) & (prob > self.edit)
        write = chosen | edit
        plain = view.logits.without(edits).top[1]
        best = torch.where(last[:, None], plain, best)
        best = self._other(view, best, prob, write, ~last, memory)

        slot = view.step.clamp(max=memory["states"].shape[1] - 1)[:, None, None].expand(-1, 1, width)
        memory["states"].scatter_(1, slot, view.tokens[:, None])
        memory["written"].scatter_(1, slot, torch.where(write, best + 1, 0)[:, None])
        tokens, former = _moved(view, torch.where(write, best, view.tokens), former)
        memory["former"].copy_(former)
        return Update(tokens, view.live & (tokens != view.tokens), hold=~last & write.any(1))

    def _other(
        self,
        view: View,
        best: Int[Tensor, "B W"],
        prob: Tensor,
        write: Bool[Tensor, "B W"],
        may: Bool[Tensor, " B"],
        memory: Memory,
    ) -> Int[Tensor, "B W"]:
        """`best` with another token at one place of the rows whose window looks as it did before."""
        slots = torch.arange(memory["states"].shape[1], device=view.tokens.device)
        same = (memory["states"] == view.tokens[:, None]).all(2) & (slots < view.step[:, None])
        changing = write & (best != view.tokens)
        place = prob.masked_fill(~changing, float("inf")).argmin(1, keepdim=True)
        before = memory["written"].gather(2, place[:, None].expand(-1, len(slots), 1))[..., 0]  # token + 1, or 0
        values = view.logits.values.gather(1, place[..., None].expand(-1, 1, view.logits.shape[2]))[:, 0]
        ban = torch.zeros(len(values), values.shape[1] + 1, dtype=torch.bool, device=values.device)
        other = values.masked_fill(ban.scatter_(1, before, True)[:, 1:], float("-inf")).argmax(1, keepdim=True)
        changes = (same.any(1) & may & changing.any(1))[:, None]
        return best.scatter(1, place, torch.where(changes, other, best.gather(1, place)))


def _moved(
    view: View, written: Int[Tensor, "B W"], former: Bool[Tensor, "B W"]
) -> tuple[Int[Tensor, "B W"], Bool[Tensor, "B W"]]:
    """The window and its marks after DELETE and SPLIT, which move what is on live columns."""
    live, width = view.live, view.tokens.shape[1]
    splits = live & (written == view.spec.split_id)
    stays = live & (written != view.spec.delete_id)
    length = stays.long() + splits
    target = length.cumsum(1) - length + splits  # among the live columns; SPLIT puts a MASK before its token
    target = torch.where(stays & (target < width), target, width)
    token = torch.where(splits, view.tokens, written)
    tokens = torch.full_like(target, view.spec.mask_id)
    marks = torch.zeros_like(former)
    tokens = torch.nn.functional.pad(tokens, (0, 1)).scatter_(1, target, token)[:, :width]
    marks = torch.nn.functional.pad(marks, (0, 1)).scatter_(1, target, former)[:, :width]
    order = (~live).long().sort(dim=1, stable=True).indices  # the live columns, then the others, which keep their own
    inside = torch.arange(width, device=live.device) < live.sum(1, keepdim=True)
    tokens = torch.where(inside, tokens, view.tokens.gather(1, order))
    return tokens.scatter(1, order, tokens), (marks & inside).scatter(1, order, marks & inside)
