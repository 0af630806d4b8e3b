"""Command line: `parallelbench COMMAND`, or `python -m parallelbench COMMAND`. Each command is imported when it is
called for, and when its words are known to be right."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version

from parallelbench.records.files import printable
from parallelbench.wiring import menu
from parallelbench.wiring.exits import explained

HELP = ("-h", "--help")


def main() -> None:
    if not {"", os.getcwd()} & set(sys.path):  # `python -m` looks there too, a console script does not
        sys.path.append(os.getcwd())
    with explained():
        _main(menu.understood(sys.argv[1:]) or ["--help"])


def _main(words: Sequence[str]) -> None:
    if words[0] == "help":
        words = [*words[1:], "--help"]
    if words[0] in HELP:
        print(menu.usage())
    elif words[0] == "--version":
        print(f"dllm-parallelbench {version('dllm-parallelbench')}")
    elif words[0] == "analyze" and (len(words) == 1 or words[1] in HELP):
        print(menu.analyses())
    else:
        name, rest = menu.find(words)
        if name not in ("run", *menu.TRAINS) and any(word in HELP for word in rest):
            print(menu.help_of(name))
            return
        call(name, menu.checked(name, rest))


def call(name: str, arguments: Sequence[str]) -> None:
    """Calls a command with its arguments and what it is handed, and prints what it returns."""
    wanted = menu.COMMANDS[name]
    if name in menu.TRAINS:
        from parallelbench.wiring.overrides import run_command

        run_command(name, arguments)
        return
    command: Callable[..., str | None] = import_module(f"parallelbench.{wanted.module}").main
    handed = []
    if wanted.handed:
        module, function = wanted.handed.split(".")
        handed = [getattr(import_module(f"parallelbench.wiring.{module}"), function)]
    text = command(arguments, *handed)
    if text is not None:
        is_markdown = wanted.module.startswith(("report.", "studies.")) and "format=json" not in arguments
        if is_markdown:
            text = import_module("parallelbench.report.markdown").as_text(text, sys.stdout.isatty())
        print(printable(text))


if __name__ == "__main__":
    main()
