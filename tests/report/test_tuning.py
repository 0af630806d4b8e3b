"""Races replayed on published runs: the choice of the whole grid, with at most a fifth of its samples."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from parallelbench.records.record import readable_runs
from parallelbench.report.recommend import choose
from parallelbench.report.tuning import Grid, stored, verdict
from parallelbench.stats.groups import comparable, distinct
from parallelbench.stats.intervals import bounded
from parallelbench.stats.loss import fewest
from parallelbench.stats.paired import pair
from parallelbench.stats.racing import SHARE, Finish, Race, run_race

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
FEWEST = 7  # runs of a grid


def grids(page: str, folder: Path) -> Iterator[Grid]:
    with tarfile.open(PUBLISHED / page / "runs.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    for runs in comparable(distinct(readable_runs([folder])[0])[0]):
        if len(runs) >= FEWEST:
            yield stored(runs)


def replayed(grid: Grid, bound: float) -> tuple[Finish, int, float]:
    """How a race ends, what the whole grid would choose against the same reference, and how much faster that is."""
    limit = max(map(len, grid.order.values()))
    finish = run_race(grid, Race(limit, bound))
    runs = [grid.runs[arm] for arm in range(len(grid))]
    paired, curves = pair(runs), grid.curves()
    speed, weights = paired.tokens.sum(1) / paired.nfe.sum(1), paired.questions.weights
    score = paired.questions.mean(paired.score)
    choice = choose(score, speed, curves, bound, finish.reference, weights)
    by_grid = choice.reference if choice.best is None else choice.best
    by_race = finish.reference if finish.choice is None else finish.choice
    worse = bounded(weights * (score[by_grid] - score[by_race]), -100, 100, paired.questions.strata)
    assert worse.value <= 1 or worse.ci_low <= 0, (grid.name(by_grid), grid.name(by_race), worse)
    least = len(grid) * grid.count(0, 1) + 2 * (fewest(bound / 100) + grid.count(0, 1))
    assert finish.spent <= max(finish.whole / SHARE + 1, least)
    assert verdict(grid, Race(limit, bound), finish).startswith(("Take ", "Keep "))
    return finish, by_grid, float(speed[by_grid] / speed[by_race])


def test_a_race_on_published_runs_chooses_as_their_whole_grid_does(tmp_path: Path) -> None:
    (grid,) = grids("caches", tmp_path)
    for bound in (1.0, 2.0, 3.0):
        finish, by_grid, _ = replayed(grid, bound)
        assert grid.name(by_grid) == grid.name(finish.reference) == "fixed k=1 cache=none" and finish.choice is None


@pytest.mark.slow
@pytest.mark.parametrize("page", ["first-look", "verified", "caches", "learned", "decoders", "english"])
def test_races_on_all_published_runs_choose_as_their_whole_grids_do(page: str, tmp_path: Path) -> None:
    faster = []
    for grid in grids(page, tmp_path):
        for bound in (1.0, 2.0, 3.0):
            try:
                finish, _, ratio = replayed(grid, bound)
            except ValueError as error:
                assert "leaves" in str(error)  # too few samples for a statement
                continue
            faster.append(ratio)
            print(f"{page}, {len(grid)} runs, {bound:g} points: {finish.spent / finish.whole:.3f} of the samples")
    print(f"the grid's choices are {np.exp(np.mean(np.log(faster))):.2f} times as fast, at most {max(faster):.2f}")
    assert np.exp(np.mean(np.log(faster))) < 1.5
