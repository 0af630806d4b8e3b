"""The chooser: its test against likelihood by brute force, its choices against simulated sweeps of known truth."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL

from parallelbench.report.recommend import BOUNDS, choose
from parallelbench.stats.loss import ALPHA, fewest, statistic, upper_limit


def losses(lost: int, gained: int, n: int) -> np.ndarray:
    return np.repeat([1.0, -1.0, 0.0], [lost, gained, n - lost - gained])


@pytest.mark.parametrize(("lost", "gained", "n"), [(0, 0, 50), (3, 0, 80), (0, 4, 60), (7, 5, 200), (30, 2, 90)])
@pytest.mark.parametrize("bound", [0.01, 0.05, 0.2])
def test_the_statistic_takes_its_variance_from_the_likeliest_shares(
    lost: int, gained: int, n: int, bound: float
) -> None:
    gains = np.linspace(1e-7, (1 - bound) / 2 - 1e-7, 400_001)  # shares of gains; of losses: bound more
    same = n - lost - gained
    likelihood = lost * np.log(gains + bound) + gained * np.log(gains) + same * np.log(1 - 2 * gains - bound)
    q = gains[likelihood.argmax()]
    expected = (lost - gained - n * bound) / np.sqrt(n * (2 * q + bound - bound**2))
    assert statistic(losses(lost, gained, n), bound) == pytest.approx(expected, rel=1e-3)


def test_limits_close_in_on_the_loss_and_never_vanish() -> None:
    limits = [upper_limit(losses(n // 50, 0, n), 0.05) for n in (50, 200, 800, 3200, 12800)]
    assert limits == sorted(limits, reverse=True) and 0.02 < limits[-1] < 0.023 < 0.08 < limits[0]
    assert upper_limit(losses(0, 0, 267), 0.05) > 0.01 > upper_limit(losses(0, 0, 269), 0.05)  # equal is no proof
    assert fewest(0.01) == 268 and fewest(0.03) == 88
    assert upper_limit(losses(9, 0, 9), 0.05) == 1
    halves = losses(20, 10, 400) / 2  # partial scores with the same sums: the limit may only be too high
    assert upper_limit(np.tile(halves, 2)[:400], 0.05) >= upper_limit(halves, 0.05) - 1e-9


def sweep(rng: np.random.Generator, truth: np.ndarray, n: int) -> np.ndarray:
    """Scores of zeros and ones, `[runs, samples]`, on samples whose difficulty all runs share in part."""
    shared, own = rng.random(n), rng.random((len(truth), n))
    return 100.0 * (np.where(rng.random((len(truth), n)) < 0.7, shared, own) < truth[:, None])


CURVES = ["slow", "slow", *"aaabbbccc"]
SPEED = np.array([1.0, 1.1, 2, 3, 4, 2.1, 3.1, 4.1, 2.2, 3.2, 4.2])


HARDEST = [0.95, 0.95] + [0.919] * 9  # all fast runs just beyond the bound of three points


@pytest.mark.parametrize("reference", [None, 0])
@pytest.mark.parametrize("truth", [HARDEST, [0.95, 0.949] + [0.95, 0.93, 0.919] * 3, [0.999, 0.999] + [0.968] * 9])
def test_a_choice_that_loses_more_than_the_bound_is_rare(truth: list[float], reference: int | None) -> None:
    rng, scores = np.random.default_rng(0), np.array(truth)
    bad = scores.max() - scores > 0.03  # against the truly best, whichever is the reference
    sweeps, wrong, wrong_alone = 1500, 0, 0
    for _ in range(sweeps):
        score = sweep(rng, scores, 600)
        best = choose(score, SPEED, CURVES, 3.0, reference).best
        wrong += best is not None and bool(bad[best])
        alone = choose(score, SPEED, ["one"] * len(scores), 3.0, reference).needed <= score.shape[1]
        wrong_alone += bool((alone & bad).any())
    print(f"wrong choices {wrong / sweeps:.3f}, each run tested for itself {wrong_alone / sweeps:.3f}")
    assert wrong / sweeps <= ALPHA + 0.01  # two standard errors of the simulation
    if truth == HARDEST and reference == 0:
        assert wrong_alone / sweeps > 2 * ALPHA  # what the walk guards against


@pytest.mark.parametrize("worse", [0.0101, 0.0301])
def test_the_smallest_bound_that_a_choice_keeps_is_seldom_too_small(worse: float) -> None:
    rng, truth = np.random.default_rng(2), np.array([0.97, 0.97] + [0.97 - worse, 0.969 - worse, 0.9] * 3)
    sweeps, wrong, chosen = 1000, 0, 0
    for _ in range(sweeps):
        score = sweep(rng, truth, 600)
        for bound in BOUNDS:
            best = choose(score, SPEED, CURVES, bound, 0, level=ALPHA / len(BOUNDS)).best
            if best is not None:
                chosen, wrong = chosen + 1, wrong + (truth[0] - truth[best] > bound / 100)
                break
    assert wrong / sweeps <= ALPHA and chosen / sweeps > 0.5


def test_what_is_good_is_found_and_the_fastest_of_it() -> None:
    rng, truth = np.random.default_rng(1), np.array([0.95, 0.95] + [0.95, 0.949, 0.8] * 3)
    choices = [choose(sweep(rng, truth, 4000), SPEED, CURVES, 3.0) for _ in range(50)]
    assert {choice.best or choice.reference for choice in choices} == {9}  # 3.2 tokens per forward
    assert choose(sweep(rng, truth, 20), SPEED, CURVES, 3.0).best is None
    few = choose(np.full((2, 100), 100.0), np.array([1.0, 2.0]), ["a", "b"], 1.0)
    assert (few.reference, few.best) == (0, None) and few.needed[1] == pytest.approx(268, abs=1)


def test_the_command_line_names_choice_and_command(cli, tmp_path: Path) -> None:
    run = [
        "run",
        "-m",
        "decoder=fixed",
        "decoder.rule.k=1,2",
        "limit=8",
        "suite.tasks=[waiting_line/copy]",
        "out_dir=r",
    ]
    assert cli(*run)[0] == 0 and cli(*run, "seed=1")[0] == 0
    code, out, _ = cli("recommend", "r", "--max-loss", "40")
    assert code == 0 and out.count("on suite=default, seed=") == 2  # never in one table
    assert out.count("fastest within 40 points: fixed k=2") == 2 and "fixed k=1" in out
    commands = [shlex.split(line) for line in out.splitlines() if line.strip().startswith("python -m")]
    hashes = {json.loads(path.read_text())["config_hash"] for path in tmp_path.glob("r/*fixed*/run.json")}
    for command in commands:
        assert cli(*command[3:], "out_dir=again", "hydra.mode=MULTIRUN")[0] == 0
    again = {json.loads(path.read_text())["config_hash"] for path in tmp_path.glob("again/*/run.json")}
    assert len(again) == 2 and again < hashes
    code, out, _ = cli("recommend", "r", "max_loss=1", "reference=fixed k=2")
    assert code == 0 and out.count("the reference is the fastest run") == 2
    assert cli("run", "decoder=threshold", *SMALL, "out_dir=r/other")[0] == 0
    code, out, _ = cli("recommend", "r", "max_loss=1", "reference=threshold tau=0.9")
    assert code == 0 and out.count("# tiny") == 1 and "Left out: 4 runs of other models or samples than thresh" in out
    code, out, _ = cli("recommend", "r", "max_loss=1")
    assert code == 0 and "no faster configuration is certain to lose at most 1 point" in out and "limit=26" in out


@pytest.mark.parametrize("given", [["max_loss=little"], ["max_loss=-1"], ["max_loss=nan"]])
def test_what_is_no_bound_is_refused(cli, given: list[str]) -> None:
    Path("r").mkdir()
    code, _, err = cli("recommend", "r", *given)
    assert code == 2 and "error: max_loss=" in err and "points" in err


def test_a_reference_that_is_not_there_is_refused(cli) -> None:
    assert cli("run", "decoder=fixed", *SMALL, "out_dir=r")[0] == 0
    code, _, err = cli("recommend", "r", "reference=best")
    assert code == 2 and "reference=best" in err and "fixed" in err


def test_of_equal_scores_the_fastest_is_taken_where_no_faster_run_is_certain() -> None:
    """As the end of a sweep says it: the reference is the slowest of them, which nobody would take."""
    score = np.full((3, 20), 100.0)
    score[2, :5] = 0
    choice = choose(score, np.array([1.0, 3.0, 5.0]), ["a", "b", "c"], 1.0)
    assert choice.reference == 0 and choice.best is None and choice.equal == choice.take == 1
    assert choose(score, np.array([1.0, 3.0, 5.0]), ["a", "b", "c"], 1.0, may=[0, 2]).take == 0
