"""The architecture as a test: imports point one way, and some libraries belong to one place."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ["dllm", "decoders", "parallelbench", "scripts"]
FILES = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.py")]
WIRING = ["parallelbench/__main__.py", "parallelbench/wiring/config.py", "parallelbench/wiring/launcher.py", "scripts/"]
HOMES = {"hydra": WIRING, "matplotlib": ["parallelbench/report/plots.py"]}


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
