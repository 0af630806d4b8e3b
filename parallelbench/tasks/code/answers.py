"""What program an answer means: code in fences wherever they stand, between prose, or bare."""

import ast
import builtins
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

LONGEST = 20_000  # characters of an answer that are searched
MOST = 24  # programs that are tried
FENCE = re.compile(r"`{3,}|~{3,}")
LANGUAGE = re.compile(
    r"[ \t]*\{?\.?(?:python[0-9.]*|py[0-9]?|Python|code)\}?(?:[ \t]+(?=\S)|[ \t]*(?:\n|\Z))", re.IGNORECASE
)
THOUGHT = re.compile(r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]", re.IGNORECASE)
SPECIAL = re.compile(
    r"<[|\uff5c][^<>\n]{1,40}[|\uff5c]>|</?s>|<eos>|<pad>|<(?:end|start)_of_turn>|<\|?mdm_mask\|?>"
    r"|\[/?(?:EOS|INST|PAD|BEGIN|DONE|ANSWER|PYTHON|CODE)\]"
)
FUTURE = re.compile(r"^from __future__ import .*\n?", re.MULTILINE)
UNSEEN = str.maketrans({"\u00a0": " ", **dict.fromkeys("\u200b\u2060\ufeff")})  # spaces that Python does not know
QUOTE = re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE)


def programs(text: str, function: str = r"\w+") -> list[str]:
    """What an answer may mean, best guess first: of the blocks that define the function the first, with those that do
    not; then each alone; then the text without blocks. What is before the end of a thought is no answer."""
    text = text[:LONGEST].replace("\r\n", "\n")
    text = text[[0, *(match.end() for match in THOUGHT.finditer(text))][-1] :]
    ways = dict.fromkeys([text, SPECIAL.sub("\n", text).translate(UNSEEN)])
    parts = [part for way in ways for part in (*_whole(way, function), *_parts(way))]
    ranked = [part for part in parts if defines(part, function)] + [
        part for part in parts if not defines(part, function)
    ]
    found = (way for part in ranked for way in (part, trim(part), *_runs(part)))
    return list(dict.fromkeys(way for way in found if way.strip()))[:MOST] or [text]


def blocks(text: str) -> list[str]:
    """Contents of the fenced blocks whose fences begin a line; the last may lack its end."""
    return re.findall(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", text, re.DOTALL | re.MULTILINE)


def _whole(text: str, function: str) -> list[str]:
    """The first block that defines the function, and the others that can be parsed and do not define it, as one."""
    found = [block for block in map(textwrap.dedent, blocks(text)) if parsed(block)]
    first = next((block for block in found if defines(block, function)), None)
    kept = [block for block in found if block is first or not defines(block, function)]
    return ["\n".join(kept)] if first and len(kept) > 1 else []


def _parts(text: str) -> Iterator[str]:
    """The blocks as they should be, what is between any two fences, from the first to the last, and all."""
    yield from blocks(text)
    fences = list(FENCE.finditer(text))
    starts, ends = [0, *(fence.end() for fence in fences)], [*(fence.start() for fence in fences), len(text)]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        yield _inside(text[start:end], fenced=number > 0)
    if len(fences) > 2:
        yield _inside(text[starts[1] : ends[-2]], fenced=True)
    yield _inside(text, fenced=False)


def _inside(part: str, *, fenced: bool) -> str:
    """Code of a part of a text, without a language's name, a quote's marks and a list's indentation."""
    lines = part.splitlines()
    if fenced and all(not line.strip() or line.lstrip().startswith(">") for line in lines[1:]):
        part = QUOTE.sub("", part)
    named = LANGUAGE.match(part)
    part = part[named.end() :] if named else part
    if fenced and not named and re.match(r"[ \t]*[\w.+#={}:\"' -]*\n", part) and not trim(lines[0]).startswith(STARTS):
        part = part.partition("\n")[2]  # the rest of the fence's line
    return textwrap.dedent(part)


STARTS = ("def ", "class ", "import ", "from ", "async ", "@")
_CODE = re.compile(r"(def|class|import|from|async|@|#|if|for|while|try|with)\b|@|#|\w+ ?[-+*/]?= |\w+\(|\s")


def trim(text: str) -> str:
    """Lines from the first one that begins a definition or import to the last one before prose."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if re.match(r"(def|class|import|from|async def|@)\b|@", line)]
    return "\n".join(until(lines[starts[0] :], lambda line: not _CODE.match(line))) if starts else text


def until(lines: Sequence[str], is_end: Callable[[str], bool]) -> list[str]:
    """Lines before the first non-empty one, but the first, that is an end."""
    ends = (i for i, line in enumerate(lines) if i and line.strip() and is_end(line))
    return list(lines[: next(ends, len(lines))])


def _runs(part: str) -> Iterable[str]:
    """The definitions and imports of a text that can be parsed from its first one on: without bare words and prose."""
    lines = part.splitlines()
    begins = [i for i, line in enumerate(lines) if line.startswith(STARTS)]
    if not begins:
        return []
    kept: list[str] = []
    for first, last in zip(begins, [*begins[1:], len(lines)], strict=True):
        piece = until(
            lines[first:last], lambda line: not line[:1].isspace() and not line.startswith((")", "]", "}", "#"))
        )
        kept += piece
    code = "\n".join(kept)
    return [code] if kept and parsed(code) else []


def parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def defines(code: str, function: str) -> bool:
    return re.search(rf"^[ \t]*(async )?def {function}\b", code, re.MULTILINE) is not None


def extract_code(text: str, function: str = r"\w+") -> str:
    """The best guess of `programs`."""
    return programs(text, function)[0]


def humaneval_programs(prompt: str, function: str, text: str) -> list[str]:
    """What an answer may mean, best guess first: a whole function, with the helpers and imports before the prompt's, or
    the body that continues the prompt, with prose around it and its indentation lost."""
    found = programs(text, re.escape(function))
    head = [match.start() for match in re.finditer(rf"^(?:async )?def {re.escape(function)}\b", prompt, re.MULTILINE)]
    before = prompt[: head[-1]] if head else prompt
    whole = [_behind(before, textwrap.dedent(code)) for code in found if defines(code, re.escape(function))]
    if whole:
        return whole
    bodies = []
    for code in found[:4]:
        body = code.strip("\n")
        until_prose = "\n".join(until(body.splitlines(), lambda line: line[:1].strip() != ""))
        bodies += [part for part in (body, until_prose) if part.strip()]
    return [
        prompt.rstrip() + "\n" + way
        for part in dict.fromkeys(bodies)
        for way in (part, "    " + part.lstrip(), textwrap.indent(textwrap.dedent(part), "    "))
    ] or [prompt]


def _behind(before: str, code: str) -> str:
    """Code after other code, with its imports from `__future__` in front of both, where they have to be."""
    return f"{''.join(FUTURE.findall(code))}{before}\n\n{FUTURE.sub('', code)}"


def called_names(tests: str, own: str = "") -> list[str]:
    """Functions and classes that tests call and neither define nor import, nor find among the built-ins where `own`
    does not define one of that name."""
    tree = parsed(tests)
    if tree is None:
        return []
    called = [node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stored.add(node.name)
        elif isinstance(node, ast.arg):
            stored.add(node.arg)
        elif isinstance(node, ast.alias):
            stored.add((node.asname or node.name).partition(".")[0])
    return [
        name
        for name in dict.fromkeys(called)
        if name not in stored and (name not in vars(builtins) or defines(own, name))
    ]


def imported(code: str) -> set[str]:
    """Packages that code imports for sure: not within a `try`."""
    tree = parsed(code)
    found: set[str] = set()
    left: list[ast.AST] = [tree] if tree else []
    while left:
        node = left.pop()
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
        elif not isinstance(node, ast.Try):
            left += ast.iter_child_nodes(node)
    return found
