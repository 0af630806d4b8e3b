"""Saved traces: a traced run is the untraced one, its traces end in its records whatever is killed, and both viewers
show what happened and nothing that a model could have smuggled in."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import BLOCK, SMALL, ended, samples, torchrun
from playwright.sync_api import Browser, Page, sync_playwright
from test_page import CHROMIUM, FLAGS, page_of

from decoders import NO_CACHE, Decoder, FixedK, Never, StrictEos, TokenEdit, decode
from decoders.remask import RunningConfidence
from decoders.rules.remasking import Wino
from decoders.rules.schedules import MaskGit
from parallelbench.__main__ import main
from parallelbench.records.files import to_json
from parallelbench.records.record import prompt_sha, read_run
from parallelbench.records.trace import MAX_OPEN, TRACES, Trace, expected, is_of, replay
from parallelbench.report.page import viewer
from parallelbench.report.trace_view import find_record
from parallelbench.run import tracing
from parallelbench.run.recorder import StepRecorder
from parallelbench.tasks import Sample
from parallelbench.tasks.base import common
from parallelbench.tasks.puzzles import LatinSquare
from parallelbench.tasks.waiting_line import WaitingLine, write_list

TRACED = [*SMALL, "traces=2"]
IDS = {f"waiting_line/{task}/0/{i}" for task in ("copy", "shuffle") for i in (0, 1)}


def check_traces(folder: Path, ids: set[str] = IDS) -> dict:
    """The traces of a run, each of its record: the same tokens, committed by the same forwards, NFE steps at most."""
    traces = TRACES.read(folder)[0]
    records = {record.id: record for record in read_run(folder).records}
    assert set(traces) == ids
    for id, trace in traces.items():
        assert is_of(trace, records[id])
        forwards = [step.forward for step in trace.steps]
        assert forwards == sorted(set(forwards)) and forwards[-1] == records[id].nfe - 1
        assert "".join(trace.texts[token] for token in records[id].token_ids) == records[id].completion
    return traces


@pytest.mark.parametrize(
    "settings",
    [
        ["decoder=threshold"],
        ["decoder=threshold", "cache=dual", "block_length=8"],
        ["decoder=wino"],
        ["decoder=saber"],
        ["decoder=rcr", "stop=never"],
        ["decoder=edit", "decoder.revise.tau=0.2", "decoder.rule.tau=0.05"],
        ["decoder=eb", "gen_length=null", "block_length=null"],
        ["decoder=ar", "model=tiny_ar"],
    ],
    ids=lambda settings: "-".join(settings),
)
def test_a_traced_run_is_the_untraced_one(cli, tmp_path: Path, settings: list[str]) -> None:
    for name, asked in {"plain": SMALL, "traced": TRACED}.items():
        code, _, err = cli("run", *asked, *settings, f"out_dir={name}")
        assert code == 0, err
    assert samples(tmp_path / "plain") == samples(tmp_path / "traced")
    assert (tmp_path / "plain" / "config.yaml").read_text().replace("plain", "traced") == (
        tmp_path / "traced" / "config.yaml"
    ).read_text()
    assert not (tmp_path / "plain" / "traces.jsonl").exists()
    check_traces(tmp_path / "traced")


@pytest.mark.parametrize("decoder", ["edit", "wino", "rcr", "fixed"])
def test_frames_follow_from_what_was_written(model, prompts, decoder: str) -> None:
    """Whatever the model and the stop rule: frames end in the decoded rows, every change is one event, and columns that
    stay masked show their candidate."""
    made = {
        "edit": Decoder(FixedK(3), revise=TokenEdit(0.1, post=4), temperature=1.0),
        "wino": Decoder(Wino(0.3, 0.9)),
        "rcr": Decoder(FixedK("all"), revise=RunningConfidence(MaskGit(8, "linear"))),
        "fixed": Decoder(FixedK(2)),
    }[decoder]
    if decoder == "wino" and "full" not in model.name:
        pytest.skip("WINO's shadows need a bidirectional model without token shift")
    kinds = {"committed": 0, "remasked": 0, "edited": 0}
    for stop in (Never(), StrictEos()):
        recorder = StepRecorder(len(prompts))
        parts = {"gen_len": [16, 24, 16, 8], "block_len": BLOCK, "decoder": made, "cache": NO_CACHE, "stop": stop}
        rows = decode(model, prompts, on_step=partial(recorder, range(len(prompts))), **parts)
        assert rows == decode(model, prompts, **parts)
        for row, steps in zip(rows, recorder.rows, strict=True):
            assert [step.forward for step in steps] == list(range(row.nfe))
            before, frame = [None] * len(row.committed_at), None
            for frame in replay(Trace("id", len(before), [], {}, steps)):
                events = [*frame.committed, *frame.remasked, *frame.edited]
                inside = range(frame.step.end)
                assert {c for c in inside if frame.tokens[c] != before[c]} == {c for c in events if c in inside}
                assert len(events) == len(set(events))
                window = [c for c in range(*frame.step.window) if c < frame.step.end and frame.tokens[c] is None]
                assert [c for c, token in enumerate(frame.candidates) if token is not None] == window[:MAX_OPEN]
                assert all(0 <= frame.probs[c] <= 1 for c in window)
                for kind in kinds:
                    kinds[kind] += len(getattr(frame, kind))
                before = frame.tokens
            assert frame is not None and frame.tokens[: len(row.token_ids)] == row.token_ids
            assert frame.committed_at == row.committed_at
    happen = {"edit": "edited", "wino": "remasked", "rcr": "remasked", "fixed": "committed"}
    assert kinds[happen[decoder]] > 0 and kinds["committed"] > 0


def test_traces_are_added_to_a_finished_run(cli, tmp_path: Path) -> None:
    """Without decoding its samples again: records, metrics and provenance stay as they are."""
    assert cli("run", *SMALL, "out_dir=run")[0] == 0
    folder = tmp_path / "run"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert cli("run", *TRACED, "out_dir=run")[0] == 0
    check_traces(folder)
    saved = (folder / "traces.jsonl").read_bytes()
    assert cli("run", *TRACED, "out_dir=run")[0] == 0 and cli("run", *SMALL, "out_dir=run")[0] == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before | {"traces.jsonl": saved}


def test_the_default_folder_is_that_of_the_untraced_run(cli) -> None:
    first, second = (cli("run", *asked)[1].splitlines()[-1] for asked in (SMALL, TRACED))
    assert first == second


def test_a_killed_run_gets_the_traces_it_lacks(cli, tmp_path: Path) -> None:
    """Killed while three processes saved theirs: a line is cut off, one is there twice, some are missing."""
    assert cli("run", *TRACED, "out_dir=run")[0] == 0
    folder = tmp_path / "run"
    whole = TRACES.read(folder)[0]
    lines = (folder / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "traces.jsonl").write_bytes(lines[0])
    (folder / "traces.0.jsonl").write_bytes(lines[0] + lines[1])
    (folder / "traces.2.jsonl").write_bytes(lines[2][:-20])
    assert len(TRACES.read(folder)[0]) == 2
    assert cli("run", *TRACED, "out_dir=run")[0] == 0
    assert check_traces(folder) == whole
    assert sorted(path.name for path in folder.glob("traces*")) == ["traces.jsonl"]


@pytest.mark.slow
def test_two_processes_save_the_traces_of_one(cli, tmp_path: Path) -> None:
    launched = torchrun(tmp_path, 2, "run", *TRACED, "out_dir=two")
    assert cli("run", *TRACED, "out_dir=one")[0] == 0
    code, out = ended(launched)
    assert code == 0, out
    assert check_traces(tmp_path / "two") == TRACES.read(tmp_path / "one")[0]
    assert sorted(path.name for path in (tmp_path / "two").glob("traces*")) == ["traces.jsonl"]


@pytest.mark.slow
def test_a_launched_sweep_saves_traces(cli, tmp_path: Path) -> None:
    arguments = ["run", "-m", *TRACED, "decoder=threshold,fixed"]
    assert cli(*arguments, "launcher=local", "hydra.launcher.workers=2", "out_dir=sweep")[0] == 0
    folders = sorted((tmp_path / "sweep").iterdir())
    assert len(folders) == 2
    for folder in folders:
        check_traces(folder)


def test_a_trace_of_another_outcome_is_not_kept(cli, tmp_path: Path) -> None:
    """Whatever changed the tokens, a trace that does not end in its record would explain what did not happen."""
    assert cli("run", *SMALL, "out_dir=run")[0] == 0
    folder = tmp_path / "run"
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    lines[0]["token_ids"] = [*lines[0]["token_ids"][:-1], 7]
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, _, err = cli("run", *SMALL, "traces=3", "out_dir=run")
    assert code == 0 and f"{lines[0]['id']}: decoded again it differs from its record" in err
    check_traces(folder, {line["id"] for line in lines[1:]})


def test_numbers_that_depend_on_the_batch_are_traced_with_it(cli, tmp_path: Path, monkeypatch) -> None:
    """The first attempt, on its own, is made to miss its records: the batch as a whole must reach them."""
    sizes, original = [], tracing._traces

    def traces(job, chosen):
        sizes.append(len(chosen))
        return [] if len(chosen) == 1 else original(job, chosen)

    monkeypatch.setattr(tracing, "_traces", traces)
    assert cli("run", *SMALL, "traces=1", "out_dir=run")[0] == 0
    assert sizes == [1, 2, 1, 2]
    check_traces(tmp_path / "run", {id for id in IDS if id.endswith("/0")})


def test_damaged_traces_are_named_and_kept(cli, tmp_path: Path) -> None:
    assert cli("run", *TRACED, "out_dir=run")[0] == 0
    path = tmp_path / "run" / "traces.jsonl"
    saved = path.read_text()
    for damage in (
        "{}\n",
        "[1]\n",
        '{"schema":2}\n',
        "no JSON\n",
        saved.splitlines()[0].replace('"steps":[{', '"steps":[{"x":1,') + "\n",
    ):
        path.write_text(saved + damage)
        with pytest.raises(ValueError, match=r"line 5 of .*traces\.jsonl is not a trace .*; delete that file"):
            TRACES.merge(path.parent)
        assert path.read_text() == saved + damage


@pytest.mark.parametrize("value", ["-1", "x", "null"])
@pytest.mark.usefixtures("as_a_user_has_it")
def test_impossible_numbers_of_traces_are_refused(cli, tmp_path: Path, value: str) -> None:
    code, _, err = cli("run", *SMALL, f"traces={value}", "out_dir=run")
    assert code == 2 and err.startswith("error: traces=") and not (tmp_path / "run").exists()


HOSTILE = "</script><img src=x onerror='window.hacked=1'>\x1b[2J\x1b]0;owned\x07\u202egnorw\r"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of three decoders and an autoregressive model on the same samples, some of whose answers are wrong."""
    folder = tmp_path_factory.mktemp("made")
    tasks = "suite.tasks=[waiting_line/shuffle,puzzle/latin_square_n4]"
    with pytest.MonkeyPatch.context() as patch:
        for name, settings in {
            "wino": ["decoder=wino"],
            "threshold": ["decoder.rule.tau=0.5"],
            "ar": ["decoder=ar", "model=tiny_ar"],
            "untraced": ["decoder.rule.tau=0.7", "traces=0"],
        }.items():
            arguments = ["parallelbench", "run", "limit=4", "traces=4", tasks, *settings, f"out_dir={folder / name}"]
            patch.setattr(sys, "argv", arguments)
            main()
    return folder


def test_the_reference_is_the_nearest_right_answer(made: Path) -> None:
    """A right answer, nearer than the sample's target or as near, so that marks are few."""
    nearer = 0
    for name in ("wino", "threshold", "ar"):
        run = read_run(made / name)
        traces = TRACES.read(run.folder)[0]
        tasks = {"waiting_line/shuffle": WaitingLine("shuffle"), "puzzle/latin_square_n4": LatinSquare()}
        for record in run.records:
            trace, task = traces[record.id], tasks[record.task]
            sample = Sample(record.id, record.task, [], record.data, record.target)
            text = "".join(trace.texts[token] for token in trace.reference)
            assert text == task.nearest(sample, record.completion) and task.score(sample, text)["score_strict"] == 1
            said, near, target = (re.findall(r"\w+", one) for one in (record.completion, text, record.target))
            assert common(near, said) >= common(target, said)
            nearer += text != record.target
            if record.scores["score_strict"] == 1:
                assert text == record.completion
                assert expected(trace, record) == list(record.token_ids)
    assert nearer


def test_nearest_answers_of_lines_are_right_ones() -> None:
    people = ["Ada Bach", "Ben Cole", "Eva Frost"]
    target = {"shuffle": people[::-1], "remove_random": people[1:], "copy": people}
    target |= {
        kind: ["Max Moor", *people][: 4 if "insert" in kind else 3] for kind in ("insert_random", "replace_random")
    }
    target["replace_random"] = ["Max Moor", *people[1:]]
    wanted = {
        "shuffle": ('["Ben Cole", "Ben Bach", "Eva Frost"]', ["Ben Cole", "Ada Bach", "Eva Frost"]),
        "insert_random": ('["Ada Bach", "Max Cole", "Ben Cole", "Eva Frost"]', [people[0], "Max Moor", *people[1:]]),
        "remove_random": ('["Ada Bach", "Ben Coe"]', people[:2]),
        "replace_random": ('["Ada Bach", "Ben Moor", "Eva Frost"]', [people[0], "Max Moor", people[2]]),
        "copy": ('["Ada Cole"]', people),
    }
    for operation, (said, nearest) in wanted.items():
        task, data = WaitingLine(operation), {"people": people, "person": "Max Moor", "index": 0}
        sample = Sample("0", task.name, [], data, write_list(target[operation]))
        assert task.nearest(sample, said) == write_list(nearest)
        for completion in ("", "[]", said, write_list(people), "nonsense"):
            assert task.score(sample, task.nearest(sample, completion))["score_strict"] == 1


def test_the_terminal_tells_what_every_forward_did(cli, made: Path) -> None:
    code, out, _ = cli("trace", str(made / "wino"))
    assert code == 0 and len(out.splitlines()) == 8 and "waiting_line/shuffle/0/3  score " in out
    run, traces = read_run(made / "wino"), TRACES.read(made / "wino")[0]
    remasked = 0
    for record in run.records:
        code, out, _ = cli("trace", str(made / "wino"), record.id)
        assert code == 0 and "\x1b" not in out
        frames = list(replay(traces[record.id]))
        for frame in frames:
            assert f"forward {frame.step.forward + 1} of {record.nfe}: " in out
            assert f"{len(frame.remasked)} masked again" in out or not frame.remasked
        remasked += out.count("~") - 2  # those of the legend
        assert ("The answer is right." in out) == (record.scores["score"] == 1)
        assert out.count("  column ") == sum(
            a != b for a, b in zip(record.token_ids, expected(traces[record.id], record) or [], strict=False)
        )
    assert remasked > 0


def test_two_decoders_stand_beside_each_other_where_there_is_room(cli, made: Path, monkeypatch) -> None:
    for width, beside in (("160", True), ("80", False)):
        monkeypatch.setenv("COLUMNS", width)
        code, out, _ = cli("trace", str(made / "wino"), "shuffle/0/1", f"other={made / 'threshold'}")
        first = next(line for line in out.splitlines() if "forward 1 of" in line)
        assert code == 0 and (first.count("forward 1 of") == 2) == beside


def test_colours_are_for_terminals(cli, made: Path, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in cli("trace", str(made / "wino"), "shuffle/0/1")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert ";5;" not in cli("trace", str(made / "wino"), "shuffle/0/1")[1]


def test_a_run_without_traces_shows_its_order(cli, made: Path) -> None:
    record = read_run(made / "untraced").records[0]
    code, out, _ = cli("trace", str(made / "untraced"), record.id)
    assert code == 0 and "No trace was saved" in out and record.completion in out
    assert " ".join(str(at + 1) for at in record.committed_at if at >= 0)[:20] in out.replace("\n", " ")
    assert "has no traces; repeat its command with traces=2" in cli("trace", str(made / "untraced"))[2]


def test_what_is_not_there_is_said_in_a_sentence(cli, made: Path, tmp_path: Path) -> None:
    run = str(made / "wino")
    for arguments, said in (
        ([], "no run directory given"),
        ([str(tmp_path)], "is not a run directory"),
        ([run, "0/1"], "'0/1' matches several samples"),
        ([run, "sort/0/1"], "'sort/0/1' is no sample of"),
        ([run, "a", "b"], "give a second run as other="),
    ):
        code, _, err = cli("trace", *arguments)
        assert code == 2 and err.startswith("error: ") and said in err
    other = tmp_path / "other"
    cli("run", "limit=4", "suite.tasks=[waiting_line/shuffle]", "out_dir=other")
    text, record = (other / "samples.jsonl").read_text(), find_record(read_run(other), "0/1")
    (other / "samples.jsonl").write_text(
        text.replace(record.prompt_sha, prompt_sha("x")).replace(to_json(record.prompt), '"x"')
    )
    code, _, err = cli("trace", run, "shuffle/0/1", f"other={other}")
    assert code == 2 and "has another prompt for waiting_line/shuffle/0/1" in err


def hostile_copy(made: Path, folder: Path) -> Path:
    """A run whose tokens, prompts and answers are an attack."""
    shutil.copytree(made / "wino", folder)
    path = folder / "traces.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["texts"] = {token: text + HOSTILE for token, text in line["texts"].items()}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {key: line[key] + HOSTILE for key in ("prompt", "target", "completion")}
        line["prompt_sha"] = prompt_sha(line["prompt"])
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_no_control_character_reaches_the_terminal(cli, made: Path, tmp_path: Path) -> None:
    folder = hostile_copy(made, tmp_path / "hostile")
    for traced in (True, False):
        code, out, _ = cli("trace", str(folder), "shuffle/0/1")
        assert code == 0 and ("No trace" in out) != traced
        assert all(character == "\n" or character.isprintable() for character in out)
        assert "\\x1b[2J" in out and "\\u202e" in out
        (folder / "traces.jsonl").unlink(missing_ok=True)


def test_a_page_has_no_viewer_without_traces_and_never_too_much(
    made: Path, monkeypatch, capsys, tmp_path: Path
) -> None:
    assert viewer.viewer_data([read_run(made / "untraced")]) is None
    runs = [read_run(made / name) for name in ("wino", "threshold", "untraced", "ar")]
    data = viewer.viewer_data(runs)
    assert data is not None and len(data) == 8
    assert all(sample["prompt"] and len(sample["runs"]) == 3 for sample in data)
    monkeypatch.setattr(viewer, "MAX_BYTES", len(json.dumps(data)) // 2)
    part = viewer.viewer_data(runs)
    assert part is not None and len(part) == 8 and len(json.dumps(part)) < 0.6 * len(json.dumps(data))
    kept = {sample["id"] for sample in part if sample["runs"]}
    assert {"waiting_line/shuffle/0/0", "puzzle/latin_square_n4/0/0"} <= kept and 2 <= len(kept) < 8
    folder = shutil.copytree(made / "wino", tmp_path / "damaged")
    (folder / "traces.jsonl").write_text("{}\n")
    assert viewer.viewer_data([read_run(folder)]) is None
    assert "skipped: line 1 of" in capsys.readouterr().err


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield chromium
        chromium.close()


def opened(browser: Browser, runs: list[Path], folder: Path, width: int = 1280) -> tuple[Page, list[str]]:
    """The report's page of some runs, and what it asked for or complained about."""
    path = page_of([read_run(run) for run in runs], folder)
    page, noise = browser.new_page(viewport={"width": width, "height": 900}), []
    page.set_default_timeout(20_000)
    page.on("request", lambda request: noise.append(request.url))
    page.on("console", lambda message: noise.append(message.text))
    page.on("pageerror", lambda error: noise.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector(".tv-panel")
    return page, noise


READ = """cells => cells.map(cell =>
    [cell.className, cell.querySelector(".tv-text").textContent, cell.querySelector(".tv-order").textContent])"""


def shown(page: Page, place: int) -> list[tuple[set[str], str, str]]:
    """Of every column of a panel's canvas: what marks it, its text, and the number of its forward."""
    cells = page.locator(".tv-panel").nth(place).locator(".tv-cell").evaluate_all(READ)
    return [(set(classes.split()), text, order) for classes, text, order in cells]


def test_the_page_replays_what_was_saved(browser: Browser, made: Path, tmp_path: Path) -> None:
    page, noise = opened(browser, [made / "wino", made / "threshold", made / "untraced"], tmp_path)
    names = page.locator("#tv0-a option").all_inner_texts()
    assert len(names) == 2 and page.locator(".tv-panel").count() == 2
    folders = [made / next(folder for folder in ("wino", "threshold") if folder in name) for name in names]
    id = "puzzle/latin_square_n4/0/3"
    page.select_option("#tv0-sample", label=id)
    page.select_option("#tv0-a", "0")
    page.select_option("#tv0-b", "1")
    slider, last = page.locator("#tv0-forward"), 0
    for place, folder in enumerate(folders):
        (record,) = [record for record in read_run(folder).records if record.id == id]
        trace = TRACES.read(folder)[0][id]
        frames = list(replay(trace))
        last = max(last, record.nfe)
        right = expected(trace, record) or []
        for frame in frames:
            slider.fill(str(frame.step.forward + 1))
            for column, ((marks, text, order), token) in enumerate(zip(shown(page, place), frame.tokens, strict=True)):
                assert ("masked" in marks) == (token is None) and order == (
                    "" if token is None else str(frame.committed_at[column] + 1)
                )
                assert token is None or text.strip("\u21b5") == trace.texts[token].strip()
                assert ("remasked" in marks, "edited" in marks) == (column in frame.remasked, column in frame.edited)
                assert ("wrong" in marks) == (token is not None and column < len(right) and token != right[column])
        result = page.locator(".tv-panel").nth(place).locator(".tv-result").inner_text()
        assert ("is right" in result) == (record.scores["score"] == 1)
    assert page.get_attribute("#tv0-forward", "max") == str(last)
    assert len(noise) == 1


def test_the_player_steps_plays_and_jumps(browser: Browser, made: Path, tmp_path: Path) -> None:
    page, noise = opened(browser, [made / "wino", made / "threshold"], tmp_path)
    page.select_option("#tv0-sample", label="puzzle/latin_square_n4/0/3")
    at = page.locator(".tv output")
    last = int(page.get_attribute("#tv0-forward", "max") or 0)
    assert at.inner_text() == f"0 of {last}"  # from its start
    page.focus(".tv button")
    for key, place in (
        ("Home", 0),
        ("ArrowLeft", 0),
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", last),
    ):
        page.keyboard.press(key)
        assert at.inner_text() == f"{place} of {last}" and page.input_value("#tv0-forward") == str(place)
    page.keyboard.press("Home")
    assert all("masked" in marks for marks, *_ in shown(page, 0)) and "All columns are masked" in page.inner_text(
        ".tv-panel"
    )
    page.click(".tv button:text('Play')")
    while int(at.inner_text().split()[0]) < 2:
        page.wait_for_timeout(50)
    page.click(".tv button:text('Pause')")
    stopped = at.inner_text()
    page.wait_for_timeout(700)
    assert at.inner_text() == stopped
    jump = page.locator(".tv-mistakes button").first
    wanted = (jump.locator("xpath=..").inner_text().split("by forward ")[1]).split()[0]
    jump.click()
    assert at.inner_text() == f"{wanted} of {last}"
    page.focus("#tv0-sample")
    page.select_option("#tv0-b", label="no other run")
    assert page.locator(".tv-panel").count() == 1
    assert len(noise) == 1


@pytest.mark.parametrize("width", [1280, 400])
def test_the_viewer_passes_axe(browser: Browser, made: Path, tmp_path: Path, width: int) -> None:
    page, _ = opened(browser, [made / name for name in ("wino", "threshold", "ar")], tmp_path, width)
    page.select_option("#tv0-sample", label="puzzle/latin_square_n4/0/3")
    for forward in ("0", "1", "6", page.get_attribute("#tv0-forward", "max") or ""):
        page.locator("#tv0-forward").fill(forward)
        found = Axe().run(page, context="#traces", options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]})
        assert not found.response["violations"], found.generate_report()
        assert len(found.response["passes"]) > 5
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_tokens_stay_text(browser: Browser, made: Path, tmp_path: Path) -> None:
    page, noise = opened(browser, [hostile_copy(made, tmp_path / "hostile"), made / "ar"], tmp_path)
    page.select_option("#tv0-a", "0")
    for forward in range(4):
        page.locator("#tv0-forward").fill(str(forward))
    text = page.locator(".tv-cell .tv-text").first.text_content() or ""
    assert "</script><img src=x onerror='window.hacked=1'>" in text and "\\u{1b}" in text and "\\u{202e}" in text
    assert HOSTILE[:20] in page.inner_text(".tv-question")
    assert page.locator("#traces img").count() == 0 and page.evaluate("typeof window.hacked") == "undefined"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280 and len(noise) == 1
