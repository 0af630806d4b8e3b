"""Whether two settings rank methods alike: the correlation by other means, its interval, and the command."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau
from test_sweep_scores import write_run

from parallelbench.stats.agreement import agreement
from parallelbench.stats.resampling import resampled


def test_the_correlation_is_kendalls_and_the_interval_narrows_with_samples() -> None:
    rng = np.random.default_rng(0)
    widths = []
    for n in (12, 1200):
        chance = np.linspace(0.2, 0.8, 7)[:, None]
        scores = np.concatenate([rng.random((7, n)) < chance, rng.random((7, n)) < chance]).astype(float)
        (means,) = resampled(scores[None], np.arange(n) % 3, np.zeros((1, 14)), np.ones((1, 14)))
        found = agreement(means[:, :7], means[:, 7:], n)
        assert (
            found is not None
            and found.value == pytest.approx(kendalltau(means[0, :7], means[0, 7:]).statistic)
            and found.n == n
        )
        assert -1 <= found.ci_low <= found.value <= found.ci_high <= 1
        widths.append(found.ci_high - found.ci_low)
    assert found is not None and found.value > 0.9 and found.ci_low > 0.7 and widths[1] < 0.5 * widths[0]
    opposite = agreement(means[:, :7], -means[:, :7], n)
    assert opposite is not None and opposite.value == -1
    assert agreement(means[:, :7], np.ones((len(means), 7)), n) is None


def test_two_folders_are_compared_by_their_rankings(cli, tmp_path: Path) -> None:
    taus = {0.5: 1, 0.7: 3, 0.9: 6}  # and of eight answers, how many are right
    for folder, order in (("a", list(taus)), ("b", list(taus)), ("c", list(taus)[::-1])):
        for tau, right in zip(order, taus.values(), strict=True):
            write_run(tmp_path / folder / str(tau), [1.0] * right + [0.0] * (8 - right), 4 + right, tau)
    code, out, _ = cli("analyze", "compare", "a", "b", "out_dir=ab")
    assert code == 0 and "tau of scores: 1.00" in out and "tau of TPF: 1.00" in out
    row = next(line for line in out.splitlines() if "tau=0.9" in line)
    assert row.count("75.0 (1)") == 2 and row.count("1.20 (3)") == 2
    assert (tmp_path / "ab" / "ranks.csv").read_text().splitlines()[1].endswith("12.5,12.5,2.4,2.4")
    assert "tau of scores: -1.00" in cli("analyze", "compare", "a", "c", "out_dir=ac")[1]
    for tau, right in taus.items():  # a run of a smaller limit: its samples are the first of a larger one
        write_run(tmp_path / "few" / str(tau), ([1.0] * right + [0.0] * 8)[:5], 4 + right, tau)
    code, out, _ = cli("analyze", "compare", "a", "few", "out_dir=few-a")
    assert code == 0 and "; 5 samples of each decoder" in out and "tau of scores: 1.00" in out
    assert next(line for line in out.splitlines() if "tau=0.9" in line).count("100.0 (1)") == 2
    write_run(tmp_path / "b" / "again", [1.0] * 8, 4, 0.9)
    code, _, error = cli("analyze", "compare", "a", "b")
    assert code == 2 and "b has two runs of threshold" in error and "leave one out" in error
    write_run(tmp_path / "d" / "1", [1.0] * 8, 4, 0.9)
    write_run(tmp_path / "d" / "2", [1.0] * 8, 4, 0.1)
    assert "a and d have 1 decoders in common" in cli("analyze", "compare", "a", "d")[2]
