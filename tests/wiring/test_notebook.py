"""The library's comparison: the runs of the command line as a data frame and a plot."""

from pathlib import Path
from typing import Any

import pytest

import parallelbench
from parallelbench.records.record import read_run

TASKS = ["copy", "shuffle"]
SMALL: dict[str, Any] = {"limit": 3, "batch_size": 6}


def test_decoders_are_compared_over_runs_of_the_command_line(cli, tmp_path: Path, capsys) -> None:
    names = ["fixed k=1", "threshold tau=0.9", "eb gamma=0.1 cache=dual"]
    frame = parallelbench.compare("tiny", names, TASKS, **SMALL, out_dir="runs")
    assert list(frame.index) == ["fixed k=1", "threshold tau=0.9", "eb gamma=0.1 cache=dual"]
    assert set(frame["n"]) == {6} and frame["tpf"].is_monotonic_increasing
    assert all(low <= value <= high for value, low, high in frame[["tpf", "tpf_low", "tpf_high"]].to_numpy())
    assert frame["difference"].iloc[0] == 0 and frame["difference_low"].iloc[1:].notna().all()
    run = read_run(Path(frame["folder"].iloc[2]))
    assert run.info["choices"]["cache"] == "dual" and run.config["decoder"]["rule"]["gamma"] == 0.1
    assert frame["score"].iloc[2] == pytest.approx(100 * sum(r.scores["score"] for r in run.records) / 6)
    capsys.readouterr()
    again = parallelbench.compare("tiny", names, TASKS, **SMALL, out_dir="runs", by_task=True)
    assert capsys.readouterr().out.count("6 samples, 6 already there") == 3
    assert again.shape[0] == 6 and set(again.index.get_level_values("task")) == {f"waiting_line/{t}" for t in TASKS}
    words = ["decoder=fixed", "suite.tasks=copy,shuffle", "limit=3", "batch_size=6", "gen_length=32"]
    code, out, _ = cli("run", *words, f"out_dir={frame['folder'].iloc[0]}")
    assert code == 0 and "6 already there" in out
    drawn = parallelbench.plot(frame)
    assert drawn._repr_png_().startswith(b"\x89PNG")
    drawn.save(tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"decoders": "eb"}, "decoders='eb'; give a list"),
        ({"decoders": []}, "give a list of at least one"),
        ({"decoders": ["eb"], "tasks": "copy"}, r'tasks=\'copy\'; give a list, such as \["copy"\]'),
        ({"decoders": ["ebb"]}, "unknown decoder 'ebb'; did you mean 'eb'"),
        ({"decoders": ["eb", "eb gama=1"]}, "unknown setting 'gama'"),
        ({"decoders": ["eb gamma=x"]}, "decoder.rule.gamma=.x.; give a number"),
        ({"decoders": ["eb"], "tasks": ["cpy"]}, "unknown task 'cpy'; did you mean 'waiting_line/copy'"),
        ({"decoders": ["eb"], "limt": 3}, "unknown setting 'limt'; did you mean 'limit'"),
        ({"decoders": ["eb gamma=0.1,0.2"]}, "several values"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_decoded(
    given: dict[str, Any], refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=refused):
        parallelbench.compare("tiny", **given)
    assert not list(tmp_path.iterdir())
