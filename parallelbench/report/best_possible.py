"""What runs reach beside what any decoder can: per task, score against forwards, the best possible accuracy of sampling
from exact marginals (`stats.bounds`), and the same decoders on an ideal model of the task's own tokens, whose
losses are none of the network's."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import permutations
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

import dllm
from decoders import NO_CACHE, Decoder, StopRule, decode
from decoders.loop import check_parts
from dllm.exact import Enumerated, ExactModel
from parallelbench.records.record import Record, Run, find_runs, read_run
from parallelbench.report import plots
from parallelbench.report.markdown import table_row
from parallelbench.report.options import split_options
from parallelbench.stats.bounds import best_accuracies, best_values, optimal_bounds
from parallelbench.stats.curves import curve_names, run_names
from parallelbench.stats.metrics import Value, measure, ratio
from parallelbench.tasks import Sample, builtin_tasks
from parallelbench.tasks.waiting_line import write_list
from parallelbench.wiring.config import build_part

USAGE = "score against forwards of runs beside the best possible: RUNS... [samples=100 out_dir=...]"
OPTIONS = {"samples": "100", "out_dir": "results/frontier"}
PRICES = np.concatenate([[0], np.geomspace(1e-3, 4, 80)])  # of a forward, in accuracy
COLD = 1e-3  # a temperature at which only exact ties are open: greedy, with ties broken at random
MAX_ANSWERS = 5040  # shuffles of 7
MAX_CURVES = 8  # more are drawn alike
OPEN = ("shuffle", "insert_random", "remove_random", "replace_random")  # operations with many answers


@dataclass(frozen=True)
class Point:
    """One row of frontier.csv: a run, or its decoder on the ideal model, on one task. nfe: mean forwards. bound: best
    possible accuracy of sampling at that mean."""

    run: str
    task: str
    model: str
    nfe: float
    score: float
    ci_low: float
    ci_high: float
    samples: int
    bound: float


@dataclass(frozen=True)
class Best:
    """One row of bounds.csv: answers of n items in at most `steps` forwards. kl_items, kl_tokens: optimal L*_T in bits
    where an item is one token, and for the answer's real tokens. accuracy: best possible accuracy of sampling items."""

    task: str
    n: int
    steps: int
    kl_items: float
    kl_tokens: float
    accuracy: float


@dataclass(frozen=True)
class Shape:
    """The samples of a task that have equally many items: alike but for their names. record: one of them. share: of the
    task's samples."""

    record: Record
    n: int
    share: float
    items: Enumerated


def main(arguments: Sequence[str]) -> str:
    """Writes frontier.csv, bounds.csv, report.md and two figures; returns the report."""
    paths, options = split_options(arguments, OPTIONS)
    if not options["samples"].isdigit() or int(options["samples"]) < 1:
        raise ValueError(f"samples={options['samples']}; give a whole number of ideal decodes per task and length >= 1")
    out_dir = Path(options["out_dir"])
    if out_dir.is_file():
        raise ValueError(f"{out_dir} is a file; choose another out_dir")
    runs = [read_run(folder) for folder in find_runs(paths)]
    for run in runs:
        if not run.records:
            raise ValueError(f"{run.folder} has no samples yet; repeat its command to fill it")
    shapes = {task: found for task in _tasks(runs) if (found := _shapes(task, runs))}
    if not shapes:
        raise ValueError(f"no run holds a task with several answers ({', '.join(OPEN)}) of lists short enough to list")
    tokenizer = dllm.load("tiny").tokenizer
    assert tokenizer is not None

    values = {
        task: sum(shape.share * best_values(shape.items, PRICES) for shape in found) for task, found in shapes.items()
    }
    names, refused = run_names(runs), {}
    points = []
    for name, run in zip(names, runs, strict=True):
        for task, found in shapes.items():
            records = [record for record in run.records if record.task == task]
            if records:
                points.append(
                    _point(
                        name, task, run.info["model"], measure("nfe", records).value, measure("score", records), values
                    )
                )
            if not records or run.config["model"].get("name_or_path") != "tiny" or name in refused:
                continue
            try:
                forwards, score = ideal(run, found, tokenizer, int(options["samples"]))
            except ValueError as error:
                refused[name] = str(error)
                continue
            points.append(_point(name, task, "ideal", forwards, score, values))
    bests = [best for task, found in shapes.items() for shape in found for best in _bests(task, shape, tokenizer)]
    out_dir.mkdir(parents=True, exist_ok=True)
    _write_csv(out_dir / "frontier.csv", points)
    _write_csv(out_dir / "bounds.csv", bests)
    curves = dict(zip(names, curve_names(names, runs), strict=True))
    plots.save(_score_figure(points, shapes, values, curves), out_dir / "frontier")
    plots.save(_bits_figure(bests), out_dir / "kl_bounds")
    text = _markdown(points, bests, refused)
    (out_dir / "report.md").write_text(text)
    return f"{text}\n{out_dir}"


def answers(task: str, data: Mapping[str, Any]) -> list[list[str]]:
    """All valid answers of a waiting-line sample as lists of people, for the operations with several."""
    people, person = list(data["people"]), str(data["person"])
    places = range(len(people) + (task == "insert_random"))
    if task == "shuffle":
        return [list(order) for order in permutations(people)][1:]  # all but the given one
    after = 0 if task == "insert_random" else 1
    return [[*people[:i], *([] if task == "remove_random" else [person]), *people[i + after :]] for i in places]


def ideal(run: Run, shapes: Sequence[Shape], tokenizer: PreTrainedTokenizerBase, samples: int) -> tuple[float, Value]:
    """Mean forwards and score of a run's decoder and stop rule on the ideal model of a task, `samples` decodes per
    shape, weighted as the run's samples are. Raises ValueError for a decoder that no ideal model can serve."""
    decoder, stop = build_part(run.config["decoder"]), build_part(run.config["stop"])
    assert isinstance(decoder, Decoder) and isinstance(stop, StopRule)
    if decoder.temperature == 0:
        decoder = replace(decoder, temperature=COLD)
    nfe, scores, strata = [], [], []
    for shape in shapes:
        length = len(shape.record.committed_at)
        listed, ids = in_tokens(answers(_operation(shape.record.task), shape.record.data), tokenizer, length)
        model = ExactModel(listed, eos_id=ids.index(cast(int, tokenizer.eos_token_id)))
        check_parts(model, decoder, NO_CACHE)
        rows = decode(
            model,
            [[sample, shape.n] for sample in range(samples)],
            gen_len=length,
            block_len=run.config["block_length"] or length,
            decoder=decoder,
            cache=NO_CACHE,
            stop=stop,
        )
        task, sample = builtin_tasks()[shape.record.task], _sample(shape.record)
        texts = [str(tokenizer.decode([ids[token] for token in row.token_ids if token < len(ids)])) for row in rows]
        scores += [task.score(sample, text)["score"] for text in texts]
        nfe += [row.nfe for row in rows]
        strata += [shape.share] * samples
    share = np.array(strata) / samples
    equal = np.ptp([shape.share for shape in shapes]) < 1e-9
    score = (
        ratio(np.array(scores), np.ones(len(scores)), [""] * len(scores), is_share=True)
        if equal
        else _weighted(scores, share)
    )
    return float((share * nfe).sum()), score


def in_tokens(
    listed: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase, length: int
) -> tuple[Enumerated, list[int]]:
    """The answers as token sequences padded with EOS, equally likely, in dense numbers; and the ids these stand for."""
    texts = [write_list(answer) for answer in listed]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    longest = max(map(len, rows))
    if longest > length:
        raise ValueError(f"an answer takes {longest} tokens, but the run decoded {length}")
    padded = torch.tensor([row + [tokenizer.eos_token_id] * (length - len(row)) for row in rows])
    ids, dense = padded.unique(return_inverse=True)
    weights = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
    return Enumerated(dense, weights), ids.tolist()


def _weighted(scores: Sequence[float], share: np.ndarray) -> Value:
    """Shapes of unequal shares: bootstrap over decodes."""
    return ratio(np.array(scores) * share, share, [f"{weight}" for weight in share])


def _tasks(runs: Sequence[Run]) -> list[str]:
    tasks = dict.fromkeys(record.task for run in runs for record in run.records)
    return [task for task in tasks if task.startswith("waiting_line/") and _operation(task) in OPEN]


def _operation(task: str) -> str:
    return task.removeprefix("waiting_line/")


def _shapes(task: str, runs: Sequence[Run]) -> list[Shape]:
    """By number of people, of the first run that has the task; none where some lists are too long to be listed."""
    records = next(found for run in runs if (found := [r for r in run.records if r.task == task]))
    by_length: dict[int, list[Record]] = {}
    for record in records:
        by_length.setdefault(len(record.data["people"]), []).append(record)
    if max(math.factorial(n) if _operation(task) == "shuffle" else 2**n for n in by_length) > MAX_ANSWERS:
        return []
    return [
        Shape(found[0], n, len(found) / len(records), _items(answers(_operation(task), found[0].data)))
        for n, found in sorted(by_length.items())
    ]


def _items(listed: Sequence[Sequence[str]]) -> Enumerated:
    """Answers with one token per person."""
    people = {person: i for i, person in enumerate(dict.fromkeys(person for answer in listed for person in answer))}
    rows = torch.tensor([[people[person] for person in answer] for answer in listed])
    return Enumerated(rows, torch.full((len(rows),), 1 / len(rows), dtype=torch.float64))


def _sample(record: Record) -> Sample:
    return Sample(record.id, record.task, [{"role": "user", "content": record.prompt}], record.data, record.target)


def _bound(values: np.ndarray, nfe: float) -> float:
    """Best accuracy for a mean number of forwards."""
    return float(min(1, (values + PRICES * nfe).min()))


def _point(name: str, task: str, model: str, nfe: float, score: Value, values: Mapping[str, Any]) -> Point:
    bound = _bound(values[task], nfe)
    return Point(name, task, model, nfe, score.value, score.ci_low, score.ci_high, score.n, bound)


def _bests(task: str, shape: Shape, tokenizer: PreTrainedTokenizerBase) -> list[Best]:
    listed = answers(_operation(task), shape.record.data)
    tokens = optimal_bounds(in_tokens(listed, tokenizer, len(shape.record.committed_at))[0])
    items, shares = optimal_bounds(shape.items), best_accuracies(shape.items)
    rows = range(len(tokens))
    last = len(items) - 1
    return [Best(task, shape.n, t + 1, items[min(t, last)], tokens[t], shares[min(t, last)]) for t in rows]


def _write_csv(path: Path, rows: Sequence[Point] | Sequence[Best]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(rows[0])], lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in asdict(row).items()})


def _score_figure(
    points: Sequence[Point],
    shapes: Mapping[str, Sequence[Shape]],
    values: Mapping[str, Any],
    curves: Mapping[str, str],
) -> plots.Figure:
    decoders = list(dict.fromkeys(curves.values()))
    panels = {}
    for task, found in shapes.items():
        most = max(found[-1].items.length, *(point.nfe for point in points if point.task == task))
        grid = [1 + (most - 1) * i / 200 for i in range(201)]
        series = [
            plots.Series("bound, mean forwards", [(x, _exact(_bound(values[task], x))) for x in grid], -1, "line")
        ]
        reached = [(shape.share, best_accuracies(shape.items)) for shape in found]
        steps = range(1, found[-1].items.length + 1)
        fixed = [(float(t), _exact(sum(s * best[min(t, len(best)) - 1] for s, best in reached))) for t in steps]
        series.append(plots.Series("bound, forwards of each", fixed, -1, "dashed"))
        for point in (point for point in points if point.task == task):
            color = decoders.index(curves[point.run]) if len(decoders) <= MAX_CURVES else int(point.model == "ideal")
            who = curves[point.run] if len(decoders) <= MAX_CURVES else "decoders"
            style = "hollow" if point.model == "ideal" else "filled"
            place = (point.nfe, Value(point.score, point.ci_low, point.ci_high, point.samples))
            series.append(plots.Series(f"{who}, {point.model}", [place], color, style))
        panels[task] = _joined(series)
    title = "score against forwards per sample, the best possible, and the same decoders on ideal models"
    return plots.shares_per_task(panels, "forwards per sample (log scale)", title)


def _joined(series: Sequence[plots.Series]) -> list[plots.Series]:
    """Series of one label as one."""
    joined: dict[str, plots.Series] = {}
    for one in series:
        before = joined.get(one.label)
        joined[one.label] = one if before is None else replace(one, points=[*before.points, *one.points])
    return list(joined.values())


def _bits_figure(bests: Sequence[Best]) -> plots.Figure:
    series = []
    for color, task in enumerate(dict.fromkeys(best.task for best in bests)):
        longest = max(best.n for best in bests if best.task == task)
        chosen = [best for best in bests if (best.task, best.n) == (task, longest)]
        name = f"{_operation(task)}, n = {longest}"
        series.append(
            plots.Series(f"{name}, items", [(float(b.steps), _exact(b.kl_items)) for b in chosen], color, "line")
        )
        tokens = [(float(b.steps), _exact(b.kl_tokens)) for b in chosen]
        series.append(plots.Series(f"{name}, tokens", tokens, color, "dashed"))
    return plots.bits_over(series, "steps T", "least loss of T steps from marginals, optimal L*_T")


def _exact(value: float) -> Value:
    return Value(value, value, value, 0)


READ = """Lines are what theory allows, points what decoders reach (95 % intervals). An answer is sampled in
steps, each from exact marginals given what stands. `bound, forwards of each`: the largest share of valid
answers with at most T forwards for every answer, over all ways to split its people into T steps, unequal and
chosen anew after each step. `bound, mean forwards`: the same where T is free and the mean counts, as in a run,
whose forwards differ from sample to sample (an answer already spoilt may be finished at once). A step's
positions may not depend on the tokens that it is about to write. So this is no bound on a decoder that picks
tokens or positions by their probability: greedy decoding removes a random person of an odd number in one
forward, because the likeliest person of each place makes a valid list (of an even number two in the middle are
equally likely, and it fails half the time). Bounds count people; a person is two tokens, and each list has
punctuation and EOS, which cost a real decoder forwards that the bound does not need. `bounds.csv` has the least
loss in bits for people and for the real tokens.

Hollow points: the same decoder and stop rule on the ideal model of the task, all valid answers equally likely,
in the run's own tokens and length. What they miss cannot be blamed on the network; what the run misses beyond
them can. Ties of ideal probabilities are broken at random, ties of confidence go to the left."""


SURE = """Tasks with one valid answer per prompt (copy, reverse, sort, the index operations, Sudoku) have no panel:
no split loses anything there, and one forward reaches 100 %. Latin squares (576 answers of 16 cells) have too
many splits to be searched."""


def _markdown(points: Sequence[Point], bests: Sequence[Best], refused: Mapping[str, str]) -> str:
    lines = ["# Best possible score for a number of forwards", "", "![score against forwards](frontier.png)", ""]
    lines += [READ, "", SURE]
    above = [f"{point.run} on {_operation(point.task)}" for point in points if point.ci_low > point.bound]
    if above:
        lines += ["", f"Above the bound of sampling, by greedy choice: {'; '.join(above)}."]
    if refused:
        lines += ["", "Not run on ideal models: " + "; ".join(f"{name} ({why})" for name, why in refused.items()) + "."]
    lines += [
        "",
        "## Runs",
        "",
        "Score in % at mean forwards; bound: best possible share of sampling at that mean.",
        "",
    ]
    heads = ["run", "task", "forwards", "score", "bound", "ideal: forwards", "score", "bound"]
    lines += [table_row(heads), table_row(["---", "---", *["---:"] * (len(heads) - 2)])]
    pairs: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        pairs.setdefault((point.run, point.task), []).append(point)
    for (run, task), pair in pairs.items():
        cells = [cell for point in pair for cell in (f"{point.nfe:.2f}", _share(point), f"{100 * point.bound:.1f}")]
        lines.append(table_row([run, _operation(task), *cells, *[""] * (len(heads) - 2 - len(cells))]))
    lines += ["", "## Best splits", "", "![least loss in bits](kl_bounds.png)", ""]
    lines += [
        "L*_T in bits for people / tokens, and the best possible share of valid answers in %; later 0 and 100.",
        "",
    ]
    bests = [best for best in bests if best.kl_tokens > 1e-9 or best.accuracy < 1 - 1e-9]
    most = max(best.steps for best in bests)
    lines += [table_row(["task", "n", *(f"T = {t}" for t in range(1, most + 1))])]
    lines.append(table_row(["---", "---:", *["---:"] * most]))
    for task, n in dict.fromkeys((best.task, best.n) for best in bests):
        chosen = [best for best in bests if (best.task, best.n) == (task, n)]
        cells = [f"{b.kl_items:.2f} / {b.kl_tokens:.2f}, {100 * b.accuracy:.0f}" for b in chosen]
        lines.append(table_row([_operation(task), str(n), *cells, *[""] * (most - len(cells))]))
    return "\n".join([*lines, ""])


def _share(point: Point) -> str:
    return f"{100 * point.score:.1f} [{100 * point.ci_low:.1f}, {100 * point.ci_high:.1f}]"
