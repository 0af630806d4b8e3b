"""Words that read as a translation are kept out of what people read: docs, help, errors, pages and docstrings."""

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BETTER = {  # a pattern, and what to write instead
    r"\bbehind\b": "after; or trails, slower than",
    r"\bbeside\b": "next to, compared with, besides, side by side",
    r"\bstands\b(?! for\b)": "is",
    r"\bgoes on\b": "continues, resumes",
    r"\b(is|are) not there\b(?! yet)": "does not exist, is missing",
    r"\bno (setting|choice|option) of\b": "unknown setting ...; did you mean ...?",
    r"\bthe nearest is\b": "did you mean ...?",
    r"\bin short\b": "briefly",
    r"\bthe short of it\b": "in brief",
    r"\bin 0\.\d+ (\[[^]]*\] )?of (its|the|their) forwards\b": "with 45 % of the forward passes",
    r"\bbeyond doubt\b": "reliably",
    r"\bslip of the pen\b": "typo",
    r"\brepeat the command\b": "run the command again",
}
QUOTED = {  # questions of tasks are data: their words are what the shipped models learned
    "parallelbench/tasks/waiting_line.py": "exactly as it stands",
    "docs/survey.md": "exactly as it stands",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and texts that people read: of code its comments and strings with blanks, of other files all."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
                yield token.start[0], re.sub(r"\{[^{}]*\}|`[^`\n]*`", "", token.string)
    elif path.suffix in (".yaml", ".sh"):
        yield from ((number, line.partition("#")[2]) for number, line in enumerate(text.splitlines(), 1))
    elif path.suffix == ".js":
        yield from enumerate(
            (re.sub(r"\$\{[^{}]*\}|\b(const|=|\?|!)\s*beside\b", "", line) for line in text.splitlines()), 1
        )
    else:
        yield from enumerate(re.sub(r"`[^`\n]*`", "`code`", text).splitlines(), 1)


def found(path: Path) -> list[str]:
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    return [
        f"{name}:{number}: {hit[0]!r}; write {better}"
        for number, text in texts(path)
        for pattern, better in BETTER.items()
        if (hit := re.search(pattern, text, re.IGNORECASE)) and not (name in QUOTED and QUOTED[name] in text)
    ]


def read_by_people() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    kinds = (".py", ".md", ".yaml", ".sh", ".js", ".css", ".html", ".txt")
    data = r"(dllm|decoders)/assets/|parallelbench/tasks/.*/data/|constraints"
    left_out = rf"tests/|results/(LOG|notes)|results/published/.*(report|watch)|{data}"
    return [ROOT / name for name in listed if name.endswith(kinds) and not re.match(left_out, name)]


@pytest.mark.core
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone")
def test_words_of_a_translation_are_kept_out() -> None:
    said = [line for path in read_by_people() if path.exists() for line in found(path)]
    assert not said, "\n".join(said)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "The file is not there."),
        ("a.py", 'x = "the tokens behind it"'),
        ("a.py", "behind = 1  # it goes on"),
        ("a.yaml", "key: 1 # beside that"),
    ],
)
def test_they_are_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text + "\n")
    assert len(found(tmp_path / name)) == 1
    (tmp_path / name).write_text(re.sub("behind it|goes on|beside that|is not there", "", text) + "\n")
    assert not found(tmp_path / name)
