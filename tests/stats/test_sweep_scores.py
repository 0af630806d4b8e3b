"""Scores of a sweep against brute force and closed cases; comparisons of runs whose truth is known."""

import csv
import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import yaml
from msgspec import structs
from msgspec.structs import replace

from parallelbench.records.facts import Facts, knobs_of
from parallelbench.records.record import Record, Run, prompt_sha
from parallelbench.report.best_knob import ORACLE, oracle_rows
from parallelbench.report.compare import compare
from parallelbench.stats.metrics import ALL
from parallelbench.stats.paired import Paired, marks, means, pair
from parallelbench.stats.resampling import HALF, interval, lead
from parallelbench.stats.sweeps import aup, aups, merged, oracle, pareto, pbx, sign_flip_p


def curve(seed: int, size: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Points on a coarse grid, so that some are equal in speed, score or both."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 7, size) / 2, rng.integers(0, 21, size) * 5.0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("discrete", [False, True])
def test_pbx_falls_with_the_level_and_knows_no_order(seed: int, discrete: bool) -> None:
    speed, score = curve(seed)
    values = [pbx(speed, score, level, discrete) for level in range(0, 106)]
    assert values == sorted(values, reverse=True) and values[0] == speed.max() and values[-1] == 0
    order = np.random.default_rng(seed + 1).permutation(len(speed))
    assert values == [pbx(speed[order], score[order], level, discrete) for level in range(0, 106)]


@pytest.mark.parametrize("seed", range(20))
def test_pbx_is_the_last_place_on_the_line_at_the_level(seed: int) -> None:
    speed, score = curve(seed)
    best = {x: max(score[speed == x]) for x in set(speed)}
    grid = np.linspace(min(best), max(best), 20001)
    line = np.interp(grid, sorted(best), [best[x] for x in sorted(best)])
    for level in (12.5, 33, 70, 88):
        reached = grid[line >= level]
        assert pbx(speed, score, level) == pytest.approx(reached.max() if len(reached) else 0, abs=2e-4)
        at_points = [x for x, y in zip(speed, score, strict=True) if y >= level]
        assert pbx(speed, score, level, discrete=True) == max(at_points, default=0)


def test_equal_speeds_merge_to_the_better_score() -> None:
    speed, score = np.array([2.0, 1.0, 2.0 + 1e-12, 3.0]), np.array([50.0, 90.0, 70.0, 10.0])
    at = merged(speed, score)
    assert speed[at].round(6).tolist() == [1, 2, 3] and score[at].tolist() == [90, 70, 10]


def test_aup_of_closed_cases() -> None:
    assert aup(np.array([2.0]), np.array([50.0]), 50.0) == 100
    level = np.array([80.0, 80.0, 80.0])  # nothing lost: speed times score
    assert aup(np.array([1.0, 4.0, 2.0]), level, 80.0) == pytest.approx(320)
    dropped = np.array([80.0, 74.9])  # more than five points: the fast point is worth nothing
    assert aup(np.array([1.0, 9.0]), dropped, 80.0) == 80
    weight = np.exp(-3 * (1 - 76 / 80))
    assert aup(np.array([1.0, 3.0]), np.array([80.0, 76.0]), 80.0) == pytest.approx(80 + (80 + 76 * weight))
    worse = np.exp(-3 * (1 - 40 / 80))  # below the best method everywhere: weighted but for the first rectangle
    assert aup(np.array([1.0, 3.0]), np.array([40.0, 40.0]), 80.0) == pytest.approx(40 + 80 * worse)


def test_a_point_near_aups_edge_is_out_for_its_lower_limit_and_in_for_its_upper() -> None:
    for gap, low, high in ((4.0, 80, 300), (6.0, 80, 300), (0.5, 300, 340), (30.0, 0, 81)):
        score = np.tile([80.0, 80.0 - gap], (1001, 1))
        values = aups(np.tile([1.0, 4.0], (1001, 1)), score, score[:, 0], n=100)  # one unseen sample is a point of 100
        assert values[0] == aup(np.array([1.0, 4.0]), score[0], 80.0)
        limits = values[1:501].mean(), values[501:].mean()
        assert low <= limits[0] <= limits[1] <= high and (limits[0] == limits[1]) == (gap in (0.5, 30.0)), gap
        if gap in (4.0, 6.0):
            assert limits[0] == pytest.approx(80) and limits[1] > 200
    drawn = np.concatenate([[0], np.linspace(-12, 12, 500), np.linspace(-12, 12, 500)])  # 7 points is its deviation
    score = np.stack([np.full(1001, 80.0), 58 - drawn], axis=1)  # 17 from the edge, some resamples within
    values = aups(np.tile([1.0, 4.0], (1001, 1)), score, score[:, 0], n=100)
    assert (values == 80).all()  # noise does not count twice


@pytest.mark.parametrize("seed", range(30))
def test_pareto_front_by_brute_force(seed: int) -> None:
    speed, score = curve(seed)
    points = list(zip(speed, score, strict=True))
    front = [i for i, (x, y) in enumerate(points) if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)]
    assert sorted(pareto(speed, score).tolist()) == front
    assert (np.diff(speed[pareto(speed, score)]) >= 0).all()


@pytest.mark.parametrize("seed", range(10))
def test_the_oracle_is_never_worse_than_a_run(seed: int) -> None:
    rng = np.random.default_rng(seed)
    score, nfe = rng.integers(0, 3, (5, 40)) / 2, rng.integers(1, 6, (5, 40)).astype(float)
    chosen = oracle(score, nfe), np.arange(40)
    assert (score[chosen] >= score).all()
    as_good = np.where(score == score[chosen], nfe, np.inf)
    assert (nfe[chosen] == as_good.min(0)).all()


def paired(score: np.ndarray, nfe: np.ndarray, tasks: np.ndarray | None = None) -> Paired:
    """Scores in per cent; twelve tokens and 32 columns each."""
    names = np.full(score.shape[1], "a") if tasks is None else tasks
    return Paired(names, score.astype(float), nfe.astype(float), np.full(score.shape, 12.0), np.full(score.shape, 32.0))


def test_oracle_rows_bound_every_run_in_every_task() -> None:
    rng = np.random.default_rng(0)
    tasks = np.repeat(["a", "b"], 50)
    nfe = np.stack([np.full(100, 8), np.full(100, 4), np.full(100, 2)])
    score = 100 * (rng.random((3, 100)) < np.array([[0.9], [0.7], [0.4]]))
    for rows in oracle_rows(paired(score, nfe, tasks), ["1", "2", "3"]).values():
        *singles, best = rows
        assert best.knob == ORACLE and sum(row.taken for row in singles) == pytest.approx(1)
        assert all(best.score.value >= row.score.value for row in singles)
        assert best.nfe.value < singles[0].nfe.value


def test_means_weigh_tasks_alike_and_count_padding_in_tps_only() -> None:
    score = np.array([[100, 100, 100, 0]])
    nfe = np.array([[2, 2, 2, 8]])
    result = means(paired(score, nfe, np.array(["a", "a", "a", "b"])))
    assert result.score[0, 0] == 50 and result.nfe[0, 0] == 5
    assert result.tps[0, 0] == (32 / 2 + 32 / 8) / 2
    assert result.tpf[0, 0] == pytest.approx(12 / 5)
    assert marks(paired(score, nfe, np.array(["a", "a", "a", "b"])))[0].tpf.value == pytest.approx(12 / 5)


def test_resamples_hold_the_worst_and_the_best_sample_each_on_its_side() -> None:
    score = np.stack([np.full(40, 100.0), np.full(40, 90.0)])
    drawn = means(paired(score, np.ones((2, 40)))).score
    assert (drawn[0] == [100, 90]).all() and (drawn[1 : 1 + HALF] <= drawn[0] + 1e-6).all()
    assert (drawn[1 + HALF :] >= drawn[0] - 1e-6).all()
    perfect = interval(drawn[:, 0], 40)
    assert 90 < perfect.ci_low < 97 and perfect.ci_high == perfect.value == 100
    ahead = interval(lead(drawn[:, 0], drawn[:, 1]), 40)
    assert ahead.value == 10 and ahead.ci_low < 10 < ahead.ci_high
    assert (lead(drawn[:, 0], drawn[:, 0])[0] == 0) and interval(lead(drawn[:, 0], drawn[:, 0]), 40).has_interval


def test_marks_weigh_tasks_alike_as_means_do() -> None:
    rng = np.random.default_rng(3)
    numbers = paired(rng.integers(0, 2, (2, 30)) * 100, rng.integers(1, 9, (2, 30)), np.array(["a"] * 20 + ["b"] * 10))
    data = means(numbers)
    for i, mark in enumerate(marks(numbers)):
        shown = (mark.score.value, mark.nfe.value, mark.tps.value, mark.tpf.value)
        assert shown == pytest.approx((data.score[0, i], data.nfe[0, i], data.tps[0, i], data.tpf[0, i]))
        assert all(value.ci_low < value.value < value.ci_high for value in (mark.score, mark.nfe, mark.tps, mark.tpf))


def test_p_values_are_uniform_without_a_difference_and_small_with_one() -> None:
    rng = np.random.default_rng(2)
    under_null = np.array([sign_flip_p(rng.choice([-1.0, 0.0, 1.0], 60)) for _ in range(60)])
    assert (under_null < 0.05).mean() <= 0.13 and 0.35 < under_null.mean() < 0.75
    assert sign_flip_p(np.repeat([1.0, 0.0], [30, 70])) < 0.001
    assert sign_flip_p(np.zeros(50)) == sign_flip_p(np.array([1.0, 0.0])) == 1
    assert sign_flip_p(np.array([1.0, 1.0, 1.0, 1.0, 0.0])) == 2 / 16  # exact


def test_a_tie_is_a_tie_and_a_gain_is_seen() -> None:
    score = 100 * np.stack([np.arange(100) % 2, np.arange(100) % 2])
    nfe = np.stack([np.full(100, 8), np.full(100, 4)])
    row = compare(paired(score, nfe, np.repeat(["a", "b"], 50)))
    for tie in row.values():
        assert tie.p == 1 and tie.difference.value == 0 and tie.difference.ci_low == -tie.difference.ci_high < 0
        assert tie.nfe_ratio.value == tie.nfe_ratio.ci_high == 0.5 and tie.tpf_ratio.value == pytest.approx(2)
    score[1, :20] = 100
    better = compare(paired(score, nfe))[ALL]
    assert better.better == 10 and better.worse == 0 and better.difference.ci_low > 0 and better.p < 0.01


def write_run(folder: Path, score: list[float], nfe: int, tau: float, **changes: object) -> Run:
    """A finished run of threshold tau on disk, samples alternating between two tasks."""
    changed = {"tasks": ["a", "b"], "version": "1", "suite": "parallelbench.Suite", **changes}
    tasks = list(changed["tasks"])  # type: ignore[call-overload]
    records = [
        Record(
            id=f"{tasks[i % len(tasks)]}/0/{i}",
            task=tasks[i % len(tasks)],
            task_version=str(changed["version"]),
            prompt=f"{i}",
            prompt_sha=prompt_sha(f"{i}"),
            data={},
            target="",
            completion="",
            token_ids=[1] * 12,
            num_tokens=12,
            scores={"score": s, "score_strict": s},
            nfe=nfe,
            queried=0,
            committed_at=[0] * 32,
            stopped_by="end",
            latency_s=0.01,
            share_s=0.01,
            batch_size=1,
            batch="",
        )
        for i, s in enumerate(score)
    ]
    choices = {"model": "m", "decoder": "threshold", "cache": "none", "stop": "never", "suite": "mine"}
    rule = {"_target_": "decoders.Threshold", "tau": tau}
    decoder = {"_target_": "decoders.Decoder", "rule": rule, **changed.get("decoder", {})}  # type: ignore[dict-item]
    config = {"decoder": decoder, "suite": {"_target_": changed["suite"]}, "batch_size": 1}
    config |= {"model": {}, "cache": {}, "stop": {}, "limit": 1, "seed": 0}
    config |= {"gen_length": None, "block_length": None, **changed.get("config", {})}  # type: ignore[dict-item]
    choices |= changed.get("choices", {})  # type: ignore[arg-type]
    info = {"schema": 1, "status": changed.get("status", "done"), "choices": choices, "model": "m"}
    info |= {"device": "cpu", "config_hash": "0", "knobs": knobs_of(config), **changed.get("info", {})}  # type: ignore[dict-item]
    generations = {"parallelbench.OfficialSuite": "v1", "parallelbench.OfficialV2Suite": "v2"}
    info = asdict(Facts(generation=generations.get(str(changed["suite"]), ""))) | {"dtype": "bfloat16"} | info
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "samples.jsonl").write_text("".join(json.dumps(structs.asdict(r)) + "\n" for r in records))
    return Run(folder, config, info, records)


def test_other_samples_versions_and_unfinished_runs_are_refused(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", [1.0] * 4, 8, 0.9)
    with pytest.raises(ValueError, match="two decoded other samples than"):
        pair([one, write_run(tmp_path / "two", [1.0] * 5, 8, 0.8)])
    with pytest.raises(ValueError, match="three has version 2 of a"):
        pair([one, write_run(tmp_path / "three", [1.0] * 4, 8, 0.8, version="2")])
    with pytest.raises(ValueError, match="four is not finished"):
        pair([one, write_run(tmp_path / "four", [1.0] * 4, 8, 0.8, status="partial")])
    other = replace(one.records[0], prompt_sha="another")
    with pytest.raises(ValueError, match="other samples"):
        pair([one, replace(one, records=[other, *one.records[1:]])])


def test_analyses_of_runs_from_the_command_line(cli, tmp_path: Path) -> None:
    for name, share, nfe, tau in (("slow", 100, 16, 0.9), ("middle", 90, 8, 0.8), ("fast", 60, 4, 0.7)):
        write_run(tmp_path / "runs" / name, [1.0] * share + [0.0] * (100 - share), nfe, tau)
    code, out, _ = cli("analyze", "pbx", "runs", "out_dir=pbx")
    assert code == 0 and "Not comparable with published numbers" in out
    rows = list(csv.DictReader((tmp_path / "pbx" / "pbx.csv").read_text().splitlines()))
    assert [(row["model"], row["strategy"]) for row in rows] == [("m", "threshold")]
    assert float(rows[0]["80"]) == pytest.approx(4 + 4 / 3) and float(rows[0]["75"]) == pytest.approx(6)
    scores = {row["score"]: row for row in csv.DictReader((tmp_path / "pbx" / "runs.csv").read_text().splitlines())}
    tpf = {name: float(scores["pb75_tpf"][name]) for name in ("value", "ci_low", "ci_high")}
    assert tpf["value"] == pytest.approx(1.5 + 1.5 / 2) and tpf["ci_low"] < tpf["value"] < tpf["ci_high"]
    assert {"pbx.md", "runs.png"} <= {path.name for path in (tmp_path / "pbx").iterdir()}

    code, out, _ = cli("analyze", "oracle", "runs", "out_dir=oracle")
    assert code == 0 and re.search(r"\noracle +100.0 \[96.3, 100.0\] +6.40 ", out)  # 0.6 x 4 + 0.3 x 8 + 0.1 x 16
    code, out, _ = cli("analyze", "compare", "runs/slow", "runs/fast", "out_dir=compare")
    assert code == 0 and re.search(r"\nall +100 +100.0 +60.0 +-40.0 \[", out)
    for arguments, message in (
        (("compare", "runs/slow"), "1 run directories given"),
        (("compare", "runs", "runs/slow"), "runs holds 3 runs"),
        (("oracle", "runs/slow"), "at least two"),
        (("pbx",), "nothing to score"),
        (("pbx", "runs", "generation=v3"), "generation=v3"),
    ):
        code, _, err = cli("analyze", *arguments)
        assert code == 2 and message in err and err.count("\n") == 1
