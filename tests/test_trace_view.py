"""Saved traces: a traced run is the untraced one, its traces end in its records whatever is killed, and both viewers
show what happened and nothing that a model could have smuggled in."""

import json
from pathlib import Path

import pytest
from conftest import SMALL, samples
from test_distributed import ended, torchrun

from parallelbench import run as run_module
from parallelbench.record import read_run
from parallelbench.steps import is_of, merge_traces, read_traces, replay

TRACED = [*SMALL, "traces=2"]
IDS = {f"waiting_line/{task}/0/{i}" for task in ("copy", "shuffle") for i in (0, 1)}


def check_traces(folder: Path, ids: set[str] = IDS) -> dict:
    """The traces of a run, each of its record: the same tokens, committed by the same forwards, NFE steps at most."""
    traces = read_traces(folder)
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


def test_frames_follow_from_what_was_written(cli, tmp_path: Path) -> None:
    """Every kind of step occurs, each event once, and open columns have the candidates that their colour is of."""
    kinds = {"committed": 0, "remasked": 0, "edited": 0}
    for decoder in (["decoder=wino"], ["decoder=edit", "decoder.revise.tau=0.2", "decoder.rule.tau=0.05"]):
        folder = tmp_path / str(len(decoder))
        assert cli("run", *TRACED, *decoder, f"out_dir={folder}")[0] == 0
        for trace in check_traces(folder).values():
            before = [None] * trace.columns
            for frame in replay(trace):
                for kind in kinds:
                    kinds[kind] += len(getattr(frame, kind))
                events = [*frame.committed, *frame.remasked, *frame.edited]
                assert len(events) == len(set(events))
                changed = {c for c in range(frame.step.end) if frame.tokens[c] != before[c]}
                assert changed == {c for c in events if c < frame.step.end}
                masked = [c for c in range(frame.step.end) if frame.tokens[c] is None]
                assert [c for c, token in enumerate(frame.candidates) if token is not None] == masked
                assert all(0 <= frame.probs[c] <= 1 for c in range(frame.step.end))
                before = frame.tokens
    assert min(kinds.values()) > 0


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
    whole = read_traces(folder)
    lines = (folder / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "traces.jsonl").write_bytes(lines[0])
    (folder / "traces.0.jsonl").write_bytes(lines[0] + lines[1])
    (folder / "traces.2.jsonl").write_bytes(lines[2][:-20])
    assert len(read_traces(folder)) == 2
    assert cli("run", *TRACED, "out_dir=run")[0] == 0
    assert check_traces(folder) == whole
    assert sorted(path.name for path in folder.glob("traces*")) == ["traces.jsonl"]


def test_two_processes_save_the_traces_of_one(cli, tmp_path: Path) -> None:
    launched = torchrun(tmp_path, 2, "run", *TRACED, "out_dir=two")
    assert cli("run", *TRACED, "out_dir=one")[0] == 0
    code, out = ended(launched)
    assert code == 0, out
    assert check_traces(tmp_path / "two") == read_traces(tmp_path / "one")
    assert sorted(path.name for path in (tmp_path / "two").glob("traces*")) == ["traces.jsonl"]


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
    sizes, original = [], run_module._traces

    def traces(job, chosen):
        sizes.append(len(chosen))
        return original(job, [] if len(chosen) == 1 else chosen)

    monkeypatch.setattr(run_module, "_traces", traces)
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
        "\n",
        saved.splitlines()[0].replace('"steps":[{', '"steps":[{"x":1,') + "\n",
    ):
        path.write_text(saved + damage)
        with pytest.raises(ValueError, match=r"line 5 of .*traces\.jsonl is not a trace .*; delete that file"):
            merge_traces(path.parent)
        assert path.read_text() == saved + damage


@pytest.mark.parametrize("value", ["-1", "x", "null"])
def test_impossible_numbers_of_traces_are_refused(cli, tmp_path: Path, value: str) -> None:
    code, _, err = cli("run", *SMALL, f"traces={value}", "out_dir=run")
    assert code == 2 and err.startswith("error: traces=") and not (tmp_path / "run").exists()
