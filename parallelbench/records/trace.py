"""Saved traces: what every forward of a decoded sample committed, edited and masked again, for people to look at.

A run's folder holds them in traces.jsonl, a line per sample. They are a part of the records: a trace is kept only where
it ends in its record's tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.json import Decoder
from msgspec.structs import asdict

from parallelbench.records.files import to_json
from parallelbench.records.record import NEVER, Number, Record, Run
from parallelbench.records.shards import Shards

SCHEMA = 1
MAX_OPEN = 64  # candidates kept per forward, the surest: a trace grows with its forwards, not with its window too

Probability = Annotated[float, Meta(ge=0, le=1)]
Token = tuple[Number, Number | None, Probability | None]


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """One forward of one sample; columns count from the response's first.

    forward: its number from 0, as in `Record.committed_at`.
    window: its first column, and the one after its last.
    end: the live end after it. Everything from there on is cut off.
    writes: (column, token, probability); the token is None where the column was masked again.
    open: the same of the likeliest tokens of columns that stayed masked, the surest `MAX_OPEN` of them.
    accepted: how many of the writes, from the first, were drafts that this forward verified.
    rejected: the drafts that it verified and did not write.

    Probabilities are the model's own, None where a loop does not tell them.
    """

    forward: Number
    window: tuple[Number, Number]
    end: Number
    writes: list[Token]
    open: list[Token]
    accepted: Number = 0
    rejected: list[Token] = []


class Trace(Struct, frozen=True, forbid_unknown_fields=True, tag_field="schema", tag=SCHEMA):
    """The steps of one sample.

    columns: of its response, how many.
    reference: tokens of the right answer that it is compared with.
    texts: what each token says that occurs, by its id.
    """

    id: str
    columns: Number
    reference: list[Number]
    texts: Mapping[int, str]
    steps: list[Step]


@dataclass(frozen=True)
class Frame:
    """The canvas after a forward, by response column.

    tokens: None where masked.
    candidates: the likeliest token of a masked column, where the step tells it.
    probs: of the tokens, and of the candidates where masked.
    committed_at: as in `Record`.
    old: what stood before in each column that this forward wrote, None for a mask.
    """

    step: Step
    tokens: list[int | None]
    probs: list[float | None]
    candidates: list[int | None]
    committed_at: list[int]
    old: dict[int, int | None]

    @property
    def remasked(self) -> list[int]:
        return [column for column, old in self.old.items() if old is not None and self.tokens[column] is None]

    @property
    def edited(self) -> list[int]:
        return [c for c, old in self.old.items() if None not in (old, self.tokens[c]) and old != self.tokens[c]]

    @property
    def committed(self) -> list[int]:
        return [column for column, old in self.old.items() if old is None and self.tokens[column] is not None]


def replay(trace: Trace) -> Iterator[Frame]:
    """The canvas after each forward."""
    tokens: list[int | None] = [None] * trace.columns
    probs: list[float | None] = [None] * trace.columns
    committed_at = [NEVER] * trace.columns
    for step in trace.steps:
        old = {column: tokens[column] for column, _, _ in step.writes}
        for column, token, prob in step.writes:
            tokens[column], probs[column] = token, prob
            committed_at[column] = NEVER if token is None else step.forward
        for column in range(step.end, trace.columns):
            tokens[column], probs[column], committed_at[column] = None, None, NEVER
        candidates: list[int | None] = [None] * trace.columns
        shown = [None if token is None else prob for token, prob in zip(tokens, probs, strict=True)]
        for column, token, prob in step.open:
            candidates[column], shown[column] = token, prob
        yield Frame(step, list(tokens), shown, candidates, list(committed_at), old)


def is_of(trace: Trace, record: Record) -> bool:
    """Whether a trace ends in the tokens of a record, committed by the same forwards."""
    forwards = [step.forward for step in trace.steps]
    if trace.columns != len(record.committed_at) or forwards != sorted({*forwards}) or forwards[-1] >= record.nfe:
        return False  # before so many columns or steps are replayed
    *_, last = replay(trace)
    tokens = last.tokens[: len(record.token_ids)]
    return tokens == record.token_ids and last.committed_at == list(record.committed_at)


def traces_of(run: Run) -> dict[str, Trace]:
    """The saved traces of a run's samples by their ids. Raises ValueError where they are damaged or of other
    records."""
    traces, _ = TRACES.read(run.folder)
    records = {record.id: record for record in run.records}
    for id, trace in traces.items():
        if id in records and not is_of(trace, records[id]):
            raise ValueError(f"{TRACES.file(run.folder)} has another trace of {id!r} than its record; delete that file")
    return traces


def expected(trace: Trace, record: Record) -> list[int] | None:
    """The token that belongs into each column of an answer: the reference's, for an answer of its length, or its own
    where it is right. None where columns cannot be compared."""
    if record.scores.get("score") == 1:
        return list(record.token_ids)
    return trace.reference if len(trace.reference) == len(record.token_ids) else None


def _leads_somewhere(trace: Trace) -> None:
    shown = [one for step in trace.steps for one in (*step.writes, *step.open, *step.rejected)]
    outside = [column for column, _, _ in shown if column >= trace.columns]
    unknown = {*trace.reference, *(token for _, token, _ in shown)} - {*trace.texts, None}
    if not trace.steps or outside or unknown or max(step.accepted for step in trace.steps) > trace.columns:
        raise ValueError(f"column {outside[0]} of {trace.columns}" if outside else "its steps lead nowhere")


TRACES = Shards(
    "traces",
    Decoder(Trace),
    dump=lambda trace: to_json({"schema": SCHEMA, **asdict(trace)}, compact=True),
    check=_leads_somewhere,
    what=("a trace", "delete that file and repeat the run's command with traces="),
)
