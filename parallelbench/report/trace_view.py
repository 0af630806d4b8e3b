"""Saved traces in a terminal: the canvas of one sample after each forward, of one run or of two side by side."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from parallelbench.records.files import check_picture, printable, replace_file
from parallelbench.records.record import NEVER, Record, Run
from parallelbench.records.trace import Frame, Trace, expected, replay, traces_of
from parallelbench.report.moving_picture import moving_picture
from parallelbench.report.options import split_options, suite_run
from parallelbench.stats.curves import run_names

STYLES = {  # from this confidence on; the page's colours
    0.0: "black on #ffe8a3",
    0.5: "black on #cfe6b8",
    0.7: "black on #8fcdc0",
    0.9: "white on #1f6a9c",
    0.99: "white on #0d2f63",
}
LEGEND = "_ masked  +new  *draft accepted  -draft rejected-  ~masked again~  old>edited  wrong!"
BESIDE = 110  # characters of a terminal from which on two runs stand side by side


def main(arguments: Sequence[str]) -> None:
    """Prints a sample's decode, or without a sample the run's traced ones. Raises ValueError for what does not
    exist."""
    paths, options = split_options(arguments, {"other": "", "svg": ""})
    if len(paths) > 2:
        raise ValueError(
            f"trace takes a run directory and a sample, not {len(paths)} names; give a second run as other="
        )
    if options["svg"]:
        check_picture(options["svg"])
    console = Console(markup=False, highlight=False, emoji=False)
    run = suite_run(paths[0])
    if len(paths) == 1:
        if given := [key for key, value in options.items() if value]:
            raise ValueError(
                f"{given[0]}= needs a sample; name one of those that `parallelbench trace {paths[0]}` lists"
            )
        console.print(_listed(run), soft_wrap=True)
        return
    runs = [run, suite_run(Path(options["other"]))] if options["other"] else [run]
    record = find_record(run, str(paths[1]))
    records = [record, *(find_record(other, record.id) for other in runs[1:])]
    if any(other.prompt_sha != record.prompt_sha for other in records):
        raise ValueError(
            f"{options['other']} has another prompt for {record.id}; give a run of the same tasks and seed"
        )
    traces = [traces_of(one).get(record.id) for one in runs]
    if options["svg"]:
        _save_picture(Path(options["svg"]), runs, records, traces)
        console.print(printable(options["svg"]), soft_wrap=True)
        return
    legend = Text(LEGEND)
    for least, style in STYLES.items() if console.color_system else ():
        legend.append(" ").append(f" {100 * least:g} %+ ", style)
    console.print(Text(printable(f"{record.id}\n\n{record.prompt}\n\nA right answer:\n{record.target}\n")), legend, "")
    told = [list(_story(*each)) for each in zip(run_names(runs), records, traces, strict=True)]
    if len(told) == 2 and console.width >= BESIDE:
        table = Table.grid(padding=(0, 2), expand=True)
        for _ in told:
            table.add_column(ratio=1)
        for row in zip_longest(*told, fillvalue=Text()):
            table.add_row(*row)
        console.print(table)
    else:
        for story in told:
            console.print(*story, sep="\n")


def _save_picture(file: Path, runs: Sequence[Run], records: Sequence[Record], traces: Sequence[Trace | None]) -> None:
    """Writes the decodes as a moving picture. Raises ValueError where a trace or the folder of the file is missing."""
    kept = [trace for trace in traces if trace is not None]
    if len(kept) < len(runs):
        folder = next(run.folder for run, trace in zip(runs, traces, strict=True) if trace is None)
        raise ValueError(f"{folder} has no trace of {records[0].id}; repeat its command with traces=2 to save some")
    replace_file(file, moving_picture(run_names(runs), records, kept))


def find_record(run: Run, name: str) -> Record:
    """The sample with an id, or the end of one. Raises ValueError where there is none, or more than one."""
    found = [record for record in run.records if record.id == name or record.id.endswith(f"/{name}")]
    if len(found) != 1:
        which = ", ".join(record.id for record in (found or run.records)[:3])
        what = "matches several samples" if found else "is no sample"
        raise ValueError(f"{name!r} {what} of {run.folder}, which has {which or 'none yet'}; give one id or its end")
    return found[0]


def visible(token: str) -> str:
    """A token as a reader sees it, in one line; nothing of it can steer the terminal."""
    return printable(token.strip() or repr(token)[1:-1].replace(" ", "\N{OPEN BOX}")).replace("\n", "\\n")


def _listed(run: Run) -> str:
    traces = traces_of(run)
    rows = [f"{r.id}  score {r.scores['score']:.2f}  {r.nfe} forwards" for r in run.records if r.id in traces]
    if not rows:
        raise ValueError(f"{run.folder} has no traces; repeat its command with traces=2 to save some")
    return printable("\n".join(rows))


def _story(name: str, record: Record, trace: Trace | None) -> Iterator[Text]:
    """What a run did, forward by forward, and where it went wrong."""
    score = f"score {record.scores['score']:.2f}, {record.num_tokens} tokens in {record.nfe} forwards"
    yield Text(printable(f"{name}: {score}"), "bold")
    if trace is None:
        order = [str(at + 1) if at != NEVER else "-" for at in record.committed_at]
        yield Text("No trace was saved; this is the forward that committed each column:\n" + " ".join(order))
        yield Text(f"Answer:\n{printable(record.completion)}\n")
        return
    right, frame = expected(trace, record), None
    for frame in replay(trace):
        events = {"committed": frame.committed, "masked again": frame.remasked, "edited": frame.edited}
        drafted = {"drafts accepted": frame.step.accepted, "rejected": len(frame.step.rejected)}
        counts = {what: len(columns) for what, columns in events.items()} | drafted
        did = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing changed"
        unseen = sum(column > len(record.token_ids) for column in frame.committed)
        did += f" ({unseen} of them after the answer's end)" if unseen else ""
        yield Text(f"forward {frame.step.forward + 1} of {record.nfe}: {did}\n") + _canvas(trace, frame, right, record)
    assert frame is not None, "a decode has a forward"
    order = "order of commits\n "
    for token, at in zip(record.token_ids, frame.committed_at, strict=False):
        order += f" {visible(trace.texts[token])}({at + 1})" + ("\n " if "\n" in trace.texts[token] else "")
    yield Text(order)
    yield Text("\n".join(_mistakes(trace, frame, right, record)) + "\n")


def _canvas(trace: Trace, frame: Frame, right: list[int] | None, record: Record) -> Text:
    """The columns of the final answer and its EOS."""
    line = Text("  ")
    rejected = {column: token for column, token, _ in frame.step.rejected}
    drafted = {column for column, _, _ in frame.step.writes[: frame.step.accepted]}
    for column, token in enumerate(frame.tokens[: len(record.token_ids) + 1]):
        text = "_" if token is None else visible(trace.texts[token])
        old = frame.old.get(column)
        if column in frame.remasked:
            text = f"~{visible(trace.texts[old or 0])}~"
        elif column in frame.edited:
            text = f"{visible(trace.texts[old or 0])}>{text}"
        elif column in frame.committed:
            text = f"{'*' if column in drafted else '+'}{text}"
        wrong_draft = rejected.get(column)
        if wrong_draft is not None:
            text = f"-{visible(trace.texts[wrong_draft])}-" + ("" if token is None else text)
        text += "!" if _is_wrong(token, column, right) else ""
        line.append(text, None if token is None else _style(frame.probs[column]))
        ends = column < len(record.token_ids) and "\n" in trace.texts[record.token_ids[column]]
        line.append("\n  " if ends else " ")  # squares and lists stand as they will be read
    return line


def _mistakes(trace: Trace, frame: Frame, right: list[int] | None, record: Record) -> Iterator[str]:
    verdict = f"The answer is {'not fully right' if record.scores['score'] else 'wrong'}"
    if record.scores["score"] == 1:
        yield "The answer is right."
    elif right is None:
        lengths = f"{len(record.token_ids)} tokens, the reference {len(trace.reference)}"
        yield f"{verdict}. It has {lengths}: columns cannot be compared."
    else:
        wrong = [column for column, token in enumerate(frame.tokens) if _is_wrong(token, column, right)]
        yield f"{verdict}; tokens not as in the reference: {len(wrong)}"
        for column in wrong:
            at, prob = frame.committed_at[column], frame.probs[column]
            others = frame.committed_at[: len(right)].count(at) - 1
            beside = f"with {others} other{'s' * (others > 1)}" if others else "alone"
            sure = "" if prob is None else f", confidence {100 * prob:.1f} %"
            is_, should = (visible(trace.texts[ids[column]]) for ids in (record.token_ids, right))
            yield f"  column {column + 1}: {is_} for {should}, by forward {at + 1} {beside}{sure}"


def _is_wrong(token: int | None, column: int, right: list[int] | None) -> bool:
    return right is not None and token is not None and column < len(right) and token != right[column]


def _style(prob: float | None) -> str | None:
    return None if prob is None else next(style for least, style in reversed(STYLES.items()) if prob >= least)
