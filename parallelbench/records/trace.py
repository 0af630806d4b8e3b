"""Saved traces: what every forward of a decoded sample committed, edited and masked again, for people to look at.

A run's folder holds them in traces.jsonl, a line per sample. They are a part of the records: a trace is kept only where
it ends in its record's tokens.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from parallelbench.records.record import NEVER, Record
from parallelbench.records.shards import Shards

SCHEMA = 1
MAX_OPEN = 64  # candidates kept per forward, the surest: a trace grows with its forwards, not with its window too

Token = tuple[int, int | None, float | None]


@dataclass(frozen=True)
class Step:
    """One forward of one sample; columns count from the response's first.

    forward: its number from 0, as in `Record.committed_at`. window: its first column and the one behind its last. end:
    the live end after it, behind which everything is cut off. writes: (column, token, probability), token None where a
    column was masked again. open: the likeliest token of columns that stayed masked, the surest `MAX_OPEN` of them.
    Probabilities are the model's own, None where a loop does not tell them. accepted: how many of the writes, from the
    first, were drafts that this forward verified. rejected: those that it did not write.
    """

    forward: int
    window: tuple[int, int]
    end: int
    writes: list[Token]
    open: list[Token]
    accepted: int = 0
    rejected: list[Token] = field(default_factory=list)


@dataclass(frozen=True)
class Trace:
    """The steps of one sample. columns: those of its response. reference: tokens of the answer that it is compared
    with. texts: of every token that occurs, by its id."""

    id: str
    columns: int
    reference: list[int]
    texts: Mapping[int, str]
    steps: list[Step]


@dataclass(frozen=True)
class Frame:
    """The canvas after a forward. tokens: None where masked. probs: of the tokens, of the candidates where masked.
    candidates: of masked columns. committed_at: as in `Record`. old: what this forward wrote over, by column (None: a
    mask)."""

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
    *_, last = replay(trace)
    tokens = last.tokens[: len(record.token_ids)]
    return tokens == record.token_ids and last.committed_at == list(record.committed_at)


def expected(trace: Trace, record: Record) -> list[int] | None:
    """The token that belongs into each column of an answer: the reference's, for an answer of its length, or its own
    where it is right. None where columns cannot be compared."""
    if record.scores["score"] == 1:
        return list(record.token_ids)
    return trace.reference if len(trace.reference) == len(record.token_ids) else None


def _step(window: list[int], **values: Any) -> Step:
    tokens = {name: [(c, t, p) for c, t, p in values.pop(name, ())] for name in ("writes", "open", "rejected")}
    first, behind = window
    return Step(window=(first, behind), **tokens, **values)


def _trace(values: Any) -> Trace:
    if values.pop("schema") != SCHEMA:
        raise ValueError(f"not of schema {SCHEMA}")
    steps = [_step(**step) for step in values.pop("steps")]
    texts = {int(token): text for token, text in values.pop("texts").items()}
    return Trace(**values, texts=texts, steps=steps)


TRACES = Shards(
    "traces",
    dump=lambda trace: json.dumps({"schema": SCHEMA, **asdict(trace)}, ensure_ascii=False, separators=(",", ":")),
    load=_trace,
    what=("a trace", "delete that file and repeat the run's command with traces="),
)
