"""`docs/extending.md` against the repository: a decoder, a cache, a family, a task and a column of the report are added
to a copy, in the files that the page names and no others, and the copy passes the checks that concern them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import DOCS, ROOT, blocks

PAGE = DOCS / "extending.md"
LINKED = ("dllm/assets", "decoders/assets", "results", "tests/golden", "tests/cases")  # large, and only read
NAMES = ("backwards", "gap", "half_full", "mine", "other", "otherlm", "OtherLM")  # of what is added
CHECKS = {  # files, and which of their tests
    "tests/project/test_architecture.py": "rooms or cycles or names_of_their_own",
    "tests/project/test_docs.py": "explained or tables",
    "tests/report/test_figures.py": "choices_look_unlike",
    "tests/dllm/test_published.py": "each_file",
    "tests/wiring/test_conf.py": "",
    "tests/decoders/test_loop.py": "leave_no_part_out",
    "tests/decoders/test_contract.py": "",
}


def example(title: str) -> str:
    """A file that the page has its readers write."""
    (block,) = [block for block in blocks(PAGE) if block.title == title]
    return block.code


def in_the_repository(title: str, comments: str, package: str) -> str:
    """A yaml of the page with further comments, and the class where it is now."""
    first, _, rest = example(title).partition("\n")
    return f"{first}\n{comments}{re.sub(r'my_[a-z]+', package, rest)}"


class Copy:
    """What git tracks, copied. touched: the files that were written or changed since."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.touched = folder, set[str]()
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in listed.splitlines():
            if not name.startswith(tuple(f"{linked}/" for linked in LINKED)) and (ROOT / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)

    def write(self, name: str, text: str) -> None:
        assert not (self.folder / name).exists()
        (self.folder / name).write_text(text)
        self.touched.add(name)

    def insert(self, name: str, text: str, behind: str) -> None:
        """Behind the one line that begins so."""
        lines = (self.folder / name).read_text().splitlines()
        (at,) = [i for i, line in enumerate(lines, 1) if line.startswith(behind)]
        (self.folder / name).write_text("\n".join([*lines[:at], text, *lines[at:]]) + "\n")
        self.touched.add(name)

    def append(self, name: str, text: str) -> None:
        (self.folder / name).write_text((self.folder / name).read_text() + text)
        self.touched.add(name)

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert text.count(old) == 1
        (self.folder / name).write_text(text.replace(old, new))
        self.touched.add(name)

    def look(self, kind: str) -> str:
        """The comment with the next number."""
        said = [path.read_text() for path in (self.folder / "conf" / kind).glob("*.yaml")]
        numbers = [int(found[1]) for text in said if (found := re.search(r"^# look: (\d+)$", text, re.MULTILINE))]
        return f"# look: {max(numbers) + 1}\n"


def add_decoder(copy: Copy) -> None:
    code = example("my_rules.py").replace("from decoders import", "from decoders.types import")
    copy.write("decoders/rules/gap.py", f'"""A rule by the lead over the runner-up."""\n\n{code}')
    copy.append("decoders/__init__.pyi", "from .rules.gap import Gap as Gap\n")
    comments = f"# paper: ours\n# deviations: none\n{copy.look('decoder')}"
    copy.write("conf/decoder/gap.yaml", in_the_repository("mine/decoder/gap.yaml", comments, "decoders"))
    grid = "hydra:\n  sweeper:\n    params:\n      decoder.rule.gap: 0.3,0.5,0.7\n"
    head = "# @package _global_\n# leads over the runner-up\ndefaults:\n  - override /decoder: gap\n"
    copy.write("conf/experiment/gap.yaml", f"{head}\n{grid}")
    copy.insert("tests/decoders/test_loop.py", '    "gap": Decoder(Gap(0.4)),', behind="DECODERS = {")
    copy.insert("tests/decoders/test_loop.py", "    Gap,", behind="    Frechet,")
    copy.insert("tests/decoders/test_parts.py", "    lambda: d.Gap(0.4),", behind="RULES: ")


def add_cache(copy: Copy) -> None:
    copy.append("dllm/cache.py", "\n\n@dataclass" + example("my_cache.py").partition("@dataclass")[2])
    copy.append("dllm/__init__.pyi", "from .cache import HalfFull as HalfFull\n")
    yaml = in_the_repository("mine/cache/half_full.yaml", copy.look("cache"), "dllm")
    copy.write("conf/cache/half_full.yaml", yaml)
    copy.append("docs/caches.md", "\n`half_full` computes everything while more than half of a window is masked.\n")
    copy.insert("tests/decoders/test_loop.py", '    "half_full": HalfFull(),', behind="CACHES = {")
    copy.replace(
        "tests/decoders/test_loop.py",
        "from dllm.cache import BlockCache",
        "from dllm.cache import HalfFull, BlockCache",
    )
    copy.insert("tests/reference.py", f'    "half_full": {HALF},', behind="RECOMPUTED: ")


HALF = (
    "after_entering(lambda now: everything(now) if 2 * len(now.masked & now.window) > len(now.window) else now.window)"
)


def add_family(copy: Copy) -> None:
    functions, _, entry = example("my_family.py").partition("def config")[2].partition('FAMILIES["otherlm"] = ')
    imports = "from transformers import LlamaConfig\n\nfrom dllm.spec import ModelSpec\n\n\n"
    copy.write("dllm/converted/otherlm.py", f'"""OtherLM."""\n\n{imports}def config{functions.rstrip()}\n')
    family = entry.partition("\nMODEL_TYPES")[0].replace("config, spec,", "otherlm.config, otherlm.spec,")
    copy.insert("dllm/families.py", "from dllm.converted import otherlm", behind="from dllm.converted import llada")
    copy.insert("dllm/families.py", f'    "otherlm": {family},', behind="FAMILIES: ")
    copy.insert("dllm/families.py", '    "otherlm": "otherlm",', behind="MODEL_TYPES = ")
    copy.write("conf/model/other.yaml", in_the_repository("mine/model/other.yaml", "", "dllm"))
    sizes = {"width": 128, "depth": 5, "heads": 4, "mlp": 384, "tokens": 2397}
    published = {"_source": "from the page on extending", "model_type": "otherlm", **sizes}
    before = len([*(ROOT / "tests" / "published").glob("*.json")])
    copy.write("tests/published/OtherLM.json", json.dumps(published))
    copy.insert("tests/dllm/test_published.py", SHAPES, behind="EUROBERT = ")
    model = '    "OtherLM": (otherlm, ModelSpec(2, (1,), 0, response_position=64, mix=1), "0.00"),'
    copy.insert("tests/dllm/test_published.py", model, behind="MODELS: ")
    copy.replace("docs/models.md", f"{before} published configurations", f"{before + 1} published configurations")
    copy.insert("docs/models.md", "| `otherlm` | OtherLM (`other`) | Llama | bidirectional |", behind="| `llada` |")


SHAPES = """

def otherlm(c: dict[str, Any]) -> Shapes:
    width, heads = c["width"], c["heads"]
    layer = attention({"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": heads})
    layer |= gated("mlp", width, c["mlp"])
    shapes = {"model.embed_tokens.weight": (c["tokens"], width), "model.norm.weight": (width,)}
    return shapes | {f"net.blocks.{i}.{name}": shape for i in range(c["depth"]) for name, shape in layer.items()}

"""


def add_task(copy: Copy) -> None:
    code = example("my_task.py").replace("from parallelbench.tasks import", "from parallelbench.tasks.base import")
    copy.write("parallelbench/tasks/backwards.py", f'"""A line of people, backwards."""\n\n{code}')
    tasks = "parallelbench/tasks/__init__.py"
    copy.insert(tasks, "from parallelbench.tasks.backwards import Backwards", behind="from dllm.validation import")
    copy.replace(tasks, "**vision_tasks()}", '**vision_tasks(), "mine/backwards": Backwards()}')
    copy.write("conf/suite/mine.yaml", "# the line backwards\n_target_: parallelbench.Suite\ntasks: [mine/backwards]\n")
    copy.append("docs/tasks.md", "\n`suite=mine` asks for the line backwards.\n")


def add_column(copy: Copy) -> None:
    (block,) = [block for block in blocks(PAGE) if "Metric(" in block.code]
    copy.insert("parallelbench/stats/metrics.py", f"    {block.code.rstrip()}", behind="METRICS = {")


ADDITIONS = {
    "add-a-decoder": add_decoder,
    "add-a-cache": add_cache,
    "add-a-model-family": add_family,
    "add-a-task": add_task,
    "add-a-column-to-the-report": add_column,
}


def rows() -> dict[str, list[list[str]]]:
    """Of the page's table, by the section that a row links: the names in each further cell."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| [")]
    cells = {line.partition("](#")[2].partition(")")[0]: line.strip("|").split("|")[1:] for line in lines}
    return {job: [re.findall(r"`([^`]+)`", cell) for cell in found] for job, found in cells.items()}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("copy"))


def test_each_job_has_one_file_to_open_first() -> None:
    first = [names for _, names, _ in rows().values()]
    assert len(first) == 7 and all(len(names) == 1 and (ROOT / names[0]).is_file() for names in first)


def test_one_of_each_is_added_as_the_page_says(copy: Copy) -> None:
    for job, add in ADDITIONS.items():
        copy.touched.clear()
        add(copy)
        touched = {re.sub(rf"/({'|'.join(NAMES)})\.", "/NAME.", name) for name in copy.touched}
        _, first, others = rows()[job]
        assert touched - {*first} == {*others}, job  # a rule to start from is not changed
    chosen = " or ".join([*NAMES, *filter(None, CHECKS.values())])
    options = "-v -n0 -p no:cacheprovider --no-header -m".split()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "not slow", "-k", chosen, *CHECKS],
        cwd=copy.folder,
        env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    of = ("decoder-gap", "gap-False", "cache-half_full", "-full-half_full", "model-other", "OtherLM", "suite-mine")
    assert all(f"{test}] PASSED" in done.stdout for test in of)
