"""Makes results/published/structured/README.md and its chart from runs with and without a constraint.

`python scripts/published/structured_page.py RUNS_DIR PAGE_DIR`

RUNS_DIR holds pairs of runs over the same samples: `free/MODEL/DECODER` and `held/MODEL/DECODER`. All numbers are
computed from them, with 95 % intervals. `structured.sh` makes the runs and calls this.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template

import numpy as np

from parallelbench.records.files import replace_file
from parallelbench.records.record import Record, Run, find_runs, read_run
from parallelbench.report import plots
from parallelbench.report.compare import Comparison, compare
from parallelbench.report.drawing.axes import by_doubling
from parallelbench.report.drawing.style import look
from parallelbench.report.markdown import table
from parallelbench.stats.intervals import Value, bounded
from parallelbench.stats.metrics import ALL, aggregate
from parallelbench.stats.paired import pair
from parallelbench.tasks.waiting_line import parse_strict

Numbers = Callable[[Record], float]
DRAFT, BLOCK = "smollm2, smollm2_draft", "smollm2_ar, smollm2_block"
PANELS = {"smollm2": DRAFT, "smollm2_draft": DRAFT, "smollm2_ar": BLOCK, "smollm2_block": BLOCK}  # of the chart
REMARKS = {  # on what the numbers of a decoder say
    "ar": (
        "The constraint masks what the model gives, one token per forward, and skips no forward. It could skip few: of "
        "1,229 tokens held on smollm2, 68 were the only ones admitted, since fixed parts have several spellings.",
    ),
    "self_spec": (
        "Its text is that of `ar` but for the rounding of bfloat16, held as free. The drafts of smollm2_block were "
        "trained on the forms of its free answers.",
    ),
    "linear_spec": ("Its text is that of `ar` but for the rounding of bfloat16, held as free.",),
    "left": ("One token per forward from the left, so that it gains in what it writes and not in forwards.",),
    "fixed": ("Its one token per forward is the surest anywhere in the block.",),
}


def parses(record: Record) -> bool:
    """Whether the whole answer is of the form that was asked for: of its schema, or a list of names."""
    return bool(record.scores.get("parses", parse_strict(record.completion) is not None))


def same(a: Record, b: Record) -> bool:
    """Whether two answers say the same: the same JSON, however it is laid out, or the same text."""
    try:
        return json.loads(a.completion) == json.loads(b.completion)
    except (ValueError, RecursionError):
        return a.completion == b.completion


@dataclass(frozen=True)
class Pair:
    """A decoder on a model, without (`free`) and with (`held`) a constraint."""

    model: str
    decoder: str
    free: Run
    held: Run

    @cached_property
    def tasks(self) -> str:
        """What was asked: a task, or those of a family."""
        names = {record.task for record in self.free.records}
        return names.pop() if len(names) == 1 else f"{names.pop().split('/')[0]}/*"

    @cached_property
    def against(self) -> Comparison:
        """held against free, over all samples."""
        return compare(pair([self.free, self.held]))[ALL]

    @cached_property
    def both(self) -> list[tuple[Record, Record]]:
        """The records of each sample."""
        held = {record.id: record for record in self.held.records}
        return [(record, held[record.id]) for record in self.free.records]

    def metric(self, name: str) -> list[Value]:
        return [aggregate(run.records)[ALL][name] for run in (self.free, self.held)]

    def parsed(self) -> list[Value]:
        return [share(run.records, parses) for run in (self.free, self.held)]

    def step_ms(self) -> list[float]:
        """CPU milliseconds of a row in a forward and in the decoder's part of the step."""
        return [1000 * sum(r.cpu_s or 0 for r in run.records) / sum(r.nfe for r in run.records) for run in self.runs]

    @property
    def runs(self) -> tuple[Run, Run]:
        return self.free, self.held


def share(records: Sequence[Record], of: Numbers) -> Value:
    return bounded(np.array([of(r) for r in records], dtype=float), 0, 1, np.array([r.task for r in records]))


def pairs(folder: Path) -> list[Pair]:
    """Raises ValueError for a run whose other half is missing."""
    found = []
    for free in find_runs([folder / "free"]):
        place = free.relative_to(folder / "free")
        decoder = place.name.removeprefix("line-")  # of the same model on one task alone
        found.append(Pair(str(place.parent), decoder, read_run(free), read_run(folder / "held" / place)))
    return found


def percent(value: Value) -> str:
    return value.text(".0f", 100)


def row(one: Pair) -> list[str]:
    parsed, score, tpf, ms = one.parsed(), one.metric("score"), one.metric("tpf"), one.step_ms()
    return [
        f"`{one.decoder}`",
        *(percent(value) for value in (*parsed, *score)),
        one.against.difference.text("+.1f"),
        *(value.text(".2f") for value in tpf),
        *(f"{value:.0f}" for value in ms),
    ]


HEADS = ["decoder", "parses %", "held", "score %", "held", "points", "TPF", "held", "ms", "held"]


def summary(found: Sequence[Pair]) -> Iterator[str]:
    """What all pairs have in common, and the ends of what they do not."""
    free, held = (sum(parses(record) for one in found for record in one.runs[half].records) for half in (0, 1))
    yield f"- Of {sum(len(one.both) for one in found):,} answers {free:,} parse free and {held:,} held."
    for tasks in dict.fromkeys(one.tasks for one in found):
        of = sorted((one for one in found if one.tasks == tasks), key=lambda one: one.against.difference.value)
        ends = (f"`{one.decoder}` on {one.model} {one.against.difference.text('+.1f')}" for one in (of[-1], of[0]))
        yield f"- Points of score that the constraint is worth on `{tasks}`: from {' to '.join(list(ends)[::-1])}."
    rated = sorted(found, key=lambda one: one.against.tpf_ratio.value)
    ends = (f"{one.against.tpf_ratio.text('.2f')} (`{one.decoder}` on {one.model})" for one in (rated[0], rated[-1]))
    yield f"- Tokens per forward, held over free: from {' to '.join(ends)}."
    slower = [held / free for free, held in (one.step_ms() for one in found)]
    yield (
        f"- CPU time a step, held over free: {np.median(slower):.2f} in the middle, from {min(slower):.2f} to "
        f"{max(slower):.2f}, in batches of 8 to 48 rows."
    )


def tables(found: Sequence[Pair]) -> Iterator[str]:
    for model, tasks in dict.fromkeys((one.model, one.tasks) for one in found):
        of = [one for one in found if (one.model, one.tasks) == (model, tasks)]
        yield f"### {model}, {tasks}\n\n{len(of[0].free.records)} samples.\n"
        yield "\n".join(table(HEADS, map(row, of))) + "\n"


def paragraphs(found: Sequence[Pair]) -> Iterator[str]:
    """One for each decoder, over its models."""
    for decoder in dict.fromkeys(one.decoder for one in found):
        told = [sentence(one) for one in found if one.decoder == decoder]
        yield f"**`{decoder}`.** {' '.join([*told, *REMARKS.get(decoder, ())])}\n"


def sentence(one: Pair) -> str:
    parsed, tpf = one.parsed(), one.against.tpf_ratio
    return (
        f"On {one.model}, `{one.tasks}`: {percent(parsed[0])} % parse free, {percent(parsed[1])} % held, "
        f"which is worth {one.against.difference.text('+.1f')} points of score, at {tpf.text('.2f')} times the tokens "
        "per forward."
    )


def costs(found: Sequence[Pair]) -> Iterator[str]:
    """Answers that parsed anyway: whether the constraint changed them, and for better or worse."""
    rows = []
    for one in found:
        anyway = [(free, held) for free, held in one.both if parses(free)]
        if anyway:
            moved = [(free, held) for free, held in anyway if not same(free, held)]
            gains = [held.scores["score"] - free.scores["score"] for free, held in moved]
            changed = bounded(np.array([not same(*both) for both in anyway], dtype=float), 0, 1)
            rows.append(
                [
                    f"{one.model}, {one.tasks}: `{one.decoder}`",
                    str(len(anyway)),
                    percent(changed),
                    str(sum(gain > 0 for gain in gains)),
                    str(sum(gain < 0 for gain in gains)),
                ]
            )
    yield "\n".join(table(["run", "parsed anyway", "says something else, %", "better", "worse"], rows)) + "\n"


def chart(found: Sequence[Pair], path: Path) -> None:
    """Score against tokens per forward, an arrow from each run without to the one with."""
    panels = list(dict.fromkeys(PANELS.get(one.model, one.model) for one in found))
    figure, grid = plots.plt.subplots(
        1, len(panels), figsize=(4 * len(panels), 4.2), sharey=True, squeeze=False, layout="constrained"
    )
    entries = {}
    for axes, title in zip(grid.flat, panels, strict=True):
        for one in (one for one in found if PANELS.get(one.model, one.model) == title):
            name = one.decoder.split("-")[0]
            looks = look("decoder", name)
            (x0, x1), (y0, y1) = ([v.value for v in one.metric("tpf")], [100 * v.value for v in one.metric("score")])
            axes.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": looks.colour, "alpha": 0.6})
            axes.plot(x0, y0, looks.marker, color=looks.colour, fillstyle="none", markersize=5)
            entries[name] = axes.plot(x1, y1, looks.marker, color=looks.colour, markersize=5)[0]
        by_doubling(axes)
        axes.set(title=title, xlabel="tokens per forward, log scale", ylim=(-4, 104))
    grid.flat[0].set_ylabel("score, %")
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=min(7, 3 * len(panels)))
    plots.save(figure, path)


PAGE = """# Structured output: with and without a constraint

`bash scripts/published/structured.sh`. Every decoder decodes the same samples twice: free, and held to the sample's own
constraint. That is the JSON schema of a `json/*` sample, and the exact form of a waiting line's list. No model was
trained on `json/*`. SmolLM2-135M-Instruct can write JSON, and `smollm2-draft` drafts its text. `smollm2-ar` and
`smollm2-block` were trained to answer in other forms. `tiny` knows the lists. Decoding is greedy, in bfloat16
(`tiny`: float32).

- An answer **parses** if all of it is JSON of the sample's schema, or a list in its exact form.
- **held**: the same column with the constraint. **points**: held against free, of the same samples.
- **TPF**: tokens before EOS per forward. **ms**: CPU milliseconds of a row in one step, forward included. The machine
  did other work too, so they tell a large cost from a small one and no more.
- In brackets: 95 % intervals. `runs.tar.xz` holds the runs, [report.md](report.md) has all of their numbers.

## In brief

$summary

Decoders that write over tokens one by one, such as `edit` and `prefix_edit`, are refused with a constraint.

![score against tokens per forward, from free (hollow) to held (filled)](with_and_without.png)

## Numbers

$tables
## Decoder by decoder

$decoders
## What a constraint costs where it was not needed

Answers that parsed without the constraint. It may still change them: a schema of a model's own layout is not the
layout that is forced, and a token that is kept early is chosen among those that can still end well.

$costs"""


def main(arguments: Sequence[str]) -> None:
    runs, folder = map(Path, arguments)
    found = pairs(runs)
    chart(found, folder / "with_and_without")
    made = {"summary": summary, "tables": tables, "decoders": paragraphs, "costs": costs}
    parts = {name: "\n".join(part(found)) for name, part in made.items()}
    replace_file(folder / "README.md", Template(PAGE).substitute(parts))


if __name__ == "__main__":
    main(sys.argv[1:])
