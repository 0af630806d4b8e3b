"""How often each printed 95 % interval holds the truth: `python scripts/coverage.py [REPETITIONS]` prints the table of
docs/intervals.md.

Every row draws data whose truth is known, as often as asked, and makes the interval as the reports do.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parallelbench.records.record import Record
from parallelbench.report.compare import Comparison, compare
from parallelbench.stats.intervals import Value, bounded
from parallelbench.stats.metrics import ALL, measure
from parallelbench.stats.paired import Means, Paired, marks, means
from parallelbench.stats.resampling import interval, lead
from parallelbench.stats.speed_at_quality import speed_at
from parallelbench.stats.sweeps import area, aup, oracle, pbx

COLUMNS = 32  # of an answer
POPULATION = 400_000  # samples by which a truth is known where no formula says it
Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Setting:
    """One row: an interval as it is printed, the data's kind and size, how to draw one, and the truth."""

    what: str
    data: str
    size: str
    draw: Callable[[np.random.Generator], Value]
    truth: float

    def coverage(self, repetitions: int, seed: int = 0) -> float:
        """Share of the drawn intervals that hold the truth."""
        rng = np.random.default_rng(seed)
        drawn = (self.draw(rng) for _ in range(repetitions))
        return sum(v.ci_low - 1e-9 <= self.truth <= v.ci_high + 1e-9 for v in drawn) / repetitions


def settings() -> Iterator[Setting]:
    """All rows of the table."""
    yield from _scores()
    yield from _forwards()
    yield from _seconds()
    yield from _differences()
    yield from _ratios()
    yield from _curves()


# ---- Runs on their own: terminal, report, page, CSV, recommend, analyze frontier


def _records(tasks: Sequence[str], **numbers: np.ndarray) -> list[Record]:
    """Records with the given scores, nfe, tokens, latency; batches of four within a task."""
    n = len(tasks)
    score, nfe, tokens, latency = (numbers.get(key, np.ones(n)) for key in ("score", "nfe", "tokens", "latency"))
    return [
        Record(
            id=str(i), task=tasks[i], task_version="1", prompt="", prompt_sha="", data={}, target="", completion="",
            token_ids=[], num_tokens=int(tokens[i]), scores={"score": float(score[i])}, nfe=int(nfe[i]),
            queried=int(nfe[i]) * COLUMNS, committed_at=[0] * COLUMNS, stopped_by="", latency_s=float(latency[i]),
            batch_size=1, batch=str(i),
        )
        for i in range(n)
    ]  # fmt: skip


def _scores() -> Iterator[Setting]:
    def share(p: float) -> Draw:
        return lambda rng, n: (rng.random(n) < p).astype(float)

    def partial(chance: float) -> Draw:
        return lambda rng, n: np.where(rng.random(n) < chance, rng.random(n), 1.0)

    def score(data: str, sizes: Sequence[int], one: Draw, truth: float) -> Iterator[Setting]:
        for n in sizes:

            def draw(rng: np.random.Generator, n: int = n) -> Value:
                return measure("score", _records(["t"] * n, score=one(rng, n)))

            yield Setting("score", data, str(n), draw, truth)

    for p in (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999):
        yield from score(f"right or wrong, {100 * p:g} % right", (20, 50, 200), share(p), p)
    yield from score("partial: 5 % of samples uniform, others 1", (20, 50, 200), partial(0.05), 0.975)
    yield from score("partial: 1 % of samples uniform, others 1", (50, 200), partial(0.01), 0.995)
    yield from score(
        "partial: 10 % of samples 0.5, others 1", (20, 50), lambda rng, n: 1 - 0.5 * (rng.random(n) < 0.1), 0.95
    )
    yield from score("partial: all uniform in 0.4 to 0.9", (20, 50, 200), lambda rng, n: 0.4 + rng.random(n) / 2, 0.65)
    for size, low in ((50, 0.05), (3, 0.05), (50, 0.9)):
        rates, tasks = np.linspace(low, 0.99, 12), [f"t{i}" for i in range(12) for _ in range(size)]

        def draw(rng: np.random.Generator, tasks: list[str] = tasks, rates: np.ndarray = rates) -> Value:
            of = np.repeat(rates, len(tasks) // 12)
            return measure("score", _records(tasks, score=(rng.random(len(of)) < of).astype(float)))

        yield Setting(
            "score, all",
            f"right or wrong, tasks {100 * low:g} to 99 % right",
            f"12 x {size}",
            draw,
            float(rates.mean()),
        )

    def weighted(rng: np.random.Generator) -> Value:
        of = np.repeat([0.9, 0.3], 100)
        return bounded((rng.random(200) < of).astype(float), 0, 1, np.repeat([0, 1], 100), np.repeat([0.6, 1.4], 100))

    yield Setting("score, ideal model", "two lengths, weights 30 and 70 %", "2 x 100", weighted, 0.3 * 0.9 + 0.7 * 0.3)


def ordinary(rng: np.random.Generator, n: int) -> np.ndarray:
    return 1 + rng.binomial(COLUMNS - 1, 0.2, n)


def heavy(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.clip(np.ceil(3 * np.exp(rng.normal(0, 0.9, n))), 1, COLUMNS)


def rare(share: float) -> Draw:
    return lambda rng, n: np.where(rng.random(n) < share, COLUMNS, rng.integers(3, 7, n))


NFE: dict[str, Draw] = {
    "ordinary": ordinary,
    "heavy-tailed forwards": heavy,
    "1 % of samples take 32 forwards": rare(0.01),
    "3 % of samples take 32 forwards": rare(0.03),
    "6 % of samples take 32 forwards": rare(0.06),
}


def _tokens(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.clip(rng.normal(22, 4, n).round(), 1, COLUMNS)


def _forwards() -> Iterator[Setting]:
    rng = np.random.default_rng(0)
    tokens = _tokens(rng, POPULATION).mean()
    for data, forwards in NFE.items():
        mean = forwards(rng, POPULATION).mean()
        truths = {"TPF": tokens / mean, "NFE": mean, "speed-up": COLUMNS / mean, "queried": mean * COLUMNS}
        for what, metric, sizes in (
            ("TPF", "tpf", (10, 20, 50, 200)), ("NFE", "nfe", (20, 50)), ("speed-up", "speedup_nfe", (50,)), ("queried", "queried", (50,))
        ):  # fmt: skip
            for size in sizes:

                def draw(
                    rng: np.random.Generator, metric: str = metric, n: int = size, forwards: Draw = forwards
                ) -> Value:
                    return measure(metric, _records(["t"] * n, nfe=forwards(rng, n), tokens=_tokens(rng, n)))

                yield Setting(what, data, str(size), draw, truths[what])
    for data in ("ordinary", "3 % of samples take 32 forwards"):
        shifts, forwards = np.arange(12) % 4, NFE[data]
        tasks = [f"t{i}" for i in range(12) for _ in range(50)]

        def all_tasks(rng: np.random.Generator, forwards: Draw = forwards) -> Value:
            nfe = np.minimum(forwards(rng, 600) + np.repeat(shifts, 50), COLUMNS)
            return measure("tpf", _records(tasks, nfe=nfe, tokens=_tokens(rng, 600)))

        each = forwards(rng, POPULATION)
        truth = tokens / np.mean([np.minimum(each + shift, COLUMNS).mean() for shift in shifts])
        yield Setting("TPF, all", data, "12 x 50", all_tasks, float(truth))


def _seconds() -> Iterator[Setting]:
    for spread in (0.1, 0.4):
        for batches in (5, 13, 52):
            for what, metric, truth in (
                ("latency s", "latency_s", np.exp(spread**2 / 2)),
                ("tokens/s", "tokens_per_s", 22 / np.exp(spread**2 / 2)),
            ):

                def draw(
                    rng: np.random.Generator, n: int = batches, spread: float = spread, metric: str = metric
                ) -> Value:
                    tokens = rng.integers(20, 25, n)
                    return measure(metric, _records(["t"] * n, latency=np.exp(rng.normal(0, spread, n)), tokens=tokens))

                yield Setting(what, f"batches vary by {100 * spread:g} %", f"{batches} batches", draw, float(truth))


# ---- Two runs: analyze compare, page


def _pair(score: np.ndarray, nfe: np.ndarray, tokens: np.ndarray, num_tasks: int = 1) -> Comparison:
    tasks = np.repeat([f"t{i:02}" for i in range(num_tasks)], score.shape[1] // num_tasks)
    return compare(
        Paired(tasks, 100.0 * score, nfe.astype(float), tokens.astype(float), np.full(nfe.shape, 1.0 * COLUMNS))
    )[ALL]


def _differences() -> Iterator[Setting]:
    def change(worse: float, better: float) -> Draw:
        return lambda rng, n: rng.choice([-1.0, 0.0, 1.0], n, p=[worse, 1 - worse - better, better])

    def setting(data: str, num_tasks: int, size: int, one: Draw, truth: float) -> Setting:
        def draw(rng: np.random.Generator) -> Value:
            n = num_tasks * size
            moved = one(rng, n)
            score = np.stack([(moved < 0) * 1.0, moved + (moved < 0)])
            return _pair(score, np.ones((2, n)), np.ones((2, n)), num_tasks).difference

        return Setting(
            "B - A" + ", all" * (num_tasks > 1),
            data,
            f"{num_tasks} x {size}" if num_tasks > 1 else str(size),
            draw,
            truth,
        )

    pairs = ((0.005, 0.0), (0.01, 0.0), (0.02, 0.01), (0.05, 0.02), (0.1, 0.1), (0.3, 0.05))
    for worse, better in pairs:
        data = f"{100 * worse:g} % worse, {100 * better:g} % better"
        for size in (20, 50, 200):
            yield setting(data, 1, size, change(worse, better), 100 * (better - worse))
    for num_tasks, size in ((12, 50), (12, 3)):
        for worse, better in ((0.01, 0.0), (0.05, 0.02), (0.1, 0.1)):
            data = f"{100 * worse:g} % worse, {100 * better:g} % better"
            yield setting(data, num_tasks, size, change(worse, better), 100 * (better - worse))
    for size in (20, 50, 200):

        def some(rng: np.random.Generator, n: int) -> np.ndarray:
            return np.where(rng.random(n) < 0.1, -rng.random(n), 0.0)

        def most(rng: np.random.Generator, n: int) -> np.ndarray:
            return rng.uniform(-0.3, 0.2, n)

        yield setting("partial: 10 % of samples lose, uniform in 0 to 1", 1, size, some, -5.0)
        yield setting("partial: all differ, -0.3 to 0.2", 1, size, most, -5.0)


def _ratios() -> Iterator[Setting]:
    rng = np.random.default_rng(0)

    def both(extra: float) -> Callable[[np.random.Generator, int], np.ndarray]:
        """Forwards of B and A: A's are ordinary, B's fewer on most samples, and `extra` of B's samples take 32."""

        def draw(rng: np.random.Generator, n: int) -> np.ndarray:
            a = ordinary(rng, n)
            b = np.where(rng.random(n) < extra, COLUMNS, np.maximum(1, a - rng.integers(0, 4, n)))
            return np.stack([a, b])

        return draw

    def similar(rng: np.random.Generator, n: int) -> np.ndarray:
        a = heavy(rng, n)
        return np.stack([a, np.clip(np.ceil(a * np.exp(rng.normal(0, 0.3, n))), 1, COLUMNS)])

    kinds = {"ordinary": both(0.0), "heavy-tailed forwards": similar, "3 % of B's samples take 32 forwards": both(0.03)}
    for data, one in kinds.items():
        mean = one(rng, POPULATION).mean(1)
        for num_tasks, size in ((1, 20), (1, 50), (1, 200), (12, 50)):
            for what, key, truth in (
                ("NFE B/A", "nfe_ratio", mean[1] / mean[0]),
                ("TPF B/A", "tpf_ratio", mean[0] / mean[1]),
            ):

                def draw(
                    rng: np.random.Generator,
                    key: str = key,
                    k: int = num_tasks,
                    n: int = num_tasks * size,
                    one: Draw = one,
                ) -> Value:
                    row = _pair(np.ones((2, n)), one(rng, n), np.stack([_tokens(rng, n), _tokens(rng, n)]), k)
                    return {"nfe_ratio": row.nfe_ratio, "tpf_ratio": row.tpf_ratio}[key]

                yield Setting(what, data, f"{num_tasks} x {size}" if num_tasks > 1 else str(size), draw, float(truth))


# ---- Curves: PBx, AUP, area, speed at quality, oracle, leaderboard


def _sweep(rng: np.random.Generator, n: int, share: float) -> Paired:
    """Two decoders with four knobs each; the second is 15 % faster. Right answers and forwards share their difficulty.
    `share` of each run's samples take 32 forwards."""
    hard = rng.normal(0, 1, n)
    score, nfe = [], []
    for faster in (1.0, 1.15):
        for speed, wrong in ((2, 0.05), (4, 0.1), (6, 0.2), (9, 0.4)):
            edge = np.sqrt(1.25) * _NORMAL[wrong]
            score.append(hard + rng.normal(0, 0.5, n) < edge)
            took = np.clip(np.round(22 / (faster * speed) * np.exp(0.2 * hard + rng.normal(0, 0.2, n))), 1, COLUMNS)
            nfe.append(np.where(rng.random(n) < share, COLUMNS, took))
    tokens = np.tile(_tokens(rng, n), (8, 1))
    return Paired(np.full(n, "t"), 100.0 * np.array(score), np.array(nfe), tokens, np.full(tokens.shape, 1.0 * COLUMNS))


_NORMAL = {0.05: 1.6449, 0.1: 1.2816, 0.2: 0.8416, 0.4: 0.2533}  # quantiles


def _curve(sweep: Means, first: int) -> dict[str, np.ndarray]:
    """What reports say of a curve of four runs, of the data and of each resample."""
    of = slice(first, first + 4)
    score, tpf, tps, best = sweep.score[:, of], sweep.tpf[:, of], sweep.tps[:, of], sweep.score.max(1)
    rows = list(zip(score, tpf, tps, best, strict=True))
    return {
        "PB80 TPF": np.array([pbx(fast, s, 80) for s, fast, _, _ in rows]),
        "PB80 TPS": np.array([pbx(fast, s, 80) for s, _, fast, _ in rows]),
        "PB80 TPF, known at points": np.array([pbx(fast, s, 75, discrete=True) for s, fast, _, _ in rows]),
        "AUP": np.array([aup(fast, s, b) for s, fast, _, b in rows]),
        "area": np.array([area(fast, s) for s, fast, _, _ in rows]),
        "TPF at 90 % of the best": np.array([speed_at(fast, s, 0.9 * b) for s, fast, _, b in rows]),
    }


def _curves() -> Iterator[Setting]:
    for share, data in (
        (0.0, "two curves of four runs"),
        (0.03, "the same, 3 % of each run's samples take 32 forwards"),
    ):
        population = _sweep(np.random.default_rng(0), POPULATION, share)
        alike = np.array(
            [
                population.score.mean(1),
                population.nfe.mean(1),
                (COLUMNS / population.nfe).mean(1),
                population.tokens.mean(1),
            ]
        )
        exact = Means(*(row[None] for row in (*alike[:3], alike[3] / alike[1])))
        truths = {name: float(v[0]) for name, v in _curve(exact, 4).items()}
        truths["lead in TPF at 90 %"] = truths["TPF at 90 % of the best"] - float(
            _curve(exact, 0)["TPF at 90 % of the best"][0]
        )
        chosen = oracle(population.score[:4], population.nfe[:4])
        rows = {
            "TPS of a run": alike[2][5],
            "score of a run": alike[0][5],
            "oracle's score": chosen.score.mean(),
            "oracle's NFE": chosen.nfe.mean(),
        }
        for n in (20, 50, 200):
            for what in truths:

                def draw(rng: np.random.Generator, n: int = n, what: str = what, share: float = share) -> Value:
                    sweep = means(_sweep(rng, n, share))
                    if not what.startswith("lead"):
                        return interval(_curve(sweep, 4)[what], n)
                    ours, theirs = (_curve(sweep, first)["TPF at 90 % of the best"] for first in (4, 0))
                    return interval(lead(ours, theirs), n)

                yield Setting(what, data, str(n), draw, truths[what])
            for what, truth in rows.items():

                def one(rng: np.random.Generator, n: int = n, what: str = what, share: float = share) -> Value:
                    sweep = _sweep(rng, n, share)
                    best = oracle(sweep.score[:4], sweep.nfe[:4])
                    taken = Paired(sweep.tasks, best.score[None], best.nfe[None], sweep.tokens[:1], sweep.canvas[:1])
                    (of_oracle,), of_run = marks(taken), marks(sweep)[5]
                    return {
                        "TPS of a run": of_run.tps,
                        "score of a run": of_run.score,
                        "oracle's score": of_oracle.score,
                        "oracle's NFE": of_oracle.nfe,
                    }[what]

                yield Setting(what, data, str(n), one, float(truth))


def table(repetitions: int) -> str:
    """The coverage of every setting as Markdown, sizes side by side."""
    found: dict[tuple[str, str], list[str]] = {}
    for i, one in enumerate(settings()):
        cell = f"{one.size}: {100 * one.coverage(repetitions, seed=i):.1f}"
        found.setdefault((one.what, one.data), []).append(cell)
        print(*(one.what, one.data, cell), sep="; ", file=sys.stderr, flush=True)
    lines = ["| interval | data | samples: % of intervals that hold the truth |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {what} | {data} | {', '.join(cells)} |" for (what, data), cells in found.items())])


if __name__ == "__main__":
    print(table(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
