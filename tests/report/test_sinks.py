"""Sinks: what they hold is read back and compared with the local files, which stay the record whatever a sink does."""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import SMALL, samples

from parallelbench.report.sinks import Log, Logs, TensorBoard, _wandb_key

wandb = pytest.importorskip("wandb")
tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

BOTH = "sink=[wandb,tensorboard]"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    wandb.teardown()


@dataclass(frozen=True)
class Broken:
    """A sink that cannot be opened, or fails at what it is given."""

    at: str

    def open(self, name: str, config: Mapping[str, Any]) -> Log:
        if self.at == "open":
            raise RuntimeError("no\nroom")
        return _BrokenLog(self.at)  # type: ignore[return-value]


@dataclass(frozen=True)
class _BrokenLog:
    at: str

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self.at == "log":
            raise OSError("disk full")

    table = plot = lambda self, *given: None

    def close(self) -> None:
        if self.at == "close":
            raise OSError("disk full")


def wandb_records(path: Path) -> list:
    """The records of a .wandb file: LevelDB's log (blocks of 32 KiB; checksum, length, type, data) of protobufs."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole, records = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # full, last
            records.append(Record.FromString(whole))
            whole = b""
    return records


def wandb_values(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("run-*.wandb")
    items = [i for record in wandb_records(path) if record.HasField("history") for i in record.history.item]
    return {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}


def event_values(folder: Path) -> tensorboard.EventAccumulator:
    return tensorboard.EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0}).Reload()


def test_both_sinks_hold_what_the_files_say(cli, tmp_path: Path) -> None:
    code, out, err = cli("run", *SMALL, BOTH)
    assert code == 0 and "sink" not in err
    folder = Path(out.strip().splitlines()[-1])
    info = json.loads((folder / "run.json").read_text())
    metrics = {f"{t}/{m}": v["value"] for t, row in info["metrics"].items() for m, v in row.items()}
    (offline,) = tmp_path.glob("results/wandb/wandb/offline-run-*")
    values = wandb_values(offline)
    assert {name: values[name] for name in metrics} == pytest.approx(metrics)
    (table,) = offline.glob("files/media/table/tasks_*.json")
    rows = {row[0]: row for row in json.loads(table.read_text())["data"]}
    assert set(rows) == set(info["metrics"]) and rows["all"][2] == info["metrics"]["all"]["score"]["value"]
    assert len(list(offline.glob("files/media/images/*.png"))) == 2
    events = event_values(tmp_path / "results/tensorboard" / folder.name)
    assert {name: events.Scalars(name)[0].value for name in metrics} == pytest.approx(metrics)
    assert set(events.Tags()["images"]) == {"tasks", "commit_order"}
    text = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert "tau: 0.9" in text["config/text_summary"]
    assert all(record["id"] in text["samples/text_summary"] for record in samples(folder))


def test_a_sink_is_no_part_of_a_run_and_is_sent_to_once(cli, tmp_path: Path) -> None:
    _, plain, _ = cli("run", *SMALL)
    folder = Path(plain.strip().splitlines()[-1])
    before = (folder / "samples.jsonl").read_bytes(), (folder / "config.yaml").read_bytes()
    _, again, _ = cli("run", *SMALL, "sink=tensorboard")
    assert again.strip().splitlines()[-1] == str(folder) and "6 already there" in again
    assert before == ((folder / "samples.jsonl").read_bytes(), (folder / "config.yaml").read_bytes())
    events = sorted(tmp_path.glob("results/tensorboard/*/*"))
    assert len(events) == 1
    cli("run", *SMALL, "sink=tensorboard")
    assert sorted(tmp_path.glob("results/tensorboard/*/*")) == events
    cli("run", *SMALL, "sink=tensorboard", "sink.tensorboard.folder=elsewhere")
    assert len(list(tmp_path.glob("elsewhere/*/*"))) == 1
    assert cli("report", str(folder))[0] == 0


@pytest.mark.parametrize("at", ["open", "log", "close"])
def test_a_sink_that_fails_costs_a_sentence(cli, at: str) -> None:
    broken = ["sink=tensorboard", "+sink.broken._target_=test_sinks.Broken", f"+sink.broken.at={at}"]
    code, out, err = cli("run", *SMALL, *broken, "out_dir=here")
    assert code == 0 and "score %" in out and "Traceback" not in err
    (line,) = [line for line in err.splitlines() if line.startswith("sink ")]
    assert "broken" in line and "local files" in line
    sent = json.loads(Path("here/sent.json").read_text())
    assert len(sent) == 1 and "tensorboard" in sent[0]  # the other has it
    _, _, err = cli("run", *SMALL, *broken[:2], "+sink.broken.at=never", "out_dir=here")
    assert "sink " not in err and len(json.loads(Path("here/sent.json").read_text())) == 2


@pytest.mark.parametrize("launcher", ["basic", pytest.param("local", marks=pytest.mark.slow)])
def test_a_sweep_sends_its_runs_and_a_summary(cli, tmp_path: Path, launcher: str) -> None:
    workers = ["hydra.launcher.workers=2"] if launcher == "local" else []
    sweep = ["run", "-m", "decoder=fixed", "decoder.rule.k=1,4", *SMALL, "out_dir=r", BOTH, f"launcher={launcher}"]
    code, _, err = cli(*sweep, *workers)
    assert code == 0 and "sink " not in err
    assert len(list(tmp_path.glob("results/wandb/wandb/offline-run-*"))) == 3
    (offline,) = tmp_path.glob("results/wandb/wandb/*-sweep-*")
    (table,) = offline.glob("files/media/table/runs_*.json")
    content = json.loads(table.read_text())
    rows = [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]
    assert {row["run"] for row in rows} == {"fixed k=1", "fixed k=4"}
    for row in rows:
        metrics = json.loads((Path(row["folder"]) / "run.json").read_text())["metrics"]
        assert row["tpf"] == metrics["all"]["tpf"]["value"]
    assert wandb_values(offline)["runs"] == 2
    (folder,) = tmp_path.glob("results/tensorboard/sweep-*")
    assert event_values(folder).Scalars("best score")[0].value == pytest.approx(max(row["score"] for row in rows))
    count = len(list(tmp_path.rglob("*.tfevents.*")))
    assert count == 3 and cli(*sweep, *workers)[0] == 0
    assert len(list(tmp_path.rglob("*.tfevents.*"))) == count  # nothing twice


def test_wandb_is_online_with_a_key_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not _wandb_key()
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert _wandb_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not _wandb_key()
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert _wandb_key()


def test_a_log_takes_a_training_s_curve(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    logs = Logs({"tensorboard": TensorBoard(str(tmp_path)), "broken": Broken("log")}, "train-x", {"steps": 5})
    for step in range(5):
        logs.log(step, {"loss": 1 / (step + 1), "lr": 0.1})
    logs.close()
    curve = [(event.step, event.value) for event in event_values(tmp_path / "train-x").Scalars("loss")]
    assert curve == [(step, pytest.approx(1 / (step + 1))) for step in range(5)]
    assert capsys.readouterr().err.count("sink broken") == 1 and logs.failed == {"broken"}


def test_a_missing_package_is_named_before_anything_is_decoded(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallelbench.report.sinks.find_spec", lambda name: None)
    code, _, err = cli("run", *SMALL, "sink=tensorboard", "out_dir=here")
    assert code == 2 and "dllm-parallelbench[logging]" in err and not Path("here").exists()
