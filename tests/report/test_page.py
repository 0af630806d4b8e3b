"""The page of a report: what it is made from, what it says, and that it holds in a browser."""

import csv
import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import SMALL
from msgspec.structs import asdict, replace
from playwright.sync_api import Browser, Page, expect, sync_playwright

from parallelbench.records.record import Record, Run, readable_runs
from parallelbench.records.trace import Step, Trace, replay
from parallelbench.report import page as page_module
from parallelbench.report.compare import compare
from parallelbench.report.page import page_data, write_page
from parallelbench.report.publish import NUMBERS
from parallelbench.report.report import write_report
from parallelbench.run.measure import watch_memory
from parallelbench.stats.curves import curve_names, run_names
from parallelbench.stats.intervals import bounded, product, quantiles
from parallelbench.stats.metrics import ALL, METRICS, aggregate
from parallelbench.stats.paired import observed, pair
from parallelbench.stats.speed_at_quality import MIDDLE, equal_quality
from parallelbench.stats.sweeps import pareto, sign_flip_p
from parallelbench.stats.table import run_table

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-sync"
HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<!-- <script> --> ]]> &lt;b&gt; \" ' ` \\ ${window.hacked = 1}",
    "line\u2028paragraph\u2029end\ud800 javascript:window.hacked=1",
)


def make_run(name: str, knob: object, cache: str, tasks: list[str], num: int, *, seed: int, model: str = "tiny") -> Run:
    """A finished run with made-up numbers: the harder a task, the fewer answers are right, some by half."""
    rng = np.random.default_rng(seed)
    records = []
    for place, task in enumerate(tasks):
        for i in range(num):
            score = float(rng.random() < 0.9 - 0.5 * place / len(tasks))
            score = rng.choice([0.0, 0.3, 0.7, 1.0]) if task == "text/graded" else score
            nfe = int(rng.integers(1, 12))
            committed = rng.integers(0, nfe, 32).tolist()
            text = HOSTILE[i % len(HOSTILE)] if i < 8 else f"answer {i} " * 5
            scores = {"score": float(score), "score_strict": float(score == 1)}
            numbers = {"num_tokens": int(rng.integers(4, 30)), "nfe": nfe, "queried": 40 * nfe}
            latency_s = float(rng.uniform(0.1, 0.2))
            timing = {"latency_s": latency_s, "share_s": latency_s / 8, "batch_size": 8, "batch": f"{task}/{i // 8}"}
            asked = {"prompt": f"{text}?", "prompt_sha": str(i), "data": {}, "target": text}
            records.append(
                Record(
                    id=f"{task}/{i:03}",
                    task=task,
                    task_version="1",
                    completion=f"{text} of {name}",
                    token_ids=[],
                    scores=scores,
                    committed_at=committed,
                    stopped_by="eos",
                    **asked,
                    **numbers,
                    **timing,
                )
            )
    choices = {"model": "tiny", "decoder": name, "cache": cache, "stop": "strict_eos", "suite": "default"}
    info = {"schema": 1, "status": "done", "config_hash": "0", "choices": choices, "model": model, "device": "cpu"}
    info |= {"knobs": {"decoder.rule.tau": knob}}
    config = {
        "decoder": {"_target_": "decoders.Decoder", "rule": {"_target_": "decoders.Threshold", "tau": knob}},
        "suite": {"_target_": "parallelbench.Suite"},
        "batch_size": 8,
    }
    return Run(Path(f"runs/{name}-{cache}-{knob}"), config, info, records)


def page_of(runs: list[Run], folder: Path) -> Path:
    once = {id(run.records): run.records for run in runs}  # many runs may share theirs
    aggregated = {key: aggregate(records) for key, records in once.items()}
    metrics = {name: aggregated[id(run.records)] for name, run in zip(run_names(runs), runs, strict=True)}
    equal = equal_quality(runs, curve_names(run_names(runs), runs))
    write_page(runs, metrics, folder, lambda run: f"python -m parallelbench run # {run.folder}", equal)
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    expect.set_options(timeout=90_000)
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield chromium
        chromium.close()


TASKS = ["easy/plain", "hard/plain", "text/graded"]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Run], Path]:
    """Two decoders with three knobs each of a model with a hostile name, one with a cache, one over other samples."""
    named = {"model": HOSTILE[0]}
    grid = [(name, knob) for name in ("credit", "threshold") for knob in (0.5, 0.7, HOSTILE[1])]
    runs = [make_run(*cell, "none", TASKS, 20, seed=i, **named) for i, cell in enumerate(grid)]
    runs += [make_run("credit", 0.5, "dual", TASKS, 20, seed=7), make_run("credit", 0.6, "dual", TASKS, 10, seed=8)]
    return runs, page_of(runs, tmp_path_factory.mktemp("few"))


@pytest.fixture
def opened(browser: Browser, few: tuple[list[Run], Path]) -> Iterator[tuple[Page, list[Run], list[str]]]:
    """The page of the few runs, the runs, and all that it asked for or complained about."""
    runs, path = few
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(90_000)
    noise: list[str] = []
    page.on("request", lambda request: noise.append(request.url))
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("#compare-table tbody tr")
    page.wait_for_selector("#chart-seconds svg")
    assert noise == [path.as_uri()]
    yield page, runs, noise
    page.close()


def cells(page: Page, table: str) -> list[list[str]]:
    """The text of a table's body."""
    return [row.locator("th, td").all_inner_texts() for row in page.locator(f"#{table} tbody tr").all()]


@pytest.mark.slow
def test_the_page_of_a_hundred_runs_opens_at_once_and_passes_axe(browser: Browser, tmp_path: Path) -> None:
    tasks = [f"suite/task_{i}" for i in range(12)]
    made = [make_run(f"decoder{i}", 0, "none", tasks, 50, seed=i) for i in range(5)]
    named = [make_run(f"decoder{i % 5}", i // 5, "none", [], 0, seed=0) for i in range(100)]
    runs = [replace(run, records=made[i % 5].records) for i, run in enumerate(named)]
    path = page_of(runs, tmp_path)
    assert path.stat().st_size < 10e6
    seconds = []
    while not seconds or (min(seconds) >= 2 and len(seconds) < 5):  # the machine may be busy with other tests
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.perf_counter()
        page.goto(path.as_uri())
        page.wait_for_selector("#compare-table tbody tr")
        page.wait_for_selector("#chart-seconds svg")
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 2
    led = page.locator("#runs-table tbody tr").count()
    assert 5 <= led < 30  # the front and the best of each decoder
    page.click("#runs-table-more")
    assert page.locator("#runs-table tbody tr").count() == 100
    page.click("#runs-table-more")
    assert page.locator("#runs-table tbody tr").count() == led
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(500)  # the charts are drawn anew
        check_with_axe(page)


def check_with_axe(page: Page) -> None:
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]})
    assert not found.response["violations"], found.generate_report()
    assert {"color-contrast", "label", "select-name"} <= {rule["id"] for rule in found.response["passes"]}


def test_a_narrow_page_hides_nothing(opened: tuple[Page, list[Run], list[str]]) -> None:
    page, _, _ = opened
    page.set_viewport_size({"width": 380, "height": 800})
    tables = page.locator(".fold table")
    assert tables.count() == 5 and not any(table.is_visible() for table in tables.all())
    page.get_by_text("All runs", exact=True).click()
    for link in ("Tasks", "Sweeps", "Compare"):
        page.get_by_role("link", name=link).click()
    for table in ("runs-table", "task-table", "sweep-table", "compare-table"):
        expect(page.locator(f"#{table}")).to_be_visible()
    page.get_by_label("threshold", exact=True).check()
    page.click("#differing summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    hidden = (
        "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).map(box => box.id)"
    )
    assert page.evaluate(hidden) == []
    heads = (
        page.locator("#runs-table tbody tr").first.locator("td").evaluate_all("all => all.map(td => td.dataset.head)")
    )
    assert heads == page.locator("#runs-table thead th").all_text_contents()[1:]
    page.emulate_media(color_scheme="dark")
    check_with_axe(page)
    page.get_by_text("All runs", exact=True).click()
    expect(page.locator("#runs-table")).not_to_be_visible()
    page.set_viewport_size({"width": 1280, "height": 800})  # where nothing says that it is folded, nothing is
    expect(page.locator("#runs-table")).to_be_visible()
    expect(page.get_by_text("All runs", exact=True)).not_to_be_visible()


def test_nothing_in_the_data_runs_and_all_of_it_is_text(opened: tuple[Page, list[Run], list[str]]) -> None:
    page, _, noise = opened
    assert page.inner_text("#title").startswith(f"{HOSTILE[0]} and tiny: 8 runs")
    page.click("#differing summary")
    shown = page.locator("#differing-list dd").all_text_contents()
    for text in HOSTILE[:3]:
        assert f"{text}?" in shown and text in shown and f"{text} of credit" in shown
    assert any("line\u2028paragraph\u2029end" in text for text in shown)
    page.locator("#chart-tpf svg [aria-roledescription=point]").first.hover()
    assert page.evaluate("typeof window.hacked") == "undefined" and len(noise) == 1
    page.evaluate(  # what the policy is for: not even a script of the page's own making runs, nothing is fetched
        """() => { document.addEventListener('securitypolicyviolation', (event) => {
            document.body.className += event.effectiveDirective + ' '; });
        const script = document.createElement('script'); script.textContent = 'window.hacked = 1';
        document.body.append(script); document.body.setAttribute('onclick', 'window.hacked = 1'); document.body.click();
        new Image().src = 'http://127.0.0.1:9/leak'; fetch('http://127.0.0.1:9/').catch(() => {}); }"""
    )
    for refused in ("script-src-elem", "script-src-attr", "img-src", "connect-src"):
        expect(page.locator("body")).to_contain_class(refused)
    assert page.evaluate("typeof window.hacked") == "undefined"


def test_filters_act_on_chart_and_tables(opened: tuple[Page, list[Run], list[str]]) -> None:
    page, runs, _ = opened
    names = run_names(runs)
    points = page.locator("#chart-tpf svg [aria-roledescription=point]")
    assert points.count() == len(cells(page, "runs-table")) == len(cells(page, "task-table")) == 8
    page.get_by_label("threshold", exact=True).check()
    expect(points).to_have_count(3)
    assert [row[0] for row in cells(page, "runs-table")] == [name for name in names if name.startswith("threshold")]
    assert [row[0] for row in cells(page, "task-table")] == [name for name in names if name.startswith("threshold")]
    assert all(row[0].startswith("threshold") for row in cells(page, "sweep-table"))
    assert "3 of 8 runs" in page.inner_text("#shown")
    page.get_by_label("dual", exact=True).check()
    assert "No run fits" in page.inner_text("#cards") and not cells(page, "runs-table")
    page.get_by_role("button", name="Show all runs").click()
    expect(page.locator("#runs-table tbody tr")).to_have_count(8)
    page.get_by_label("tiny", exact=True).check()
    assert len(cells(page, "runs-table")) == 2
    page.get_by_label("tiny", exact=True).uncheck()
    page.select_option("#task", "text/graded")
    for row, run in zip(cells(page, "runs-table"), runs, strict=True):
        metrics = aggregate(run.records)["text/graded"]
        assert row[2] == str(metrics["score"].n)
        shown = [float(number) for number in row[6].replace("[", "").replace("]", "").replace(",", "").split()]
        assert shown == pytest.approx(
            [getattr(metrics["tpf"], key) for key in ("value", "ci_low", "ci_high")], abs=0.0051
        )


def test_tables_sort_by_keyboard_and_commands_are_shown(opened: tuple[Page, list[Run], list[str]]) -> None:
    page, runs, _ = opened
    head = page.locator("#runs-table th button", has_text="TPF")
    for direction, ascending in (("descending", False), ("ascending", True)):
        head.focus()
        page.keyboard.press("Enter")
        values = [float(row[6].split()[0]) for row in cells(page, "runs-table")]
        assert values == sorted(values, reverse=not ascending) and len(set(values)) > 3
        assert page.locator(f"#runs-table th[aria-sort={direction}]").inner_text() == "TPF"
    best = max(runs[:7], key=lambda run: aggregate(run.records)[ALL]["score"].value)  # the last has other samples
    page.locator("#cards").get_by_role("button", name="Copy the command").first.click()
    assert page.inner_text("#copied code") == f"python -m parallelbench run # {best.folder}"


@pytest.mark.parametrize(("a", "b"), [(0, 1), (5, 2), (3, 6)])
def test_the_paired_comparison_says_what_analyze_compare_says(
    opened: tuple[Page, list[Run], list[str]], a: int, b: int
) -> None:
    page, runs, _ = opened
    page.select_option("#run-a", str(a))
    page.select_option("#run-b", str(b))
    wanted = compare(pair([runs[a], runs[b]]))
    difference = wanted[ALL].difference
    text = f"{difference.value:+.1f} points [{difference.ci_low:+.1f}, {difference.ci_high:+.1f}] over 60 samples"
    expect(page.locator("#verdict")).to_contain_text(text)
    rows = {row[0]: row[1:] for row in cells(page, "compare-table")}
    assert list(rows) == [*sorted(TASKS), ALL]
    for task, row in wanted.items():
        shown = [row.text(value, show) for value, show in of_intervals(row)]
        drawn = task in ("text/graded", ALL)  # random flips, where differences are not all of one size
        n, score_a, score_b, difference, p, better, worse, *ratios = rows[task]
        assert [n, better, worse] == [str(row.n), str(row.better), str(row.worse)]
        assert [score_a, score_b] == [f"{row.score_a:.1f}", f"{row.score_b:.1f}"]
        assert [difference, *ratios] == shown
        assert p.endswith("*") == (row.is_undecided and not drawn) or drawn
        assert float(p.rstrip("*")) == pytest.approx(row.p, abs=0.03 if drawn else 0, rel=0 if drawn else 0.05)


def of_intervals(row) -> list[tuple]:
    return [(row.difference, "+.1f"), (row.nfe_ratio, ".3f"), (row.tpf_ratio, ".3f")]


def test_runs_over_other_samples_are_not_paired(opened: tuple[Page, list[Run], list[str]]) -> None:
    page, _, _ = opened
    page.select_option("#run-a", "0")
    page.select_option("#run-b", "7")
    expect(page.locator("#verdict")).to_contain_text("other samples")
    assert not cells(page, "compare-table")


def saved(page: Page, button: str) -> str:
    with page.expect_download() as download:
        page.click(button)
    return download.value.path().read_text()


def test_tables_and_charts_are_saved_as_shown(opened: tuple[Page, list[Run], list[str]]) -> None:
    page, runs, _ = opened
    page.get_by_label("credit", exact=True).check()
    rows = list(csv.DictReader(saved(page, "[data-csv=runs-table]").splitlines()))
    assert [row["run"] for row in rows] == [row[0] for row in cells(page, "runs-table")]
    by_name = dict(zip(run_names(runs), runs, strict=True))
    for row in rows:
        tpf = aggregate(by_name[row["run"]].records)[ALL]["tpf"]
        assert [float(row[f"TPF{part}"]) for part in ("", " low", " high")] == pytest.approx(
            [tpf.value, tpf.ci_low, tpf.ci_high], rel=1e-5
        )
        assert row["command"].endswith(str(by_name[row["run"]].folder))
    assert saved(page, "[data-svg=chart-tpf]").startswith("<svg")


def test_a_url_keeps_what_was_chosen(opened: tuple[Page, list[Run], list[str]], browser: Browser) -> None:
    page, _, _ = opened
    page.get_by_label("threshold", exact=True).check()
    page.select_option("#task", "hard/plain")
    page.select_option("#run-b", "1")
    page.select_option("#sample-run", "3")
    page.check("#wrong-only")
    page.click("#sample-next")
    page.wait_for_function("location.hash.includes('sample=')")
    page.wait_for_timeout(100)

    def seen(page: Page) -> list[object]:
        ids = ("task", "run-a", "run-b", "sample-run")
        return [*(page.input_value(f"#{id}") for id in ids), page.inner_text("#sample-view"), cells(page, "runs-table")]

    again = browser.new_page()
    again.goto(page.url)
    again.wait_for_selector("#sample-view dd")
    expect(again.locator("#sample-view strong")).to_have_text(page.inner_text("#sample-view strong"))
    assert seen(again) == seen(page) and len(cells(again, "runs-table")) == 3
    again.close()


def test_any_sample_is_shown_with_its_scores(opened: tuple[Page, list[Run], list[str]]) -> None:
    page, runs, _ = opened
    page.select_option("#sample-run", "2")
    page.select_option("#task", "text/graded")
    of_task = [record for record in runs[2].records if record.task == "text/graded"]
    expect(page.locator("#sample-id option")).to_have_count(len(of_task))
    page.check("#wrong-only")
    wrong = [record for record in of_task if record.scores["score"] < 1]
    expect(page.locator("#sample-id option")).to_have_count(len(wrong))
    for place, record in enumerate(wrong[:3]):
        expect(page.locator("#sample-view strong")).to_have_text(record.id)
        prompt, target, answer, scores, cost = page.locator("#sample-view dd").all_text_contents()
        assert (prompt, target, answer) == (record.prompt, record.target, record.completion.replace("\ud800", "\ufffd"))
        assert f"score {100 * record.scores['score']:.1f} %" in scores and "score_strict 0.0 %" in scores
        assert f"in {record.nfe} forwards" in cost and page.is_disabled("#sample-before") == (place == 0)
        page.click("#sample-next")


def test_samples_are_found_by_text_and_by_score_across_runs(
    opened: tuple[Page, list[Run], list[str]], browser: Browser
) -> None:
    page, runs, _ = opened
    page.select_option("#sample-run", "2")
    alike = [run for run in runs if len(run.records) == len(runs[2].records)]
    right = [[run.records[i].scores["score"] >= 1 for run in alike] for i in range(len(runs[2].records))]
    for value, fits in (
        ("some", any),
        ("none", lambda row: not any(row)),
        ("mixed", lambda row: any(row) and not all(row)),
    ):
        page.select_option("#sample-others", value)
        expect(page.locator("#sample-id option")).to_have_count(sum(map(fits, right)))
    page.select_option("#sample-others", "")
    record = runs[2].records[3]
    page.fill("#sample-text", record.prompt[-12:].upper())
    page.wait_for_timeout(200)
    found = [
        r.id for r in runs[2].records if record.prompt[-12:].lower() in f"{r.prompt} {r.target} {r.completion}".lower()
    ]
    assert [text[2:] for text in page.locator("#sample-id option").all_text_contents()] == sorted(found)
    page.fill("#sample-text", "no sample says this")
    expect(page.locator("#sample-view")).to_contain_text("No such sample.")
    page.fill("#sample-text", "")
    page.click("#sample-next")
    link, wanted = (
        page.locator("#sample-view a").get_attribute("href"),
        page.locator("#sample-view strong").inner_text(),
    )
    other = browser.new_page()
    other.goto(page.url.partition("#")[0] + str(link))
    expect(other.locator("#sample-view strong")).to_have_text(wanted)
    other.close()


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Run], Path]:
    """Two decoders with three knobs each, and a ceiling that is better than both."""
    runs = [make_run(name, knob, "none", TASKS[:2], 12, seed=1) for name in ("eb", "threshold") for knob in (1, 2, 3)]
    for i, run in enumerate(runs):
        run.records[:] = [replace(r, nfe=4 + 2 * (i % 3) + 3 * (i > 2), num_tokens=20) for r in run.records]
    ceiling = make_run("oracle", 0, "none", TASKS[:2], 12, seed=1)
    ceiling.config["decoder"]["rule"] = {"_target_": "decoders.Oracle"}
    ceiling.info.update(is_ceiling=True, knobs={})
    best = [replace(r, nfe=1, num_tokens=20, scores={"score": 1.0, "score_strict": 1.0}) for r in ceiling.records]
    runs.append(replace(ceiling, records=best))
    return runs, page_of(runs, tmp_path_factory.mktemp("ranked"))


def test_a_page_opens_with_the_answer_and_ceilings_stand_apart(
    browser: Browser, ranked: tuple[list[Run], Path]
) -> None:
    runs, path = ranked
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("#chart-seconds svg")
    equal = equal_quality(runs, curve_names(run_names(runs), runs))
    assert equal is not None and equal.winner == "eb" and equal.best < 1
    speed = equal.rows["eb"][MIDDLE].tpf
    assert speed is not None and speed.value == pytest.approx(5)
    said = page.inner_text("#use")
    assert f"eb writes the most tokens per forward: {speed.text('.2f')}" in said and "eb tau=1" in said
    last = page.locator("#equal-table tbody tr").last
    assert last.inner_text().startswith("oracle") and "ceiling" in last.inner_text()
    assert "oracle" not in page.inner_text("#cards") and page.locator("#runs-table .dot").count() == 1
    labels = page.locator("#chart-tpf svg .role-mark text")
    boxes = labels.evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(b => [b.x, b.y, b.right, b.bottom])"
    )
    assert sorted(labels.all_text_contents()) == ["1", "1", "2", "2", "3", "3"]
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert not any(left < r and x < right and top < b and y < bottom for x, y, r, b in boxes[:i])
    page.close()


@pytest.mark.slow
def test_the_menu_names_the_sections_that_are_there(
    browser: Browser, few: tuple[list[Run], Path], tmp_path: Path
) -> None:
    page = browser.new_page()
    for path, there in ((few[1], True), (page_of(few[0][:1], tmp_path), False)):
        page.goto(path.as_uri())
        page.wait_for_selector("#chart-seconds svg")
        for link in page.locator("nav a").all():
            assert link.is_visible() == page.locator(str(link.get_attribute("href"))).is_visible()
        assert page.locator("nav a[href='#compare']").is_visible() == there
    page.close()


@pytest.fixture
def folder(cli, tmp_path: Path) -> Path:
    """One run, and folders beside it that are none."""
    cli("run", *SMALL, "out_dir=runs/good")
    return tmp_path / "runs"


def spoil(folder: Path, name: str, **changes: str | bytes | None) -> None:
    """A copy of the good run in which files hold something else, None for nothing at all."""
    (folder / name).mkdir()
    files = {path.name: path.read_bytes() for path in (folder / "good").iterdir()}
    for file, content in {**files, **{key.replace("_", "."): value for key, value in changes.items()}}.items():
        if content is not None:
            (folder / name / file).write_bytes(content.encode() if isinstance(content, str) else content)


def test_runs_that_differ_in_a_part_of_the_decoder_are_told_apart() -> None:
    plain, last, away = (make_run("threshold", 0.9, "none", ["a"], 1, seed=0) for _ in range(3))
    last.config["decoder"]["rescore"] = [{"_target_": "decoders.EosLast"}]
    away.config["decoder"]["filters"] = [{"_target_": "decoders.filters.NoEos"}]  # as older records have it
    names = ["threshold tau=0.9", "threshold tau=0.9 rescore=EosLast", "threshold tau=0.9 filters=NoEos"]
    assert run_names([plain, last, away]) == names
    for run in (plain, last):
        run.config["decoder"]["rule"]["_target_"] = "decoders.rules.thresholds.Threshold"  # the same class
    assert run_names([plain, last, away]) == names


def test_a_loop_around_a_decoder_names_its_parts_and_knobs_of_one_name_their_places() -> None:
    plain, edits, more = (make_run("multi_bd", 0.9, "none", ["a"], 1, seed=0) for _ in range(3))
    knobs = {"decoder.decoder.rule.tau": 0.9, "decoder.running.open_at": 0.1}
    for run in (plain, edits, more):
        run.config["decoder"] = {"decoder": {"rule": {"_target_": "decoders.Prefix", "tau": 0.9}}}
    for run, tau in ((edits, 0.0), (more, 0.5)):
        run.config["decoder"]["decoder"]["revise"] = {"_target_": "decoders.TokenEdit", "tau": tau}
        run.info["knobs"] = knobs | {"decoder.decoder.revise.tau": tau}
    plain.info["knobs"] = knobs
    names = run_names([plain, edits, more])
    assert names[0] == "multi_bd(Prefix) tau=0.9 open_at=0.1"
    assert names[1:] == [f"multi_bd(Prefix+TokenEdit) revise.tau={tau}" for tau in (0.0, 0.5)]
    assert curve_names(names, [plain, edits, more]) == ["multi_bd(Prefix)", *["multi_bd(Prefix+TokenEdit)"] * 2]


def test_runs_of_other_tasks_say_so_and_take_no_name_from_the_others() -> None:
    runs = [make_run("threshold", tau, "none", ["a"], 1, seed=0) for tau in (0.5, 0.9, 0.9, 0.9)]
    for run, tasks in zip(runs, (["w/a"], ["w/a"], ["w/b", "w/c"], ["w/a"]), strict=True):
        run.config["suite"] = {"tasks": tasks}
    names = run_names(runs[:3])
    assert names == ["threshold tau=0.5", "threshold tau=0.9", "threshold tau=0.9 tasks=b+c"]
    same = run_names(runs)  # two that nothing tells apart have their folders, the others keep their names
    assert same[0] == names[0] and same[2] == names[2] and same[1] == f"threshold tau=0.9 ({runs[1].folder})"
    assert curve_names(names, runs[:3]) == ["threshold", "threshold", "threshold tasks=b+c"]


def test_what_is_no_run_is_named_and_skipped(cli, folder: Path) -> None:
    info = json.loads((folder / "good" / "run.json").read_text())
    whole = (folder / "good" / "samples.jsonl").read_bytes()
    spoil(folder, "binary", run_json=b"\xff\xfe\x00")
    spoil(folder, "cut", samples_jsonl=whole[:-30])
    spoil(folder, "foreign", run_json='{"name": "of another program"}')
    spoil(folder, "half", run_json=(folder / "good" / "run.json").read_text()[:40])
    spoil(folder, "keyless", run_json=json.dumps({key: info[key] for key in info if key != "choices"}))
    spoil(folder, "listed", run_json="[1, 2]")
    spoil(folder, "lost", run_json=None)
    spoil(folder, "newer", run_json=json.dumps(info | {"schema": 2}))
    spoil(folder, "unset", config_yaml="decoder: {}\n")
    (folder / "folder" / "run.json").mkdir(parents=True)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    code, out, err = cli("report", "runs", "out_dir=page")
    assert code == 0 and "1 run\n" in out
    lines = err.strip().splitlines()
    wanted = {
        "binary": "not valid JSON",
        "cut": "is cut off",
        "folder": "no config.yaml",
        "foreign": "schema None",
        "half": "not valid JSON",
        "keyless": "nothing says its choices",
        "listed": "holds no run",
        "lost": "no run.json",
        "newer": "has schema 2",
        "unset": "nothing says its suite",
    }
    assert len(lines) == len(wanted)
    for line, (name, why) in zip(lines, wanted.items(), strict=True):
        assert line.startswith("skipped: ") and f"runs/{name}" in line and why in line
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_left_is_refused(cli, folder: Path) -> None:
    (folder / "good" / "run.json").write_text("{}")
    code, out, err = cli("report", "runs", "out_dir=page")
    assert code == 2 and not out and err.startswith("error: runs/good holds no run of this package")
    assert not Path("page").exists()
    with pytest.raises(ValueError, match=r"nowhere holds no run"):
        readable_runs([Path("nowhere")])


def test_the_peak_of_memory_is_that_of_one_run() -> None:
    peak = watch_memory()
    large = np.ones(25_000_000)
    high = peak()
    del large
    low = watch_memory()()
    if high is None or low is None or high["of"] != "process":
        pytest.skip("this system does not say how much memory a process held, or it is a GPU's that counts")
    assert high["bytes"] - low["bytes"] > 150e6


def test_answers_that_would_fill_the_page_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [make_run("credit", 0.5, "none", TASKS, 10, seed=0)]
    metrics = {name: aggregate(run.records) for name, run in zip(run_names(runs), runs, strict=True)}
    for budget, there in ((10_000, True), (100, False)):
        monkeypatch.setattr("parallelbench.report.page.MAX_TEXTS", budget)
        data = json.loads(json.dumps(page_data(runs, metrics, str, None)))
        assert bool(data["runs"][0]["texts"]) == bool(data["sets"][0]["questions"]) == there
        assert data["runs"][0]["samples"] and data["sweeps"] == []


@pytest.fixture(scope="module")
def algorithms(browser: Browser) -> Iterator[Page]:
    """An empty page that holds the algorithms of a report's page."""
    page = browser.new_page()
    page.add_script_tag(path=Path(page_module.__file__).parent / "algorithms.js")
    yield page
    page.close()


def test_the_front_in_the_page_is_that_of_python(algorithms: Page) -> None:
    rng = np.random.default_rng(1)
    for size in (1, 2, 5, 30, 30, 30):
        speed, score = rng.integers(1, 9, size) / 2, rng.integers(0, 6, size) / 5  # with ties in either and in both
        rows = [{"score": [y], "tpf": [x], "place": i} for i, (x, y) in enumerate(zip(speed, score, strict=True))]
        on = algorithms.evaluate("rows => [...algorithms.front(rows, 'tpf')].map(row => row.place)", rows)
        assert sorted(on) == sorted(pareto(speed, score).tolist())


def test_the_intervals_in_the_page_are_those_of_python(algorithms: Page) -> None:
    rng = np.random.default_rng(2)
    for size, strata in ((1, [0]), (3, [0, 0, 0]), (5, [0, 0, 0, 1, 2]), (7, [0] * 6 + [1]), (60, [0] * 40 + [1] * 20)):
        of = np.array(strata)
        changes = [np.zeros(size), rng.choice([-1.0, 0.0, 1.0], size), rng.choice([0.0, 0.5, -0.1], size)]
        for values in changes:
            call = "([values, strata, t]) => algorithms.bounded(values, -1, 1, strata, t)"
            said = algorithms.evaluate(call, [values.tolist(), strata, quantiles(of) if size > 1 else []])
            wanted = bounded(values, -1, 1, of)
            assert said == pytest.approx([wanted.value, wanted.ci_low, wanted.ci_high], abs=1e-6)
        columns = rng.integers(1, 9, (2, size)).astype(float)
        for unseen in ([], [[2.0, 9.0]], [[2.0, 9.0], [9.0, 2.0]]):
            call = "([columns, strata, unseen, t]) => algorithms.product(columns, [1, -1], strata, unseen, t)"
            said = algorithms.evaluate(call, [columns.tolist(), strata, unseen, quantiles(of) if size > 1 else []])
            wanted = product(columns, (1, -1), of, np.array(unseen).reshape(-1, 2))
            assert said == pytest.approx([wanted.value, wanted.ci_low, wanted.ci_high], rel=1e-9)


def test_questions_in_several_wordings_are_in_the_page_what_they_are_in_python(algorithms: Page) -> None:
    rng = np.random.default_rng(0)
    for asked in (
        np.repeat(np.arange(12), 4),
        np.concatenate([np.repeat(np.arange(6), 3), np.arange(6, 16)]),
        np.arange(9),
    ):
        tasks = np.where(asked % 2 > 0, "a", "b")
        values, one = rng.choice([0.0, 0.3, 1.0], len(asked)), observed(tasks, asked)
        call = """([values, tasks, asked, t]) => {
            const one = algorithms.observed(tasks, asked), means = one.mean(values);
            return [means, one.weights, algorithms.bounded(means, -1, 1, one.strata, t, one.weights)]; }"""
        means, weights, interval = algorithms.evaluate(
            call, [values.tolist(), tasks.tolist(), asked.tolist(), quantiles(one.strata)]
        )
        wanted = bounded(one.mean(values), -1, 1, one.strata, one.weights)
        assert means == pytest.approx(one.mean(values)) and weights == pytest.approx(one.weights)
        assert interval == pytest.approx([wanted.value, wanted.ci_low, wanted.ci_high], abs=1e-5)


def test_the_p_value_in_the_page_is_that_of_python(algorithms: Page) -> None:
    rng = np.random.default_rng(3)
    exact = [
        np.zeros(5),
        np.array([1.0]),
        rng.choice([-100.0, 0.0, 100.0], 60),
        rng.choice([-100.0, 100.0], 300, p=[0.4, 0.6]),
    ]
    few = [rng.normal(0.4, 1, 6), rng.normal(0, 1, 13)]
    many = [rng.normal(0.2, 1, 50), rng.normal(0, 1, 200)]  # from random flips, other ones in each language
    for changes, tolerance in [*((c, 1e-9) for c in (*exact, *few)), *((c, 0.02) for c in many)]:
        said = algorithms.evaluate("changes => algorithms.signFlipP(changes)", changes.tolist())
        assert said == pytest.approx(sign_flip_p(changes), abs=tolerance)


def test_the_replay_in_the_page_is_that_of_python(algorithms: Page) -> None:
    rng, columns = random.Random(4), 9
    for _ in range(20):
        steps, end = [], columns
        for forward in range(rng.randint(1, 8)):
            end = rng.randint(max(end - 1, 1), end)
            written = rng.sample(range(end), rng.randint(0, min(4, end)))
            tokens = [rng.choice([None, *range(5)]) for _ in written]
            writes = [(c, t, None if t is None else rng.random()) for c, t in zip(written, tokens, strict=True)]
            open_ = [(c, rng.randrange(5), rng.random()) for c in range(end) if c not in written and rng.random() < 0.3]
            steps.append(Step(forward, (0, columns), end, writes, open_))
        trace = Trace("x", columns, [], {}, steps)
        said = algorithms.evaluate(
            "run => algorithms.replay(run)", {"columns": columns, "steps": [asdict(step) for step in steps]}
        )
        assert len(said) == 1 + len(steps)
        for frame, cells in zip(replay(trace), (one["cells"] for one in said[1:]), strict=True):
            assert [cell["token"] for cell in cells] == frame.tokens
            assert [cell["at"] for cell in cells] == frame.committed_at
            assert [cell["candidate"] for cell in cells][: frame.step.end] == frame.candidates[: frame.step.end]
            events = {kind: [c for c in range(frame.step.end) if cells[c]["event"] == kind] for kind in KINDS}
            for kind, changed in zip(KINDS, (frame.committed, frame.remasked, frame.edited), strict=True):
                assert events[kind] == sorted(c for c in changed if c < frame.step.end)


KINDS = ("committed", "remasked", "edited")


def test_every_metric_is_in_terminal_markdown_csv_page_and_sinks(few: tuple[list[Run], Path], tmp_path: Path) -> None:
    runs, _ = few
    markdown = write_report(runs, tmp_path, lambda run: "")
    with open(tmp_path / "summary.csv", newline="") as file:
        summary = next(csv.DictReader(file))
    assert "over k=1" not in markdown  # no run with one token per step: no empty column
    names = run_names(runs)
    data = page_data(
        runs, {name: aggregate(run.records) for name, run in zip(names, runs, strict=True)}, lambda run: "", None
    )
    assert [name for name, *_ in data["metrics"]] == list(METRICS)
    for name, metric in METRICS.items():
        assert f" {metric.heading} |" in markdown and metric.about in markdown
        alone = replace(runs[0], config=runs[0].config | {"batch_size": 1})
        assert metric.heading in run_table(alone).splitlines()[0]
        assert {name, f"{name}_low", f"{name}_high"} <= summary.keys()
        assert all(name in task for run in data["runs"] for task in run["tasks"].values())
        assert {name, f"{name} low", f"{name} high"} <= set(NUMBERS)


def test_a_table_leaves_out_what_says_nothing() -> None:
    run = make_run("eb", 0.5, "none", ["easy/plain"], 10, seed=1)
    alike = [replace(r, scores=r.scores | {"score_strict": r.scores["score"]}) for r in run.records]
    head = run_table(replace(run, records=alike)).splitlines()[0]
    assert "strict %" not in head and "latency s" not in head and "tokens/s" in head
    other = [replace(r, scores=r.scores | {"score": 1.0, "score_strict": 0.0}) for r in run.records]
    head = run_table(replace(run, records=other, config=run.config | {"batch_size": 1})).splitlines()[0]
    assert "strict %" in head and "latency s" in head


def test_every_metric_is_a_column_of_the_page(opened: tuple[Page, list[Run], list[str]]) -> None:
    page, runs, _ = opened
    heads = page.locator("#runs-table thead th").all_inner_texts()
    assert [head for head in heads if head in {metric.heading for metric in METRICS.values()}] == [
        metric.heading for metric in METRICS.values()
    ]
    assert "Speed-up: gen_length / NFE" in page.inner_text("#runs-legend")
    by_name = dict(zip(run_names(runs), runs, strict=True))
    for row in cells(page, "runs-table"):
        value = aggregate(by_name[row[0]].records)[ALL]["speedup_nfe"]
        assert row[heads.index("speed-up")] == METRICS["speedup_nfe"].show(value)
