"""Grammar checkers under one small protocol.

ParallelBench asks LanguageTool whether a text has no match at all. That needs Java and a download, so the default here
is Harper, which works offline. Backends disagree: their values are not comparable, so name and version of the backend
are part of a text task's version.

Harper is precise but blind to dropped and swapped words; Link Grammar sees about half of them and flags some correct
sentences; see `textmetrics` for the cheap checks that are next to them.
"""

import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from json import JSONDecodeError, loads
from typing import Any, Protocol, runtime_checkable

from parallelbench.tasks.text import library


@runtime_checkable
class Grammar(Protocol):
    """A grammar checker. `version` and `check` raise ValueError, in one sentence, where the backend is absent."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def check(self, text: str) -> list[str]:
        """One message per mistake."""
        ...


# They flag names, numbers and taste on 18 to 30 % of clean published texts; without them 1 to 4 % are flagged.
HARPER_OFF = frozenset("Spelling Capitalization Enhancement Readability Style WordChoice Formatting".split())
LONGEST_WORD, PIECE = 200, 2000  # characters that Harper is given at most


@dataclass(frozen=True)
class Harper:
    """Harper's rules but those of the kinds in HARPER_OFF. A word longer than any is a mistake of its own (Harper takes
    memory by the square of its length), and a long text is read in pieces."""

    name: str = "harper"

    @property
    def version(self) -> str:
        library("harper")
        return version("harper-py")

    def check(self, text: str) -> list[str]:
        if re.search(rf"\S{{{LONGEST_WORD + 1}}}", text):
            return [f"a word of more than {LONGEST_WORD} characters"]
        with _quiet_stdout():
            lints = [lint for piece in _pieces(text) for lint in _harper().lint(piece)]
        return [lint.message for lint in lints if lint.lint_kind not in HARPER_OFF]


@dataclass(frozen=True)
class LanguageTool:
    """LanguageTool's en-US rules, all of them, from a server at `url` or else from the local installation that
    language-tool-python finds. Nothing is downloaded."""

    url: str | None = None
    name: str = "languagetool"

    @property
    def version(self) -> str:
        return _language_tool(self.url)[1]

    def check(self, text: str) -> list[str]:
        tool, _ = _language_tool(self.url)
        try:
            return [match.message for match in tool.check(text)]
        except Exception as error:  # the server died, or answers something else than matches
            raise ValueError(f"LanguageTool at {tool.url} gave no answer ({error}); start it again") from error


@dataclass(frozen=True)
class LinkGrammar:
    """One message per sentence without a complete linkage, from the program link-parser with its English dictionary."""

    name: str = "link_grammar"

    @property
    def version(self) -> str:
        done = subprocess.run([_link_parser(), "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"link-grammar-(\S+)", done.stdout + done.stderr)
        if found is None:
            raise ValueError(f"{_link_parser()} does not run: {(done.stderr or done.stdout).strip()[:200]}")
        return found[1]

    def check(self, text: str) -> list[str]:
        sentences = [s.lstrip("!%*") for s in re.split(r"(?<=[.!?])\s+|\n+", text.strip())]  # "!" begins its commands
        lines = "".join(" ".join(s.split()) + "\n" for s in sentences)
        command = [_link_parser(), "en", "-batch", "-verbosity=0", "-timeout=5"]
        done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not done.stdout.rstrip().endswith("Bye."):
            raise ValueError(f"link-parser failed: {(done.stderr or done.stdout).strip()[-200:]}")
        return ["no complete linkage"] * len(re.findall(r"^\++ error \d+", done.stdout, flags=re.MULTILINE))


HARPER = Harper()
BACKENDS: dict[str, Grammar] = {backend.name: backend for backend in (HARPER, LanguageTool(), LinkGrammar())}


def grammar_backend(name: str) -> Grammar:
    """A backend by name, or LanguageTool on the server of a URL. Raises ValueError when it is unknown or absent."""
    check_grammar(name)
    backend = BACKENDS[name] if name in BACKENDS else LanguageTool(name)
    _ = backend.version
    return backend


def check_grammar(name: str) -> None:
    """Raises ValueError for a name that is no backend's, also where no task asks for one."""
    if name not in BACKENDS and not name.startswith(("http://", "https://")):
        raise ValueError(
            f"unknown grammar={name!r}; give one of {', '.join(BACKENDS)} or the URL of a LanguageTool server"
        )


def _pieces(text: str) -> list[str]:
    """A text cut after white space, where it is longer than PIECE."""
    return re.findall(rf"(?s).{{1,{PIECE}}}(?:(?<=\s)|\Z)", text)


@cache
def _harper() -> Any:
    return library("harper").Linter()  # half a second, and only for text tasks


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Sends file descriptor 1 to nowhere: the engine prints debug lines on some inputs."""
    sys.stdout.flush()
    saved, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nowhere)


@cache
def _language_tool(url: str | None) -> tuple[Any, str]:
    """A connected client, and the version its server reports."""
    try:
        import language_tool_python as client  # pyright: ignore[reportMissingImports]
        from language_tool_python.download_lt import LocalLanguageTool  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ValueError(
            "grammar=languagetool needs language-tool-python: pip install 'dllm-parallelbench[scorers]'"
        ) from error
    try:
        if url is not None:
            tool = client.LanguageTool("en-US", remote_server=url)
        else:
            installed = LocalLanguageTool.get_latest_installed_version()
            if shutil.which("java") is None or installed is None:
                lacking = "Java" if shutil.which("java") is None else "a LanguageTool download (LTP_PATH)"
                raise ValueError(
                    f"grammar=languagetool lacks {lacking}; install it, or give the URL of a server, such as "
                    "grammar=http://localhost:8081"
                )
            limits = {"maxCheckThreads": 1, "maxSpellingSuggestions": 1}  # as published
            tool = client.LanguageTool("en-US", config=limits, language_tool_download_version=installed.version_name)
        return tool, _server_version(tool.url)
    except (client.exceptions.LanguageToolError, OSError, KeyError, TypeError, JSONDecodeError) as error:
        place = f"at {url}" if url else "from the local installation"
        raise ValueError(f"no LanguageTool answers {place} ({str(error)[:150]}); start its server") from error


def _server_version(url: str) -> str:
    form = urllib.parse.urlencode({"text": "Ready?", "language": "en-US"}).encode()
    with urllib.request.urlopen(urllib.parse.urljoin(url, "check"), form, timeout=60) as response:
        return str(loads(response.read())["software"]["version"])


def _link_parser() -> str:
    program = shutil.which("link-parser")
    if program is None:
        raise ValueError("grammar=link_grammar needs the program link-parser (Debian: apt install link-grammar)")
    return program
