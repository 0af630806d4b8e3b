"""Runs that were written when configs named classes by other paths and run.json stated no facts: tests/earlier, and
what a user may still have in a command or a yaml."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from conftest import SECONDS, SMALL, make_model, samples
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf

from decoders import NO_CACHE, StrictEos
from parallelbench.records.compat import FIRST, MOVED, as_written_today, first_paths, public_paths, unstated_facts
from parallelbench.records.record import config_hash, read_run
from parallelbench.run.generator import DiffusionGenerator
from parallelbench.wiring.conf import CONF

EARLIER = Path(__file__).parent / "earlier"
COMMANDS = {
    "fixed": ["decoder=fixed", "cache=dual"],
    "ar": ["model=tiny_ar", "decoder=ar"],
    "threshold": ["decoder=threshold", "decoder.rule.tau=0.6", "traces=1"],
}
SAME = ["limit=2", *SMALL[1:]]


@pytest.fixture(params=COMMANDS)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(EARLIER / request.param, tmp_path / request.param))


def test_an_earlier_run_is_the_same_run(cli, earlier: Path) -> None:
    raw, before = yaml.safe_load((earlier / "config.yaml").read_text()), samples_and_rest(earlier)
    assert "parallelbench.tasks.Suite" in str(raw) and "knobs" not in json.loads((earlier / "run.json").read_text())
    assert config_hash(raw) == config_hash(public_paths(raw)) == json.loads(before[1])["config_hash"]
    code, out, err = cli("run", *SAME, *COMMANDS[earlier.name], f"out_dir={earlier.name}")
    assert code == 0, err
    assert f"4 samples, {len(before[0])} already there" in out
    after = samples_and_rest(earlier)
    assert after[0][: len(before[0])] == before[0] and len(after[0]) == 4
    assert (after[1] == before[1]) == (len(before[0]) == 4)  # a finished one is left alone
    assert read_run(earlier).info["status"] == "done"


def samples_and_rest(folder: Path) -> tuple[list[str], str]:
    """Whole lines of the samples, without their timing, and run.json."""
    lines = [line for line in (folder / "samples.jsonl").read_text().splitlines(keepends=True) if line.endswith("\n")]
    timeless = [{k: v for k, v in json.loads(line).items() if k not in SECONDS} for line in lines]
    return [json.dumps(line) for line in timeless], (folder / "run.json").read_text()


def test_an_earlier_run_resumes_to_what_a_new_one_gives(cli, tmp_path: Path) -> None:
    shutil.copytree(EARLIER / "threshold", tmp_path / "old")
    for folder in ("old", "new"):
        assert cli("run", *SAME, *COMMANDS["threshold"], f"out_dir={folder}")[0] == 0
    assert samples(tmp_path / "old") == samples(tmp_path / "new")
    old, new = read_run(tmp_path / "old"), read_run(tmp_path / "new")
    assert old.facts == new.facts and old.facts.knobs == {"decoder.rule.tau": 0.6}
    assert old.info["config_hash"] == new.info["config_hash"]


def test_earlier_runs_are_reported_beside_new_ones(cli, tmp_path: Path) -> None:
    for name in ("fixed", "ar"):
        shutil.copytree(EARLIER / name, tmp_path / "runs" / name)
        assert read_run(tmp_path / "runs" / name).facts.is_baseline
    assert cli("run", *SAME, "decoder=fixed", "decoder.rule.k=2", "cache=dual", "out_dir=runs/new")[0] == 0
    assert not read_run(tmp_path / "runs" / "new").facts.is_baseline
    code, out, _ = cli("report", "runs", "out_dir=page")
    report = (tmp_path / "page" / "report.md").read_text()
    row = next(line for line in report.splitlines() if line.startswith("| fixed k=2"))
    assert code == 0 and row.endswith("x |")  # measured against the earlier run
    assert (out + report).count("_target_") == 0


@pytest.mark.parametrize(("old", "public"), MOVED.items())
def test_a_moved_class_is_found_by_its_public_path(old: str, public: str) -> None:
    package, name = public.rsplit(".", 1)
    assert get_object(public).__name__ == name and hasattr(get_object(package), "__path__")
    assert public_paths({"a": [{"_target_": old}]}) == {"a": [{"_target_": public}]}
    assert first_paths({"_target_": public}) == {"_target_": FIRST[public]}
    assert config_hash({"x": {"_target_": old}}) == config_hash({"x": {"_target_": public}})


def test_an_earlier_path_in_a_command_is_the_same_run(cli, tmp_path: Path) -> None:
    assert cli("run", *SMALL, "out_dir=run")[0] == 0
    code, out, err = cli("run", *SMALL, "suite._target_=parallelbench.tasks.Suite", "out_dir=run")
    assert code == 0 and "6 already there" in out, err
    assert "parallelbench.Suite" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize("path", sorted((CONF / "decoder").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_run_states_what_was_read_off_its_config(path: Path) -> None:
    config = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    for changes in (
        {},
        {"temperature": 0.5},
        {"confidence": "margin"},  # where the rule reads it
        {"transforms": [{"_target_": "decoders.TopK"}]},
    ):
        assert isinstance(config, dict)
        changed = {**config, **changes}
        if config["_target_"] != "decoders.Decoder":
            continue
        try:
            decoder = instantiate(changed, _convert_="all")
        except InstantiationException as error:
            assert "confidence" in changes and "'margin' of Decoder, but" in str(error)
            continue
        model = make_model("full")
        noise = model.spec.mask_id if decoder.needs_noise else 0
        model.spec = replace(model.spec, delete_id=1, split_id=2, noise=noise)  # one decoder asks for them
        said = DiffusionGenerator(model, decoder, NO_CACHE, StrictEos()).describe()
        facts = unstated_facts({"decoder": changed, "suite": {}})
        assert (said["is_baseline"], said["fixed_number"]) == (facts.is_baseline, facts.fixed_number)
        assert said["is_ceiling"] == facts.is_ceiling == (path.stem == "oracle")
        assert facts.is_baseline == (path.stem == "fixed" and not changes)


def test_the_generation_of_official_data_is_stated() -> None:
    for old, generation in (("official.OfficialSuite", "v1"), ("official.OfficialV2Suite", "v2"), ("Suite", "")):
        config = public_paths({"decoder": {}, "suite": {"_target_": f"parallelbench.tasks.{old}"}})
        assert unstated_facts(config).generation == generation
        if generation:
            assert get_object(config["suite"]["_target_"]).generation == generation


def test_what_a_run_did_before_a_setting_came_is_stated_and_keeps_its_hash() -> None:
    old = {"decoder": {"_target_": "parallelbench.recurrent.DiffusionForcing", "inner": 2}}
    today = as_written_today(old)
    assert today["decoder"] == {"_target_": "parallelbench.DiffusionForcing", "inner": 2, "freeze": "prefix"}
    released = {"decoder": today["decoder"] | {"freeze": "last"}}
    assert config_hash(old) == config_hash(today) != config_hash(released)


def test_a_rule_and_its_revision_are_one_and_keep_their_hash() -> None:
    shared = {"steps": 8, "kind": "cap", "eta": 0.04}
    rule, revise = ({"_target_": f"decoders.{name}", **shared} for name in ("ReMdmRule", "ReMdmRemask"))
    joined = {"rule": {"_target_": "decoders.ReMdm", **shared}}
    wide, narrow = {"_target_": "decoders.WideIn", "tau": 0.5}, {"_target_": "decoders.Wino", "keep": 0.8}
    wino = {"rule": {"_target_": "decoders.Wino", "tau": 0.5, "keep": 0.8}}
    for old, new in (({"rule": rule, "revise": revise}, joined), ({"rule": wide, "revise": narrow}, wino)):
        assert public_paths({"decoder": old}) == {"decoder": new}
        assert config_hash({"decoder": old}) == config_hash({"decoder": new})
