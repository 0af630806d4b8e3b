"""A run folder whose numbers cannot be is refused by name, before anything is computed from it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_damage import in_time

from parallelbench.records.files import parse_json, read_bytes
from parallelbench.records.record import MOST_TASKS, read_run
from parallelbench.records.trace import traces_of
from parallelbench.report.drawing.style import look
from parallelbench.stats.curves import curve_names, run_names

pytestmark = pytest.mark.core
STORED = Path(__file__).parents[1] / "stored"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORED, tmp_path / "run"))


def edit(file: Path, **changes: Any) -> None:
    """Other fields in the first line of a file of lines, or in a JSON file."""
    first, *rest = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    file.write_text("\n".join([json.dumps(json.loads(first) | changes), *rest]) + "\n")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scores": {"score": 1.5, "score_strict": 1.0}}, "scores.* has a value"),
        ({"scores": {"score": 1.0, "score_strict": -0.5}}, "scores.* has a value"),
        ({"scores": {"score": 1.0, "score_strict": 1.0, "grammar": 9.0}}, "scores.* has a value"),
        ({"nfe": 3, "committed_at": [3] * 32}, "forward 3 wrote a column, and nfe is 3"),
        ({"committed_at": [-2] * 32}, "committed_at"),
        ({"committed_at": []}, "10 tokens in 0 columns"),
        ({"num_tokens": 11}, "num_tokens is 11, and it has 10 tokens"),
        ({"token_ids": [-5] * 10}, "token_ids"),
        ({"drafts": [[1]]}, "drafts"),
        ({"drafts": [[0, 1, 2, 0]]}, "drafts of forward 0"),
        ({"drafts": [[1, 2, 1, 0]]}, "drafts of forward 1"),
        ({"drafts": [[0, 2, -1, 0]]}, "drafts"),
        ({"drafts": [[0, 2, 1, 7]]}, "drafts"),
        ({"share_s": 1e-320}, "share_s"),
        ({"prompt": "another"}, "prompt_sha is that of another prompt"),
        ({"task": "all"}, "stands for all tasks"),
        ({"task": "t" * 1001}, "task is"),
    ],
)
def test_numbers_that_no_decode_has_together(folder: Path, changes: dict[str, Any], says: str) -> None:
    edit(folder / "samples.jsonl", **changes)
    with pytest.raises(ValueError, match=rf"^line 1 of .*samples\.jsonl is not a record \(.*{says}.*; restore"):
        read_run(folder)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", '[1, {"a": 1e400}]'])
def test_infinities_are_not_json(folder: Path, number: str) -> None:
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"parameters": 1373440', f'"parameters": {number}'))
    with pytest.raises(ValueError, match=r"run\.json is not valid JSON \(.* is not JSON\)"):
        read_run(folder)
    assert parse_json("[1.5, -2e300]") == [1.5, -2e300]


@pytest.mark.parametrize("name", ["", "  ", "\u3000"])
def test_a_choice_has_a_name(folder: Path, name: str) -> None:
    choices = json.loads((folder / "run.json").read_text())["choices"]
    edit(folder / "run.json", choices={**choices, "decoder": name})
    with pytest.raises(ValueError, match=r"choices\.decoder is .*; leave it out"):
        read_run(folder)


@pytest.mark.parametrize("command", [("trace",), ("analyze", "compare", str(STORED))])
def test_trajectories_for_training_are_no_run_of_a_suite(cli, folder: Path, command: tuple[str, ...]) -> None:
    edit(folder / "run.json", choices={}, status="done")
    code, _, err = cli(*command, str(folder))
    assert code == 2 and err == f"error: {folder} holds trajectories for training, not a run of a suite; name another\n"


def test_a_choice_of_half_a_character_has_a_look() -> None:
    assert look("cache", "\ud800") == look("cache", "\ud800")


def test_a_log_that_says_nothing_more_is_not_waited_for(tmp_path: Path) -> None:
    def waits(path: Path) -> bytes:
        with in_time(20):
            return read_bytes(path)

    for name in ("/proc/kmsg", "/dev/tty", "/dev/zero"):
        (tmp_path / "run.json").unlink(missing_ok=True)
        (tmp_path / "run.json").symlink_to(name)
        try:
            assert len(waits(tmp_path / "run.json")) > 0  # what the kernel had to say
        except ValueError as error:
            assert "run.json" in str(error)


def test_no_suite_has_so_many_tasks(folder: Path) -> None:
    first = json.loads((folder / "samples.jsonl").read_text())
    lines = [json.dumps({**first, "id": str(i), "task": f"t/{i}"}) for i in range(MOST_TASKS)]
    (folder / "samples.jsonl").write_text("\n".join([json.dumps(first), *lines]))
    with pytest.raises(ValueError, match=f"samples of {MOST_TASKS + 1} tasks, more than {MOST_TASKS}; leave it out"):
        read_run(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"columns": 10**12},
        {"columns": 33},
        {"steps": 3},
        {"forward": 1},
        {"forward": -1},
        {"window": [0, -5]},
        {"writes": [[0, 102, 9.0]]},
        {"accepted": 10**9},
        {"rejected": [[99, 102, 0.5]]},
        {"rejected": [[0, 7, 0.5]]},
    ],
)
def test_steps_that_no_decode_has(folder: Path, changes: dict[str, Any]) -> None:
    """Before a canvas of as many columns is made."""
    assert traces_of(read_run(folder))
    step = json.loads((folder / "traces.jsonl").read_text().splitlines()[0])["steps"][0]
    if changes.keys() == {"columns"}:
        edit(folder / "traces.jsonl", **changes)
    else:
        edit(folder / "traces.jsonl", steps=[step] * changes.pop("steps", 1) if not changes else [step | changes])
    with pytest.raises(ValueError, match=r"traces\.jsonl (is not a trace|has another trace)"):
        traces_of(read_run(folder))


def test_a_file_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").touch()
    os.truncate(tmp_path / "samples.jsonl", 2**40)
    with pytest.raises(ValueError, match=r"samples\.jsonl has more than 4 GiB; leave it out"):
        read_bytes(tmp_path / "samples.jsonl")


@pytest.mark.parametrize("changes", [{"prompt": "x"}, {"target": "x"}, {"data": {"people": []}}])
def test_a_run_does_not_go_on_with_samples_of_another(cli, folder: Path, changes: dict[str, Any]) -> None:
    from parallelbench.records.record import prompt_sha

    told = {**changes, **({"prompt_sha": prompt_sha("x")} if "prompt" in changes else {})}
    edit(folder / "samples.jsonl", **told)
    before = (folder / "samples.jsonl").read_bytes()
    tasks = yaml.safe_load((folder / "config.yaml").read_text())["suite"]["tasks"]
    suite = f"suite.tasks=[{','.join(tasks)}]"
    code, _, err = cli("run", "decoder.rule.tau=0.6", "limit=2", "batch_size=2", suite, f"out_dir={folder}")
    assert code == 2 and "which its suite does not draw so; delete its line or choose another out_dir" in err, err
    assert (folder / "samples.jsonl").read_bytes() == before


def test_data_that_a_task_cannot_score(cli, folder: Path) -> None:
    edit(folder / "samples.jsonl", data={})
    before = (folder / "samples.jsonl").read_bytes()
    code, _, err = cli("score", str(folder))
    assert code == 2 and "cannot score 'waiting_line/copy/0/0' (KeyError: 'people'); mend its data or the task" in err
    assert str(folder) in err and (folder / "samples.jsonl").read_bytes() == before


def test_a_finished_run_whose_scores_differ_is_refused(cli, folder: Path) -> None:
    first = json.loads((folder / "samples.jsonl").read_text())
    other = {**first, "id": "waiting_line/copy/0/1", "scores": {**first["scores"], "more": 0.5}}
    (folder / "samples.jsonl").write_text(json.dumps(first) + "\n" + json.dumps(other) + "\n")
    for status in ("done", "partial"):
        edit(folder / "run.json", status=status)
        suite = "suite.tasks=[waiting_line/copy,waiting_line/shuffle]"
        code, _, err = cli("run", "decoder.rule.tau=0.6", "limit=2", "batch_size=2", suite, f"out_dir={folder}")
        assert code == 2 and "has not the scores of its task; score that run again" in err, err


def test_names_have_an_end(folder: Path) -> None:
    edit(folder / "run.json", knobs={"decoder.rule." + "k" * 5000: "v" * 100_000})
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "3": "w" * 100_000}))
    runs = [read_run(folder), read_run(STORED)]
    assert max(map(len, run_names(runs))) < 600 and len(set(curve_names(run_names(runs), runs))) == 2
    for change in ({"model": "m" * 1001}, {"device": "d" * 1001}):
        edit(folder / "run.json", **change)
        with pytest.raises(ValueError, match=r"(model|device) is .* not text of length <= 1000\); leave it out"):
            read_run(folder)
