"""The command `new`: a part of the user's own, out of tree, that runs as it is written and is changed from there."""

import keyword
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from string import Template

from parallelbench.records.files import replace_file
from parallelbench.wiring.catalogue import options

TEMPLATES = Path(__file__).parent / "templates"
GROUP = {"decoder": "decoder", "cache": "cache", "task": "suite", "model": "model"}  # of conf/, by kind


def main(arguments: Sequence[str]) -> str:
    """Writes code, yaml, grid and test of one part, and says what to do with them. Raises ValueError for a name that is
    taken, before anything is written."""
    words = [word for word in arguments if "=" not in word]
    mine = dict(word.split("=", 1) for word in arguments if "=" in word).get("config_dir") or "mine"
    if len(words) != 2 or words[0] not in GROUP:
        raise ValueError(f"new takes a kind and a name, such as `new decoder decay`; the kinds are {', '.join(GROUP)}")
    kind, name = words
    if not re.fullmatch("[a-z][a-z0-9_]{0,39}", name) or keyword.iskeyword(name):
        raise ValueError(f"{name!r} cannot name a module; give lower-case letters, digits and _, such as my_first")
    if name in options(GROUP[kind]) or name in options("experiment"):
        raise ValueError(f"{name!r} is the name of a part of this package; choose another")
    values = {"name": name, "Name": "".join(map(str.capitalize, name.split("_"))), "mine": mine}
    text = Template((TEMPLATES / f"{kind}.txt").read_text(encoding="utf-8")).safe_substitute(values)
    *files, (_, then) = [part.split("\n", 1) for part in text.split("=== ")[1:]]
    for path, _ in files:
        if Path(path).exists():
            raise ValueError(f"{path} exists; choose another name, or remove it")
    for path, content in files:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(Path(path), content)
    commands = [f"python -m parallelbench {command}" for command in then.splitlines()]
    if kind == "model":
        commands.insert(0, f"python my_{name}.py {name}-example")
    written = [f"  {shlex.quote(path)}" for path, _ in files]
    return "\n".join(
        [
            "Written:",
            *written,
            "",
            "Now (pytest comes by pip install pytest):",
            f"  pytest test_{name}.py",
            *(f"  {each}" for each in commands),
        ]
    )
