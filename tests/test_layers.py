"""The architecture as a test: imports point one way, some libraries belong to one place, what our objects offer is
declared and not probed, classes are final, and a default stands in one place."""

import ast
import dataclasses
import importlib
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf

from decoders import StopRule
from decoders.noise import STREAMS
from decoders.types import Part

ROOT = Path(__file__).parent.parent
LAYERS = ["dllm", "decoders", "parallelbench", "scripts", "examples"]
FILES = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")]
WIRING = ["parallelbench/__main__.py", "parallelbench/compose.py", "parallelbench/launcher.py", "scripts/"]
HOMES = {"hydra": WIRING, "matplotlib": ["parallelbench/plots.py"]}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    above = LAYERS[LAYERS.index(name.split("/")[0]) + 1 :]
    packages = {module.split(".")[0] for module in imports(path)}
    assert not packages & set(above)
    for package, homes in HOMES.items():
        assert package not in packages or any(name.startswith(home) for home in homes)


def test_no_cycles_between_files() -> None:
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in FILES if p.name != "__init__.py"}
    graph = {name: {other for other in imports(path) if other in modules} for name, path in modules.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' -> '.join([*path, name])}"
        if name not in done:
            for other in graph[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_nothing_runs_foreign_code() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword):
                assert node.arg != "trust_remote_code" or ast.unparse(node.value) == "False", path
        assert not imports(path) & {"pickle", "dill", "joblib"}


LIBRARY = [path for path in FILES if path.relative_to(ROOT).parts[0] in ("dllm", "decoders")]
FOREIGN = ("config", "self.backbone.config", "module")  # of transformers: its models differ in what they name


@pytest.mark.parametrize("path", LIBRARY, ids=lambda p: str(p.relative_to(ROOT)))
def test_our_objects_are_not_probed(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            probes = node.func.id == "getattr" and isinstance(node.args[1], ast.Constant)
            assert node.func.id != "hasattr" and (not probes or ast.unparse(node.args[0]) in FOREIGN), ast.unparse(node)


def test_classes_are_final() -> None:
    """A class of ours derives from protocols and abstract classes of ours alone, so each is read in one place."""
    open_ = {Part}  # declares, with defaults
    exceptions = {"EncoderLM"}  # a DiffusionLM of another forward
    seen = 0
    for path in LIBRARY:
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name, kind in vars(module).items():
            if not inspect.isclass(kind) or kind.__module__ != module.__name__ or name in exceptions:
                continue
            ours = [base for base in kind.__bases__ if base.__module__.split(".")[0] in ("dllm", "decoders")]
            seen += len(ours)
            for base in ours:
                assert inspect.isabstract(base) or vars(base).get("_is_protocol") or base in open_, f"{kind} of {base}"
    assert seen > 50


def test_noise_streams_never_meet() -> None:
    """Two parts that drew from one stream would draw the same numbers."""
    drawn = Counter(
        ast.unparse(keyword.value).strip("'")
        for path in LIBRARY
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "uniform"
        for keyword in node.keywords
        if keyword.arg == "stream"
    )
    assert drawn == dict.fromkeys(STREAMS, 1)
    assert len(set(STREAMS.values())) == len(STREAMS) and max(STREAMS.values()) < 2**32


def parts_of(node: Any) -> Iterator[DictConfig]:
    """The parts and stop rules that a yaml describes."""
    if isinstance(node, DictConfig):
        kind = get_object(node["_target_"]) if str(node.get("_target_", "")).startswith("decoders.") else None
        if inspect.isclass(kind) and issubclass(kind, Part | StopRule):
            yield node
        for key in node:
            if not OmegaConf.is_missing(node, key) and not OmegaConf.is_interpolation(node, str(key)):
                yield from parts_of(node[key])
    elif isinstance(node, ListConfig):
        for value in node:
            yield from parts_of(value)


@pytest.mark.parametrize("group", ["decoder", "stop", "experiment"])
def test_a_default_is_the_yamls_too_or_the_yaml_says_why_not(group: str) -> None:
    seen = 0
    for path in sorted((ROOT / "conf" / group).glob("*.yaml")):
        lines = path.read_text().splitlines()
        for node in parts_of(OmegaConf.load(path)):
            for field in dataclasses.fields(get_object(node["_target_"])):
                if field.name not in node or OmegaConf.is_interpolation(node, field.name):
                    continue
                value, default = OmegaConf.to_container(node)[field.name], field.default
                if isinstance(value, dict) or default is dataclasses.MISSING:
                    continue
                seen += 1
                same = value == (list(default) if isinstance(default, tuple) else default)
                mine = [line for line in lines if line.lstrip().startswith(f"{field.name}:")]
                why = any("#" in line and yaml.safe_load(line.strip()) == {field.name: value} for line in mine)
                assert same or why, f"{path.name}: {field.name} is {default!r} in Python; make it so, or say why not"
    assert seen > (0 if group == "stop" else 3)
