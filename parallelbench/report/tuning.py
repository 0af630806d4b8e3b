"""Runs as the arms of a race (`stats.racing`), and the sentences with which a race ends."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from parallelbench.records.questions import numbered
from parallelbench.records.record import Record, Run
from parallelbench.stats.curves import curve_names, run_names
from parallelbench.stats.leading import marked
from parallelbench.stats.metrics import measure
from parallelbench.stats.paired import Paired
from parallelbench.stats.racing import Finish, Race

COSTS: Mapping[str, Callable[[Record], float]] = {
    "forwards": lambda record: record.nfe,
    "columns": lambda record: record.queried,
    "seconds": lambda record: record.share_s,
}


class Grid:
    """The arms of a race whose runs are at hand.

    order: the samples of each task by their ids, in the order in which a limit takes them.
    names: what arms are called before all of them have runs.
    by: what speed is measured by, a key of COSTS.
    """

    def __init__(self, order: Mapping[str, Sequence[str]], names: Sequence[str], by: str = "forwards") -> None:
        self.order, self.names, self.cost = order, list(names), COSTS[by]
        self.runs: dict[int, Run] = {}
        self.records: dict[int, dict[tuple[str, str], Record]] = {}

    def take(self, arm: int, run: Run) -> None:
        """Gives an arm its run, or the same run with more samples."""
        self.runs[arm] = run
        self.records[arm] = {(record.task, record.id): record for record in run.records}

    def __len__(self) -> int:
        return len(self.names)

    def name(self, arm: int) -> str:
        return self.names[arm]

    def curves(self) -> list[str]:
        alike = [replace(self.runs[arm], config=self.runs[arm].config | {"limit": 0}) for arm in range(len(self))]
        self.names = run_names(alike)
        return curve_names(self.names, alike)

    def baseline(self) -> int | None:
        """Of several that keep no K/V first."""
        found = [arm for arm, run in sorted(self.runs.items()) if run.facts.is_baseline]
        return min(found, key=lambda arm: self.runs[arm].info["choices"]["cache"] != "none", default=None)

    def count(self, start: int, stop: int) -> int:
        return sum(len(ids[start:stop]) for ids in self.order.values())

    def pace(self, arm: int, stop: int) -> float:
        return float(np.mean([record.share_s for record in self.of(arm, 0, stop)]))

    def decode(self, arm: int, stop: int, why: str) -> None:
        """All is there."""

    def of(self, arm: int, start: int, stop: int) -> list[Record]:
        """An arm's records with these numbers of each task. Raises ValueError where one is missing."""
        wanted = [(task, number) for task, ids in self.order.items() for number in ids[start:stop]]
        try:
            return [self.records[arm][key] for key in wanted]
        except KeyError as error:
            raise ValueError(f"{self.runs[arm].folder} has no sample {error.args[0][1]}; delete that folder") from error

    def paired(self, arms: Sequence[int], start: int, stop: int) -> Paired:
        records = [self.of(arm, start, stop) for arm in arms]

        def column(number: Callable[[Record], float]) -> np.ndarray:
            return np.array([[number(record) for record in each] for each in records], dtype=float)

        return Paired(
            np.array([record.task for record in records[0]]),
            column(lambda r: 100 * r.scores["score"]),
            column(self.cost),
            column(lambda r: r.num_tokens),
            column(lambda r: len(r.committed_at)),
            np.array(numbered(records[0])),
        )


def stored(runs: Sequence[Run], by: str = "forwards") -> Grid:
    """Finished runs over the same samples as the arms of a race."""
    order: dict[str, list[str]] = {}
    for record in runs[0].records:
        order.setdefault(record.task, []).append(record.id)
    for ids in order.values():
        ids.sort(key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
    grid = Grid(order, run_names(runs), by)
    for arm, run in enumerate(runs):
        grid.take(arm, run)
    return grid


def verdict(grid: Grid, race: Race, finish: Finish) -> str:
    """What a race found."""
    points = f"{race.max_loss:g} point{'s' * (race.max_loss != 1)}"
    reference, fresh = grid.name(finish.reference), grid.count(finish.start, finish.stop)
    whole = f"{finish.spent:,} samples were decoded. The whole grid takes {finish.whole:,}."
    if finish.choice is None:
        keep = f"Keep {reference}: no faster configuration is certain to lose at most {points}."
        if finish.tested:
            keep += (
                f" On {fresh} fresh samples the score of {grid.name(finish.tested[0])}, the likeliest, was "
                f"{_moved(finish.loss)}; it may lose up to {finish.most:.2f}."
            )
            keep += f" Try limit={finish.limit}." if finish.limit else ""
        else:
            keep += " None was likely enough to test; a larger budget or max_loss may find one."
        return f"{keep} {whole}"
    run = grid.runs[finish.choice]
    tpf = measure("tpf", grid.of(finish.choice, finish.start, finish.stop)).text(".2f")
    both = grid.paired([finish.reference, finish.choice], finish.start, finish.stop)
    slow, fast = both.tokens.sum(1) / both.nfe.sum(1)
    return (
        f"Take {marked(grid.name(finish.choice), run)}: {tpf} tokens per forward, {fast / slow:.2f} times as fast as "
        f"{reference}. It loses at most {points} (95 %): on {fresh} fresh samples, which no earlier decision had seen, "
        f"its score was {_moved(finish.loss)}. {whole}"
    )


def _moved(loss: float) -> str:
    return f"{abs(loss):.2f} points {'higher' if loss < 0 else 'lower'}"
