"""Makes results/published/index.html: what the published pages show, told as one story, each number from its page.

`python scripts/published/start_page.py [FOLDER]`

A page's report.html, which render.sh makes from its records, holds what every run did on every sample. Claims are
paired comparisons of these, with the intervals of `analyze compare`, and the page's own speeds at equal quality. Charts
are drawn here, in the colours of the reader's scheme. A chapter whose page is missing, or whose page holds no run that
its claim needs, is left out.
"""

import base64
import csv
import html
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from parallelbench.records.files import replace_file
from parallelbench.report.compare import Comparison, compare
from parallelbench.report.page import HERE as PAGE
from parallelbench.stats.intervals import Value
from parallelbench.stats.metrics import ALL
from parallelbench.stats.paired import Paired
from parallelbench.stats.speed_at_quality import LEVELS, MIDDLE

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
USUAL = ("temperature=0.0", "top_p=1.0", "next=all")  # knobs of verified decoders that say nothing here
WORTH = 0.9  # of the columns: a cache that computes more saves too little to speak of
Row = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """What a page holds."""

    data: dict[str, Any]

    @cached_property
    def runs(self) -> list[Row]:
        return self.data["runs"]

    @cached_property
    def led(self) -> list[Row]:
        """The runs over the samples that most runs share."""
        sets = [run["set"] for run in self.runs if run["set"] is not None]
        return [run for run in self.runs if run["set"] == max(set(sets), key=sets.count)]

    def first(self, decoder: str, label: str = "", **wanted: str) -> Row | None:
        """The first run of a decoder, with these knobs and choices."""
        fits = (run for run in self.led if run["decoder"] == decoder and label in ("", run["label"]))
        return next((run for run in fits if all(run[key] == value for key, value in wanted.items())), None)

    def compare(self, a: Row, b: Row) -> dict[str, Comparison]:
        """b against a, by task and over all samples."""
        tasks = np.array([self.data["tasks"][i] for i in self.data["sets"][a["set"]]["tasks"]])
        numbers = [json.loads(zlib.decompress(base64.b64decode(run["samples"]))) for run in (a, b)]
        score, nfe, tokens, columns = (
            np.array([one[key] for one in numbers], dtype=float) for key in ("score", "nfe", "tokens", "columns")
        )
        asked = self.data["sets"][a["set"]].get("asked")  # older pages do not have it
        return compare(Paired(tasks, 100 * score, nfe, tokens, columns, asked and np.array(asked)))


def read_report(path: Path) -> Report:
    """Raises ValueError for a file that is not a page of a report."""
    found = DATA.search(path.read_text(encoding="utf-8"))
    if found is None or "equal" not in (data := json.loads(found[1])):
        raise ValueError(f"{path} is not a page of this version; make it again with its script")
    return Report(data)


# ---- Words and numbers


def of_numbers(numbers: Sequence[float]) -> Value:
    value, low, high = numbers
    return Value(value, low, high, 0)


def change(row: Comparison) -> str:
    """What becomes of the score: "loses 21.4 points [20.3, 22.6]", or by how much it changes where zero is possible."""
    value, low, high = row.difference.value, row.difference.ci_low, row.difference.ci_high
    if low <= 0 <= high:
        return f"changes the score by {value:+.1f} points [{low:+.1f}, {high:+.1f}]"
    ends = sorted((abs(low), abs(high)))
    return f"{'loses' if value < 0 else 'gains'} {abs(value):.1f} points [{ends[0]:.1f}, {ends[1]:.1f}]"


def passes(row: Comparison) -> str:
    """How many forward passes are left: "25 % [25, 26]"."""
    ratio = row.nfe_ratio
    whole = [f"{100 * value:.0f}" for value in (ratio.value, ratio.ci_low, ratio.ci_high)]
    return f"{whole[0]} %" if len(set(whole)) == 1 else f"{whole[0]} % [{whole[1]}, {whole[2]}]"


def code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"


def name_of(run: Row) -> str:
    """Decoder and knobs, without the model and what is usual."""
    told = (
        word for word in run["name"].split(" ") if not word.startswith(("model=", "cache=", "stop=", "block_length="))
    )
    return code(" ".join(word for word in told if word not in USUAL))


def score_of(run: Row) -> str:
    return f"{of_numbers(run['tasks'][ALL]['score']).text('.1f', 100)} %"


def tpf_of(run: Row) -> str:
    return of_numbers(run["tasks"][ALL]["tpf"]).text(".2f")


# ---- Charts


def chart(
    report: Report,
    shown: Mapping[str, str],
    metric: str = "tpf",
    axis: str = "tokens per forward pass",
    least: float = 0,
) -> str:
    """Score against a metric, logarithmic: the curves `shown`, each with its label, and all other runs in grey.

    shown: labels of curves by their names, or of all runs of a decoder by its. least: no score below this is drawn.
    """
    width, height, left, top, right, bottom = 620, 360, 48, 14, 16, 46
    points = [(run, run["tasks"][ALL][metric], run["tasks"][ALL]["score"]) for run in report.led]
    points = [(run, x, y) for run, x, y in points if x[0] and y[0] >= least]
    low, high = min(math.log2(x[0]) for _, x, _ in points) - 0.2, max(math.log2(x[0]) for _, x, _ in points) + 0.2
    floor = max(0, math.floor(10 * min(y[0] for *_, y in points)) / 10)

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + (math.log2(x) - low) / (high - low) * (width - left - right)
        return round(across, 1), round(height - bottom - (y - floor) / (1 - floor) * (height - top - bottom), 1)

    parts = []
    for step in range(round(10 * floor), 11, 1 if floor >= 0.5 else 2):
        _, y = at(2**low, step / 10)
        parts.append(f'<path class="grid" d="M{left} {y}H{width - right}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{10 * step}</text>')
    for power in range(math.ceil(low), math.floor(high) + 1):
        x, _ = at(2**power, 1)
        parts.append(f'<path class="grid" d="M{x} {top}V{height - bottom}"/>')
        parts.append(f'<text x="{x}" y="{height - bottom + 17}" text-anchor="middle">{2.0**power:g}</text>')
    parts.append(f'<text x="{left}" y="{height - 8}">score, %, against {axis}, log scale</text>')
    curves = {run["curve"] for run in report.led}
    series = {
        name: [p for p in points if name == (p[0]["curve"] if name in curves else p[0]["decoder"])] for name in shown
    }
    coloured = {id(run) for some in series.values() for run, *_ in some}
    for run, x, y in points:
        if id(run) not in coloured:
            a, b = at(x[0], y[0])
            parts.append(
                f'<circle class="other" cx="{a}" cy="{b}" r="3"><title>{html.escape(run["name"])}</title></circle>'
            )
    for number, name in enumerate(shown):
        some = sorted(series[name], key=lambda point: point[1][0])
        if not some:
            continue
        path = "L".join(f"{a} {b}" for a, b in (at(x[0], y[0]) for _, x, y in some))
        parts.append(f'<g class="c{number}"><path class="curve" d="M{path}"/>')
        for run, x, y in some:
            (a, b), (_, upper), (_, lower) = at(x[0], y[0]), at(x[0], min(1, y[2])), at(x[0], max(floor, y[1]))
            parts.append(f'<path d="M{a} {upper}V{lower}"/><circle cx="{a}" cy="{b}" r="4.5">')
            told = f"{run['name']}: {100 * y[0]:.1f} %, {x[0]:.2f}"
            parts.append(f"<title>{html.escape(told)}</title></circle>")
        parts.append("</g>")
    legend = " ".join(
        f'<span class="c{i}">●</span> {html.escape(label)}' for i, (b, label) in enumerate(shown.items()) if series[b]
    )
    others = " ● other runs" if len(coloured) < len(points) else ""
    said = html.escape(f"Score against {axis}: {', '.join(label for b, label in shown.items() if series[b])}")
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" aria-label="{said}">{"".join(parts)}</svg>'
        f"<figcaption>{legend}{others}. Bars: 95 % intervals.</figcaption></figure>"
    )


# ---- The chapters: what each tells of its page


@dataclass(frozen=True)
class Told:
    """One claim in a sentence, the prose below it, and its chart, all as HTML."""

    claim: str
    prose: str
    chart: str = ""


def phenomenon(report: Report) -> Told | None:
    """Several tokens at once cost nothing where they are independent, and everything where they are not."""
    one, four = report.first("fixed", "1"), report.first("fixed", "4")
    if one is None or four is None:
        return None
    rows = report.compare(one, four)
    by_task = {
        task.split("/")[-1].replace("_", " ").removesuffix(" n4"): row for task, row in rows.items() if task != ALL
    }
    worst = min(by_task, key=lambda task: by_task[task].difference.value)
    best = max(by_task, key=lambda task: by_task[task].difference.value)
    good = [report.compare(one, run)[ALL] for run in report.led if run["decoder"] == "threshold"]
    safe = [row for row in good if row.difference.value > -1]
    prose = (
        f"With one token per forward pass, {code(one['model_title'])}, a model of 1.4 million parameters, answers "
        f"{score_of(one)} of {rows[ALL].n} questions. The loss from four tokens is not spread evenly. On the task "
        f"“{worst}” it {change(by_task[worst])}: there the tokens depend on each other. On “{best}” it "
        f"{change(by_task[best])}: there each token follows from the prompt alone."
    )
    if safe:
        row = min(safe, key=lambda row: row.nfe_ratio.value)
        prose += (
            f" So it pays to choose. A decoder that keeps only tokens of high confidence {change(row)} and needs "
            f"{passes(row)} of the forward passes."
        )
    shown = {"fixed": "a fixed number of tokens", "threshold": "a confidence threshold", "credit": "CreditDecoding"}
    claim = f"Keeping four tokens at a time {change(rows[ALL])} and needs {passes(rows[ALL])} of the forward passes."
    return Told(claim, prose, chart(report, shown))


def what_helps(report: Report) -> Told | None:
    """The fastest decoders at equal quality."""
    equal = report.data["equal"]
    if equal is None or equal["use"] is None:
        return None
    middle = LEVELS.index(MIDDLE)
    methods = [row for row in equal["rows"] if not row["is_ceiling"] and row["cells"][middle][0]]
    if not methods:
        return None
    methods.sort(key=lambda row: -row["cells"][middle][0][0])
    leads = {row["curve"]: row["cells"][middle][2] for row in methods}
    surely = [name for name, lead in leads.items() if lead is not None and lead[1] > 0]
    first, use = methods[0], report.runs[equal["use"]]
    claim = (
        f"At {100 * MIDDLE:g} % of the best score, {code(first['curve'])} writes "
        f"{of_numbers(first['cells'][middle][0]).text('.2f')} tokens per forward pass."
    )
    prose = f"Its fastest run at that score is {name_of(use)}, with {score_of(use)} of the answers right. "
    if surely:
        listed = ", ".join(map(code, surely[:6]))
        prose += (
            f"{len(surely)} of the {len(equal['rows'])} decoders on this page {'is' if len(surely) == 1 else 'are'} "
            f"reliably faster than a plain threshold on confidence: the 95 % interval of their lead is above zero "
            f"({listed}). "
        )
    prose += "All decoders run in one loop over the same questions, so they differ in their decisions alone."
    shown = {name: name for name in dict.fromkeys(("threshold", first["curve"], *surely[:3]))}
    return Told(claim, prose, chart(report, shown, least=0.5))


def with_caches(report: Report) -> Told | None:
    """Of the caches that save something, the one that changes least, with the fastest decoder without a cache."""
    plain = [run for run in report.led if run["cache"] == "none"]
    if not plain:
        return None
    bare = max(plain, key=lambda run: run["tasks"][ALL]["tpf"][0])
    same = ("decoder", "label", "model")
    cached = [r for r in report.led if r["cache"] != "none" and all(r[key] == bare[key] for key in same)]
    rows = [(run, report.compare(bare, run)[ALL], run["tasks"][ALL]["queried"][0]) for run in cached]
    whole = bare["tasks"][ALL]["queried"][0]
    saving = [row for row in rows if row[2] <= WORTH * whole]
    if not saving:
        return None
    run, row, columns = max(saving, key=lambda row: (row[1].difference.value, -row[2]))
    claim = (
        f"Of the caches that save a tenth of the work or more, {code(run['cache'])} is the most faithful: it computes "
        f"{100 * columns / whole:.0f} % of the columns and {change(row)}."
    )
    worst = min(rows, key=lambda row: row[1].difference.value)
    prose = (
        f"A diffusion model sees the whole text in both directions, so stored keys and values go stale with each new "
        f"token. With {name_of(bare)}, a sample costs {whole:.0f} columns without a cache and {columns:.0f} with it. "
        f"The most harmful cache here, {code(worst[0]['cache'])}, {change(worst[1])}."
    )
    return Told(
        claim, prose, chart(report, {bare["decoder"]: bare["decoder"]}, "queried", "columns computed per sample")
    )


def verified(report: Report) -> Told | None:
    """Drafts that are checked before they count."""
    found = []
    for run in report.led:
        plain = report.first("ar", model=run["model"]) if run["text_of"] else None
        if plain is None or plain is run:
            continue
        row = report.compare(plain, run)[ALL]
        if row.better + row.worse == 0:
            found.append((row.nfe_ratio.value, run["name"], run, row))
    if not found:
        return None
    *_, run, row = min(found)
    claim = f"{name_of(run)} writes exactly the text of one token at a time with {passes(row)} of the forward passes."
    prose = (
        f"It drafts several tokens, checks them in the next forward pass, and keeps those that the model would have "
        f"written one by one. All {row.n} answers score the same. Its {tpf_of(run)} tokens per forward pass are "
        f"speed without a loss; decoders without a check can be faster, and lose some answers."
    )
    shown = {"ar": "one token at a time", "self_spec": "self_spec (verified)", "linear_spec": "linear_spec (verified)"}
    return Told(claim, prose, chart(report, shown | {"threshold": "threshold (not verified)"}))


def in_english(report: Report) -> Told | None:
    """What holds for a language model of English."""
    plain = report.first("ar")
    if plain is None:
        return None
    rows = [(run, report.compare(plain, run)[ALL]) for run in report.led if run is not plain and not run["is_ceiling"]]
    checked = [(row.nfe_ratio.value, run["name"], run, row) for run, row in rows if run["text_of"] == "ar"]
    free = [
        (row.nfe_ratio.value, run["name"], run, row)
        for run, row in rows
        if not run["text_of"] and row.difference.ci_low > -2
    ]
    if not checked:
        return None
    *_, fast, row = min(checked)
    claim = (
        f"On English, {name_of(fast)} writes the text of one token at a time with {passes(row)} of the forward passes."
    )
    prose = (
        f"The model is SmolLM2-135M with an adapter of this project ({code(fast['model_title'])}); the stock model "
        f"cannot decode in parallel. One token at a time scores {score_of(plain)} on {row.n} questions of 17 tasks. "
        f"In bfloat16, two ways to compute the same text round differently, so the verified run "
        f"{change(row)}."
    )
    if free:
        *_, run, other = min(free)
        prose += (
            f" Without a check, the fastest decoder whose own 95 % limit of loss is below two points is "
            f"{name_of(run)}: it {change(other)} with {passes(other)} of the forward passes. Many rankings of the tiny "
            f"models do not hold here; the page says which."
        )
    shown = {"ar": "one token at a time", "self_spec": "self_spec (verified)", "threshold": "threshold"}
    return Told(claim, prose, chart(report, shown | {"prefix": "prefix", "prefix_edit": "prefix_edit"}, least=0.4))


def learned(report: Report) -> Told | None:
    """Training moves the trade-off itself."""
    told = what_helps(report)
    if told is None:
        return None
    prose = (
        "A model can be distilled on its own correct decodes, and a small filter can learn which tokens to keep. Both "
        "were tested on questions that no training saw. The page compares them with rules that were not trained."
    )
    return Told(told.claim, prose, told.chart)


def in_theory(folder: Path) -> str:
    """How well closed forms agree with ideal models."""
    if not (folder / "theory.csv").exists():
        return ""
    with open(folder / "theory.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    inside = [float(r["ci_low"]) <= float(r["accuracy_closed"]) <= float(r["ci_high"]) for r in rows]
    return f"{sum(inside)} of {len(rows)} closed forms lie in the 95 % interval of what ideal models did."


# ---- The story


@dataclass(frozen=True)
class Chapter:
    """A page, what makes it, and what is told of it."""

    folder: str
    title: str
    command: str
    tell: Callable[[Report], Told | None]


STORY = (
    Chapter(
        "first-look",
        "Tokens that are written together do not see each other",
        "bash scripts/published/first_look.sh",
        phenomenon,
    ),
    Chapter(
        "decoders", "What helps: choosing which tokens to keep", "bash scripts/published/sweep_decoders.sh", what_helps
    ),
    Chapter("verified", "Speed without a loss: verified decoding", "bash scripts/published/verified.sh", verified),
    Chapter("english", "What holds on English", "bash scripts/published/english.sh", in_english),
    Chapter("learned", "Learning to decode in parallel", "bash scripts/published/learned.sh", learned),
    Chapter("caches", "Keeping keys and values", "bash scripts/published/sweep_caches.sh", with_caches),
)
PAGES = {  # all of them, the ones to read first at the top, and what makes those that have no chapter
    "english": ("SmolLM2-135M: 86 runs, what holds of the tiny models there", ""),
    "decoders": ("every decoder over its knob", ""),
    "verified": ("drafts that are checked, in forward passes", ""),
    "first-look": ("a fixed number of tokens, a threshold, CreditDecoding", ""),
    "learned": ("distillation and trained decoders", ""),
    "tune": ("a race between 57 configurations, compared with the whole grid's choice", ""),
    "caches": ("what caches cost in quality; time and memory in its README", ""),
    "structured": (
        "decoders with and without a constraint, on models that were not trained on JSON",
        "bash scripts/published/structured.sh",
    ),
    "tiny": ("what the shipped model can do, one token per step", "bash scripts/published/evaluate_tiny.sh"),
    "autoregressive": ("a causal model of the same size and data", "bash scripts/published/compare_ar.sh"),
    "recurrent": ("depth-recurrent models: diffusion forcing", "bash scripts/published/recurrent_curve.sh"),
    "theory": (
        "closed forms compared with ideal models",
        "python -m parallelbench analyze theory out_dir=results/published/theory",
    ),
    "gpu": ("seconds of one H200", "python scripts/bench/gpu.py"),
}  # fmt: skip

HTML = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))


def links_of(folder: Path, name: str) -> str:
    """What there is of a page: its text, its report, its player."""
    files = {"README.md": "read", "report.md": "the report", "report.html": "all samples", "watch.html": "watch it"}
    found = [(file, said) for file, said in files.items() if (folder / name / file).exists() and file != "report.html"]
    return ", ".join(f'<a href="{name}/{file}">{said}</a>' for file, said in found)


def chapter(one: Chapter, folder: Path) -> str | None:
    """Its section, None where there is nothing to tell."""
    page = folder / one.folder / "report.html"
    if not page.exists():
        return None
    try:
        told = one.tell(read_report(page))
    except ValueError as error:
        print(f"left out: {error}", file=sys.stderr)
        return None
    if told is None:
        return None
    return (
        f'<section id="{one.folder}">\n<h2>{html.escape(one.title)}</h2>\n<div class="told"><div>\n'
        f'<p class="claim">{told.claim}</p>\n<p>{told.prose}</p>\n<p>See {links_of(folder, one.folder)}. Made by</p>\n'
        f'<pre tabindex="0">{html.escape(one.command)}</pre>\n</div>\n{told.chart}\n</div>\n</section>'
    )


def start_page(folder: Path) -> str:
    """The chapters that can be told. Raises ValueError where there is none."""
    told = [(one, text) for one in STORY if (text := chapter(one, folder)) is not None]
    if not told:
        raise ValueError(f"{folder} holds no published page; make one with a script of scripts/published")
    links = "\n".join(
        f'<a href="#{one.folder}">{html.escape(one.folder.replace("-", " ").capitalize())}</a>' for one, _ in told
    )
    rows = []
    for name, (about, command) in PAGES.items():
        if linked := links_of(folder, name):
            said = "" if name != "theory" or not (closed := in_theory(folder / name)) else f" {closed}"
            made = f", made by {code(command)}" if command else ""
            rows.append(f"<li><strong>{name}</strong>: {html.escape(about)} ({linked}){made}.{said}</li>")
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    chapters = "\n".join(text for _, text in told)
    return HTML.substitute(style=style, links=links, chapters=chapters, pages="\n".join(rows))


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "results/published")
    try:
        replace_file(target / "index.html", start_page(target))
    except ValueError as problem:
        sys.exit(f"error: {problem}")
    print(target / "index.html")
