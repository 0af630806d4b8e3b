"""Training data from anywhere: rows of a file or a hub data set, and mixtures of several sources.

A row whose prompt the benchmark may ask (`is_held_out`, one prompt in 16) is never trained on: these rows are the
validation split.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, cast, runtime_checkable

import datasets
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from dllm.text import encode_piece, encode_text
from dllm.training.objectives import Batch, collate, join_batches, take_rows
from dllm.validation import Checked, Count, Interval
from parallelbench.tasks.base import is_held_out, question
from parallelbench.tasks.rows import Row, is_file, rows_of, stored
from parallelbench.training.mixture import special_ids


@runtime_checkable
class Stream(Protocol):
    """Batches by number. A batch depends on the data and its number only."""

    def batch(self, step: int) -> Batch: ...

    def validation(self, batches: int) -> list[Batch]:
        """At most so many batches of what is never trained on."""
        ...

    def about(self) -> dict[str, object]:
        """What a record says of the data (JSON values)."""
        ...


@runtime_checkable
class Data(Protocol):
    """What a yaml of conf/data makes."""

    @property
    def batch_size(self) -> int: ...

    def open(self, tokenizer: PreTrainedTokenizerBase) -> Stream:
        """Raises ValueError, before the first batch, for data that cannot be used."""
        ...


@dataclass(frozen=True)
class Rows(Checked):
    """Rows of a file or a hub data set.

    source: a file as `parallelbench.tasks.rows.read_file` takes it, or an id for `datasets.load_dataset`.
    subset, split: of a hub data set.
    prompt, answer: the columns of a question, or of the chat before the answer, and of the answer, a text or a number.
        answer None: prompts alone, to be decoded.
    messages: instead of them, the column of a chat, `[{"role": ..., "content": ...}, ...]`; its last message, by the
        assistant, is the answer.
    text: instead of them, the column of plain texts, joined with EOS and cut into rows of `max_length`.
    limit: the first rows only.
    streamed: reads a hub data set row by row up to `limit`, without fetching the rest of it.
    max_length: the most tokens of a row, prompt, answer and EOS.
    too_long: what becomes of a longer row: "refuse" to start, "drop" it, or "cut" its answer, which then has no EOS.
    pack: fills canvases of so many tokens with whole rows one after another, each padded with MASK to a multiple of
        `pack_to` (Fast-dLLM v2: the model's block). None: a row a canvas.
    batch_size: canvases of a batch.
    seed: of the order of rows, another one each epoch.
    """

    source: str
    subset: str | None = None
    split: str = "train"
    prompt: str = "prompt"
    answer: str | None = "answer"
    messages: str | None = None
    text: str | None = None
    limit: Annotated[int, Interval("[1, 9e18]")] | None = None
    streamed: bool = False
    max_length: Annotated[int, Interval("[2, 1e6]", "of a row, EOS included")] = 1024
    too_long: Literal["refuse", "drop", "cut"] = "refuse"
    pack: Count | None = None
    pack_to: Count = 32
    batch_size: Count = 16
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.messages is not None and self.text is not None:
            raise ValueError(f"data.messages={self.messages!r} and data.text={self.text!r}: give one of them")
        if self.streamed and self.limit is None:
            raise ValueError("data.streamed=true reads up to data.limit rows; give it")
        if self.pack is not None and (self.pack < self.max_length or self.pack % self.pack_to):
            raise ValueError(
                f"data.pack={self.pack}; a packed canvas takes data.max_length={self.max_length} tokens and is "
                f"a multiple of data.pack_to={self.pack_to}"
            )

    def open(self, tokenizer: PreTrainedTokenizerBase) -> "RowStream":
        """The rows as tokens, cached by `datasets`. Raises ValueError, naming the source, when it cannot be read, lacks
        a column, has a row that is too long, or has nothing to train on."""
        rows, local = self._load()
        columns = rows.column_names if not local else list(json.loads(rows[0]["row"])) if len(rows) else None
        pair = {"prompt": self.prompt, "answer": self.answer}
        wanted = {"text": self.text} if self.text else {"messages": self.messages} if self.messages else pair
        for key, column in wanted.items():
            if column is not None and columns is not None and column not in columns:
                known = ", ".join(columns)
                raise ValueError(f"data.source={self.source} has no column {column!r}; choose data.{key}= from {known}")
        encode = self._encode_texts if self.text else self._encode_rows
        encoded = rows.map(
            encode,
            batched=True,
            with_indices=True,
            remove_columns=rows.column_names,
            fn_kwargs={"tokenizer": tokenizer, "local": local},
            desc="encode",
        )
        longest = max(encoded["length"], default=0)
        if longest > self.max_length and self.too_long == "refuse":
            raise ValueError(
                f"data.source={self.source} has a row of {longest} tokens, more than data.max_length="
                f"{self.max_length}; raise it, or set data.too_long=drop or cut"
            )
        fits = [i for i, length in enumerate(encoded["length"]) if 0 < length <= self.max_length]
        held_out = encoded["held_out"]
        train, validation = [i for i in fits if not held_out[i]], [i for i in fits if held_out[i]]
        if not train:
            raise ValueError(f"data.source={self.source} has {len(rows)} rows and none of them can be trained on")
        return RowStream(self, encoded, self._packed(encoded, train), self._packed(encoded, validation), tokenizer)

    def _packed(self, encoded: Dataset, rows: Sequence[int]) -> list[list[int]]:
        """The rows of each canvas, as many as fit, in the order of the data."""
        if self.pack is None:
            return [[row] for row in rows]
        canvases: list[list[int]] = []
        room, lengths = 0, encoded["length"]
        for row in rows:
            length = -(-lengths[row] // self.pack_to) * self.pack_to
            if length > room:
                canvases.append([])
                room = self.pack
            canvases[-1].append(row)
            room -= length
        return canvases

    def _load(self) -> tuple[Dataset, bool]:
        """The rows, and whether they are `stored` ones of a file."""
        local = is_file(self.source)
        if local and not Path(self.source).is_file():
            raise ValueError(f"data.source={self.source} is not a file")
        try:
            hub = {"split": self.split, "streaming": self.streamed}
            rows = stored(Path(self.source)) if local else datasets.load_dataset(self.source, self.subset, **hub)
        except Exception as error:  # files made by others and networks break it in many ways
            cause = (
                error.__cause__
                if isinstance(error.__cause__, ValueError) and not isinstance(error, ValueError)
                else error
            )
            reason = " ".join(
                (str(cause) if isinstance(cause, ValueError) else f"{type(error).__name__}: {error}").split()
            )[:300]
            raise ValueError(f"data.source={self.source} cannot be read: {reason}") from error
        if self.streamed and not local:
            return Dataset.from_list(list(cast(Any, rows).take(self.limit))), False
        rows = cast(Dataset, rows)
        return rows if self.limit is None else rows.select(range(min(self.limit, len(rows)))), local

    def _chat(self, row: Row) -> list[dict[str, Any]]:
        if self.messages is None:
            answer = row.text(self.answer, setting="data.answer", numbers=True) if self.answer else ""
            return [*row.chat(self.prompt, setting="data.prompt"), {"role": "assistant", "content": answer}]
        chat = row.chat(self.messages, setting="data.messages")
        if len(chat) < 2 or chat[-1]["role"] != "assistant" or not isinstance(chat[-1]["content"], str):
            raise ValueError(f"{row.where}: the last message of {self.messages!r} is no assistant's: {str(chat)[:200]}")
        return chat

    def _encode_rows(
        self, batch: Mapping[str, Any], indices: Sequence[int], tokenizer: PreTrainedTokenizerBase, local: bool
    ) -> dict[str, list]:
        """Prompts through the chat template, and the answers' tokens."""
        encoded: dict[str, list] = {"prompt": [], "answer": [], "length": [], "ends": [], "held_out": []}
        for row in rows_of(batch, indices, None if local else self.source):
            chat = self._chat(row)
            try:
                prompt = encode_text(tokenizer, Path(tokenizer.name_or_path).name, chat[:-1])
            except ValueError as error:
                raise ValueError(f"{row.where}: {error}") from error
            answer = encode_piece(tokenizer, chat[-1]["content"])
            room, ends = self.max_length - len(prompt), True
            if self.too_long == "cut" and 0 < room <= len(answer):
                answer, ends = answer[:room], False
            for name, value in zip(encoded, (prompt, answer, len(prompt) + len(answer) + ends, ends), strict=False):
                encoded[name].append(value)
            encoded["held_out"].append(is_held_out(question(chat)))
        return encoded

    def _encode_texts(
        self, batch: Mapping[str, Any], indices: Sequence[int], tokenizer: PreTrainedTokenizerBase, local: bool
    ) -> dict[str, list]:
        """Texts one after another, cut into rows without a prompt; what is left over at the end of each thousand texts
        is dropped."""
        (_, eos_id), size = special_ids(tokenizer), self.max_length
        all_texts = [
            row.text(self.text or "", setting="data.text")
            for row in rows_of(batch, indices, None if local else self.source)
        ]
        pieces: list[tuple[list[int], bool]] = []
        for held_out in (False, True):
            texts = [text for text in all_texts if is_held_out(text) == held_out]
            tokens = [token for text in texts for token in (*encode_text(tokenizer, "", text), eos_id)]
            pieces += [(tokens[i : i + size], held_out) for i in range(0, len(tokens) - size + 1, size)]
        answers, held = [piece for piece, _ in pieces], [held_out for _, held_out in pieces]
        lengths = {"length": [size] * len(pieces), "ends": [False] * len(pieces)}
        return {"prompt": [[] for _ in pieces], "answer": answers, "held_out": held, **lengths}


@dataclass(frozen=True)
class RowStream:
    """The batches of rows: every canvas once an epoch, in an order of the epoch's own.

    train, held_out: the rows of each canvas."""

    rows: Rows
    encoded: Dataset
    train: Sequence[Sequence[int]]
    held_out: Sequence[Sequence[int]]
    tokenizer: PreTrainedTokenizerBase

    def batch(self, step: int) -> Batch:
        first = step * self.rows.batch_size
        return self._collate([self._canvas(first + i) for i in range(self.rows.batch_size)])

    def validation(self, batches: int) -> list[Batch]:
        size = self.rows.batch_size
        parts = [self.held_out[i * size : (i + 1) * size] for i in range(batches)]
        return [self._collate(part) for part in parts if part]

    def about(self) -> dict[str, object]:
        file = Path(self.rows.source)
        return {
            "source": file.name if file.is_file() else self.rows.source,
            "rows": sum(map(len, self.train)),
            "held_out_rows": sum(map(len, self.held_out)),
            "sha256": self._digest(),
        }

    def _digest(self) -> str:
        """Tells one set of rows from another, whatever the file is called."""
        digest = hashlib.sha256()
        for row in cast(Any, self.encoded):
            digest.update(repr((row["prompt"], row["answer"])).encode())
        return digest.hexdigest()[:16]

    def _canvas(self, number: int) -> Sequence[int]:
        epoch, place = divmod(number, len(self.train))
        return self.train[_order(self.rows.seed, epoch, len(self.train))[place]]

    def _collate(self, canvases: Sequence[Sequence[int]]) -> Batch:
        ids = special_ids(self.tokenizer)
        if self.rows.pack is None:
            rows = [self.encoded[i] for (i,) in canvases]
            answers = [row["answer"] for row in rows]
            lens = [len(row["answer"]) + row["ends"] for row in rows]
            return collate([row["prompt"] for row in rows], answers, lens, *ids)
        mask_id = self.tokenizer.mask_token_id
        tokens = torch.full((len(canvases), self.rows.pack), mask_id if isinstance(mask_id, int) else ids[0])
        packed, end = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros(len(canvases), dtype=torch.long)
        for place, members in enumerate(canvases):
            start = 0
            for i in members:
                row = self.encoded[i]
                prompt, answer = row["prompt"], row["answer"]
                text = [*prompt, *answer, *([ids[1]] if row["ends"] else [])]
                stop = start + len(text)
                tokens[place, start:stop] = torch.tensor(text)
                packed[place, start + len(prompt) : stop] = True
                end[place] = stop
                start = -(-stop // self.rows.pack_to) * self.rows.pack_to
        return Batch(tokens, torch.zeros_like(end), end, end, packed)


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch)).tolist()


@dataclass(frozen=True)
class Mixed:
    """Batches that hold rows of several sources, each as many as its own batch_size."""

    parts: Mapping[str, Data]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("data.parts is empty; name at least one source")

    @property
    def batch_size(self) -> int:
        return sum(part.batch_size for part in self.parts.values())

    def open(self, tokenizer: PreTrainedTokenizerBase) -> "MixedStream":
        """Opens every source. Raises ValueError for the first that cannot be used."""
        return MixedStream({name: part.open(tokenizer) for name, part in self.parts.items()}, special_ids(tokenizer)[0])


@dataclass(frozen=True)
class MixedStream:
    parts: Mapping[str, Stream]
    pad_id: int

    def batch(self, step: int) -> Batch:
        return join_batches([part.batch(step) for part in self.parts.values()], self.pad_id)

    def validation(self, batches: int) -> list[Batch]:
        share = -(-batches // len(self.parts))
        return [batch for part in self.parts.values() for batch in part.validation(share)]

    def about(self) -> dict[str, object]:
        return {name: part.about() for name, part in self.parts.items()}


@dataclass(frozen=True)
class ByLength:
    """The same rows in the same windows of `window` batches, but the shortest in the first batch of a window, so that
    the rows of a batch have nearly one length and little padding. An optimiser step that accumulates a window sees what
    it saw. Both halves of a batch are of all its lengths, since some objectives treat them differently."""

    stream: Stream
    window: int
    pad_id: int
    _last: dict[int, Batch] = field(default_factory=dict, init=False, repr=False, compare=False)

    def batch(self, step: int) -> Batch:
        first = step - step % self.window
        if first not in self._last:
            whole = join_batches([self.stream.batch(first + i) for i in range(self.window)], self.pad_id)
            self._last.clear()
            self._last[first] = take_rows(whole, whole.end.argsort(stable=True))
        whole, place = self._last[first], step - first
        size = len(whole.end) // self.window
        rows = torch.arange(place * size, (place + 1) * size)
        return take_rows(whole, torch.cat([rows[::2], rows[1::2]]))

    def validation(self, batches: int) -> list[Batch]:
        return self.stream.validation(batches)

    def about(self) -> dict[str, object]:
        return self.stream.about()
