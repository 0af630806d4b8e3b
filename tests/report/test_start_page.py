"""The start page of the published results: only what is there, and each number from the samples of its page."""

import dataclasses
import json
import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace
from test_page import TASKS, make_run

from parallelbench.records.record import Run
from parallelbench.report.compare import compare
from parallelbench.report.page import page_data
from parallelbench.stats.curves import curve_names, run_names
from parallelbench.stats.intervals import Value
from parallelbench.stats.metrics import ALL, aggregate
from parallelbench.stats.paired import pair
from parallelbench.stats.speed_at_quality import MIDDLE, equal_quality

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "published" / "start_page.py"))


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """One run has scores of its own, so that speed at equal quality is the forwards that are set here."""
    made = []
    for i, (name, knob, nfe) in enumerate(
        (("fixed", 1, 20), ("fixed", 4, 5), ("threshold", 0.7, 4), ("threshold", 0.9, 6))
    ):
        run = make_run(name, knob, "none", TASKS[:2], 15, seed=2 if i == 1 else 1)
        made.append(replace(run, records=[replace(r, nfe=nfe + (r.nfe > 6), num_tokens=20) for r in run.records]))
    return made


def publish(runs: list[Run], folder: Path) -> None:
    names = run_names(runs)
    metrics = {name: aggregate(run.records) for name, run in zip(names, runs, strict=True)}
    data = page_data(runs, metrics, str, equal_quality(runs, curve_names(names, runs)))
    folder.mkdir(parents=True)
    text = json.dumps(data).replace("<", "\\u003c")
    (folder / "report.html").write_text(f'<script type="application/json" id="data">{text}</script>')


def test_claims_are_those_of_the_samples(runs: list[Run], tmp_path: Path) -> None:
    publish(runs, tmp_path / "first-look")
    publish(runs, tmp_path / "decoders")
    (tmp_path / "first-look" / "report.md").write_text("# Runs")
    (tmp_path / "first-look" / "watch.html").write_text("<p>")
    page = SCRIPT["start_page"](tmp_path)
    rows = compare(pair([runs[0], runs[1]]))
    assert (
        f"Keeping four tokens at a time {SCRIPT['change'](rows[ALL])} and needs {SCRIPT['passes'](rows[ALL])} of"
        in page
    )
    worst = min(TASKS[:2], key=lambda task: rows[task].difference.value)
    assert f"On the task “{worst.split('/')[-1]}” it {SCRIPT['change'](rows[worst])}" in page
    equal = equal_quality(runs, curve_names(run_names(runs), runs))
    assert equal is not None and equal.winner == "threshold"
    speed = equal.rows["threshold"][MIDDLE].tpf
    assert speed is not None and f"<code>threshold</code> writes {speed.text('.2f')} tokens per forward pass" in page
    assert page.index('id="first-look"') < page.index('id="decoders"') and 'id="caches"' not in page
    assert '<a href="first-look/watch.html">watch it</a>' in page and "bash scripts/published/first_look.sh" in page
    assert page.count("<svg") == page.count("<h2>") - 1  # each claim has its chart; the list of pages has none
    assert "<img" not in page and "prefers-color-scheme: dark" in page


def test_a_change_is_a_loss_only_where_zero_is_ruled_out() -> None:
    row = compare(
        pair([make_run("a", 1, "none", TASKS[:1], 40, seed=1), make_run("b", 1, "none", TASKS[:1], 40, seed=1)])
    )[ALL]
    assert SCRIPT["change"](row).startswith("changes the score by +0.0 points [-")
    for low, high, said in ((-3.0, -1.0, "loses 2.0 points [1.0, 3.0]"), (1.0, 3.0, "gains 2.0 points [1.0, 3.0]")):
        shifted = dataclasses.replace(row, difference=Value((low + high) / 2, low, high, 40))
        assert SCRIPT["change"](shifted) == said


def test_a_verified_run_is_told_only_if_every_score_is_the_same(tmp_path: Path) -> None:
    def run(name: str, nfe: int, seed: int = 1, **facts: str) -> Run:
        made = make_run(name, 1, "none", TASKS[:2], 15, seed=seed)
        records = [replace(record, nfe=nfe, num_tokens=20) for record in made.records]
        return replace(made, records=records, info=made.info | facts)

    plain = run("ar", 20)
    publish([plain, run("self_spec", 5, seed=2, text_of="ar")], tmp_path / "verified")
    with pytest.raises(ValueError, match="holds no published page"):
        SCRIPT["start_page"](tmp_path)
    shutil.rmtree(tmp_path / "verified")
    publish([plain, run("self_spec", 5, text_of="ar"), run("freedave", 8, text_of="ar")], tmp_path / "verified")
    page = SCRIPT["start_page"](tmp_path)
    assert "<code>self_spec tau=1</code> writes exactly the text of one token at a time with 25 % of" in page


def test_a_cache_is_told_with_what_it_saves(tmp_path: Path) -> None:
    runs = [make_run("threshold", 0.7, cache, TASKS[:2], 15, seed=1) for cache in ("none", "dual", "prefix")]
    columns = {"none": 400, "dual": 100, "prefix": 300}
    for run in runs:
        run.records[:] = [
            replace(r, nfe=4, num_tokens=20, queried=columns[run.info["choices"]["cache"]]) for r in run.records
        ]
    publish(runs, tmp_path / "caches")
    page = SCRIPT["start_page"](tmp_path)
    assert "<code>dual</code> is the most faithful: it computes 25 % of the columns" in page
    assert "costs 400 columns without a cache and 100 with it" in page


def test_what_cannot_be_told_is_left_out(runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(ValueError, match="holds no published page"):
        SCRIPT["start_page"](tmp_path)
    publish(runs, tmp_path / "decoders")
    publish(runs[2:], tmp_path / "first-look")  # without one token per forward
    (tmp_path / "learned").mkdir()
    (tmp_path / "learned" / "report.html").write_text("<p>of another version</p>")
    page = SCRIPT["start_page"](tmp_path)
    assert 'id="decoders"' in page and 'id="first-look"' not in page and 'id="learned"' not in page
    assert "learned/report.html is not a page of this version" in capsys.readouterr().err


def test_all_pages_are_made_by_the_commands_of_the_story(tmp_path: Path) -> None:
    log, bash = tmp_path / "log", shutil.which("bash")
    assert bash is not None
    for name in ("bash", "python"):
        (tmp_path / name).write_text(f'#!{bash}\necho {name} "$@" >> {log}\n')
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run([bash, "scripts/published/all.sh"], cwd=ROOT, env=os.environ | {"PATH": path}, check=True)
    *made, last = log.read_text().splitlines()
    assert last == "python scripts/published/start_page.py"
    commands = [
        *(chapter.command for chapter in SCRIPT["STORY"]),
        *(command for _, command in SCRIPT["PAGES"].values()),
    ]
    told = [command for command in commands if command and "bench/" not in command]
    assert {chapter.folder for chapter in SCRIPT["STORY"]} <= set(SCRIPT["PAGES"]) and next(
        iter(SCRIPT["PAGES"])
    ) == "english"
    assert sorted(made) == sorted(told)
