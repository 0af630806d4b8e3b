"""The start page of the published results: only what is there, and each number from the samples of its page."""

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
from parallelbench.stats.metrics import ALL, aggregate
from parallelbench.stats.paired import pair
from parallelbench.stats.speed_at_quality import equal_quality

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
    page = SCRIPT["start_page"](tmp_path)
    row = compare(pair([runs[0], runs[1]]))[ALL]
    assert f"<li>fixed tau=4: {row.difference.text('+.1f')} points over {row.n} samples" in page
    assert f"in {row.nfe_ratio.text('.0f', 100)} % of the forwards of fixed tau=1" in page
    worst = min(TASKS[:2], key=lambda task: compare(pair([runs[0], runs[1]]))[task].difference.value)
    assert f"fixed tau=4 loses most on {worst}" in page
    equal = equal_quality(runs, curve_names(run_names(runs), runs))
    assert equal is not None and equal.winner == "threshold"
    assert "threshold writes the most tokens per forward" in page
    assert page.index('id="first-look"') < page.index('id="decoders"') and 'id="caches"' not in page
    assert "<img" not in page and "bash scripts/published/first_look.sh" in page


def test_what_is_said_twice_or_beaten_is_left_out(tmp_path: Path) -> None:
    def run(name: str, knob: float, cache: str, nfe: int) -> Run:
        made = make_run(name, knob, cache, TASKS[:2], 15, seed=1)
        return replace(made, records=[replace(record, nfe=nfe, num_tokens=20) for record in made.records])

    slow, fast = run("fixed", 1, "none", 20), run("threshold", 0.7, "none", 4)
    broken = run("klass", 0.5, "none", 3)
    broken = replace(broken, records=[replace(r, scores=dict.fromkeys(r.scores, 0.0)) for r in broken.records])
    publish([slow, fast, run("eb", 0.1, "none", 6), broken], tmp_path / "verified")
    caches = [
        run(name, knob, cache, 5) for cache in ("dual", "prefix") for name, knob in (("fixed", 1), ("threshold", 0.7))
    ]
    publish([slow, fast, *caches], tmp_path / "caches")
    page = SCRIPT["start_page"](tmp_path)
    assert "threshold tau=0.7 on tiny: " in page and "eb tau=0.1 on tiny: " not in page
    assert "klass" not in page
    assert page.count("<li>threshold with cache=dual, prefix: ") == 1 and "fixed with cache" not in page


def test_what_cannot_be_told_is_left_out(runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(ValueError, match="holds no published page"):
        SCRIPT["start_page"](tmp_path)
    publish(runs, tmp_path / "verified")
    publish(runs[2:], tmp_path / "first-look")  # without one token per forward
    (tmp_path / "learned").mkdir()
    (tmp_path / "learned" / "report.html").write_text("<p>of another version</p>")
    page = SCRIPT["start_page"](tmp_path)
    assert "threshold tau=0.7 on tiny: " in page and "the forwards of fixed tau=1 on tiny; " in page
    assert SCRIPT["on_model"]({"name": "ar model=tiny_ar n=1", "model": "tiny-ar"}) == "ar n=1 on tiny-ar"
    assert 'id="verified"' in page and 'id="first-look"' not in page and 'id="learned"' not in page
    assert "learned/report.html is no page of this version" in capsys.readouterr().err


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
    told = [
        chapter.command
        for chapter in SCRIPT["STORY"]
        if (ROOT / chapter.command.split()[1]).exists() or "-m" in chapter.command
    ]
    assert sorted(made) == sorted(told)
