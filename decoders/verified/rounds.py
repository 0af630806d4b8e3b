"""The loop of verified decoding: a round drafts tokens, and a forward of the verifier's causal mode keeps those that it
would have written itself, and writes one more.

The last settled token of a row has no K/V yet, so a forward computes it and the drafts behind it. Their K/V is right up
to the first rejected draft and is overwritten from there, so no column is computed twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from decoders.logits import inverse_cdf
from decoders.noise import Noise
from decoders.state import NEVER
from decoders.types import DecodedRow, Drafted
from decoders.verified.accept import GREEDY, Sampling, Verdict, accept_greedy, accept_sampled
from decoders.verified.drafters import Drafter, Proposal, Text
from dllm.causal import CausalStream, StreamPlan
from dllm.plan import alike, padding_on
from dllm.spec import is_one_of
from dllm.validation import Checked, NonNegative


@dataclass(frozen=True)
class Verified(Checked):
    """How drafts are made and verified.

    drafter: None for one token per forward. sampling: greedy by default. tie: two largest logits of the verifier that
        are not further apart are looked at again, in a forward of that one column, which is what decoding without
        drafts does. Only greedy decoding has ties.
    """

    drafter: Drafter | None = None
    sampling: Sampling = GREEDY
    tie: NonNegative = 1e-4


@torch.inference_mode()
def verify(
    stream: CausalStream,
    how: Verified,
    prompts: Sequence[Sequence[int]],
    gen_lens: Sequence[int],
    seeds: Sequence[int],
) -> list[DecodedRow]:
    """Decodes up to `gen_lens` tokens behind each prompt (token ids), each row up to its first EOS.

    Greedy text is that of one token per forward; sampled text is distributed as its samples. A row's tokens, forwards
    and queried columns do not depend on the other rows; its randomness comes from its seed. Raises ValueError for an
    empty prompt, a response without columns, and a drafter that cannot draft for this verifier.
    """
    rounds = _Rounds(stream, how, prompts, gen_lens, seeds)
    while not rounds.done.all():
        rounds.propose_()
        for rows, guess in rounds.parts():
            rounds.forward_(rows, guess)
    return rounds.results()


class _Rounds:
    """The state of one call: B rows over a right-padded canvas.

    last: column of each row's last settled token, whose K/V is not stored yet. stored: columns that have theirs, from
    the first. end: the column behind its response. alone: rows whose next forward looks at a near tie again. drafts,
    count: of the next forward; drawn from `q` where that is given. nfe, queried, committed_at, log: see `DecodedRow`.
    """

    def __init__(
        self,
        stream: CausalStream,
        how: Verified,
        prompts: Sequence[Sequence[int]],
        gen_lens: Sequence[int],
        seeds: Sequence[int],
    ) -> None:
        for row, (prompt, gen_len) in enumerate(zip(prompts, gen_lens, strict=True)):
            if not len(prompt) or gen_len < 1:
                raise ValueError(f"prompt {row} has {len(prompt)} tokens, its response {gen_len}; give at least 1 each")
        self.stream, self.how = stream, how
        self.ahead = None if how.drafter is None else how.drafter.ahead
        size = 0 if how.drafter is None else how.drafter.size(stream)
        self.masks = 0 if self.ahead is None else size + 1 - stream.shift  # of a group
        device = stream.device
        self.prompt_len = torch.tensor([len(prompt) for prompt in prompts], device=device)
        self.end = self.prompt_len + torch.tensor(list(gen_lens), device=device)
        length = int(self.end.max())
        padded = [[*prompt, *[stream.pad_id] * (length - len(prompt))] for prompt in prompts]
        self.canvas = torch.tensor(padded, device=device)
        spare = self.masks * (size + 1 if self.ahead == "all" else 1)
        self.kv = stream.new_kv(self.prompt_len, length, spare)
        self.last, self.stored = self.prompt_len - 1, torch.zeros_like(self.end)
        self.done = torch.zeros_like(self.end, dtype=torch.bool)
        self.alone = self.done.clone()
        self.drafts, self.count = self.canvas.new_zeros(len(prompts), size), torch.zeros_like(self.end)
        self.q: Float[Tensor, "B K V"] | None = None
        self.seeds = torch.tensor(list(seeds), device=device)
        self.nfe, self.queried = torch.zeros_like(self.end), torch.zeros_like(self.end)
        self.committed_at = torch.full_like(self.canvas, NEVER)
        self.log: list[list[Drafted]] = [[] for _ in prompts]

    def propose_(self) -> None:
        """Asks the drafter for drafts of rows that can take any."""
        rows = (~self.done & ~self.alone & (self.end - self.last > 2)).nonzero()[:, 0]
        if self.how.drafter is None or not len(rows):
            return
        text = Text(self.canvas[rows], self.prompt_len[rows], self.last[rows], self.end[rows])
        proposal = self.how.drafter.propose(text)
        if proposal is not None:
            self.nfe[rows] += (proposal.queried > 0).long()
            self.queried[rows] += proposal.queried
            self._take_(rows, proposal)

    def parts(self) -> Iterator[tuple[Int[Tensor, " R"], bool]]:
        """Rows of each forward of a round, and whether it drafts too. Prompts of much different lengths enter
        apart (`dllm.plan.alike`)."""
        guess = ~self.alone & (self.end - self.last > 3)  # behind this forward's token there is room for a draft
        if self.ahead is None:
            guess = torch.zeros_like(guess)
        elif self.ahead == "none":
            guess = guess & (self.count == 0)
        for drafts, chosen in ((True, guess), (False, ~guess)):
            rows = (chosen & ~self.done).nonzero()[:, 0]
            if (padding := padding_on(rows.device)) is not None:
                lead = (self.last - self.stored)[rows].numpy()
                yield from ((rows[torch.from_numpy(group)], drafts) for group in alike(lead, padding))
            elif len(rows):
                yield rows, drafts

    def forward_(self, rows: Int[Tensor, " R"], guess: bool) -> None:
        """One forward: verifies the drafts of the rows, writes what stays, and with `guess` makes their next drafts."""
        last, stored, end = self.last[rows], self.stored[rows], self.end[rows]
        count = torch.minimum(self.count[rows], end - last - 2).clamp(min=0)
        width = int(count.max())
        drafts, places = self.drafts[rows, :width], torch.arange(width + 1, device=last.device)
        self._write_(self.canvas, rows, last, drafts, places[:width] < count[:, None])
        lead = last - stored  # settled columns before the last one without K/V: the prompt's, at first
        total = lead + 1 + count
        offsets = torch.arange(int(total.max()), device=last.device)
        columns = stored[:, None] + torch.minimum(offsets, total[:, None] - 1)
        want = lead[:, None] + torch.minimum(places, count[:, None])
        anchors = (stored[:, None] + want)[:, slice(None) if self.ahead == "all" else slice(-1, None)]
        anchors = anchors if guess else anchors[:, :0]
        plan = StreamPlan(rows, columns, want, anchors, self.masks, len(rows) == len(self.done))
        logits, guesses = self.stream.logits(self.canvas, plan, self.kv)
        groups = torch.zeros_like(count) if not guess else count + 1 if self.ahead == "all" else torch.ones_like(count)
        self.nfe[rows] += 1
        self.queried[rows] += total + groups * self.masks

        verdict = self._judge(rows, logits, drafts, count, (lead == 0) & (total + groups > 1))
        accepted, tied = verdict.accepted, verdict.tied
        tokens = F.pad(drafts, (0, 1)).scatter(1, accepted[:, None], verdict.token[:, None])
        written = places < (accepted + ~tied)[:, None]
        ends = written & is_one_of(tokens, self.stream.eos_ids)
        written = written & (ends.cumsum(1) - ends.long() == 0)  # nothing behind the first EOS
        self._write_(self.canvas, rows, last, tokens, written)
        self._write_(self.committed_at, rows, last, (self.nfe[rows, None] - 1).expand_as(tokens), written)
        self._log_(rows, drafts, count, torch.minimum(accepted, written.sum(1)), tied)
        self.last[rows] = self.stored[rows] = last = last + written.sum(1)
        self.done[rows] = done = ends.any(1) | (last >= end - 1)
        self.alone[rows], self.count[rows] = tied, 0
        if guess:
            usable = ~tied & ~done & ((accepted == count) | (self.ahead == "all"))
            group = guesses[torch.arange(len(rows), device=last.device), accepted if self.ahead == "all" else 0]
            group = group[:, 1 - self.stream.shift :]  # without shift the first stands for the verifier's own token
            count = usable * group.shape[1]
            self._take_(rows, Proposal(None, group, count, torch.zeros_like(count)))

    def results(self) -> list[DecodedRow]:
        rows = []
        for row, (prompt_len, last, end) in enumerate(
            zip(*(t.tolist() for t in (self.prompt_len, self.last, self.end)), strict=True)
        ):
            tokens = self.canvas[row, prompt_len : last + 1].tolist()
            ended = tokens[-1] in self.stream.eos_ids
            committed = self.committed_at[row, prompt_len:end].tolist()
            tokens, stopped_by = (tokens[:-1], "eos") if ended else (tokens, "length")
            nfe, queried = int(self.nfe[row]), int(self.queried[row])
            rows.append(DecodedRow(tokens, committed, nfe, queried, stopped_by, tuple(self.log[row])))
        return rows

    def _noise(self, rows: Int[Tensor, " R"]) -> Noise:
        return Noise(self.seeds[rows], self.nfe[rows])

    def _judge(
        self, rows: Tensor, logits: Float[Tensor, "R W V"], drafts: Tensor, count: Tensor, can_tie: Bool[Tensor, " R"]
    ) -> Verdict:
        if self.how.sampling.temperature == 0:
            can_tie = can_tie & ~self.alone[rows]
            return accept_greedy(logits, drafts, count, torch.where(can_tie, self.how.tie, -1.0))
        q = None if self.q is None else self.q[rows, : drafts.shape[1]]
        return accept_sampled(self.how.sampling.probs(logits), drafts, count, q, self._noise(rows))

    def _take_(self, rows: Int[Tensor, " R"], proposal: Proposal) -> None:
        """Keeps drafts for the next forward; those given as logits are drawn as the verifier's own tokens are."""
        tokens, sampling = proposal.tokens, self.how.sampling
        if tokens is None:
            assert proposal.logits is not None
            if sampling.temperature == 0:
                tokens = proposal.logits.argmax(-1)
            else:
                q = sampling.probs(proposal.logits)
                tokens = inverse_cdf(q, self._noise(rows).uniform(q.shape[1], stream="draft"))
                if self.q is None:
                    self.q = q.new_zeros((len(self.done), *q.shape[1:]))
                self.q[rows] = q
        self.drafts[rows], self.count[rows] = tokens, proposal.count

    def _write_(self, where: Tensor, rows: Tensor, last: Tensor, values: Tensor, chosen: Bool[Tensor, "R N"]) -> None:
        """Puts chosen values behind the last settled column of each row."""
        row, place = chosen.nonzero(as_tuple=True)
        where[rows[row], last[row] + 1 + place] = values[row, place]

    def _log_(self, rows: Tensor, drafts: Tensor, count: Tensor, accepted: Tensor, tied: Tensor) -> None:
        numbers = torch.stack([rows, self.nfe[rows] - 1, count, accepted, tied.long()], 1).tolist()
        for (row, forward, drafted, kept, is_tied), tokens in zip(numbers, drafts.tolist(), strict=True):
            if drafted or is_tied:
                self.log[row].append(Drafted(forward, tokens[:drafted], kept, bool(is_tied)))
