"""What MkDocs does besides rendering docs/: it makes two tables and adds pages that live elsewhere.

The table of decoders comes from the comments at the top of conf/decoder/*.yaml and from the docstrings of the classes
they name, the table of metrics from `METRICS`. So they cannot say anything else than the code. Published results, model
cards and the changelog stay where they are in the repository; the site shows them under the same paths, and links such
as `../results/LOG.md` work here and in a repository browser alike.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra.utils import get_class
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from parallelbench.stats.metrics import METRICS

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
ELSEWHERE = ("CHANGELOG.md", "CONTRIBUTING.md", "results/**/*.*", "dllm/assets/*/README.md", "tests/golden/README.md")
SUFFIXES = {".md", ".png", ".svg", ".csv", ".html"}


@dataclass(frozen=True)
class DecoderPage:
    """What the docs say of one file of conf/decoder.

    about: what it commits. settings: the overrides that its comment shows, without `decoder=NAME`.
    paper, deviations: as its comments have them. classes: the classes it is made of, outermost first, without Decoder.
    grid: overrides and their values in conf/experiment/NAME.yaml.
    """

    name: str
    about: str
    settings: str
    paper: str
    deviations: str
    classes: tuple[type, ...]
    grid: dict[str, str]


@cache
def decoder_pages() -> list[DecoderPage]:
    """One for every file of conf/decoder. Raises ValueError when one does not name its paper and its deviations."""
    return [_decoder_page(path) for path in sorted((CONF / "decoder").glob("*.yaml"))]


def _decoder_page(path: Path) -> DecoderPage:
    text = path.read_text()
    comments = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    facts = dict(line.split(": ", 1) for line in comments[1:] if ": " in line)
    if missing := {"paper", "deviations"} - facts.keys():
        raise ValueError(f"{path.relative_to(ROOT)} has no comment '# {min(missing)}: ...' below its first line")
    about, _, settings = comments[0].partition(": decoder.")
    content = yaml.safe_load(text)
    classes = dict.fromkeys(get_class(target) for target in _targets(content) if target != "decoders.Decoder")
    experiment = CONF / "experiment" / path.name
    grid = yaml.safe_load(experiment.read_text())["hydra"]["sweeper"]["params"] if experiment.exists() else {}
    return DecoderPage(
        name=path.stem,
        about=about,
        settings=f"decoder.{settings}" if settings else "",
        paper=facts["paper"],
        deviations=facts["deviations"],
        classes=tuple(classes),
        grid={key: str(values) for key, values in grid.items()},
    )


def _targets(content: Any) -> Iterator[str]:
    """Every `_target_` of a yaml file, outermost first."""
    if isinstance(content, dict):
        yield from [content["_target_"]] if "_target_" in content else []
        content = list(content.values())
    if isinstance(content, list):
        for value in content:
            yield from _targets(value)


def table() -> str:
    rows = [f"| [`{d.name}`](#{d.name}) | {d.about} | {_linked(d.paper)} |" for d in decoder_pages()]
    return "\n".join(["| decoder | what a step commits | paper |", "| --- | --- | --- |", *rows])


def metrics() -> str:
    rows = [f"| {metric.heading} | `{name}` | {metric.about} |" for name, metric in METRICS.items()]
    return "\n".join(["| column | in files | meaning |", "| --- | --- | --- |", *rows])


def sections() -> str:
    return "\n\n".join(_section(decoder) for decoder in decoder_pages())


def _section(decoder: DecoderPage) -> str:
    lines = [
        f"### {decoder.name} {{ #{decoder.name} }}\n",
        f"- **A step commits:** {decoder.about}",
        f"- **Use:** `decoder={decoder.name}`" + (f" with `{decoder.settings}`" if decoder.settings else ""),
        f"- **Paper:** {_linked(decoder.paper)}",
    ]
    if not decoder.paper.startswith(("ours", "none")):
        lines.append(f"- **Deviations from the authors' code:** {decoder.deviations}")
    if decoder.grid:
        values = ", ".join(f"`{key}={values}`" for key, values in decoder.grid.items())
        lines.append(f"- **Sweep:** `run -m experiment={decoder.name}` tries {values}")
    for part in decoder.classes:
        docstring = (inspect.getdoc(part) or "").replace("\n", "\n    ")
        name = f"{part.__module__.split('.')[0]}.{part.__name__}"
        lines.append(f'\n??? quote "{name}"\n\n    ```text\n    {docstring}\n    ```')
    return "\n".join(lines)


def _linked(text: str) -> str:
    """arXiv numbers as links."""
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for pattern in ELSEWHERE:
        for path in sorted(ROOT.glob(pattern)):
            source = path.relative_to(ROOT)
            if path.suffix in SUFFIXES and source.parts[:2] != ("results", "runs"):
                files.append(File(str(source), str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_dir == str(ROOT):
        page.meta["search"] = {"exclude": True}  # their numbers would bury the pages that explain them
        return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
    for marker, make in (("table of decoders", table), ("every decoder", sections), ("table of metrics", metrics)):
        if f"<!-- {marker} -->" in markdown:
            markdown = markdown.replace(f"<!-- {marker} -->", make())
    return markdown.replace("](../", "](")
