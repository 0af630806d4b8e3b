"""Recorded decodes say what happened, survive a kill, and train filters; recordings that do not fit are refused."""

import json
from pathlib import Path

import pytest
import torch
from conftest import BLOCK, make_model
from hydra import compose, initialize_config_dir
from safetensors.torch import load_file

from decoders import NO_CACHE, Agreement, Decoder, FixedK, Learn2PD, Never, Oracle, Threshold, decode
from decoders.loop import ONE_TOKEN
from decoders.rules import learn2pd
from decoders.rules.learn2pd import PositionFilter, save_filter
from decoders.traces import Recorder, open_traces, read_references, read_traces, shard_path, step_bytes, write_shard
from parallelbench.tasks.base import is_held_out
from parallelbench.training.collect_traces import collect
from parallelbench.training.train_filter import train
from parallelbench.wiring.catalogue import CONF

GEN = 16
PARTS = {"gen_len": GEN, "block_len": BLOCK, "cache": NO_CACHE, "stop": Never()}
ABOUT = {"model": "full", "weights": "w", "data": {}, "block_length": BLOCK, "gen_length": GEN, "batch_size": 4}
ABOUT |= {"cache": "none", "stop": "never", "seed": 0, "num_shards": 1}


def record(prompts: list[list[int]], decoder: Decoder) -> tuple[dict, list, list]:
    model, recorder = make_model("full"), Recorder()
    reference = [row.token_ids for row in decode(model, prompts, decoder=ONE_TOKEN, **PARTS)]
    rows = decode(model, prompts, decoder=decoder, reference=reference, on_step=recorder, **PARTS)
    return recorder.shard([row.token_ids for row in rows], reference, GEN), rows, reference


def write(folder: Path, shard: dict, **changed) -> Path:
    open_traces(folder, ABOUT | changed)
    write_shard(shard_path(folder, 0), shard)
    return folder


def test_a_trace_holds_every_forward_and_commit(prompts) -> None:
    shard, rows, reference = record(prompts, Decoder(Threshold(0.6)))
    assert [int((shard["row"] == i).sum()) for i in range(4)] == [row.nfe for row in rows]
    for i, row in enumerate(rows):
        written = [None] * GEN
        for n in (shard["row"] == i).nonzero()[:, 0].tolist():
            for column in shard["write"][n].nonzero()[:, 0].tolist():
                written[int(shard["start"][n]) + column] = int(shard["tokens"][n, column])
        assert written[: len(row.token_ids)] == row.token_ids
        assert [t for t in shard["final"][i].tolist() if t >= 0] == row.token_ids
        assert [t for t in shard["reference"][i].tolist() if t >= 0] == reference[i]
    assert not (shard["write"] & ~shard["masked"]).any()


def test_the_oracle_commits_the_label(prompts) -> None:
    shard = record(prompts, Decoder(Oracle()))[0]
    due = shard["agree"] & shard["masked"]
    some = due.any(1)
    assert shard["write"][some].equal(due[some]) and shard["write"][~some].sum(1).eq(1).all()


def test_recorded_features_are_those_of_the_decode(tmp_path, prompts, monkeypatch) -> None:
    save_filter(PositionFilter(4), tmp_path / "filter", {})
    seen, compute = [], learn2pd.features

    def spy(signals, memory):
        x = compute(signals, memory)
        seen.append(x[signals.masked.any(1)])
        return x

    monkeypatch.setattr(learn2pd, "features", spy)
    shard = record(prompts, Decoder(Agreement(0.6, str(tmp_path / "filter"))))[0]
    traces = read_traces([write(tmp_path / "traces", shard)])[0]
    torch.testing.assert_close(traces.features(), torch.cat(seen))


def settings(name: str, *overrides: str):
    with initialize_config_dir(str(CONF), version_base=None):
        return compose(name, list(overrides))


def test_a_killed_recording_ends_as_an_uninterrupted_one_and_trains_filters(tmp_path) -> None:
    small = ["limit=10", "data.batch_size=5", "stop=eotp", f"out_dir={tmp_path / 'traces'}"]
    folder = collect(settings("collect_traces", *small))
    files = sorted(folder.glob("*.safetensors"))
    before = [path.read_bytes() for path in files]
    assert len(files) == 2
    files[1].unlink()
    collect(settings("collect_traces", *small))
    assert [path.read_bytes() for path in files] == before
    with pytest.raises(ValueError, match="other settings"):
        collect(settings("collect_traces", *small, "decoder=threshold"))
    again = settings("collect_traces", *small[:3], f"out_dir={tmp_path / 'again'}", f"references={folder}")
    assert [path.read_bytes() for path in sorted(collect(again).glob("*.safetensors"))] == before

    traces = [f"traces=[{folder}]", "fit.steps=40", "batch_size=4"]
    for kind, rule in (("block", Learn2PD), ("position", Agreement)):
        out_dir = tmp_path / kind
        result = train(settings("train_filter", f"filter={kind}", *traces, f"out_dir={out_dir}"))
        assert json.loads((out_dir / "filter" / "filter.json").read_text()) == result
        assert result["training_loss"] < 0.69 and rule(filter=str(out_dir / "filter")).identity
    with pytest.raises(ValueError, match=r"windows of 32 columns, the filter a block of 16; give filter.block_len=32"):
        train(settings("train_filter", "filter.block_len=16", *traces, f"out_dir={tmp_path / 'short'}"))


def test_each_row_of_a_short_file_is_recorded_once(tmp_path, capsys) -> None:
    rows = [{"prompt": f"Copy the list {i}."} for i in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    there = sum(not is_held_out(row["prompt"]) for row in rows)
    data = ["data=rows", f"data.source={tmp_path / 'rows.jsonl'}", "data.answer=null", "data.batch_size=5"]
    small = [*data, "gen_length=8", "block_length=8", "decoder=threshold"]
    for limit, count in ((100, there), (9, 10)):
        folder = collect(settings("collect_traces", *small, f"limit={limit}", f"out_dir={tmp_path / str(limit)}"))
        decoded = [len(load_file(path)["final"]) for path in sorted(folder.glob("*.safetensors"))]
        assert sum(decoded) == count and len(decoded) == -(-count // 5)
        assert len(read_traces([folder])[0].prompt.unique()) == count
        told = capsys.readouterr().out
        assert f"{folder}: {count} prompts" in told and ("all that there are" in told) == (count < limit)


def test_recordings_that_do_not_fit_are_refused(tmp_path, prompts) -> None:
    shard = record(prompts, Decoder(FixedK(4)))[0]
    first = write(tmp_path / "first", shard)
    other = write(tmp_path / "other", shard, model="another")
    with pytest.raises(ValueError, match=r"other holds traces with model=another, .*first with full; train on one"):
        read_traces([first, other])
    with pytest.raises(ValueError, match=r"holds no traces; scripts/collect_traces.py writes them"):
        read_traces([tmp_path])
    shard_path(other, 0).unlink()
    with pytest.raises(ValueError, match=r"is not finished: traces-00000.safetensors is missing"):
        read_traces([other])
    with pytest.raises(ValueError, match="differs in seed"):
        read_references(first, 0, ABOUT | {"seed": 1})
    assert read_references(first, 0, ABOUT) == [[t for t in ids if t >= 0] for ids in shard["reference"].tolist()]
    with pytest.raises(ValueError, match="may take 13 MB; lower it or raise max_mb=1"):
        collect(settings("collect_traces", "limit=400", "max_mb=1"))
    assert not (tmp_path / "results").exists()


def test_the_size_is_what_is_foreseen(tmp_path, prompts) -> None:
    shard = record(prompts, Decoder(FixedK(1)))[0]
    write_shard(tmp_path / "x.safetensors", shard)
    steps = {k: v for k, v in load_file(tmp_path / "x.safetensors").items() if k not in ("final", "reference")}
    assert sum(v.nbytes for v in steps.values()) == len(shard["step"]) * step_bytes(BLOCK)
