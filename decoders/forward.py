"""The forwards of a step: what each is asked for, and the logits of the rows' windows that come of them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from decoders.logits import Logits
from decoders.state import DecodeState
from dllm.plan import Plan, Progress, pack
from dllm.protocols import Denoiser, ShadowDenoiser


@dataclass(frozen=True)
class LogitRequest:
    """What a plan's forward is asked for.

    want: columns whose logits it gives, `[R, F]`; a shorter row repeats its last one. place: where among the B * W
    positions of all windows they are. complete: they are all of these in order. kept: places that keep the logits of an
    earlier forward, or None.
    """

    plan: Plan
    want: Int[Tensor, "R F"]
    place: Int[Tensor, " N"]
    complete: bool = False
    kept: Int[Tensor, " K"] | None = None

    @classmethod
    def of(cls, plan: Plan, progress: Progress, whole: bool) -> "LogitRequest":
        """whole: asks for all of the window before the live end, also what is decided."""
        rows = np.arange(len(plan.rows)) if plan.all_rows else plan.rows.numpy()
        first = rows[:, None] * progress.window - progress.start[rows, None]  # a column's place, less the column
        if plan.only:
            assert plan.want is not None
            return cls(plan, plan.want, torch.from_numpy((first + plan.want.numpy()).ravel()))
        masked = progress.masked[rows]
        inside = np.arange(masked.shape[1]) - progress.start[rows, None]
        given = (inside >= 0) & (inside < progress.window)
        needed, kept = given & masked, None
        if whole:
            needed |= given & progress.between(progress.start, progress.stop)[rows]
        if plan.want is not None:
            given = np.zeros_like(needed)
            np.put_along_axis(given, plan.want.numpy(), True, 1)
            some = (left := needed & ~given).any(1)
            kept = torch.from_numpy((first[some] + pack(left[some])).ravel()) if some.any() else None
        # all that a row has left may keep its logits: it then asks for what it is given, which nobody looks at
        want = pack(np.where((asked := needed & given).any(1, keepdims=True), asked, given))
        complete = kept is None and plan.all_rows and int(needed.sum()) == len(rows) * progress.window
        return cls(plan, torch.from_numpy(want), torch.from_numpy((first + want).ravel()), complete, kept)

    def to(self, device: torch.device) -> "LogitRequest":
        if device == self.want.device:
            return self
        kept = None if self.kept is None else self.kept.to(device, non_blocking=True)
        want, place = (t.to(device, non_blocking=True) for t in (self.want, self.place))
        return replace(self, plan=self.plan.to(device), want=want, place=place, kept=kept)


def requests_of(plans: Iterable[Plan], progress: Progress, whole: bool, device: torch.device) -> list[LogitRequest]:
    """The requests of a step, on the device. All are made before its first forward. whole: see `LogitRequest.of`."""
    return [LogitRequest.of(plan, progress, whole).to(device) for plan in plans]


def forward_windows(
    model: Denoiser,
    state: DecodeState,
    width: int,
    kv: Any,
    requests: Iterable[LogitRequest],
    before: Logits | None,
    look_ahead: bool,
) -> Logits:
    """Logits of windows of `width` columns where the requests ask for them. Counts NFE and queried columns.

    before: the logits of the last step. look_ahead: also asks for the logits of all queried columns and notes where
        they expect EOS.
    """
    canvas, soft, pieces = state.seen, state.soft_input, []
    state.nfe = state.nfe + state.awake  # not in place: views hold the numbers of their own forward
    for request in requests:
        plan, want = request.plan, request.want
        extra = {} if soft is None else {"soft": soft[plan.rows]}
        ahead = (plan.query + model.spec.shift).clamp(max=state.canvas.shape[1] - 1) if look_ahead else None
        wanted = want if ahead is None else torch.cat([want, ahead], 1)
        part = model.logits(canvas, plan, wanted, end=state.visible_end, kv=kv, **extra)
        if ahead is not None:
            part, beyond = part.split([want.shape[1], ahead.shape[1]], 1)
            state.expect_eos_(plan.rows, ahead, Logits(beyond), state.pending[plan.rows[:, None], ahead])
        state.queried = state.queried.index_add(0, plan.rows, plan.num_queried, alpha=model.passes)
        if request.complete:
            return Logits(part)
        pieces.append((request.place, part.flatten(0, 1)))
        if request.kept is not None:
            assert before is not None, "a row's first forward wants its whole window"
            pieces.append((request.kept, before.values.flatten(0, 1)[request.kept]))
    assert pieces, "a cache strategy must plan for every row that is not done"
    return Logits.of(len(state.canvas), width, pieces)


def forward_with_shadow(model: ShadowDenoiser, state: DecodeState) -> tuple[Logits, Float[Tensor, "B W"]]:
    """One forward over the whole canvas and a shadow of the window. The shadow's columns count as queried too."""
    columns = state.columns
    logits, shadow = model.shadow_logits(state.canvas, columns, state.prompt_len, state.end)
    state.nfe = state.nfe + state.awake
    state.queried = state.queried + state.awake * (state.end + state.window) * model.passes
    return Logits(logits), Logits(shadow).prob(state.canvas.gather(1, columns))
