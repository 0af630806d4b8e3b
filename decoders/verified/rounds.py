"""The loop of verified decoding: a round drafts tokens, and a forward of the verifier's causal mode keeps those that it
would have written itself, and writes one more.

The last settled token of a row has no K/V yet, so a forward computes it and the drafts after it. Their K/V is right up
to the first rejected draft and is overwritten from there, so no column is computed twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from decoders.constraints.grammars import Grammars
from decoders.constraints.held import Constraints
from decoders.logits import inverse_cdf
from decoders.noise import Noise
from decoders.state import NEVER
from decoders.types import DecodedRow, Drafted, Turn, in_order, without_gradients
from decoders.verified.accept import GREEDY, Sampling, Verdict, accept_greedy, accept_sampled
from decoders.verified.drafters import Drafter, Proposal, Text
from dllm.causal import CausalStream, StreamPlan
from dllm.kv import ColumnCache, OwnCache
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


def verify(
    stream: CausalStream,
    how: Verified,
    prompts: Sequence[Sequence[int]],
    gen_lens: Sequence[int],
    seeds: Sequence[int],
    constraints: Constraints | Grammars | None = None,
) -> list[DecodedRow]:
    """Decodes up to `gen_lens` tokens after each prompt (token ids), each row up to its first EOS.

    Greedy text is that of one token per forward; sampled text is distributed as its samples. A row's tokens, forwards
    and queried columns do not depend on the other rows; its randomness comes from its seed. Raises ValueError for an
    empty prompt, a response without columns, and a drafter that cannot draft for this verifier.
    """
    return list(in_order(verify_queue(stream, how, prompts, gen_lens, seeds, len(prompts), constraints)))


def verify_queue(
    stream: CausalStream,
    how: Verified,
    prompts: Sequence[Sequence[int]],
    gen_lens: Sequence[int],
    seeds: Sequence[int],
    slots: int,
    constraints: Constraints | Grammars | None = None,
) -> Iterator[Turn[DecodedRow]]:
    """`verify`, at most `slots` rows at once. A row that ends is handed out, and its slot takes the next prompt.

    constraints: of the prompts. The verifier's distribution is that of the tokens with which an answer can still be
        completed, so greedy text is the constrained greedy text, token for token. Raises ValueError at the call.
    """
    for row, (prompt, gen_len) in enumerate(zip(prompts, gen_lens, strict=True)):
        if not len(prompt) or gen_len < 1:
            raise ValueError(f"prompt {row} has {len(prompt)} tokens, its response {gen_len}; give at least 1 each")
    slots = min(slots, len(prompts))
    length = max((len(prompt) + gen_len for prompt, gen_len in zip(prompts, gen_lens, strict=True)), default=0)
    size = 0 if how.drafter is None else how.drafter.size(stream)

    def turns() -> Iterator[Turn[DecodedRow]]:
        rounds = _Rounds(stream, how, slots, length, size, constraints)
        free, waiting, held = list(range(slots)), iter(range(len(prompts))), dict[int, int]()
        while True:
            entering = dict(zip(free, waiting, strict=False))
            if entering:
                coming = [(prompts[place], gen_lens[place], seeds[place]) for place in entering.values()]
                rounds.enter_(list(entering), coming)
            held |= entering
            if entering and constraints is not None:
                constraints.admit_(list(held.values()), stream.device)
                rounds.hold_(entering, constraints)
            if not held:
                return
            rounds.propose_()
            for rows, guess, enters in rounds.parts():
                rounds.forward_(rows, guess, enters)
            free, live = rounds.ended(held), list(held.values())
            yield Turn(live, {held.pop(slot): rounds.result(slot) for slot in free})

    return without_gradients(turns())


class _Rounds:
    """The state of a call: a row in each slot, over a canvas of `length` columns that is padded on the right, with at
    most `size` drafts.

    entry: the state of each row's automaton after its settled tokens. request: which of the prompts of the call it is.
    last: column of each row's last settled token, whose K/V is not stored yet. stored: columns that have theirs, from
    the first. end: the column after its response. alone: rows whose next forward looks at a near tie again. drafts,
    count: of the next forward; drawn from `q` where that is given. nfe, queried, committed_at, log: see `DecodedRow`.
    """

    def __init__(
        self,
        stream: CausalStream,
        how: Verified,
        slots: int,
        length: int,
        size: int,
        constraints: Constraints | Grammars | None = None,
    ) -> None:
        self.stream, self.how, self.constraints = stream, how, constraints
        self.ahead = None if how.drafter is None else how.drafter.ahead
        self.masks = 0 if self.ahead is None else size + 1 - stream.shift  # of a group
        self.spare = self.masks * (size + 1 if self.ahead == "all" else 1)
        zeros = torch.zeros(slots, dtype=torch.long, device=stream.device)
        self.prompt_len, self.end, self.last, self.stored = (zeros.clone() for _ in range(4))
        self.seeds, self.nfe, self.queried, self.count = (zeros.clone() for _ in range(4))
        self.entry, self.request = zeros.clone(), zeros.clone()
        self.done, self.alone = zeros == 0, zeros == 1
        self.canvas = zeros.new_zeros(slots, length)
        self.committed_at = self.canvas.clone()
        self.drafts = zeros.new_zeros(slots, size)
        self.q: Float[Tensor, "B K V"] | None = None
        self.log: list[list[Drafted]] = [[] for _ in range(slots)]
        self.kv: ColumnCache | OwnCache | None = None

    def enter_(self, slots: list[int], coming: Sequence[tuple[Sequence[int], int, int]]) -> None:
        """Begins rows in slots, ascending, that are free. coming: each one's prompt, most tokens and seed."""
        into, length = torch.tensor(slots, device=self.last.device), self.canvas.shape[1]
        padded = [[*prompt, *[self.stream.pad_id] * (length - len(prompt))] for prompt, _, _ in coming]
        prompt_len, gen_len, seed = into.new_tensor([(len(prompt), *numbers) for prompt, *numbers in coming]).T
        self.canvas[into] = into.new_tensor(padded)
        self.prompt_len[into], self.last[into], self.end[into] = prompt_len, prompt_len - 1, prompt_len + gen_len
        self.seeds[into], self.committed_at[into] = seed, NEVER
        self.done[into] = self.alone[into] = False
        for counts in (self.stored, self.nfe, self.queried, self.count):
            counts[into] = 0
        for slot in slots:
            self.log[slot] = []
        if self.kv is None:
            self.kv = self.stream.new_kv(self.prompt_len, length, self.spare)
        else:
            self.stream.renew_kv(self.kv, into, prompt_len)

    def hold_(self, entering: Mapping[int, int], constraints: Constraints | Grammars) -> None:
        """Puts the automata of prompts that enter slots before their first token."""
        slots = torch.tensor(list(entering), device=self.entry.device)
        request = torch.tensor(list(entering.values()))
        self.request[slots] = request.to(self.entry.device)
        self.entry[slots] = constraints.begin()[request].to(self.entry.device)

    def ended(self, among: Iterable[int]) -> list[int]:
        """Slots, ascending, whose rows have ended."""
        done = self.done.tolist()
        return sorted(slot for slot in among if done[slot])

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

    def parts(self) -> Iterator[tuple[Int[Tensor, " R"], bool, bool]]:
        """Rows of each forward of a round, whether it drafts too, and whether they enter. Prompts enter in forwards of
        their own, and apart from those of much different lengths (`dllm.plan.alike`)."""
        guess = ~self.alone & (self.end - self.last > 3)  # after this forward's token there is room for a draft
        if self.ahead is None:
            guess = torch.zeros_like(guess)
        elif self.ahead == "none":
            guess = guess & (self.count == 0)
        numbers = torch.stack([self.done, guess, self.stored, self.last]).cpu().numpy()
        live, guesses, stored, last = numbers[0] == 0, numbers[1] > 0, numbers[2], numbers[3]
        for drafts, enters in ((True, False), (False, False), (True, True), (False, True)):
            rows = np.flatnonzero(live & (guesses == drafts) & ((stored == 0) == enters))
            for group in alike((last - stored)[rows], padding_on(self.last.device)):
                yield torch.from_numpy(rows[group]).to(self.last.device), drafts, enters

    def forward_(self, rows: Int[Tensor, " R"], guess: bool, enters: bool) -> None:
        """One forward: verifies the drafts of the rows, writes what stays, and with `guess` makes their next drafts."""
        assert self.kv is not None, "rows have entered"
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
        plan = StreamPlan(rows, columns, want, anchors, self.masks, len(rows) == len(self.done), enters)
        logits, guesses = self.stream.logits(self.canvas, plan, self.kv)
        groups = torch.zeros_like(count) if not guess else count + 1 if self.ahead == "all" else torch.ones_like(count)
        self.nfe[rows] += 1
        self.queried[rows] += total + groups * self.masks

        if self.constraints is not None:
            allowed = self.constraints.allowed(self.entry[rows], self.request[rows], drafts, end - last - 1)
            logits = logits.masked_fill(~allowed, float("-inf"))
        verdict = self._judge(rows, logits, drafts, count, (lead == 0) & (total + groups > 1))
        accepted, tied = verdict.accepted, verdict.tied
        tokens = F.pad(drafts, (0, 1)).scatter(1, accepted[:, None], verdict.token[:, None])
        written = places < (accepted + ~tied)[:, None]
        ends = written & is_one_of(tokens, self.stream.eos_ids)
        written = written & (ends.cumsum(1) - ends.long() == 0)  # nothing after the first EOS
        self._write_(self.canvas, rows, last, tokens, written)
        self._write_(self.committed_at, rows, last, (self.nfe[rows, None] - 1).expand_as(tokens), written)
        self._log_(rows, drafts, count, torch.minimum(accepted, written.sum(1)), tied)
        if self.constraints is not None:
            begin, behind = last + 1, last + 1 + written.sum(1)
            follow = (self.entry[rows], self.request[rows], self.canvas[rows], begin, behind, width + 1)
            self.entry[rows] = self.constraints.follow(*follow)
        self.last[rows] = self.stored[rows] = last = last + written.sum(1)
        self.done[rows] = done = ends.any(1) | (last >= end - 1)
        self.alone[rows], self.count[rows] = tied, 0
        if guess:
            usable = ~tied & ~done & ((accepted == count) | (self.ahead == "all"))
            group = guesses[torch.arange(len(rows), device=last.device), accepted if self.ahead == "all" else 0]
            group = group[:, 1 - self.stream.shift :]  # without shift the first stands for the verifier's own token
            count = usable * group.shape[1]
            self._take_(rows, Proposal(None, group, count, torch.zeros_like(count)))

    def result(self, slot: int) -> DecodedRow:
        numbers = (self.prompt_len, self.last, self.end, self.nfe, self.queried)
        prompt_len, last, end, nfe, queried = torch.stack([number[slot] for number in numbers]).tolist()
        tokens = self.canvas[slot, prompt_len : last + 1].tolist()
        ended = tokens[-1] in self.stream.eos_ids
        tokens, stopped_by = (tokens[:-1], "eos") if ended else (tokens, "length")
        committed = self.committed_at[slot, prompt_len:end].tolist()
        return DecodedRow(tokens, committed, nfe, queried, stopped_by, tuple(self.log[slot]))

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
        """Puts chosen values after the last settled column of each row."""
        row, place = chosen.nonzero(as_tuple=True)
        where[rows[row], last[row] + 1 + place] = values[row, place]

    def _log_(self, rows: Tensor, drafts: Tensor, count: Tensor, accepted: Tensor, tied: Tensor) -> None:
        if self.how.drafter is None:
            return
        numbers = torch.stack([rows, self.nfe[rows] - 1, count, accepted, tied.long()], 1).tolist()
        for (row, forward, drafted, kept, is_tied), tokens in zip(numbers, drafts.tolist(), strict=True):
            if drafted or is_tied:
                self.log[row].append(Drafted(forward, tokens[:drafted], kept, bool(is_tied)))
