"""Moving pictures of decodes: each tick shows the canvas that the trace has after that forward."""

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from parallelbench.records.record import Record, read_run
from parallelbench.records.trace import TRACES, Step, Trace, replay
from parallelbench.report.moving_picture import moving_picture
from parallelbench.report.trace_view import main

STORED = Path(__file__).parents[1] / "stored"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with one traced sample."""
    return Path(shutil.copytree(STORED, tmp_path / "run"))


@pytest.fixture
def traced(folder: Path) -> tuple[Record, Trace]:
    (record,) = read_run(folder).records
    return record, TRACES.read(folder)[0][record.id]


def seen(picture: str, tick: int) -> list[list[str]]:
    """What each panel's cells show at a tick: the texts of the groups of cells whose time it is."""
    tree = ElementTree.fromstring(picture)
    last = max(int(behind) for _, behind in re.findall(r"\.t(\d+)-(\d+)\{", picture))
    panels = []
    for panel in tree.findall(f"{SVG}g"):
        shown = []
        for group in panel.findall(f"{SVG}g"):
            first, behind = map(int, re.fullmatch(r"t(\d+)-(\d+)", group.get("class", "")).groups())  # type: ignore
            inner = group.find(f"{SVG}g")
            if inner is not None and first <= tick and (tick < behind or behind == last):
                shown.append(inner.findtext(f"{SVG}text") or "")
            assert (group.get("opacity") == "0") == (behind < last), "without motion the last canvas is what is seen"
        panels.append(shown)
    return panels


def test_each_tick_shows_the_canvas_after_that_forward(traced) -> None:
    record, trace = traced
    steps = [  # an edit and a token that is masked again, which this run has none of
        Step(0, (0, 3), 3, [(0, 1, 0.5), (1, 1, 0.4)], []),
        Step(1, (0, 3), 3, [(0, 2, 0.9), (1, None, None)], []),
        Step(3, (0, 3), 3, [(1, 2, 0.9), (2, 1, 0.9)], []),
    ]
    other = Trace(record.id, 3, [2, 2, 1], {1: "a\n", 2: "b"}, steps)
    ends = replace(record, token_ids=[2, 2, 1], committed_at=[1, 3, 3], nfe=4)
    picture = moving_picture(["one", "other"], [record, ends], [trace, other])
    assert len(picture) < 60_000
    for frame in replay(trace):
        tokens = [trace.texts[token].strip(" ") or "\u2423" for token in frame.tokens if token is not None]
        assert seen(picture, frame.step.forward + 1)[0] == [text.replace("\n", "\u21b5") for text in tokens]
    told = [seen(picture, tick)[1] for tick in range(5)]
    assert told == [[], ["a\u21b5", "a\u21b5"], ["b"], ["b"], ["b", "b", "a\u21b5"]]


def test_a_model_cannot_smuggle_markup_into_the_picture(traced) -> None:
    record, trace = traced
    texts = dict.fromkeys(trace.texts, "</text><script>\x00\u202e")
    picture = moving_picture(["<b>"], [replace(record, prompt="\x1b[31m & <i>")], [replace(trace, texts=texts)])
    tree = ElementTree.fromstring(picture)
    assert not [node for node in tree.iter() if node.tag.removeprefix(SVG) in ("script", "b", "i")]
    assert "\x1b" not in picture and "\u202e" not in picture


def test_the_command_writes_the_picture(
    tmp_path: Path, folder: Path, traced, capsys: pytest.CaptureFixture[str]
) -> None:
    record, _ = traced
    file = tmp_path / "decode.svg"
    main([str(folder), record.id, f"other={folder}", f"svg={file}"])
    assert len(seen(file.read_text(), 1)) == 2 and capsys.readouterr().out == f"{file}\n"
    with pytest.raises(ValueError, match="no file in a folder that exists"):
        main([str(folder), record.id, f"svg={tmp_path / 'missing' / 'decode.svg'}"])
    (folder / "traces.jsonl").unlink()
    with pytest.raises(ValueError, match="repeat its command with traces=2"):
        main([str(folder), record.id, f"svg={file}"])
