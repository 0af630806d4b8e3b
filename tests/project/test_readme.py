"""The README's two commands and its example are what they promise."""

import re
from importlib.metadata import distributions
from pathlib import Path

import forked
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(marker: str) -> str:
    """The fenced code block that holds a marker."""
    (found,) = [code for code in re.findall(r"```\w*\n(.*?)```", README, flags=re.DOTALL) if marker in code]
    return found


def test_the_library_example_runs() -> None:
    done = forked.run("-c", block("dllm.load("))
    assert done.returncode == 0, done.stderr
    assert '["Eva Frost", "Ben Cole", "Ada Bach"]' in done.stdout
    assert '["Eva Frost", "Ben Cole"]\n' in done.stdout


def test_the_two_commands_are_there() -> None:
    assert (
        "pip install -c constraints.txt -e '.[report,structured,text]' && python -m parallelbench run decoder=credit"
        in README
    )
    assert "pip install -c constraints.txt -e '.[dev]' && pytest" in README


def test_every_pinned_version_takes_the_oldest_python_that_the_readme_names() -> None:
    assert "Python 3.11 or newer" in README
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text().splitlines()
    names = {canonicalize_name(pin.partition("==")[0]) for pin in pins}
    needs = {d.name: d.metadata["Requires-Python"] for d in distributions() if canonicalize_name(d.name) in names}
    assert len(needs) > 50
    assert not {name: need for name, need in needs.items() if need and "3.11.0" not in SpecifierSet(need)}
