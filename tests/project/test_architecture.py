"""The architecture as a test: imports point one way, some libraries belong to one place, what our objects
offer is declared and not probed, classes are final, and a default stands in one place."""

import ast
import dataclasses
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import forked
import pytest
import yaml
from hydra.utils import get_object
from omegaconf import DictConfig, ListConfig, OmegaConf

from decoders import StopRule
from decoders.noise import STREAMS
from decoders.state import NEVER
from decoders.types import Part
from dllm.validation import Checked
from parallelbench.records import record
from parallelbench.wiring.menu import TRAINS

pytestmark = pytest.mark.core
ROOT = Path(__file__).parents[2]
LAYERS = ["dllm", "decoders", "parallelbench", "scripts", "examples"]
FILES = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")]
PACKAGES = [path for path in FILES if path.relative_to(ROOT).parts[0] != "scripts"]
ROOMS = [  # of parallelbench, from the ground up: a room imports those of the floors below it
    ("tasks",),
    ("records",),
    ("stats",),
    ("run", "report"),
    ("training", "studies", "methods"),
    ("wiring",),
    ("__main__",),
]
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
WORK = tuple(f"parallelbench/training/{name}.py" for name in TRAINS)
HOMES = {  # libraries, and the only files that import them
    "hydra": ("parallelbench/wiring/", *WORK, "scripts/"),
    "omegaconf": ("parallelbench/wiring/", *WORK, "scripts/"),
    "matplotlib": ("parallelbench/report/plots.py", "parallelbench/report/drawing/axes.py"),
    "vl_convert": ("parallelbench/report/page/",),
    "PIL": (
        "parallelbench/report/sinks.py",
        "parallelbench/report/plots.py",
        "parallelbench/tasks/shapes.py",
        "dllm/vision/",
    ),
}
WITHOUT_TORCH = tuple(f"parallelbench/{room}/" for room in ("tasks", "records", "stats", "report"))
SINKS = "parallelbench/report/sinks.py"  # TensorBoard is in torch
SAME_NAMES = {"__init__", "tasks", "soft", "cache"}
NOT_OURS = "hydra_plugins."  # Hydra takes launchers from there alone


@cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    name = name_of(path)
    above = LAYERS[LAYERS.index(name.split("/")[0]) + 1 :]
    packages = {module.split(".")[0] for module in imports(path)}
    assert not packages & set(above)
    for package, homes in HOMES.items():
        assert package not in packages or name.startswith(homes)
    if name.startswith(WITHOUT_TORCH) and name != SINKS:
        assert not packages & {"torch", "decoders", "transformers"}
        assert {module for module in imports(path) if re.match(r"dllm\.\w+$", module)} <= {"dllm.validation"}


def rooms() -> dict[str, set[str]]:
    """The rooms that each room of parallelbench imports."""
    graph: dict[str, set[str]] = {room: set() for room in FLOOR}
    for path in (ROOT / "parallelbench").rglob("*.py"):
        room = path.relative_to(ROOT / "parallelbench").with_suffix("").parts[0]
        found = {module.split(".")[1] for module in imports(path) if module.startswith("parallelbench.")}
        assert room in graph or (room == "__init__" and not found), f"{path}: name its room in ROOMS"
        graph.get(room, set()).update(found - {room})
    return graph


def test_rooms_import_those_below_them() -> None:
    assert len(ROOMS) <= 7 and len(FLOOR) <= 10
    for room, found in rooms().items():
        assert all(FLOOR[other] < FLOOR[room] for other in found), f"{room} imports {found}"


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


def test_modules_have_names_of_their_own() -> None:
    names = Counter(path.stem for path in PACKAGES)
    assert {name for name, count in names.items() if count > 1} <= SAME_NAMES


def targets(value: object) -> list[str]:
    if isinstance(value, dict):
        found = [str(value["_target_"])] if "_target_" in value else []
        return found + [target for inner in value.values() for target in targets(inner)]
    return [target for inner in value for target in targets(inner)] if isinstance(value, list) else []


@pytest.mark.parametrize("path", sorted((ROOT / "conf").rglob("*.yaml")), ids=name_of)
def test_configs_name_public_classes(path: Path) -> None:
    """A class may move; the package that exports it may not."""
    for target in targets(yaml.safe_load(path.read_text())):
        if not target.startswith(NOT_OURS):
            package = target.rpartition(".")[0]
            assert (ROOT / package.replace(".", "/") / "__init__.py").exists(), f"{target} names a module"
            assert get_object(target) is not None


def test_readers_compare_no_class_paths() -> None:
    path_of_class = re.compile(r"(dllm|decoders|parallelbench)\.[\w.]+$")
    for path in PACKAGES:
        for node in ast.walk(ast.parse(path.read_text())):
            compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            looked_up = node.keys if isinstance(node, ast.Dict) else []
            called = node.args if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("startswith") else []
            for one in (*compared, *looked_up, *called):
                for leaf in ast.walk(one) if one is not None else ():
                    text = leaf.value if isinstance(leaf, ast.Constant) else None
                    public = name_of(path) == "parallelbench/__init__.py"  # where each public class is
                    assert public or not (isinstance(text, str) and path_of_class.match(text)), f"{path}: {text}"


OF_TWO_FORMS = {  # classes of ours that an object is asked for, and why
    "CausalLM DiffusionLM": "functions of either kind of model, whose types they narrow",
    "EncoderLM VisionLM BlockRoutedLM DimpleBackbone LLaDA2Backbone": "loading and saving, in dllm.diffusion alone",
    "LlamaRecurrentLM": "the one layout that is saved",
    "ModelSpec Fields": "arguments that are such an object, or a mapping of some of its fields",
    "Decoder DiffusionGenerator": "a sentence on what is taken instead of another object",
    "RowStream TaskStream": "rows end, and tasks show pictures, which other data do not",
    "Remote Died Step Value": "messages and cells of several forms",
}


@pytest.mark.parametrize("path", PACKAGES, ids=name_of)
def test_parts_are_asked_what_they_declare_and_not_what_they_are(path: Path) -> None:
    """A part of a user's that does as one of ours does is treated alike. Protocols and the kinds of parts, from which
    users derive, may be asked for."""
    known = {name for names in OF_TWO_FORMS for name in names.split()} | {"Part", "Checked"}
    for kind in asked_for(path):
        is_kind = inspect.isabstract(kind) or vars(kind).get("_is_protocol") or kind.__name__ in known
        assert is_kind, f"{path} asks for {kind.__name__}; let it declare what is asked"


def asked_for(path: Path) -> Iterator[type]:
    """The classes of ours in a file's type checks."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} of an extra is not installed")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            try:
                kinds: Any = eval(ast.unparse(node.args[1]), vars(module))
            except NameError:
                continue  # a variable of the function
            for kind in get_args(kinds) or (kinds if isinstance(kinds, tuple) else (kinds,)):
                if inspect.isclass(kind) and kind.__module__.split(".")[0] in LAYERS:
                    yield kind


def test_a_run_loads_no_plots(tmp_path: Path) -> None:
    script = """
import sys
import parallelbench.wiring.launcher
from parallelbench.__main__ import main
main()
print({"matplotlib", "peft", "vl_convert"} & sys.modules.keys())  # PIL is transformers' own
"""
    arguments = "run limit=1 suite.tasks=[waiting_line/copy] out_dir=run".split()
    done = forked.run("-c", script, *arguments, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.stdout.splitlines()[-1:] == ["set()"], done.stderr


def test_records_and_loop_agree_on_never() -> None:
    assert record.NEVER == NEVER


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
    open_ = {Part, Checked}  # they declare, with defaults, and check what is declared
    # a DiffusionLM of another forward, one of other inputs, and one that tells its routers of blocks
    exceptions = {"EncoderLM", "VisionLM", "BlockRoutedLM"}
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
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "uniform"
        for keyword in node.keywords
        if keyword.arg == "stream" and isinstance(keyword.value, ast.Constant)
    )
    drawn += Counter(
        ast.literal_eval(node.args[3])
        for path in LIBRARY
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "noise_tokens"
    )
    assert drawn == dict.fromkeys([*STREAMS, "headway"], 1)  # that one has the hash of its name
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
