"""How often each printed 95 % interval holds the truth, as the table of docs/intervals.md.

`python scripts/interval_coverage.py [REPETITIONS [KIND ...]]`; the kinds are scores, forwards, seconds, differences,
ratios, curves, wordings, choices and ranks, all if none is named.

Every setting draws data whose truth is known, as often as asked, and makes the intervals as the reports do.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import numpy as np
from scipy.special import ndtr
from scipy.stats import kendalltau

from parallelbench.records.record import Record
from parallelbench.report.compare import compare
from parallelbench.report.recommend import choose
from parallelbench.stats.agreement import agreement
from parallelbench.stats.intervals import Value, bounded
from parallelbench.stats.metrics import ALL, measure
from parallelbench.stats.paired import Means, Paired, marks, means
from parallelbench.stats.resampling import interval, lead, resampled, tops
from parallelbench.stats.speed_at_quality import speed_at, speed_value
from parallelbench.stats.sweeps import aups, oracle, pbx

COLUMNS = 32  # of an answer
POPULATION = 200_000  # samples by which a truth is known where no formula says it
SHARES = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
CHANGES = ((0.005, 0.0), (0.01, 0.0), (0.02, 0.01), (0.05, 0.02), (0.1, 0.1), (0.3, 0.05))
Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Setting:
    """Data of one kind and size, with the intervals that reports print of it. size: samples of a task, or tasks x
    samples, or batches. draw: intervals by their names; truths: what they should hold. times: how much more often than
    asked, where drawing is cheap or dear."""

    data: str
    size: str
    draw: Callable[[np.random.Generator], Mapping[str, Value | None]]
    truths: Mapping[str, float]
    times: float = 1

    def coverage(self, repetitions: int, seed: int = 0) -> dict[str, float]:
        """By name, the share of drawn intervals that hold the truth, of those that there are."""
        rng, repetitions = np.random.default_rng(seed), int(self.times * repetitions)
        drawn = [self.draw(rng) for _ in range(repetitions)]
        there = {name: [value for one in drawn if (value := one[name]) is not None] for name in self.truths}
        return {
            name: float(np.mean([v.ci_low - 1e-9 <= truth <= v.ci_high + 1e-9 for v in there[name]]))
            for name, truth in self.truths.items()
            if 2 * len(there[name]) > repetitions  # else there mostly is none
        }


# ---- A run on its own: terminal, report, page, CSV, recommend, theory, frontier


def _records(tasks: Sequence[str], **numbers: np.ndarray) -> list[Record]:
    """Records with the given score, nfe, tokens and latency, each a batch of its own."""
    n = len(tasks)
    score, nfe, tokens, latency = (
        numbers.get(key, np.ones(n)).tolist() for key in ("score", "nfe", "tokens", "latency")
    )
    canvas: list[int] = [0] * COLUMNS
    return [
        Record(
            id=str(i),
            task=tasks[i],
            task_version="1",
            prompt="",
            prompt_sha="",
            data={},
            target="",
            completion="",
            token_ids=[],
            num_tokens=int(tokens[i]),
            scores={"score": score[i]},
            nfe=int(nfe[i]),
            queried=int(nfe[i]) * COLUMNS,
            committed_at=canvas,
            stopped_by="",
            latency_s=latency[i],
            share_s=latency[i],
            batch_size=1,
            batch=str(i),
        )
        for i in range(n)
    ]


def _tasks(count: int, samples: int) -> list[str]:
    return [f"t{i:02}" for i in range(count) for _ in range(samples)]


def _scores() -> Iterator[Setting]:
    @cache
    def score(values: tuple[float, ...]) -> Value:
        return measure("score", _records(["t"] * len(values), score=np.array(values)))

    def setting(data: str, n: int, one: Draw, truth: float) -> Setting:
        def draw(rng: np.random.Generator) -> dict[str, Value]:
            return {"score": score(tuple(np.sort(one(rng, n)).tolist()))}

        return Setting(data, str(n), draw, {"score": truth})

    def share(p: float) -> Draw:
        return lambda rng, n: (rng.random(n) < p).astype(float)

    def partial(chance: float) -> Draw:
        return lambda rng, n: np.where(rng.random(n) < chance, rng.random(n), 1.0)

    for p in SHARES:
        for n in (20, 50, 200):
            yield replace(setting(f"right or wrong, {100 * p:g} % right", n, share(p), p), times=20)
    for n in (20, 50, 200):
        yield setting("5 % of samples uniform in 0 to 1, others 1", n, partial(0.05), 0.975)
        yield setting("1 % of samples uniform in 0 to 1, others 1", n, partial(0.01), 0.995)
        yield setting("10 % of samples 0.5, others 1", n, lambda rng, n: 1 - 0.5 * (rng.random(n) < 0.1), 0.95)
        yield setting("all uniform in 0.4 to 0.9", n, lambda rng, n: 0.4 + rng.random(n) / 2, 0.65)
    for samples, low in ((50, 0.05), (3, 0.05), (50, 0.9)):
        rates = np.repeat(np.linspace(low, 0.99, 12), samples)

        def pooled(rng: np.random.Generator, samples: int = samples, rates: np.ndarray = rates) -> dict[str, Value]:
            right = (rng.random(len(rates)) < rates).astype(float)
            return {"score, all": measure("score", _records(_tasks(12, samples), score=right))}

        data = f"right or wrong, tasks from {100 * low:g} to 99 % right"
        yield Setting(data, f"12 x {samples}", pooled, {"score, all": float(rates.mean())})

    def ideal(rng: np.random.Generator) -> dict[str, Value]:
        right = (rng.random(200) < np.repeat([0.9, 0.3], 100)).astype(float)
        lengths = np.repeat([0, 1], 100)
        return {"score of an ideal model": bounded(right, 0, 1, lengths, np.array([0.6, 1.4])[lengths])}

    truth = {"score of an ideal model": 0.3 * 0.9 + 0.7 * 0.3}
    yield Setting("two lengths that weigh 30 and 70 %", "2 x 100", ideal, truth)


def _ordinary(rng: np.random.Generator, n: int) -> np.ndarray:
    return 1 + rng.binomial(COLUMNS - 1, 0.2, n)


def _heavy(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.clip(np.ceil(3 * np.exp(rng.normal(0, 0.9, n))), 1, COLUMNS)


def _rare(share: float) -> Draw:
    return lambda rng, n: np.where(rng.random(n) < share, COLUMNS, rng.integers(3, 7, n))


def _tokens(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.clip(rng.normal(22, 4, n).round(), 1, COLUMNS)


FORWARDS: dict[str, Draw] = {
    "ordinary": _ordinary,
    "heavy-tailed forwards": _heavy,
    **{f"{100 * share:g} % of samples take 32 forwards": _rare(share) for share in (0.01, 0.03, 0.06)},
}


def _forwards() -> Iterator[Setting]:
    rng = np.random.default_rng(0)
    tokens = _tokens(rng, POPULATION).mean()
    known = {"TPF": "tpf", "NFE": "nfe", "speed-up": "speedup_nfe", "queried": "queried"}
    for data, forwards in FORWARDS.items():
        for count, n in ((1, 10), (1, 20), (1, 50), (1, 200), (12, 50)):
            shifts = np.arange(count) % 4
            metrics = known if (count, n) == (1, 50) else {name: known[name] for name in ("TPF", "NFE")}

            def draw(
                rng: np.random.Generator,
                forwards: Draw = forwards,
                metrics: Mapping[str, str] = metrics,
                shifts: np.ndarray = shifts,
                count: int = count,
                n: int = n,
            ) -> dict[str, Value]:
                nfe = np.minimum(forwards(rng, count * n) + np.repeat(shifts, n), COLUMNS)
                records = _records(_tasks(count, n), nfe=nfe, tokens=_tokens(rng, count * n))
                return {name: measure(metric, records) for name, metric in metrics.items()}

            each = forwards(rng, POPULATION)
            mean = float(np.mean([np.minimum(each + shift, COLUMNS).mean() for shift in shifts]))
            truths = {"TPF": tokens / mean, "NFE": mean, "speed-up": COLUMNS / mean, "queried": mean * COLUMNS}
            truths = {name: truths[name] for name in metrics}
            yield Setting(data, str(n) if count == 1 else f"{count} x {n}", draw, truths)


def _seconds() -> Iterator[Setting]:
    for spread in (0.1, 0.4):
        for batches in (5, 13, 52):

            def draw(rng: np.random.Generator, n: int = batches, spread: float = spread) -> dict[str, Value]:
                latency, tokens = np.exp(rng.normal(0, spread, n)), rng.integers(20, 25, n)
                records = _records(["t"] * n, latency=latency, tokens=tokens)
                return {"latency s": measure("latency_s", records), "tokens/s": measure("tokens_per_s", records)}

            mean = float(np.exp(spread**2 / 2))
            truths = {"latency s": mean, "tokens/s": 22 / mean}
            yield Setting(f"batches vary by {100 * spread:g} %", f"{batches} batches", draw, truths)


# ---- Two runs: analyze compare, page


@cache
def _difference(change: tuple[float, ...], count: int) -> Value:
    return bounded(np.array(change), -100, 100, np.array(_tasks(count, len(change) // count)))


def _differences() -> Iterator[Setting]:
    def setting(data: str, count: int, samples: int, one: Draw, truth: float) -> Setting:
        def draw(rng: np.random.Generator) -> dict[str, Value]:
            change = np.sort(100 * one(rng, count * samples).reshape(count, samples))  # the order says nothing
            return {"B - A": _difference(tuple(change.ravel().tolist()), count)}

        return Setting(data, str(samples) if count == 1 else f"{count} x {samples}", draw, {"B - A": truth})

    def changes(worse: float, better: float) -> Draw:
        return lambda rng, n: rng.choice([-1.0, 0.0, 1.0], n, p=[worse, 1 - worse - better, better])

    for worse, better in CHANGES:
        data = f"{100 * worse:g} % worse, {100 * better:g} % better"
        for count, samples in ((1, 20), (1, 50), (1, 200), (12, 50), (12, 3)):
            one = setting(data, count, samples, changes(worse, better), 100 * (better - worse))
            yield replace(one, times=10 if count == 1 else 1)
    for samples in (20, 50, 200):
        lose = "10 % of samples lose, uniform in 0 to 1"
        yield setting(lose, 1, samples, lambda rng, n: np.where(rng.random(n) < 0.1, -rng.random(n), 0), -5)
        yield setting("all differ, uniform in -0.3 to 0.2", 1, samples, lambda rng, n: rng.uniform(-0.3, 0.2, n), -5)


def _ratios() -> Iterator[Setting]:
    def fewer(rng: np.random.Generator, n: int) -> np.ndarray:
        a = _ordinary(rng, n)
        return np.stack([a, np.maximum(1, a - rng.integers(0, 4, n))])

    def heavy(rng: np.random.Generator, n: int) -> np.ndarray:
        a = _heavy(rng, n)
        return np.stack([a, np.clip(np.ceil(0.8 * a * np.exp(rng.normal(0, 0.3, n))), 1, COLUMNS)])

    def stuck(run: int) -> Draw:
        def draw(rng: np.random.Generator, n: int) -> np.ndarray:
            nfe = fewer(rng, n)
            nfe[run, rng.random(n) < 0.03] = COLUMNS
            return nfe

        return draw

    kinds: dict[str, Draw] = {"B takes 0 to 3 forwards fewer": fewer, "the same, heavy-tailed": heavy}
    kinds |= {"B takes fewer, but 32 on 3 % of samples": stuck(1), "B takes fewer, A 32 on 3 % of samples": stuck(0)}
    for data, one in kinds.items():
        a, b = one(np.random.default_rng(0), POPULATION).mean(1)
        for count, samples in ((1, 20), (1, 50), (1, 200), (12, 50)):

            def draw(
                rng: np.random.Generator, one: Draw = one, count: int = count, n: int = count * samples
            ) -> dict[str, Value]:
                tasks, columns = np.array(_tasks(count, n // count)), np.full((2, n), 1.0 * COLUMNS)
                tokens = np.stack([_tokens(rng, n), _tokens(rng, n)])
                row = compare(Paired(tasks, np.zeros((2, n)), one(rng, n) * 1.0, tokens, columns))[ALL]
                return {"NFE B/A": row.nfe_ratio, "TPF B/A": row.tpf_ratio}

            size = str(samples) if count == 1 else f"{count} x {samples}"
            yield Setting(data, size, draw, {"NFE B/A": b / a, "TPF B/A": a / b}, times=5)


# ---- Curves: PBx, AUP, speed at quality, oracle, leaderboard


def _sweep(rng: np.random.Generator, n: int, share: float, gains: Sequence[float] = (1.0, 1.15)) -> Paired:
    """Decoders with four knobs each, the second 15 % faster. Right answers and forwards share their difficulty, and
    `share` of each run's samples take 32 forwards. gains: how fast each decoder is."""
    hard, count = rng.normal(0, 1, n), 4 * len(gains)
    score, nfe = np.zeros((count, n)), np.zeros((count, n))
    for i in range(count):
        speed, edge = ((2, 1.84), (4, 1.43), (6, 0.94), (9, 0.28))[i % 4]  # 95, 90, 80 and 60 % right
        score[i] = 100 * (hard + rng.normal(0, 0.5, n) < edge)
        took = 22 / (gains[i // 4] * speed) * np.exp(0.2 * hard + rng.normal(0, 0.2, n))
        nfe[i] = np.where(rng.random(n) < share, COLUMNS, np.clip(took.round(), 1, COLUMNS))
    tokens = np.tile(_tokens(rng, n), (count, 1))
    return Paired(np.full(n, "t"), score, nfe, tokens, np.full(tokens.shape, 1.0 * COLUMNS))


AT = "TPF at 90 % of the best"


def _speeds(sweep: Means, first: int, best: Callable[[np.ndarray], np.ndarray] = tops) -> np.ndarray:
    """TPF of a curve of four runs at its share of the best score, of the data and of each resample."""
    of = slice(first, first + 4)
    points = zip(sweep.tpf[:, of], sweep.score[:, of], best(sweep.score), strict=True)
    return np.array([speed_at(tpf, score, 0.9 * top) for tpf, score, top in points])


def _reached(sweep: Means, n: int) -> dict[str, np.ndarray]:
    """What else reports say of the second curve."""
    rows = list(zip(sweep.score[:, 4:], sweep.tpf[:, 4:], sweep.tps[:, 4:], sweep.score.max(1), strict=True))
    return {
        "PB75 TPF": np.array([pbx(tpf, score, 75) for score, tpf, _, _ in rows]),
        "PB75 TPS": np.array([pbx(tps, score, 75) for score, _, tps, _ in rows]),
        "PB70 TPF, known at points": np.array([pbx(tpf, score, 70, discrete=True) for score, tpf, _, _ in rows]),
        "AUP": aups(sweep.tpf[:, 4:], sweep.score[:, 4:], tops(sweep.score), n),
    }


def _taken(sweep: Paired) -> Paired:
    """The oracle of the first curve as a run."""
    return sweep.taking(oracle(sweep.score[:4], sweep.nfe[:4])[None])


def _curve_values(sweep: Paired) -> dict[str, Value | None]:
    n, resampled = len(sweep.questions.weights), means(sweep)
    ours, theirs = (_speeds(resampled, first, lambda score: score.max(1)) for first in (4, 0))
    run, (of_oracle,) = marks(sweep)[5], marks(_taken(sweep))
    values: dict[str, Value | None] = {name: interval(v, n) for name, v in _reached(resampled, n).items()}
    values |= {AT: speed_value(_speeds(resampled, 4), n), "its lead": speed_value(lead(ours, theirs), n)}
    values |= {"TPS of a run": run.tps, "score of a run": run.score}
    return values | {"oracle's score": of_oracle.score, "oracle's NFE": of_oracle.nfe}


def _curve_truths(sweep: Paired) -> dict[str, float]:
    score, nfe, tps, tokens = (a.mean(1)[None] for a in (sweep.score, sweep.nfe, COLUMNS / sweep.nfe, sweep.tokens))
    known, best = Means(score, nfe, tps, tokens / nfe), _taken(sweep)
    truths = {name: float(v[0]) for name, v in _reached(known, POPULATION).items()}
    truths |= {AT: float(_speeds(known, 4)[0]), "its lead": float(_speeds(known, 4)[0] - _speeds(known, 0)[0])}
    truths |= {"TPS of a run": float(tps[0, 5]), "score of a run": float(score[0, 5])}
    return truths | {"oracle's score": float(best.score.mean()), "oracle's NFE": float(best.nfe.mean())}


def _curves() -> Iterator[Setting]:
    for share in (0.0, 0.03):
        truths = _curve_truths(_sweep(np.random.default_rng(0), POPULATION, share))
        data = "two curves of four runs" if share == 0 else "the same, 3 % of each run's samples take 32 forwards"
        for n in (20, 50, 200) if share == 0 else (20,):

            def draw(rng: np.random.Generator, n: int = n, share: float = share) -> dict[str, Value | None]:
                return _curve_values(_sweep(rng, n, share))

            yield Setting(data, str(n), draw, truths, times=0.25)
    for n in (50, 200):

        def equal(rng: np.random.Generator, n: int = n) -> dict[str, Value | None]:
            return {AT: speed_value(_speeds(means(_sweep(rng, n, 0.0, [1.0] * 10)), 4), n)}

        known = _curve_truths(_sweep(np.random.default_rng(0), POPULATION, 0.0, (1.0, 1.0)))
        yield Setting("ten equal curves of four runs", str(n), equal, {AT: known[AT]}, times=0.5)


# ---- Questions in four wordings: all of these, and recommend

EFFECTS = (1.0, 2.5, 4.0)  # how many times the variance of a mean is what it would be for as many questions


def _worded(paired: Paired, rng: np.random.Generator, effect: float) -> Paired:
    """Samples as the four wordings of questions, of which as many are answered alike as make the design effect."""
    own = np.arange(len(paired.tasks))
    first = own // 4 * 4
    alike = rng.random(len(own) // 4) < (effect - 1) / 3
    return replace(paired.part(np.where(alike[first // 4], first, own)), asked=first)


def _compared(sweep: Paired) -> dict[str, Value]:
    """The second run of the second curve against the first of the first."""
    pair = sweep.taking(np.array([[0], [5]]))
    row, (_, mark) = compare(pair)[ALL], marks(pair)
    return {"B - A": row.difference, "NFE B/A": row.nfe_ratio, "TPF B/A": row.tpf_ratio} | {
        "score of B": mark.score,
        "NFE of B": mark.nfe,
        "TPF of B": mark.tpf,
    }


def _wordings() -> Iterator[Setting]:
    many = _sweep(np.random.default_rng(0), POPULATION, 0.0)
    kinds: dict[str, tuple[Callable[[Paired], Mapping[str, Value | None]], Mapping[str, float], float]] = {
        "two runs": (_compared, {name: value.value for name, value in _compared(many).items()}, 2.5)
    }
    kinds["two curves of four runs"] = (_curve_values, _curve_truths(many), 0.5)
    for effect in EFFECTS:
        for name, (values, truths, times) in kinds.items():
            for questions in (50, 200):

                def draw(
                    rng: np.random.Generator,
                    values: Callable[[Paired], Mapping[str, Value | None]] = values,
                    questions: int = questions,
                    effect: float = effect,
                ) -> Mapping[str, Value | None]:
                    return values(_worded(_sweep(rng, 4 * questions, 0.0), rng, effect))

                yield Setting(f"four wordings, design effect {effect:g}, {name}", str(questions), draw, truths, times)


def _choices() -> Iterator[Setting]:
    """Sweeps in which every faster run loses a little more than a point. What holds the truth is the limit of the run
    that is recommended, if one is."""
    for effect in EFFECTS:
        for curves in (1, 20):
            for gained, questions in ((0.0, 600), (0.02, 2000)):

                def draw(
                    rng: np.random.Generator,
                    effect: float = effect,
                    curves: int = curves,
                    gained: float = gained,
                    n: int = 4 * questions,
                ) -> dict[str, Value]:
                    moved = rng.choice([-1.0, 0.0, 1.0], (curves, n), p=[0.0101 + gained, 0.9899 - 2 * gained, gained])
                    score = 50.0 + 50 * np.vstack([np.zeros(n), moved])
                    flat = np.ones_like(score)
                    worded = _worded(Paired(np.full(n, "t"), score, flat, flat, flat), rng, effect)
                    asked, speed = worded.questions, np.arange(1.0, curves + 2)
                    losses = 2 * asked.mean(worded.score)
                    best = choose(losses, speed, list(map(str, speed)), 1.0, 0, asked.weights).best
                    return {"loss of the run that is recommended": Value(0, 0, 100.0 if best is None else 1.0, n)}

                data = f"four wordings, design effect {effect:g}, {curves} faster run{'s' * (curves > 1)}"
                data += f" with {100 * gained:g} % of gains"
                yield Setting(data, str(questions), draw, {"loss of the run that is recommended": 1.01}, times=5)


# ---- Two folders of runs: analyze compare, wordings


def _ranks() -> Iterator[Setting]:
    """Decoders in two settings with 12 tasks: right or wrong, samples of a place equally hard for all of them."""
    kinds = []
    for count, narrow, common in ((39, 1.0, 0.95), (39, 0.3, 0.95), (39, 0.3, 0.3), (7, 0.8, 0.6)):
        rng = np.random.default_rng(3)
        one, other = rng.normal(size=(2, count))
        edges = narrow * np.concatenate([one, common * one + np.sqrt(1 - common**2) * other])
        kinds.append((f"{count} decoders, {100 * ndtr(-narrow):.0f} to {100 * ndtr(narrow):.0f} % right", count, edges))
    for name, turn in (("in the same order", 1), ("in the other order", -1)):  # chance alone orders the pairs
        first, second = (
            np.add.outer(np.linspace(-0.9, 0.9, 5), side * np.array([-0.004, 0.004])) for side in (1, turn)
        )
        kinds.append((f"10 decoders in close pairs, {name}", 10, np.concatenate([first.ravel(), second.ravel()])))
    for named, count, edges in kinds:
        truth = cast(float, kendalltau(edges[:count], edges[count:])[0])
        data = f"{named}, tau {truth:.2f}"
        for samples in (4, 10, 50):

            def draw(
                rng: np.random.Generator, edges: np.ndarray = edges, count: int = count, samples: int = samples
            ) -> dict[str, Value | None]:
                hard, own = rng.normal(size=12 * samples), rng.normal(size=(len(edges), 12 * samples))
                right = (hard + own < np.sqrt(2) * edges[:, None]).astype(float)
                flat = np.ones((1, len(edges)))
                (drawn,) = resampled(right[None], np.array(_tasks(12, samples)), flat, flat)
                return {"tau": agreement(drawn[:, :count], drawn[:, count:], 12 * samples)}

            yield Setting(data, f"12 x {samples}", draw, {"tau": truth}, times=0.25)


def rows(repetitions: int, kinds: Sequence[str]) -> Iterator[tuple[str, str, str, float]]:
    """Interval, data, size and coverage of every setting of the kinds."""
    for kind in kinds:
        for seed, setting in enumerate(KINDS[kind]()):
            for name, share in setting.coverage(repetitions, seed).items():
                print(name, setting.data, setting.size, f"{share:.3f}", sep="; ", file=sys.stderr, flush=True)
                yield name, setting.data, setting.size, share


def table(repetitions: int, kinds: Sequence[str]) -> str:
    """Coverage in per cent as Markdown, sizes side by side."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, data, size, share in rows(repetitions, kinds):
        found.setdefault((name, data), []).append(f"{size}: {100 * share:.0f}")
    lines = ["| interval | data | samples: % that hold the truth |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {data} | {'; '.join(cells)} |" for (name, data), cells in found.items())])


KINDS = {
    "scores": _scores,
    "forwards": _forwards,
    "seconds": _seconds,
    "differences": _differences,
    "ratios": _ratios,
    "curves": _curves,
    "wordings": _wordings,
    "choices": _choices,
    "ranks": _ranks,
}

if __name__ == "__main__":
    print(table(int(sys.argv[1]) if len(sys.argv) > 1 else 200, sys.argv[2:] or list(KINDS)))
