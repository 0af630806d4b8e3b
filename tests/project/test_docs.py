"""The documentation is built, links lead somewhere, and its code runs as it stands there, page by page."""

import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
import yaml
from conftest import call
from hydra import compose, initialize_config_dir

from dllm.families import FAMILIES, MODEL_TYPES
from parallelbench.stats.metrics import METRICS
from parallelbench.wiring.tune import understood

ROOT = Path(__file__).parents[2]
CONF, DOCS = ROOT / "conf", ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
RESULTS = ROOT / "results"
PROSE = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *RESULTS.glob("*.md"), *RESULTS.glob("notes/*.md")]
GROUPS = "cache decoder filter launcher model objective sink stop suite".split()
OUT_OF_TREE = ["my_rules.py", "my_cache.py", "my_family.py", "my_task.py"]
NOT_RUN = "# not run by the tests: "


@dataclass(frozen=True)
class Block:
    """A fenced block of a page. title: the file that it stands for, if any."""

    language: str
    title: str | None
    code: str

    @property
    def commands(self) -> list[list[str]]:
        """Words of each shell command, without comments."""
        lines = self.code.replace("\\\n", " ").splitlines()
        split = [shlex.split(line, comments=True) for line in lines]
        return [words for words in split if words]


def blocks(page: Path) -> list[Block]:
    found = re.findall(
        r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```$', page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    return [Block(language, title or None, code) for language, title, code in found]


def build(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """The site in a folder. Not with --quiet, which would hide warnings from --strict as well."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_site_has_every_decoder_and_needs_no_network(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = build(site)
    assert done.returncode == 0, done.stderr
    page = (site / "decoders" / "index.html").read_text()
    for path in (CONF / "decoder").glob("*.yaml"):
        (name,) = re.findall(rf'<td><a href="#{path.stem}"><code>{path.stem}</code></a></td>', page)
        about, paper = re.findall("<td>(.+)</td>", page.split(name)[1].split("</tr>")[0])
        assert "decoder." not in about and re.search(r"arXiv|ours|none|[A-Z]", paper), f"{path.stem}: {about} | {paper}"
        assert f'id="{path.stem}"' in page, f"{path.stem} has no section"
    for shown in (site / "index.html", site / "reports" / "index.html"):
        rows = re.findall(r"<td>(.+)</td>\n<td><code>(\w+)</code></td>\n<td>(.+)</td>", shown.read_text())
        assert rows == [(metric.heading, name, metric.about) for name, metric in METRICS.items()]
    for html in [*site.glob("*.html"), *site.glob("*/index.html")]:
        loaded = re.findall(r'<(?:script|img|link)[^>]*(?:src|href)="(https?:)?//', html.read_text())
        assert not loaded, f"{html} loads something from the network"


def test_tables_of_the_site_have_every_row() -> None:
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    rows = hooks["table"]().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == sorted(path.stem for path in (CONF / "decoder").glob("*.yaml"))
    assert all(hooks["_section"](decoder) for decoder in hooks["decoder_pages"]())
    assert [row.split("`")[1] for row in hooks["metrics"]().splitlines()[2:]] == list(METRICS)


@pytest.mark.parametrize("link", ["nowhere.md", "caches.md#nowhere"])
def test_a_broken_link_is_an_error(link: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n[link]({link})\n")
    (tmp_path / "docs" / "caches.md").write_text("# Caches\n")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    kept = {key: settings[key] for key in ("site_name", "strict", "validation")} | {"docs_dir": "docs"}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(kept))
    done = build(tmp_path / "site", "--config-file", str(tmp_path / "mkdocs.yml"))
    assert done.returncode == 1 and "nowhere" in done.stderr


@pytest.mark.parametrize("path", sorted((CONF / "decoder").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_decoder_names_its_paper_and_deviations(path: Path) -> None:
    text = path.read_text()
    assert re.search(r"^# paper: (.*arXiv \d{4}\.\d{5}|ours|none|.*\(Saxena, 2023\)|Dynamic-dLLM)", text, re.MULTILINE)
    assert re.search(r"^# deviations: .", text, re.MULTILINE)


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_is_explained(group: str) -> None:
    pages = "\n".join(page.read_text() for page in PAGES)
    for path in (CONF / group).glob("*.yaml"):
        if group != "decoder":  # these have a generated table
            assert re.search(rf"`(?:{group}=)?{path.stem}(?: [^`]*)?`", pages), f"no page names {group}={path.stem}"


@pytest.mark.parametrize("page", PROSE, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_prose_fits_the_line(page: Path) -> None:
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fenced ^= line.startswith("```")
        assert fenced or line.startswith("|") or len(line) <= 120, f"{page.name}:{number} has {len(line)} characters"


@pytest.mark.parametrize("page", PROSE, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_links_lead_to_files(page: Path) -> None:
    """As a repository browser follows them; anchors are MkDocs' affair."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name} links {target}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to follow a page in; what its files add to the process is taken back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    families, types = dict(FAMILIES), dict(MODEL_TYPES)
    yield tmp_path
    for table, before in ((FAMILIES, families), (MODEL_TYPES, types)):
        for name in table.keys() - before.keys():
            del table[name]
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_runs_in_order(
    page: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for block in blocks(page):
        if block.title is not None:
            path = workplace / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        elif block.language == "python":
            code = compile(block.code, str(page), "exec")
            if not block.code.startswith(NOT_RUN):
                with redirect_stdout(StringIO()):
                    exec(code, {"__name__": "docs"})
        elif block.language == "sh":
            for words in block.commands:
                if block.code.startswith(NOT_RUN):
                    check(words)
                else:
                    run(words, monkeypatch, capsys)


def run(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """A command of ours, with one sample of two tasks."""
    words = [word for word in words if word != "PYTHONPATH=."]
    assert words[:3] == ["python", "-m", "parallelbench"], f"cannot run {words}; mark its block with {NOT_RUN!r}"
    arguments = words[3:]
    if arguments[0] == "run":
        arguments = [*(word for word in arguments if not word.startswith("limit=")), "limit=1"]
        if not any(word.startswith("suite") for word in arguments):
            arguments.append("suite.tasks=[waiting_line/copy,waiting_line/shuffle]")
    code, out, err = call(monkeypatch, capsys, *arguments)
    assert code == 0, f"{shlex.join(words)}\n{out}\n{err}"


def check(words: list[str]) -> None:
    """What can be said of a command without running it: its script is there, its settings compose."""
    if words[0] in ("pip", "git"):
        return
    if "parallelbench" in words:
        command, *overrides = words[words.index("parallelbench") + 1 :]
        assert command in ("run", "tune", "analyze", "lm_eval"), words
        if command == "tune":
            understood(overrides)
        root = "run" if command == "run" else None
    else:
        program, script, *overrides = words
        if script == "-m":
            script = f"{overrides.pop(0).replace('.', '/')}.py"
        assert program in ("python", "bash") and (ROOT / script).is_file(), f"no script {script}"
        root = Path(script).stem if (CONF / f"{Path(script).stem}.yaml").exists() else None
    if root is not None:
        with initialize_config_dir(str(CONF), version_base=None):
            compose(root, [word for word in overrides if not word.startswith("-")], return_hydra_config=True)


def test_four_parts_are_added_out_of_tree() -> None:
    found = blocks(DOCS / "extending.md")
    assert [block.title for block in found if block.title in OUT_OF_TREE] == OUT_OF_TREE
    assert sum("--config-dir mine" in block.code for block in found) == len(OUT_OF_TREE) + 1


def test_a_page_that_goes_wrong_fails(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(AssertionError, match="thresold"):
        run(shlex.split("python -m parallelbench run decoder=thresold"), monkeypatch, capsys)
    with pytest.raises(Exception, match="limt"):
        check(shlex.split("python -m parallelbench run limt=3"))
    with pytest.raises(AssertionError, match="no script"):
        check(shlex.split("bash scripts/no_such.sh"))
