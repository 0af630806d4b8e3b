"""Makes results/published/index.html: the pages that are there as a story, each claim computed from its page's samples.

`python scripts/published/start_page.py [FOLDER]`

A page's report.html, which render.sh makes from its records, holds what every run did on every sample. Claims are
paired comparisons of these, with the intervals of `analyze compare`, and the page's own speeds at equal quality. A
chapter whose page is missing, or whose page holds no run that a claim needs, is left out.
"""

import base64
import csv
import html
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
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
MOST_LOST = 5  # points, of a run that one would use
Row = dict[str, Any]
Claims = Iterator[str]


@dataclass(frozen=True)
class Report:
    """What a page holds."""

    data: dict[str, Any]

    @cached_property
    def runs(self) -> list[Row]:
        return self.data["runs"]

    def baseline(self, run: Row) -> Row | None:
        """The run of the same model, cache and samples with one token per forward."""
        same = [r for r in self.runs if all(r[key] == run[key] for key in ("model", "cache", "set"))]
        return next((r for r in same if r["decoder"] == "ar" or (r["decoder"] == "fixed" and r["label"] == "1")), None)

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


# ---- Claims: sentences with numbers


def against(row: Comparison, other: str) -> str:
    """What b changes against a, which is called other."""
    return (
        f"{row.difference.text('+.1f')} points over {row.n} samples, in {row.nfe_ratio.text('.0f', 100)} % of "
        f"the forwards of {other}"
    )


def on_model(run: Row) -> str:
    """A run next to those of other models: "ar on tiny-ar"."""
    name = " ".join(word for word in run["name"].split(" ") if not word.startswith("model="))
    return f"{name} on {run.get('model_title', run['model'])}"


def of_numbers(numbers: Sequence[float]) -> Value:
    value, low, high = numbers
    return Value(value, low, high, 0)


def one_token(report: Report) -> Claims:
    """What the model can do at its slowest."""
    for run in report.runs:
        if report.baseline(run) is run:
            row = run["tasks"][ALL]
            score = of_numbers(row["score"]).text(".1f", 100)
            yield f"{on_model(run)}: {score} % of {row['n']} answers are right"


def phenomenon(report: Report) -> Claims:
    """Several tokens at once: on the whole, and on the tasks that lose most and least."""
    fixed = [r for r in report.runs if r["decoder"] == "fixed"]
    first = next((r for r in fixed if r["label"] == "1"), None)
    if first is None:
        return
    many = [r for r in fixed if r is not first and r["set"] == first["set"]]
    for run in many:
        yield f"{run['name']}: {against(report.compare(first, run)[ALL], first['name'])}"
    if many:
        last = max(many, key=lambda r: r["tasks"][ALL]["tpf"][0])
        by_task = {task: row for task, row in report.compare(first, last).items() if task != ALL}
        worst = min(by_task, key=lambda task: by_task[task].difference.value)
        best = max(by_task, key=lambda task: by_task[task].difference.value)
        for word, task in (("most", worst), ("least", best)):
            yield f"{last['name']} loses {word} on {task}: {by_task[task].difference.text('+.1f')} points"


def at_equal_quality(report: Report) -> Claims:
    """The fastest decoder at equal quality, and how many are reliably faster than the reference."""
    equal = report.data["equal"]
    if equal is None or equal["use"] is None:
        return
    yield equal["answer"]
    middle = LEVELS.index(MIDDLE)
    methods = [row for row in equal["rows"] if not row["is_ceiling"]]
    leads = [row["cells"][middle][2] for row in methods]
    surely = sum(lead is not None and lead[1] > 0 for lead in leads)
    yield f"{surely} of {len(methods)} decoders are faster than the reference by an interval above zero"
    for row in equal["rows"]:
        if row["is_ceiling"] and row["cells"][middle][0]:
            yield f"The ceiling {row['curve']}: {of_numbers(row['cells'][middle][0]).text('.2f')} tokens per forward"
    use = report.runs[equal["use"]]
    baseline = report.baseline(use)
    if baseline is not None and baseline is not use:
        yield f"{use['name']}: {against(report.compare(baseline, use)[ALL], baseline['name'])}"


def with_caches(report: Report) -> Claims:
    """Each cache next to none, with the fastest decoder that was run without one. Caches of the same numbers are one
    claim."""
    plain = [run for run in report.runs if run["cache"] == "none"]
    if not plain:
        return
    first = max(plain, key=lambda run: run["tasks"][ALL]["tpf"][0])
    same = ("decoder", "label", "model", "set")
    found: dict[str, list[str]] = {}
    for run in report.runs:
        if run["cache"] != "none" and all(run[key] == first[key] for key in same):
            queried = [of_numbers(one["tasks"][ALL]["queried"]).text(".0f") for one in (run, first)]
            told = against(report.compare(first, run)[ALL], "no cache")
            said = f"{told}; {queried[0]} columns recomputed, without a cache {queried[1]}"
            found.setdefault(said, []).append(run["cache"])
    for said, caches in found.items():
        yield f"{first['decoder']} with cache={', '.join(caches)}: {said}"


def beside_one_token(report: Report) -> Claims:
    """Runs next to one token per forward of the same model, but for those that another beats in points and forwards,
    and those that surely lose more than MOST_LOST points."""
    methods = [(run, report.baseline(run)) for run in report.runs if not run["is_ceiling"]]
    rows = [(run, one, report.compare(one, run)[ALL]) for run, one in methods if one not in (None, run)]
    for run, baseline, row in rows:
        if row.difference.ci_high < -MOST_LOST:
            continue
        points = (row.difference.value, -row.nfe_ratio.value)
        others = [(o.difference.value, -o.nfe_ratio.value) for _, other, o in rows if other is baseline]
        if any(other != points and other[0] >= points[0] and other[1] >= points[1] for other in others):
            continue
        alike = (
            "the score of every answer is the same"
            if row.better + row.worse == 0
            else f"of the answers {row.worse} got worse and {row.better} better"
        )
        yield f"{on_model(run)}: {against(row, on_model(baseline))}; {alike}"


def in_theory(folder: Path) -> Claims:
    """Closed forms compared with ideal models."""
    with open(folder / "theory.csv", newline="", encoding="utf-8") as file:
        rows = [{key: row[key] for key in row} for row in csv.DictReader(file)]
    inside = [float(r["ci_low"]) <= float(r["accuracy_closed"]) <= float(r["ci_high"]) for r in rows]
    yield f"{sum(inside)} of {len(rows)} closed forms lie in the 95 % interval of what ideal models did"
    shuffles = [r for r in rows if r["task"] == "shuffle" and int(r["k"]) > 1]
    if shuffles:
        row = max(shuffles, key=lambda r: (int(r["n"]), -int(r["k"])))
        did = of_numbers([float(row[key]) for key in ("accuracy_ideal", "ci_low", "ci_high")])
        yield (
            f"A perfect model that shuffles {row['n']} items {row['k']} at a time is right in "
            f"{100 * float(row['accuracy_closed']):.1f} % by the closed form, in {did.text('.1f', 100)} % of decodes"
        )


# ---- The story


@dataclass(frozen=True)
class Chapter:
    """A page, what it is about without a number, what makes it, and its claims."""

    folder: str
    title: str
    about: str
    command: str
    claims: Callable[[Report], Claims] | None
    picture: str = "quality_tpf.png"


STORY = (
    Chapter(
        "tiny", "The model", "A small diffusion model, right nearly always when it writes one token per forward.",
        "bash scripts/published/evaluate_tiny.sh", one_token, "tasks.png",
    ),
    Chapter(
        "first-look", "The phenomenon",
        "Tokens that are written together do not know of each other. Where they depend on each other, answers break.",
        "bash scripts/published/first_look.sh", phenomenon,
    ),
    Chapter(
        "decoders", "Decoders", "Which tokens may be written together? Every decoder over its knob, at equal quality.",
        "bash scripts/published/sweep_decoders.sh", at_equal_quality,
    ),
    Chapter(
        "caches", "Caches", "Keys and values that are kept save columns, and are those of an earlier canvas.",
        "bash scripts/published/sweep_caches.sh", with_caches, "quality_columns.png",
    ),
    Chapter(
        "learned", "Learned", "Distillation and trained decoders move the trade-off itself.",
        "bash scripts/published/learned.sh", at_equal_quality,
    ),
    Chapter(
        "autoregressive", "Next to an autoregressive model", "The same size and data, one token after the other.",
        "bash scripts/published/compare_ar.sh", at_equal_quality,
    ),
    Chapter(
        "verified", "Verified",
        "Drafts that are checked before they count give the text of one token per forward; others are next to them.",
        "bash scripts/published/verified.sh", beside_one_token,
    ),
    Chapter(
        "english/close", "English", "The same with a model of real text, SmolLM2-135M.",
        "bash scripts/published/english.sh", beside_one_token,
    ),
    Chapter(
        "recurrent", "Depth-recurrent models", "Diffusion forcing, from one column at a time to a wide front.",
        "bash scripts/published/recurrent_curve.sh", at_equal_quality,
    ),
    Chapter(
        "theory", "Theory", "What no decoder can avoid: closed forms compared with ideal models.",
        "python -m parallelbench analyze theory out_dir=results/published/theory", None, "fig2a.png",
    ),
)  # fmt: skip

HTML = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Parallel decoding, from the phenomenon to the theory</title>
<style>
$style
img { max-width: 100%; background: #fff; border: 1px solid var(--line); border-radius: .3rem; }
li { max-width: 60rem; margin: .3rem 0; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--soft); padding: .5rem .8rem; border-radius: .3rem; }
</style>
</head>
<body>
<header><nav aria-label="Chapters">$links</nav></header>
<main>
<section>
<h1>Parallel decoding, from the phenomenon to the theory</h1>
<p>Each number below is computed from the samples of its page. Brackets are 95 % intervals over these samples.
Speed is counted in forward passes: most pages were decoded on a busy machine, so their seconds are left out.
<code>bash scripts/published/render.sh</code> makes a page of each report, with every sample, from the records that are
published with it: <code>report.html</code> next to <code>report.md</code>.</p>
</section>
$chapters
</main>
</body>
</html>
""")


def chapter(one: Chapter, folder: Path) -> str | None:
    """Its section, None where there is nothing to tell."""
    page = folder / one.folder / ("report.md" if one.claims is None else "report.html")
    if not page.exists():
        return None
    try:
        claims = list(in_theory(page.parent) if one.claims is None else one.claims(read_report(page)))
    except ValueError as error:
        print(f"left out: {error}", file=sys.stderr)
        return None
    if not claims:
        return None
    picture = folder / one.folder / one.picture
    source = f"{one.folder}/{one.picture}"
    shown = f'<p><img src="{source}" alt="{html.escape(one.title)}: {one.picture}"></p>' if picture.exists() else ""
    told = "\n".join(f"<li>{html.escape(claim.rstrip('.'))}.</li>" for claim in claims)
    return (
        f'<section id="{one.folder}">\n<h2>{html.escape(one.title)}</h2>\n<p>{html.escape(one.about)}</p>\n'
        f"<ul>\n{told}\n</ul>\n{shown}\n"
        f'<p><a href="{one.folder}/report.md">The report</a>, made by</p>\n'
        f'<pre tabindex="0">{html.escape(one.command)}</pre>\n</section>'
    )


def start_page(folder: Path) -> str:
    """The chapters that can be told. Raises ValueError where there is none."""
    told = [(one, text) for one in STORY if (text := chapter(one, folder)) is not None]
    if not told:
        raise ValueError(f"{folder} holds no published page; make one with a script of scripts/published")
    links = "\n".join(f'<a href="#{one.folder}">{html.escape(one.title)}</a>' for one, _ in told)
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    return HTML.substitute(style=style, links=links, chapters="\n".join(text for _, text in told))


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "results/published")
    try:
        replace_file(target / "index.html", start_page(target))
    except ValueError as problem:
        sys.exit(f"error: {problem}")
    print(target / "index.html")
