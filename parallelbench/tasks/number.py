"""The number that an answer in words, Markdown or LaTeX gives, as an exact fraction."""

import re
from fractions import Fraction

DIGITS = r"(?:[0-9]*\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?"
POWER = r"\^[({]?\s*(?P<NAME>[-+]?[0-9]{1,3})(?![0-9])[)}]?"
NUMBER = re.compile(
    r"(?P<sign>(?:(?<![\w.)])-)?)"
    rf"(?:(?P<whole>[0-9]+)(?:\s+|\s+and\s+|)(?P<part>\s[0-9]+)/(?P<of>[0-9]+)(?![0-9/.])|(?P<digits>{DIGITS})"
    rf"(?:/(?P<below>{DIGITS})|\s*[*x]\s*10{POWER.replace('NAME', 'shift')}|{POWER.replace('NAME', 'power')})?)"
)
SPACE = "\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}\N{FIGURE SPACE}\N{PUNCTUATION SPACE}\N{HAIR SPACE}"
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
VULGAR = {"½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8"}
# one after the other: what is written in another way, and how `NUMBER` reads it
PLAIN = [
    (r"\\(?:left|right|displaystyle|large|Large|bf|limits)(?![a-zA-Z])|\\[()\[\]]|[\u200b\u2060\ufeff]", ""),
    (r"\\?[$\u20ac\u00a3\u00a5\u20b9]", ""),
    (r"(?<=[0-9])\*\*(?=[-+]?[0-9])", "^"),
    (r"\*\*|__|(?<![\w)\s])\*(?=\w)|(?<=\w)\*(?![\s\w(])", ""),  # bold and italics
    (r"\\(?:text|textbf|mathrm|mathbf|operatorname|mathit)\s*\{([^{}]*)\}", r"\1"),
    ("[\N{MINUS SIGN}\N{EN DASH}\N{NON-BREAKING HYPHEN}\N{HYPHEN}\N{FIGURE DASH}\N{FULLWIDTH HYPHEN-MINUS}]", "-"),
    (r"\\(?:times|cdot|ast)(?![a-zA-Z])|[\u00d7\u00b7\u22c5]", "*"),
    (r"\\div(?![a-zA-Z])|\u00f7", " / "),
    ("\u2044", "/"),
    (rf"(?<=[0-9])(?:\{{,\}}|\\[,;:! ]|~|[{SPACE}]|,\\!)+(?=[0-9]{{3}}(?![0-9]))", ""),
    (r"\\[,;:! ]|\\q?quad(?![a-z])", " "),
    (r"(?<=[0-9]),(?=[0-9]{3}(?![0-9])|[0-9]{2},[0-9]{2},?[0-9]{3}(?![0-9])|[0-9]{2},[0-9]{3}(?![0-9]))", ""),
    (r"(?<![0-9.])([0-9]{1,3})((?:['_][0-9]{3})+|(?:\.[0-9]{3}){2,})(?![0-9.])", r"\1<\2>"),
    (r"\\[dtc]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r" \1/\2"),
    (r"\\[dtc]?frac\s*\{([^{}]*)\}\s*([0-9])", r" \1/\2"),
    (r"\\[dtc]?frac\s*([0-9])\s*\{([^{}]*)\}", r" \1/\2"),
    (r"\\[dtc]?frac\s*([0-9])\s*([0-9])", r" \1/\2"),
    (r"- +(?=[0-9.]+/[0-9])", "-"),
    (r"\\%", "%"),
]
GROUP = r"(?<=[0-9])(?<![0-9]{4}) (?={}(?![0-9/]))"  # the space before three digits
SIGN_AT_START = re.compile(r"\s*(?:[:=]\s*)?(?:minus|negative|-)\s*(?=[0-9.])", re.IGNORECASE)
MARK = re.compile(
    r"<answer>|answer[\"'*_]*(?:\s+is\b|\s*[:=]|\s+would\s+be\b|[^\n.:=0-9]{0,40}\s(?:is|equals)\b)", re.IGNORECASE
)
OPERATION = re.compile(r"\s*(?:[-+*/]|x(?=\s*[0-9]))\s*[-(]?\s*[0-9.]")


def read_number(text: str) -> Fraction | None:
    """The answer of a text as an exact number: after the last `####`, in the last \\boxed{}, after the last "answer is"
    or "answer:", or else the last number. Of an equation the last side counts that is a number alone: 18 in
    `18 = 9 * 2` and in `9 * 2 = 18`."""
    text = plain(text)
    boxed = read_boxed(text)
    marked = [text.rpartition("####")[2] if "####" in text else "", boxed or ""]
    marked += [text[match.end() :] for match in [*MARK.finditer(text)][-1:]]
    for part in marked:
        line = next(iter(part.strip(" \t:*").lstrip("\n").strip().splitlines()), "")
        line = re.sub(GROUP.replace("{}", "[0-9]{3}"), "", line)
        if NUMBER.search(line):
            return _of_equation(line)
    text = re.sub(GROUP.replace("{}", "000"), "", text)
    found = [
        match
        for match in NUMBER.finditer(text)
        if not re.search(r"\^[{(]?$", text[max(0, match.start() - 2) : match.start()])
    ]
    return _value(found[-1]) if found else None


def plain(text: str) -> str:
    """A text whose numbers have no separators, currencies, LaTeX or Markdown."""
    for mark, fraction in VULGAR.items():
        text = text.replace(mark, f" {fraction}")
    text = re.sub("(?<=[0-9])([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]{1,4})", lambda match: "^" + match[1].translate(SUPERSCRIPTS), text)
    for pattern, written in PLAIN:
        text = re.sub(pattern, written, text)
    return re.sub(r"<([0-9'_.]+)>", lambda match: re.sub(r"['_.]", "", match[1]), text)


def _of_equation(line: str) -> Fraction | None:
    """None where no side is a number alone."""
    sides = re.split(r"=|\\approx|\N{ALMOST EQUAL TO}", line)
    for side in [*reversed(sides)]:
        side = SIGN_AT_START.sub("-", side, count=1) if SIGN_AT_START.match(side) else side
        match = NUMBER.search(side)
        if match and not OPERATION.match(side, match.end()):
            return _value(match)
    return None


def _value(match: re.Match[str]) -> Fraction | None:
    """None for "1.5/2", for thousands of digits and for "1/0"."""
    sign = -1 if match["sign"] else 1
    try:
        if match["whole"]:
            part = Fraction(int(match["part"]), int(match["of"]))
            return sign * (int(match["whole"]) + part) if part < 1 else sign * Fraction(int(match["whole"]))
        value = Fraction(match["digits"])
        if match["below"]:
            value /= Fraction(match["below"])
        if match["shift"]:
            value *= Fraction(10) ** int(match["shift"])
        if match["power"]:
            value **= int(match["power"])
        return sign * value
    except (ValueError, ZeroDivisionError):
        return None


def read_boxed(text: str) -> str | None:
    """Content of the last complete \\boxed{}, braces within it balanced."""
    starts = {match.end() for match in re.finditer(r"\\f?boxed\s*\{", text)}
    open_, last = [], slice(0, 0)  # once through the text, whatever is nested in what
    for brace in re.finditer(r"(?<!\\)[{}]", text):
        if brace[0] == "{":
            open_.append(brace.end())
        elif open_ and (start := open_.pop()) in starts and start > last.start:
            last = slice(start, brace.start())
    return text[last].strip() if last.start else None
