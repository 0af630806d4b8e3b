"""Bad input: every knob of every part refuses what it cannot mean, in one sentence that names value and fix, in the
library as on the command line, before anything is decoded or written."""

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import cycle
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from conftest import make_model
from omegaconf import OmegaConf

import decoders
import dllm
import parallelbench
from decoders import Decoder, FixedK, Never, Threshold, decode, generate
from decoders.spread import NO_CACHE
from decoders.types import Part
from dllm.guidance import Guided
from dllm.validation import REASONABLE, Checked, Interval, WrongType, check
from parallelbench.run.generator import DiffusionGenerator
from parallelbench.run.job import check_task, prepare
from parallelbench.tasks import Suite
from parallelbench.tasks.base import Sample, bench_samples
from parallelbench.tasks.puzzles import LatinSquare
from parallelbench.tasks.rows import draw_rows
from parallelbench.tasks.waiting_line import WaitingLine
from parallelbench.wiring.catalogue import CONF
from parallelbench.wiring.overrides import Settings
from parallelbench.wiring.show import outline

pytestmark = [pytest.mark.core, pytest.mark.usefixtures("as_a_user_has_it")]
NAN, INF = math.nan, math.inf
NUMBERS = (NAN, INF, -INF, -1e30, 1e30, 10**400, -(10**30))  # that no knob takes
OTHERS = ("abc", "", [], {}, b"1", object())
REQUIRED = {  # what else than its knobs a class wants
    "Ahead": {"states": 2},
    "Lookahead": {"branches": 2},
    "BertScore": {"path": "x"},
    "Choice": {"choice": ["a"]},
    "Decoder": {"rule": Threshold()},
    "FirstAlone": {"rule": Threshold()},
    "Grammar": {"grammar": "start: /a/"},
    "JsonSchema": {"schema": {"type": "null"}},
    "InBlocks": {"rule": Threshold()},
    "ModelSpec": {"mask_id": 5, "eos_ids": (1,), "pad_id": 0},
    "OfficialSuite": {"data_dir": None},
    "ModelDrafts": {"model": dllm.load("tiny")},
    "Prompts": {"source": "x.jsonl"},
    "Regex": {"regex": "a"},
    "Request": {"messages": [], "gen_len": 4},
    "Infilled": {"task": LatinSquare()},
    "Reworded": {"task": LatinSquare()},
    "Rows": {"source": "x.jsonl"},
    "Sample": {"id": "a", "task": "b", "messages": [], "data": {}, "target": ""},
    "Settings": {
        "limit": 1,
        "seed": 0,
        "batch_size": 1,
        "gen_length": None,
        "block_length": None,
        "traces": 0,
        "template": None,
        "constraint": None,
        "out_dir": None,
    },
    "Shapes": {"asks": "count"},
    "Structured": {"asks": "call"},
    "Suite": {"tasks": ["waiting_line/copy"]},
    "TaskMixture": {"weights": {"waiting_line/copy": 1.0}},
    "WaitingLine": {"operation": "copy"},
    "WordsToSentence": {"level": "easy"},
}


def below(kind: type) -> Iterator[type]:
    for sub in kind.__subclasses__():
        yield from (sub, *below(sub))


def kinds_with_knobs() -> list[type]:
    """All that a user, or the command line for him, can make of the three packages."""
    for package in (decoders, dllm, parallelbench):
        assert all(getattr(package, name) is not None for name in package.__all__)  # imported
    ours = [kind for kind in below(Checked) if kind.__module__.split(".")[0] in ("decoders", "dllm", "parallelbench")]
    made = [kind for kind in ours if "__dataclass_fields__" in vars(kind) and kind is not DiffusionGenerator]
    return sorted(made, key=lambda kind: kind.__name__)


def bad_values(kind: Any) -> Iterator[Any]:
    """What a field of this kind never takes."""
    if get_origin(kind) is Annotated:
        whole, limit = get_args(kind)
        low, high = limit.ends
        yield from (low - 1, high + 1)
        yield from (end for end in limit.ends if end not in limit)
        kind = whole
    if get_origin(kind) in (Union, UnionType):
        options = [one for one in get_args(kind) if one is not NoneType]
        lists = [list(bad_values(one)) for one in options]
        texts = any(one is str or get_origin(one) is Literal for one in options)
        yield from (v for v in lists[0] if not (texts and isinstance(v, str)) and v is not None)
    elif get_origin(kind) is Literal:
        yield from (NAN, 7.5, "", "none of them", [], None)
    elif kind in REASONABLE:
        yield from (*NUMBERS, *OTHERS, True, None)
        yield from (2.5, 1.0) if kind is int else ()
    elif kind is bool:
        yield from (1, 0, "true", NAN, None, [])
    elif kind is str:
        yield from (1, NAN, [], None, b"x")
    elif get_origin(kind) is not None and get_args(kind) and get_origin(kind) is not dict:
        yield from (1, NAN, "abc", None)
        yield from ([value] for value in (NAN, object()))


def cases() -> list[tuple[type, str, Any]]:
    return [
        (kind, field.name, value)
        for kind in kinds_with_knobs()
        for field in fields(kind)
        if field.init
        for value in bad_values(get_type_hints(kind, include_extras=True)[field.name])
    ]


def is_a_sentence(text: str, name: str) -> bool:
    """Names the value and says what to give, on one line."""
    return text.startswith(name) and "; give " in text and "\n" not in text and len(text) < 300


def test_every_knob_of_every_part_refuses_what_it_cannot_mean() -> None:
    accepted, odd = [], []
    for kind, name, value in cases():
        try:
            kind(**{**REQUIRED.get(kind.__name__, {}), name: value})
            accepted.append((kind.__name__, name, value))
        except (ValueError, TypeError) as error:
            if not is_a_sentence(str(error), name):
                odd.append((kind.__name__, name, value, str(error)))
    print(f"{len(cases())} malformed constructions of {len(kinds_with_knobs())} classes")
    assert not accepted and not odd
    assert len(cases()) > 1000


def test_every_part_of_a_decoder_checks_its_fields() -> None:
    """One that overrides the check and does not call it takes NaN."""

    for kind in kinds_with_knobs():
        if issubclass(kind, Part):
            own = vars(kind).get("__post_init__")
            assert own is None or "super" in inspect.unwrap(own).__code__.co_names, kind


def test_values_are_checked_before_their_classes_are_imported() -> None:
    """By outlines of the classes, which take what the classes take, or do not tell."""
    told = 0
    for kind in kinds_with_knobs():
        real = get_type_hints(kind, include_extras=True)
        outlined = get_type_hints(outline(f"{kind.__module__}.{kind.__name__}"), include_extras=True)
        assert all(taken in (real[name], Any) for name, taken in outlined.items()), kind
        told += sum(taken is not Any for taken in outlined.values())
    assert told > 150


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: Threshold(NAN), ValueError, "tau=nan of Threshold; give a number in (0, 1e6]"),
        (lambda: Threshold("0.9"), WrongType, "tau='0.9' of Threshold; give a number in (0, 1e6]"),
        (lambda: FixedK(2.5), WrongType, "k=2.5 of FixedK; give a whole number in [1, 1e6] or all"),
        (lambda: decoders.Prophet((1, NAN, 2)), ValueError, "gaps[1]=nan of Prophet; give a number in [0, 1e6]"),
        (lambda: FixedK(10**5000), ValueError, "k=a number of 16610 bits of FixedK; give a whole"),
        (lambda: Decoder(decoders.Credit()), WrongType, "give an object whose class derives from decoders.CommitRule"),
        (lambda: Suite([3]), WrongType, "a text or an object with name, samples, score, version"),
        (lambda: Settings(**{**REQUIRED["Settings"], "seed": 2**31}), ValueError, "(larger seeds belong to training)"),
    ],
)
def test_sentences(make: Callable[[], object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=re.escape(sentence)) as caught:
        make()
    assert type(caught.value) is error and isinstance(caught.value, ValueError)


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """Malformed calls of functions: arguments of a decode, a model, a task, a run."""
    model = make_model("full")
    usual = {"gen_len": 8, "block_len": 8, "decoder": Decoder(FixedK(1)), "cache": NO_CACHE, "stop": Never()}
    counts = (*NUMBERS, *OTHERS, True, 0, -1, 2.5)
    for value in counts:
        for name in ("block_len", "max_steps", *(["gen_len"] if value != [] else [])):
            yield name, lambda name=name, value=value: decode(model, [[1, 2]], **{**usual, name: value})
        for name in ("block_len", "batch_size", *(["gen_len"] if value != [] else [])):
            yield name, lambda name=name, value=value: generate(model, [[1, 2]], **{name: value})
        if value not in (0, -1):
            yield "seed", lambda value=value: decode(model, [[1, 2]], **usual, seed=value)
        if value not in (0, 2.5):
            yield "scale", lambda value=value: Guided(model, value)
        yield "limit", lambda value=value: bench_samples(WaitingLine("copy"), value, 0)
        yield "limit", lambda value=value: draw_rows("x.jsonl", None, "test", value, 0)
        yield (
            "batch_size",
            lambda value=value: prepare(
                None,
                [],
                limit=1,
                seed=0,
                batch_size=value,
                gen_len=None,
                config={},
                choices={},  # type: ignore[arg-type]
            ),
        )
    for value in (None, 3, NAN, "abc", [3], [[NAN]], [[-1]], [["a"]], [[2.5]], [[True]], [[10**30]], [None]):
        yield "prompts", lambda value=value: decode(model, value, **usual)
    for value in (3, NAN, "abc", [3], [[NAN]], [[-1]], [["a"]], [[2.5]], [[True]], {1: 2}):
        yield "templates", lambda value=value: decode(model, [[1, 2]], **{**usual, "gen_len": None}, templates=value)
        yield "prompts", lambda value=value: generate(model, value)
    for value in (3, NAN, "abc", [3], [[NAN]], [[-1]], [["a"]], [[1] * 9], [[1], [2]], []):
        yield "reference", lambda value=value: decode(model, [[1, 2]], **usual, reference=value)
    for name in ("decoder", "cache", "stop"):
        for value in (None, 3, "threshold", Threshold(), Threshold):
            yield name, lambda name=name, value=value: decode(model, [[1, 2]], **{**usual, name: value})
    yield "prompt", lambda: decode(model, [[1, 48]], **usual)
    yield "response", lambda: decode(model, [[1]], **{**usual, "gen_len": None}, templates=[[47, 99]])
    yield "ids", lambda: decode(model, [[1]], **{**usual, "decoder": Decoder(FixedK(1), [decoders.BanEos([48])])})
    for name, value in (("name_or_path", 3), ("name_or_path", []), ("device", 3.5), ("dtype", 3), ("guidance", NAN)):
        yield name, lambda name=name, value=value: dllm.load(**{"name_or_path": "tiny", name: value})
    for name in ("family", "chat_template", "adapter", "compile"):
        yield name, lambda name=name: dllm.load("tiny", **{name: 3})


def test_malformed_calls_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dllm.DiffusionLM, "logits", lambda *_, **__: pytest.fail("a forward was run"))
    number = 0
    for name, make in calls():
        number += 1
        with pytest.raises(ValueError, match=r"[;:] .+") as caught:
            make()
        assert name in str(caught.value) and "\n" not in str(caught.value), (name, str(caught.value))
    print(f"{number} malformed calls")
    assert number >= 250


def test_a_class_of_the_users_own_is_checked_too() -> None:
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Mine(decoders.CommitRule):
        odds: Annotated[float, Interval("(0, 1)", "as shares")] = 0.5
        steps: int = 3

        def __call__(self, view, candidates, memory):
            return view.masked

    assert Mine(0.25).odds == 0.25
    for wrong in ({"odds": 1}, {"odds": NAN}, {"steps": 2.5}, {"steps": True}):
        with pytest.raises(ValueError, match=r"of .*Mine; give"):
            Mine(**wrong)


def test_numbers_are_taken_as_they_are_written() -> None:
    assert Threshold(1).tau == 1 and FixedK("all").k == "all"
    check(decode, prompts=[range(3), (1, 2), [3]], gen_len=[1, 2], max_steps=None)
    assert decoders.BanEos([1, 2]).ids == [1, 2]


class Lacking:
    """A task with a scorer that can be told what to give."""

    name, version = "mine", "1"

    def __init__(self, scores: object) -> None:
        self.scores = scores

    def samples(self, limit: int, seed: int) -> list[Sample]:
        return [Sample("mine/0", "mine", [{"role": "user", "content": "?"}], {}, "!")]

    def score(self, sample: Sample, completion: str) -> Any:
        return self.scores[completion] if isinstance(self.scores, list) else self.scores


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        ({"score": 1.0}, "score_strict is missing"),
        ({"score_strict": 1.0}, "score is missing"),
        ({"score": NAN, "score_strict": 1.0}, "score is nan"),
        ({"score": 2.0, "score_strict": 1.0}, "score is 2.0"),
        ({"score": "1", "score_strict": 1.0}, "TypeError"),
        (None, "AttributeError"),
        ([], "TypeError"),
    ],
)
def test_a_scorer_that_lacks_something_fails_before_the_first_forward(scores: object, sentence: str) -> None:
    task = Lacking(scores)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_task(task, task.samples(1, 0))
    good = Lacking({"score": 1.0, "score_strict": 0.0})
    check_task(good, good.samples(1, 0))
    with pytest.raises(ValueError, match="gave no samples"):
        check_task(good, [])


def ends(kind: Any) -> list[float]:
    """The least and the largest number of an interval, or nearly."""
    if get_origin(kind) in (Union, UnionType):
        return [end for one in get_args(kind) for end in ends(one)]
    if get_origin(kind) is not Annotated:
        return []
    whole, limit = get_args(kind)
    low, high = limit.ends
    inner = [low if low in limit else low + 1e-30, high if high in limit else math.nextafter(high, low)]
    return [whole(end) for end in inner]


@pytest.mark.slow
def test_a_decoder_runs_at_both_ends_of_each_knob() -> None:
    """What is accepted can be decoded with, however useless."""
    masked, uniform, number = make_model("full"), make_model("full"), 0
    uniform.spec = replace(uniform.spec, noise=40)
    for kind in kinds_with_knobs():
        if not issubclass(kind, Part | Decoder):
            continue
        for field in fields(kind):
            for end in ends(get_type_hints(kind, include_extras=True)[field.name]):
                try:
                    part = kind(**{**REQUIRED.get(kind.__name__, {}), field.name: end})
                    parts = [part] if issubclass(kind, decoders.LogitTransform) else []
                    rescore = [part] if issubclass(kind, decoders.Rescore) else []
                    rule = part if issubclass(kind, decoders.CommitRule) else FixedK(2)
                    revise = part if issubclass(kind, decoders.Revise) else None
                    soft = part if issubclass(kind, decoders.SoftStep) else None
                    whole = part if kind is Decoder else Decoder(rule, parts, rescore, revise, soft, temperature=1.0)
                    decode(
                        uniform if whole.needs_noise else masked,
                        [[1, 2, 3]],
                        gen_len=8,
                        block_len=8,
                        decoder=whole,
                        cache=NO_CACHE,
                        stop=Never(),
                        max_steps=4,
                    )
                except ValueError as error:  # knobs or parts that contradict, or more tokens than the model has
                    assert re.search("; (give|use) |more than", str(error)), (kind, field.name, end, error)
                number += 1
    print(f"{number} decodes at the ends of knobs")
    assert number > 100


def commands() -> list[list[str]]:
    """A malformed value for every knob of every decoder, cache, stop rule, model, task and run."""
    values = cycle(("nan", "inf", "-1e30", "1e30", "abc", "[]", "{a:1}", "''", "100000000000"))
    found = [[f"{key}={next(values)}"] for key in SETTINGS for _ in range(9)]
    found += [[f"{key}={value}"] for key in SETTINGS for value in ("2.5", "true", "-1")]
    for group in ("decoder", "cache", "stop"):
        for path in sorted((CONF / group).glob("*.yaml")):
            for key, old in numbers_of(OmegaConf.to_container(OmegaConf.load(path)), group):
                odd = ("2.5",) if isinstance(old, int) else (next(values),)
                found += [[f"{group}={path.stem}", f"{key}={value}"] for value in ("nan", *odd)]
    return found + OWN


SETTINGS = ("limit", "seed", "batch_size", "gen_length", "block_length", "traces")
OWN = [
    *([f"suite.lengths={value}"] for value in ("[1]", "[21]", "[2.5]", "[nan]", "[]", "21", "abc", "[abc]", "null")),
    *([f"suite.tasks={value}"] for value in ("[]", "[copi]", "abc", "3", "[3]", "null", "[waiting_line/copy,nan]")),
    *([f"+suite.infill={value}"] for value in ("nan", "0", "-1", "2.5", "x", "[]", "100")),
    ["+suite.infill=2", "model=tiny_ar", "decoder=ar"],
    *([f"suite.grammar={value}", "suite=text"] for value in ("zzz", "3", "null", "[]")),
    *(["suite=humaneval", f"suite.tasks.0.timeout_s={v}"] for v in ("nan", "inf", "-1", "0", "x", "1e99", "[]")),
    *(["suite=humaneval", f"+suite.tasks.0.memory_mb={v}"] for v in ("nan", "0", "-1", "2.5", "x", "1e12")),
    *(["suite=gsm8k", f"+suite.tasks.0.gen_len={v}"] for v in ("nan", "0", "-1", "2.5", "x", "1000000000")),
    *([f"model.dtype={value}"] for value in ("3", "abc", "nan", "[]")),
    *([f"model.name_or_path={value}"] for value in ("3", "[]", "nan", "null")),
    *([f"model.device={value}"] for value in ("nowhere", "3.5", "[]")),
    *([f"+model.guidance={value}"] for value in ("nan", "-1", "inf", "abc", "1e30", "[]")),
    *([f"out_dir={value}"] for value in ("3", "[a]", "2.5", "true")),
    ["+decoder.rule.foo=3"],
    ["decoder.rule=3"],
    ["decoder.confidence=best"],
    ["decoder.at_least_one=7"],
]


def numbers_of(node: Any, key: str) -> Iterator[tuple[str, float]]:
    """Keys that hold a number."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from numbers_of(value, f"{key}.{name}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from numbers_of(value, f"{key}.{i}")
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield key, node


def refused(cli, folder: Path, command: list[str]) -> str:
    """Empty where a command is refused as promised, else what it did instead."""
    code, out, err = cli("run", "suite.tasks=[waiting_line/copy]", "limit=1", *command)
    lines = err.strip().splitlines()
    if code != 2 or len(lines) != 1 or not lines[0].startswith("error: ") or "Traceback" in out + err:
        return f"{command}: {code} {out[-200:]} {err[-400:]}"
    return f"{command}: it wrote {list(folder.iterdir())}" if list(folder.iterdir()) else ""


def test_some_malformed_commands_are_refused(cli, tmp_path: Path) -> None:
    chosen = commands()[:: len(commands()) // 6]
    assert not [wrong for command in chosen if (wrong := refused(cli, tmp_path, command))]


@pytest.mark.slow
def test_malformed_commands_are_refused_in_one_sentence(cli, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    wrong = [text for command in commands() if (text := refused(cli, tmp_path, command))]
    with capsys.disabled():
        print(f"\n{len(commands())} malformed commands, {len(wrong)} not refused as promised", *wrong, sep="\n")
    assert len(commands()) >= 300 and not wrong
