"""What is kept of a decode: its record, and what every forward did, the steps of a trace."""

from collections.abc import Callable, Mapping, Sequence

import torch

from decoders import Generation
from decoders.state import NEVER, DecodeState
from decoders.types import Update, View
from dllm.protocols import LanguageModel
from dllm.text import encode_piece
from parallelbench.records.record import Record, prompt_sha
from parallelbench.records.trace import MAX_OPEN, Step, Token, Trace
from parallelbench.tasks import Sample
from parallelbench.tasks.base import said


class StepRecorder:
    """Keeps each request's steps in `rows`. `partial(recorder, requests)` is an `on_step` of their decode.

    tell: is called with each step.
    """

    def __init__(self, num_rows: int, tell: Callable[[Step], None] | None = None) -> None:
        self.rows: list[list[Step]] = [[] for _ in range(num_rows)]
        self._tell = tell
        self._nfe = [0] * num_rows

    def __call__(self, requests: Sequence[int], state: DecodeState, view: View, update: Update) -> None:
        write = update.write & view.live
        masks = torch.where(write, update.tokens, view.tokens) == state.spec.mask_id
        probs = view.logits.prob(update.tokens).tolist()
        top, top_probs = view.logits.top[1].tolist(), view.logits.top_prob().tolist()
        write, masks, tokens = write.tolist(), (masks & view.live).tolist(), update.tokens.tolist()
        ends, nfes = (state.end - state.prompt_len).tolist(), state.nfe.tolist()
        held = [requests[place] for place in state.request.tolist()]
        for row, (request, first, end, nfe) in enumerate(zip(held, view.start.tolist(), ends, nfes, strict=True)):
            if nfe == self._nfe[request]:
                continue
            self._nfe[request] = nfe
            writes: list[Token] = [
                (first + i, None, None)
                if tokens[row][i] == state.spec.mask_id
                else (first + i, tokens[row][i], round(probs[row][i], 4))
                for i, written in enumerate(write[row])
                if written
            ]
            waiting = [i for i, masked in enumerate(masks[row]) if masked and first + i < end]
            surest = sorted(sorted(waiting, key=lambda i: -top_probs[row][i])[:MAX_OPEN])
            candidates: list[Token] = [(first + i, top[row][i], round(top_probs[row][i], 4)) for i in surest]
            window = (max(first, 0), min(first + view.tokens.shape[1], int(state.gen_len[row])))
            self.rows[request].append(Step(nfe - 1, window, end, writes, candidates))
            if self._tell is not None:
                self._tell(self.rows[request][-1])


def commit_steps(generation: Generation, eos_id: int) -> list[Step]:
    """The steps of a loop that tells only when it committed its tokens and, after them, EOS."""
    columns = len(generation.committed_at)
    steps: dict[int, list[Token]] = {}
    for column, forward in enumerate(generation.committed_at):
        if forward != NEVER:
            token = generation.token_ids[column] if column < len(generation.token_ids) else eos_id
            steps.setdefault(forward, []).append((column, token, None))
    return [
        Step(forward, (0, columns), columns, steps.get(forward, []), [], accepted, rejected)
        for forward, (accepted, rejected) in sorted(({f: (0, []) for f in steps} | _verified(generation)).items())
    ]


def _verified(generation: Generation) -> dict[int, tuple[int, list[Token]]]:
    """How many drafts each forward that was given some wrote, and which it did not, those after the response left
    out."""
    verified = {}
    for draft in generation.drafts:
        first = sum(at < draft.forward for at in generation.committed_at if at != NEVER)
        drafts: list[Token] = [(first + i, token, None) for i, token in enumerate(draft.tokens)]
        kept = drafts[draft.accepted : len(generation.committed_at) - first]
        verified[draft.forward] = draft.accepted, kept
    return verified


def asked(sample: Sample) -> str:
    """The prompt of a record."""
    return "\n\n".join(map(said, sample.messages))


def make_record(
    sample: Sample,
    generation: Generation,
    scores: Mapping[str, float],
    version: str,
    latency_s: float,
    share_s: float,
    cpu_s: float | None = None,
    *,
    batch: Sequence[Sample] = (),
) -> Record:
    """The record of a sample's generation. version: of its task. batch: the samples that stood with it in the queue,
    none where it was alone. The others are as in `Record`."""
    prompt = asked(sample)
    return Record(
        id=sample.id,
        task=sample.task,
        task_version=version,
        prompt=prompt,
        prompt_sha=prompt_sha(prompt),
        data=sample.data,
        target=sample.target,
        completion=generation.text,
        token_ids=generation.token_ids,
        num_tokens=generation.num_tokens,
        scores=scores,
        nfe=generation.nfe,
        queried=generation.queried,
        committed_at=generation.committed_at,
        stopped_by=generation.stopped_by,
        latency_s=latency_s,
        share_s=share_s,
        cpu_s=cpu_s,
        batch_size=len(batch or [sample]),
        batch=(batch or [sample])[0].id,
        drafts=[(d.forward, len(d.tokens), d.accepted, 1 if d.tied else 0) for d in generation.drafts],
    )


def make_trace(id: str, model: LanguageModel, generation: Generation, steps: list[Step], reference: str) -> Trace:
    """A trace with the texts of its tokens, so that readers need no tokenizer."""
    target = encode_piece(model, reference)
    shown = [token for step in steps for _, token, _ in (*step.writes, *step.open, *step.rejected)]
    seen = {token for token in shown if token is not None}
    texts = {token: model.decode([token]) for token in sorted(seen | set(target))}
    return Trace(id, len(generation.committed_at), target, texts, steps)
