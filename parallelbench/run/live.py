"""Decodes in a terminal while they run: the canvas after each forward, of several decoders side by side."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from decoders import Generation
from parallelbench.records.files import printable
from parallelbench.records.trace import Step, Trace, replay
from parallelbench.run.generator import Request, Traceable

MASKED, PADDING = "_", "."
SPECIAL = re.compile(r"|</?\w+>|<\|\w+\|>")  # tokens such as <eos>, </s> and <|endoftext|>, which say nothing
NEW, OLD = "bold black on #ffd866", "black on #cfe3f5"


@dataclass
class Decoding:
    """One decoder at work on one request, in a thread of its own.

    steps: those that `advance` has come to.
    generation: None until the decode has ended.
    seconds: that the whole decode took.
    """

    name: str
    generator: Traceable
    request: Request
    steps: list[Step] = field(default_factory=list)
    generation: Generation | None = None
    seconds: float = 0.0
    _texts: dict[int, str] = field(default_factory=dict)
    _queue: "SimpleQueue[Step | Generation | BaseException]" = field(default_factory=SimpleQueue)

    def __post_init__(self) -> None:
        Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            began = time.perf_counter()
            ((generation, _),) = self.generator.traced([self.request], self._queue.put)
            self.seconds = time.perf_counter() - began
            self._queue.put(generation)
        except BaseException as error:  # raised again where it is seen
            self._queue.put(error)

    def advance(self) -> None:
        """Waits for the next forward, or the end. Raises what the decode raised."""
        if self.generation is None:
            news = self._queue.get()
            if isinstance(news, BaseException):
                raise news
            if isinstance(news, Step):
                self.steps.append(news)
            else:
                self.generation = news

    def panel(self) -> Text:
        """Name, count and canvas; without steps an empty canvas."""
        steps, columns = self.steps, self.request.gen_len
        frames = list(replay(Trace(self.name, columns, [], {}, steps)))
        tokens = frames[-1].tokens if frames else [None] * columns
        new = set(frames[-1].committed + frames[-1].edited) if frames and self.generation is None else set()
        end = columns if self.generation is None else len(self.generation.token_ids)
        text = Text(f"{self.name}\n", "bold")
        text.append(f"{self._told(columns - tokens.count(None), columns)}\n\n", "not bold dim")
        for column, token in enumerate(tokens[:end]):
            shown = MASKED if token is None else self._text(token)
            text.append(shown, "not bold dim" if token is None else NEW if column in new else f"not bold {OLD}")
            text.append("\n" if shown.endswith("\\n") else " ")
        return text

    def _told(self, filled: int, columns: int) -> str:
        if self.generation is None:
            return f"forward {len(self.steps)}: {filled} of {columns} columns"
        nfe, tokens = self.generation.nfe, self.generation.num_tokens
        return f"{nfe} forward{'s' * (nfe > 1)} for {tokens} tokens ({tokens / nfe:.2f} each), {self.seconds:.2f} s"

    def _text(self, token: int) -> str:
        if token not in self._texts:
            text = self.generator.model.decode([token])
            shown = printable(text.replace("\n", "\\n")).strip(" ") or "\N{OPEN BOX}"
            self._texts[token] = PADDING if SPECIAL.fullmatch(text) else shown
        return self._texts[token]


def play(decodings: Sequence[Decoding], console: Console, per_second: float) -> None:
    """Shows decodes until all have ended: in a terminal at most so many forwards a second, elsewhere the end alone."""
    with Live(console=console, auto_refresh=False) as live:
        while any(decoding.generation is None for decoding in decodings):
            for decoding in decodings:
                decoding.advance()
            if console.is_terminal:
                live.update(_beside([decoding.panel() for decoding in decodings]), refresh=True)
                time.sleep(1 / per_second)
        live.update(_beside([decoding.panel() for decoding in decodings]))


def _beside(panels: Sequence[Text]) -> Table:
    table = Table.grid(padding=(0, 3), expand=True)
    for _ in panels:
        table.add_column(ratio=1)
    table.add_row(*panels)
    return table
