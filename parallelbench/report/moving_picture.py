"""A sample's decode as a moving picture: an SVG that shows the canvas after each forward, of one run or of two.

It moves by CSS alone, so it plays where an image does. All parts run on one clock, one tick per forward, and begin
again after a rest. Where motion is not wanted, it shows the last canvas.
"""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from textwrap import wrap

from parallelbench.records.record import Record
from parallelbench.records.trace import Frame, Trace, expected, replay

TICK, REST = 0.5, 3.5  # seconds of a forward, and of the last canvas
NEWLINE = "\u21b5"
CHAR, CELL, GAP, WIDTH, MARGIN = 7.3, 24, 4, 400, 16  # pixels; WIDTH is a panel's

STYLE = """text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#1b2733}
.name{font-weight:bold;font-size:14px}.dim{fill:#5b6773}.paper{fill:#fff;stroke:#d5dbe1}
.cell rect{fill:#e3eefa;stroke:#9dbfe3}.end rect{fill:#f3f5f7;stroke:#d5dbe1}.end text{fill:#7a8591}
.wrong rect{fill:#fde3e1;stroke:#d6453d}.mask{fill:#fff;stroke:#c3ccd5;stroke-dasharray:3 2}
.new{fill:none;stroke:#e07b00;stroke-width:2.5}
@media(prefers-color-scheme:dark){text{fill:#e4eaf0}.dim{fill:#9aa7b4}.paper{fill:#161c23;stroke:#36424e}
.cell rect{fill:#1d3a57;stroke:#4b7fb3}.end rect{fill:#20272f;stroke:#36424e}.end text{fill:#8d99a5}
.wrong rect{fill:#56201d;stroke:#e0716a}.mask{fill:#161c23;stroke:#4a5765}.new{stroke:#ffb04d}}
@media(prefers-reduced-motion:reduce){*{animation:none!important}}"""


class Clock:
    """Classes of what is seen for some ticks, and the style that shows and hides them."""

    def __init__(self, ticks: int) -> None:
        self.ticks, self._used = ticks, set[tuple[int, int]]()

    def during(self, first: int, until: int) -> str:
        """Attributes of what is seen from tick `first` on and before tick `until`; to the end if that is `ticks`."""
        self._used.add((first, until))
        return f'class="t{first}-{until}"' + (' opacity="0"' if until < self.ticks else "")

    def style(self) -> str:
        total = self.ticks * TICK + REST
        rules = []
        for first, until in sorted(self._used):
            start, end = (f"{100 * tick * TICK / total:.2f}%" for tick in (first, until))
            gone = "" if until >= self.ticks else f"{end},to{{opacity:0}}"
            rules.append(f"@keyframes k{first}-{until}{{0%{{opacity:0}}{start}{{opacity:1}}{gone}}}")
            rules.append(f".t{first}-{until}{{animation:k{first}-{until} {total:g}s step-end infinite}}")
        return "\n".join(rules)


def moving_picture(names: Sequence[str], records: Sequence[Record], traces: Sequence[Trace]) -> str:
    """The SVG of one sample's decodes, side by side. names: of the runs.

    A column is as wide as the longest token that it holds in any of them, so that equal columns stand at equal places.
    """
    frames = [list(replay(trace)) for trace in traces]
    clock = Clock(max(record.nfe for record in records) + 2)
    labels = [
        [label for trace, each in zip(traces, frames, strict=True) for label in _labels(trace, each, column)]
        for column in range(max(trace.columns for trace in traces))
    ]
    places, height = _flow(labels)
    wide = len(names) * (WIDTH + 2 * MARGIN)
    prompt = [part for line in records[0].prompt.splitlines() for part in wrap(line, int((wide - 2 * MARGIN) / CHAR))]
    top = MARGIN + 18 * len(prompt) + 14
    body = [_text(MARGIN, MARGIN + 12 + 18 * i, line, "dim") for i, line in enumerate(prompt)]
    for panel, (name, record, trace, each) in enumerate(zip(names, records, traces, frames, strict=True)):
        left = MARGIN + panel * (WIDTH + 2 * MARGIN)
        body.append(f'<g transform="translate({left} {top})">{_text(0, 14, name, "name")}')
        body += _counter(clock, record)
        for column, (x, y, width) in enumerate(places[: trace.columns]):
            body.append(f'<rect class="mask" x="{x:g}" y="{y}" width="{width:g}" height="{CELL}" rx="4"/>')
            body += _cell(clock, trace, each, record, column, (x, y, width))
        body.append("</g>")
    high = top + height + MARGIN
    about = "; ".join(f"{name}: {record.nfe} forwards" for name, record in zip(names, records, strict=True))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img"'
    )
    title = f'<title id="t">{escape(records[0].id)}, forward by forward</title><desc id="d">{escape(about)}</desc>'
    paper = f'<rect class="paper" x=".5" y=".5" width="{wide - 1}" height="{high - 1}" rx="8"/>'
    style = f"<style>{STYLE}\n{clock.style()}</style>"
    return "\n".join([f'{head} aria-labelledby="t d">', title, style, paper, *body, "</svg>\n"])


def _labels(trace: Trace, frames: Sequence[Frame], column: int) -> Iterator[str]:
    """All that a column shows, one after the other."""
    for frame in frames if column < trace.columns else ():
        if (token := frame.tokens[column]) is not None:
            yield _label(trace.texts[token])


def _label(text: str) -> str:
    return text.strip(" ").replace("\n", NEWLINE) or "\u2423"


def _flow(labels: Sequence[Sequence[str]]) -> tuple[list[tuple[float, int, float]], int]:
    """Where columns with these labels stand (x, y, width), and the height of all. Lines end as in the answer."""
    places, x, y = [], 0.0, 44
    for each in labels:
        width = CHAR * max(map(len, each), default=1) + 10
        if x + width > WIDTH:
            x, y = 0.0, y + CELL + GAP
        places.append((x, y, width))
        x = WIDTH if any(NEWLINE in label for label in each) else x + width + GAP
    return places, y + CELL


def _counter(clock: Clock, record: Record) -> Iterator[str]:
    """The number of the forward, and at the end what the decode came to."""
    for forward in range(1, record.nfe):
        yield f"<g {clock.during(forward, forward + 1)}>{_text(0, 34, f'forward {forward}', 'dim')}</g>"
    cost = f"{record.nfe} forward{'s' * (record.nfe > 1)} for {record.num_tokens} tokens"
    score = f", score {100 * record.scores['score']:.0f} %" if record.scores else ""  # a demo's prompt has none
    yield f"<g {clock.during(record.nfe, clock.ticks)}>{_text(0, 34, f'{cost}{score}')}</g>"


def _cell(
    clock: Clock,
    trace: Trace,
    frames: Sequence[Frame],
    record: Record,
    column: int,
    place: tuple[float, int, float],
) -> Iterator[str]:
    """Each token that a column held, for as long as it held it, with a frame around it while it is new."""
    right, (x, y, width) = expected(trace, record), place
    held = [(0, None), *((frame.step.forward + 1, frame.tokens[column]) for frame in frames)]
    changes = [now for before, now in pairwise(held) if now[1] != before[1]]
    box = f'x="{x:g}" y="{y}" width="{width:g}" height="{CELL}" rx="4"'
    for (first, token), (until, _) in pairwise([*changes, (clock.ticks, None)]):
        if token is None:
            continue
        ends = column >= len(record.token_ids)
        wrong = right is not None and column < len(right) and token != right[column]
        kind = "end" if ends else "cell wrong" if wrong else "cell"
        text = _text(x + width / 2, y + 16, _label(trace.texts[token]), middle=True)
        yield f'<g {clock.during(first, until)}><g class="{kind}"><rect {box}/>{text}</g></g>'
        yield f'<g {clock.during(first, first + 1)}><rect class="new" {box}/></g>'


def _text(x: int | float, y: int | float, text: str, kind: str = "", middle: bool = False) -> str:
    more = (f' class="{kind}"' if kind else "") + (' text-anchor="middle"' if middle else "")
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)  # a control character would spoil the file
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(shown)}</text>'
