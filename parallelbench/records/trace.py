"""Saved traces: what every forward of a decoded sample committed, edited and masked again, for people to look at.

A run's folder holds them in traces.jsonl, one line per sample; several processes append to shards of their own,
traces.<rank>.jsonl. They are a part of the records: a trace is kept only where it ends in its record's tokens.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from decoders import Generation
from decoders.generate import LanguageModel
from decoders.state import NEVER, DecodeState
from decoders.types import Update, View
from parallelbench.records.record import Record, replace_file

SCHEMA = 1
TRACES, SHARD = "traces.jsonl", "traces.{}.jsonl"
MAX_OPEN = 64  # candidates kept per forward, the surest: a trace grows with its forwards, not with its window too

Token = tuple[int, int | None, float | None]


@dataclass(frozen=True)
class Step:
    """One forward of one sample; columns count from the response's first.

    forward: its number from 0, as in `Record.committed_at`. window: its first column and the one behind its last. end:
    the live end after it, behind which everything is cut off. writes: (column, token, probability), token None where a
    column was masked again. open: the likeliest token of columns that stayed masked, the surest `MAX_OPEN` of them.
    Probabilities are the model's own, None where a loop does not tell them.
    """

    forward: int
    window: tuple[int, int]
    end: int
    writes: list[Token]
    open: list[Token]


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


class StepRecorder:
    """An `on_step` for `decode`; afterwards `rows` holds each row's steps."""

    def __init__(self, num_rows: int) -> None:
        self.rows: list[list[Step]] = [[] for _ in range(num_rows)]
        self._nfe = [0] * num_rows

    def __call__(self, state: DecodeState, view: View, update: Update) -> None:
        start = torch.where(state.step == 0, state.previous, state.start) - state.prompt_len  # it may have moved on
        write = update.write & view.live
        masks = torch.where(write, update.tokens, view.tokens) == state.spec.mask_id
        probs = view.logits.prob(update.tokens).tolist()
        top, top_probs = view.logits.top[1].tolist(), view.logits.top_prob().tolist()
        write, masks, tokens = write.tolist(), (masks & view.live).tolist(), update.tokens.tolist()
        ends, nfes = (state.end - state.prompt_len).tolist(), state.nfe.tolist()
        for row, (first, end, nfe) in enumerate(zip(start.tolist(), ends, nfes, strict=True)):
            if nfe == self._nfe[row]:
                continue
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
            self.rows[row].append(Step(nfe - 1, window, end, writes, candidates))
        self._nfe = nfes


def commit_steps(generation: Generation, eos_id: int) -> list[Step]:
    """The steps of a loop that tells only when it committed its tokens and, behind them, EOS."""
    columns = len(generation.committed_at)
    steps: dict[int, list[Token]] = {}
    for column, forward in enumerate(generation.committed_at):
        if forward != NEVER:
            token = generation.token_ids[column] if column < len(generation.token_ids) else eos_id
            steps.setdefault(forward, []).append((column, token, None))
    return [Step(forward, (0, columns), columns, steps[forward], []) for forward in sorted(steps)]


def make_trace(id: str, model: LanguageModel, generation: Generation, steps: list[Step], reference: str) -> Trace:
    """A trace with the texts of its tokens, so that readers need no tokenizer."""
    assert model.tokenizer is not None, "chat prompts were encoded with it"
    target = list(model.tokenizer(reference, add_special_tokens=False)["input_ids"])
    seen = {token for step in steps for _, token, _ in (*step.writes, *step.open) if token is not None}
    texts = {token: str(model.tokenizer.decode([token])) for token in sorted(seen | set(target))}
    return Trace(id, len(generation.committed_at), target, texts, steps)


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


def append_traces(folder: Path, traces: Sequence[Trace], shard: int | None = None) -> None:
    """Appends whole lines, to a shard where several processes write, and waits until they are on disk."""
    with open(folder / (TRACES if shard is None else SHARD.format(shard)), "ab", buffering=0) as file:
        file.write("".join(_line(trace) for trace in traces).encode())
        os.fsync(file.fileno())


def merge_traces(folder: Path) -> set[str]:
    """Puts the shards of a killed or finished run into traces.jsonl, without lines that were cut off, and returns the
    ids of all traces."""
    traces, shards = read_traces(folder), _shards(folder)
    path = folder / TRACES
    if shards or (path.exists() and not path.read_bytes().endswith(b"\n")):
        replace_file(path, "".join(_line(traces[id]) for id in sorted(traces)))
        for shard in shards:
            shard.unlink()
    return set(traces)


def read_traces(folder: Path) -> dict[str, Trace]:
    """A run's traces by the ids of their samples; lines that were cut off are not there yet.

    Raises ValueError for a line that is no trace, or one of another schema.
    """
    traces: dict[str, Trace] = {}
    for path in (folder / TRACES, *_shards(folder)):
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for number, line in enumerate(lines, start=1):
            if line.endswith(b"\n"):
                trace = _parse(line, f"line {number} of {path}")
                traces.setdefault(trace.id, trace)
    return traces


def _line(trace: Trace) -> str:
    return json.dumps({"schema": SCHEMA, **asdict(trace)}, ensure_ascii=False, separators=(",", ":")) + "\n"


def _parse(line: bytes, where: str) -> Trace:
    try:
        values = json.loads(line)
        if values.pop("schema") != SCHEMA:
            raise ValueError(f"not of schema {SCHEMA}")
        steps = [_step(**step) for step in values.pop("steps")]
        texts = {int(token): text for token, text in values.pop("texts").items()}
        return Trace(**values, texts=texts, steps=steps)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{where} is not a trace ({error}); delete that file and repeat the run's command with traces="
        ) from error


def _step(forward: int, window: list[int], end: int, writes: list[list], open: list[list]) -> Step:
    first, behind = window
    return Step(forward, (first, behind), end, [(c, t, p) for c, t, p in writes], [(c, t, p) for c, t, p in open])


def _shards(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(SHARD.format("*")) if path.name.split(".")[1].isdigit())
