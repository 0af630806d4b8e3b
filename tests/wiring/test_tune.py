"""The command tune: refusals, a race of real runs, and the same race again."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import samples

WORDS = ["experiment=dilated,left", "suite.tasks=copy", "limit=60", "max_loss=5", "batch_size=20", "out_dir=runs"]


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["max_loss=0"], "max_loss=0 is no number of points between 0 and 100"),
        (["budget=soon"], "budget=soon; give a number of samples such as 2000, or minutes such as 30min"),
        (["budget="], "budget= has no value; give one, or leave it out"),
        (["budget=0min"], "budget=0min; give a number of samples"),
        (["by=luck"], "by=luck; give forwards, columns or seconds"),
        (["model=tiny,tiny_block"], "model=tiny,tiny_block: tune compares configurations of one model"),
        (["seed=0,1"], "seed=0,1: tune compares configurations of one model on one suite"),
        (["launcher=local"], "launcher=local: tune compares configurations"),
        (["experiment=threshold", "decoder=eb"], "brings values for decoder=threshold, not for decoder=eb"),
        (["experimen=eb"], "unknown setting 'experimen'"),
        (["decoder=eb"], "one configuration is nothing to choose from; give several"),
        (["experiment=eb", "limit=20"], "limit=20 leaves 228 samples for the test of max_loss=1, which takes 268"),
        (["experiment=eb", "budget=300"], "budget=300 is too little for 7 configurations and the test of max_loss=1"),
    ],
)
def test_what_cannot_be_tuned_is_refused(cli, tmp_path: Path, words: list[str], refused: str) -> None:
    code, _, err = cli("tune", *words)
    assert code == 2 and refused in err and err.count("\n") == 1 and not list(tmp_path.iterdir())


def test_a_race_ends_in_a_choice_and_goes_on_where_it_was(cli, tmp_path: Path) -> None:
    code, out, err = cli("tune", *WORDS)
    assert code == 0, err
    assert out.startswith("round 1: all 8 configurations, 1 sample per task\n")
    assert "to see its speed and what it loses" in out and "final test on fresh samples, " in out
    *_, sentence, command = re.split(r"\n(?=Take |Keep |    python )", out)
    taken = re.match(r"(Take|Keep) (dilated base=\d|left k=\d+): ", sentence.replace("\n", " "))
    spent = re.search(r"([\d,]+) samples were decoded. The whole grid takes 480.", sentence.replace("\n", " "))
    assert taken and spent and int(spent[1].replace(",", "")) <= 120
    infos = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/run.json")]
    assert len(infos) == 8 and sum(len(samples(path.parent)) for path in tmp_path.glob("runs/*/run.json")) == int(
        spent[1]
    )
    before = {path: samples(path) for path in tmp_path.glob("runs/*")}
    code, again, _ = cli("tune", *WORDS)
    assert code == 0 and again.endswith(f"{sentence}\n{command}") and " samples per task: " not in again
    shutil.rmtree(max(before, key=lambda path: len(before[path])))  # as if it had been killed
    code, again, _ = cli("tune", *WORDS)
    assert code == 0 and again.endswith(f"{sentence}\n{command}")
    assert {path: samples(path) for path in tmp_path.glob("runs/*")} == before
    assert shlex.split(command)[:4] == ["python", "-m", "parallelbench", "run"]
    assert cli("recommend", "runs")[0] == 0  # its runs are ordinary ones


def test_what_does_not_fit_is_left_out_and_runs_of_a_sweep_are_taken(cli, tmp_path: Path) -> None:
    assert cli("run", "-m", "experiment=left", *WORDS[1:3], "batch_size=20", "out_dir=runs")[0] == 0
    words = ["decoder=left", "decoder.rule.k=1,2,4,8,16", "cache=none,block", *WORDS[1:]]  # tiny has no blocks
    code, out, err = cli("tune", *words, "by=columns")
    assert code == 0, err
    assert out.count("left out: left k=") == 5 and "cache=block" in out
    assert "round 1: all 5 configurations" in out and " samples per task: " not in out
    assert len(list(tmp_path.glob("runs/*"))) == 5
