"""The command `show`: one task, decoder, model or other choice. Classes are read, not imported."""

import ast
import inspect
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any, get_type_hints

import yaml

from dllm import validation
from dllm.validation import Checked, nearest, wanted
from parallelbench.records.files import PACKAGES, to_json
from parallelbench.report.options import without_format
from parallelbench.tasks import named_task, named_tasks
from parallelbench.tasks.base import first_wording, question
from parallelbench.tasks.wording import whole_name
from parallelbench.wiring.catalogue import LISTED, comments, config_dir, option_file, options
from parallelbench.wiring.conf import own_tasks
from parallelbench.wiring.menu import WIDTH, table

OURS = ("decoders", "dllm", "parallelbench")
FULL = 95  # characters of a line of a docstring from which on the next continues
KINDS = ("task", *LISTED)
YAML = {"None": "null", "True": "true", "False": "false"}


@dataclass(frozen=True)
class Knob:
    """A setting of a part. extra: it is not in the yaml file, so Hydra wants a + before it."""

    key: str
    value: str
    kind: str
    extra: bool = False


def main(arguments: Sequence[str]) -> str:
    given = [word for word in arguments if "=" not in word]
    mine = config_dir(arguments)
    wants_json, _ = without_format(arguments)
    if len(given) == 1 and given[0] not in KINDS:
        given = [_kind_of(given[0], mine), *given]
    if len(given) != 2 or given[0] not in KINDS:
        raise ValueError(f"show takes a kind and a name, such as `show decoder eb`; the kinds are {', '.join(KINDS)}")
    kind, name = given
    known = {} if kind == "task" else options(kind, mine)
    if kind != "task" and name not in known:
        raise ValueError(f"unknown {kind} {name!r}; {nearest(name, known, f'parallelbench list {kind}')}")
    text, told = _task(name, mine) if kind == "task" else _option(kind, name, known[name], mine)
    return to_json({"kind": kind, "name": name, **told}, indent=2) if wants_json else text


def _kind_of(name: str, mine: Path | None) -> str:
    """The one kind that has a choice of this name. Raises ValueError where none has, or several."""
    kinds = [group for group in LISTED if name in options(group, mine)]
    tasks = named_tasks().keys() | (own_tasks(mine) if mine else {}).keys()
    kinds += ["task"] if whole_name(name, tasks) in tasks else []
    if kinds[1:] == ["experiment"]:  # the grid of a decoder, which its page shows too
        del kinds[1]
    if not kinds:
        raise ValueError(f"unknown choice {name!r}; `parallelbench list` lists them all")
    if len(kinds) > 1:
        raise ValueError(f"{name!r} may be {' or '.join(kinds)}; write `show {kinds[0]} {name}`")
    return kinds[0]


def _task(name: str, mine: Path | None) -> tuple[str, dict[str, Any]]:
    """Its prompt, target and scorer, by its first sample, as text and as an object."""
    own = own_tasks(mine) if mine else {}
    known = {**named_tasks(), **{full: task for full, (_, task) in own.items()}}
    task = named_task(name, known)
    first = first_wording(task.name)
    (sample,) = task.samples(1, 0)
    found_scores = dict(task.score(sample, sample.target))
    scores = ", ".join(f"{key} {value:g}" for key, value in found_scores.items())
    asked = known[first]  # in no wording of its own
    chosen = f"suite={own[first][0]}" if first in own else f"suite.tasks={task.name}"
    parts = [
        f"{task.name}, version {task.version}",
        _folded(inspect.getdoc(asked) or "", ""),
        f"Scorer\n{_folded(inspect.getdoc(asked.score) or '')}",
        f"Sample {sample.id}: prompt\n{_folded(question(sample.messages))}",
        f"{_folded(f'Target ({scores})', '')}\n{_folded(sample.target)}",
        f"{_run(mine)} {chosen} traces=1",
    ]
    told = {
        "name": task.name,
        "version": task.version,
        "about": inspect.getdoc(asked) or "",
        "prompt": question(sample.messages),
        "target": sample.target,
        "scores": found_scores,
        "command": f"{_run(mine)} {chosen}",
    }
    return "\n\n".join(parts), told


def _run(mine: Path | None) -> str:
    return "python -m parallelbench run" + (f" --config-dir {shlex.quote(str(mine))}" if mine else "")


def _option(group: str, name: str, about: str, mine: Path | None = None) -> tuple[str, dict[str, Any]]:
    """Comments, settings, grid and classes of a yaml file, as text and as an object."""
    file = option_file(group, name, mine)
    content = _content(file, mine)
    about, _, example = about.partition(f": {group}.")
    command = f"{_run(mine)} {group}={name}"
    facts = [("set", f"{group}.{example}")] if example else []
    facts += [
        (key, value)
        for key, mark, value in (line.partition(": ") for line in comments(file)[1:])
        if mark and key != "look"
    ]
    parts = [
        "\n".join([f"{group}={name}", *wrap(about, WIDTH)]),
        *(["\n".join(table(facts))] if facts else []),
        command,
    ]
    classes = dict[str, str]()
    is_global = "# @package _global_" in file.read_text(encoding="utf-8")
    knobs = list(_knobs(content, "" if is_global else group, classes)) if group != "experiment" else []
    if knobs:
        rows = [(f"  {'+' if knob.extra else ''}{knob.key}={knob.value}", knob.kind) for knob in knobs]
        parts.append("\n".join(["Settings, each with its default", *table(rows)]))
    grids = dict[str, list[dict[str, str]]]()
    experiments = _experiments(name, mine) if group == "decoder" else [name] if group == "experiment" else []
    for experiment in experiments:
        found = _grids(option_file("experiment", experiment, mine))
        grids |= {experiment: found} if found else {}
        grid = table([(f"  {key}={values}", "") for each in found for key, values in each.items()])
        parts += ["\n".join([f"Grid: {_run(mine)} -m experiment={experiment}", *grid])] if grid else []
    if group == "decoder" and example and not experiments:
        sweep = f"{_run(mine)} -m {group}={name} {group}.{example.partition('=')[0]}=A,B,C"
        parts.append("\n".join(["No grid of its own. A sweep by hand:", sweep]))
    if group == "model":
        parts += _shipped(content)
    parts += [f"{target}\n{_folded(text)}" for target, text in classes.items() if text]
    told = {
        "about": about,
        "facts": dict(facts),
        "command": command,
        "settings": [{"key": knob.key, "default": knob.value, "takes": knob.kind} for knob in knobs],
        "grids": grids,
        "classes": classes,
    }
    return "\n\n".join(parts), told


def _content(file: Path, mine: Path | None = None) -> dict[str, Any]:
    """A yaml file, with the options that it takes from other ones where they stand."""
    content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    for chosen in content.pop("defaults", []):
        for place, option in chosen.items() if isinstance(chosen, dict) else ():
            group, at, key = place.strip("/").partition("@")
            if at:
                content[key] = _content(option_file(group, option, mine), mine)
    return content


def _knobs(node: Any, path: str, classes: dict[str, str]) -> Iterator[Knob]:
    """The settings below a node, outermost first. classes: filled with the docstring of every class on the way."""
    if isinstance(node, dict):
        declared: Mapping[str, tuple[str, str]] = {}
        if "_target_" in node:
            classes[node["_target_"]], declared = described(node["_target_"])
        for key, value in node.items():
            if _is_leaf(value) and not str(key).startswith("_"):
                kind, _ = declared.get(key, ("", ""))
                yield Knob(f"{path}.{key}".lstrip("."), _written(value), kind)
        for key, (kind, default) in declared.items():
            if key not in node and default and path != "decoder":
                yield Knob(f"{path}.{key}", YAML.get(default, default), kind, extra=True)
    if not _is_leaf(node):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _knobs(value, f"{path}.{key}".lstrip("."), classes)


def _is_leaf(value: Any) -> bool:
    return not isinstance(value, dict) and not (isinstance(value, list) and any(isinstance(v, dict) for v in value))


def _written(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else "null" if value is None else str(value)


def described(target: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Docstring of one of our classes or functions, and its fields or arguments with what they take and their default,
    from its source; nothing of others."""
    node, kinds = _source(target), get_type_hints(outline(target), include_extras=True)
    fields = _fields(node) if node else ()
    told = {key: (wanted(kinds[key]) if kinds.get(key, Any) is not Any else kind, value) for key, kind, value in fields}
    if isinstance(node, ast.ClassDef) and not told and isinstance(base := next(iter(node.bases), None), ast.Attribute):
        return described(ast.unparse(base))  # of another package, whose sampler this one binds
    return (node and ast.get_docstring(node)) or "", told


@cache
def outline(target: str) -> type:
    """What of one of our classes `dllm.validation.check` wants: its name, and what its fields take where they are
    checked. Read from its source, since it would take seconds to import."""
    package, _, name = target.rpartition(".")
    node = None if name == "Checked" else _source(target)
    if not isinstance(node, ast.ClassDef):
        return Checked if name == "Checked" else object
    names = map(ast.unparse, node.bases)
    bases = [outline(base if "." in base else f"{package}.{base}") for base in names]
    checked = tuple(base for base in bases if base is not object)
    kinds = {key: _kind(kind, _named_kinds()) for key, kind, _ in _fields(node)} if checked else {}
    return type(name, checked, {"__annotations__": kinds})


def _kind(text: str, named: Mapping[str, Any]) -> Any:
    """An annotation of a source. named: what it may name besides all of `dllm.validation`. Any where it names something
    else: a part, whose own fields are checked."""
    try:
        return eval(text, {**vars(validation), **named})
    except NameError:
        return Any


@cache
def _named_kinds() -> dict[str, Any]:
    """What our modules call intervals and words: Tau, Confidence."""
    lines = (line for package in OURS for text in _texts(package) for line in text.splitlines())
    found = filter(None, (re.match(r"(\w+) = ((?:Annotated|Literal)\[[^#]+\])", line) for line in lines))
    return {name: kind for name, text in (match.groups() for match in found) if (kind := _kind(text, {})) is not Any}


@cache
def _texts(package: str) -> list[str]:
    return [file.read_text(encoding="utf-8") for file in sorted((PACKAGES / package).rglob("*.py"))]


def _source(target: str) -> ast.ClassDef | ast.FunctionDef | None:
    """Of one of our classes or functions; None of others."""
    package, _, name = target.rpartition(".")
    if package.split(".")[0] not in OURS:
        return None
    opening = re.compile(rf"^(?:class|def) {name}\b", re.MULTILINE)
    text = next(filter(opening.search, _texts(package.split(".")[0])), "")
    nodes = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return next((node for node in nodes if node.name == name), None)


def _fields(found: ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    """Name, annotation and default of each."""
    if isinstance(found, ast.ClassDef):
        for node in found.body:
            if isinstance(node, ast.AnnAssign) and not ast.unparse(node.annotation).startswith("ClassVar"):
                default = "" if node.value is None else ast.unparse(node.value)
                yield ast.unparse(node.target), ast.unparse(node.annotation), default
        return
    for argument in (*found.args.args, *found.args.kwonlyargs):
        yield argument.arg, ast.unparse(argument.annotation) if argument.annotation else "", ""


def _experiments(decoder: str, mine: Path | None) -> list[str]:
    """Those that choose a decoder."""
    names = options("experiment", mine)
    texts = {name: option_file("experiment", name, mine).read_text(encoding="utf-8") for name in names}
    return [name for name, text in texts.items() if re.search(rf"override /decoder: {decoder}\b", text)]


def _grids(file: Path) -> list[dict[str, str]]:
    """What an experiment sweeps over; nothing where it is a single run."""
    sweeper = yaml.safe_load(file.read_text(encoding="utf-8")).get("hydra", {}).get("sweeper", {"grids": []})
    grids = sweeper.get("grids", [sweeper.get("params")])
    return [{key: str(values) for key, values in grid.items()} for grid in grids]


def _shipped(content: Mapping[str, Any]) -> list[str]:
    """What the folder of a model that comes with this package says of it."""
    folder = PACKAGES / "dllm" / "assets" / str(content.get("name_or_path", ""))
    if not content.get("name_or_path") or not (folder / "config.json").exists():
        return []
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    wanted = ("model_type", "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")
    rows = [(f"  {key}", str(config[key])) for key in wanted if key in config]
    rows.append(("  size", f"{sum(file.stat().st_size for file in folder.glob('*.safetensors')) / 1e6:.1f} MB"))
    _, text, *_ = (folder / "README.md").read_text(encoding="utf-8").split("\n\n")
    return ["\n".join(["It comes with this package", *table(rows)]), _folded(text, ""), str(folder / "README.md")]


def _folded(text: str, margin: str = "  ") -> str:
    """Text within the width: full lines are joined with the next, and what is folded keeps its indent."""
    lines, before = list[str](), ""
    for line in text.splitlines():
        is_new = re.match(r"\s*[\w, ]+: ", line) and before.endswith((".", ":"))
        if len(before) > FULL and line.strip() and not is_new:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
        before = line
    folded = []
    for line in lines:
        indent = margin + " " * (len(line) - len(line.lstrip()))
        folded += wrap(line, WIDTH, initial_indent=margin, subsequent_indent=indent, break_on_hyphens=False) or [""]
    return "\n".join(folded)
