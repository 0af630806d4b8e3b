"""Files that outlive a crash, a full disk and a foreign locale: UTF-8, written whole or not at all.

Texts and JSON of all commands are read and written here. Nothing follows a link that lies where a file is to be made.
"""

import csv
import errno
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

from msgspec.structs import asdict

PACKAGES = Path(__file__).parents[2]
_WITHIN = PACKAGES / "parallelbench" / "conf"  # where it is installed
CONF = _WITHIN if _WITHIN.exists() else PACKAGES / "conf"  # by path: a folder `conf` of the user's must not shadow it
FIXES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit of a file's size",
    errno.EROFS: "choose another folder",
    errno.EACCES: "choose another folder",
    errno.EPERM: "choose another folder",
    errno.ENAMETOOLONG: "choose a shorter name",
}


MOST_BYTES = 2**32  # of a file that is read whole
WORD, LINE = 100, 1600  # characters of a word and of a line that is said
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems that cannot wait for a disk


def os_sentence(error: OSError) -> str:
    """What an operating system refused, and what to do about it."""
    where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    fix = FIXES.get(error.errno or 0, "mend that or choose another folder")
    return f"{where}{error.strerror or error}; {fix} and run the command again"


def printable(text: str) -> str:
    """Lines as they are, and any other character that would not show as its escape: nothing steers a terminal."""
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """A name as it is, and what would break a line or steer a terminal as its escape."""
    return printable(text).replace("\n", "\\n")


def in_short(text: str) -> str:
    """One line that can be printed, without the middles of what is endless: a word of many letters, a long list."""
    line = printable(" ".join(text.split()))
    line = re.sub(rf"([^\s/]{{{WORD}}})[^\s/]+?(?=[;:,]?(?:[\s/]|$))", r"\1...", line)
    return line if len(line) <= LINE else f"{line[: LINE * 3 // 4]} ... {line[-LINE // 4 :]}"


def read_bytes(path: Path) -> bytes:
    """A file's content. Raises ValueError, naming it, for what cannot be read; never waits for a pipe."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is {'a folder' if path.is_dir() else 'no file'}; put a file there")
        if path.exists() and path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path} has more than {MOST_BYTES // 2**30} GiB; leave it out")
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if (data := file.read()) is None:  # a log of the kernel's that has no more to say
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return data
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); make it readable or leave it out") from error


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for what is none; NaN, infinities and 1e999 are none."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def to_json(value: Any, *, compact: bool = False, indent: int | None = None) -> str:
    """A value, which may hold Structs, as JSON that every reader takes. Raises ValueError for NaN and infinities."""
    layout = {"separators": (",", ":") if compact else None, "indent": indent}
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=asdict, **layout)


def append(path: Path, text: str) -> None:
    """Appends whole lines and waits until they are on disk. What is interrupted or finds no space leaves the file as it
    was; lines go after a whole one, whatever the file ends with."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o666)
    try:
        size = os.fstat(file).st_size
        cut_off = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        try:
            _write(file, b"\n" * cut_off + _encoded(text))
        except BaseException:
            os.ftruncate(file, size)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(file)


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes a file, which takes the place of `path` at once when all of it is on disk. Where that fails, all is as
    before."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # a killed process left it
    with open(temporary, "xb", buffering=0) as file:
        try:
            _write(file.fileno(), _encoded(content) if isinstance(content, str) else content)
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_csv(path: Path, rows: Iterable[Sequence[object]], line_end: str = "\r\n") -> None:
    """Writes a CSV file, as `replace_file` does it. rows: the heading and the lines below it."""
    file = StringIO(newline="")
    csv.writer(file, lineterminator=line_end).writerows([_no_formula(cell) for cell in row] for row in rows)
    replace_file(path, file.getvalue())


def _no_formula(cell: object) -> object:
    """A text that a spreadsheet would take for a formula, after a quotation mark; numbers stay numbers."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    return cell if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", cell) else f"'{cell}"


def write_text(path: Path, text: str) -> str:
    """Writes what a command tells, as `replace_file` does it. Returns the text with the file's name below."""
    replace_file(path, inert(text))
    return f"{text}\n{path}"


def write_tables(out_dir: str, name: str, rows: Iterable[Sequence[object]], markdown: str) -> str:
    """NAME.csv and NAME.md in a folder, if one is asked for. Returns the text, and the file's name."""
    if not out_dir:
        return markdown
    folder = out_folder(out_dir)
    write_csv(folder / f"{name}.csv", rows)
    return write_text(folder / f"{name}.md", markdown)


def inert(markdown: str) -> str:
    """Markdown that loads nothing and holds no HTML, whatever the names in it are: its pictures lie next to it."""
    return re.sub(
        r"<(?=[a-zA-Z/!?])", "&lt;", re.sub(r"\](?=\(\s*<?\s*([a-zA-Z][\w+.-]*:|[/\\]))", r"]\\", printable(markdown))
    )


def check_picture(name: str) -> None:
    """Raises ValueError for svg=NAME that cannot be written."""
    if Path(name).is_dir() or not Path(name).parent.is_dir():
        raise ValueError(f"svg={name} is no file in a folder that exists; give one such as decode.svg")
    if Path(name).suffix != ".svg":
        raise ValueError(f"svg={name} would hold an SVG picture under another name; give one such as decode.svg")


def check_folder(folder: Path) -> None:
    """Raises ValueError for what is no folder and, in its path, for a link to what does not exist: nothing can be made
    in either."""
    for part in (folder, *folder.parents):
        if part.is_symlink() and not part.exists():
            raise ValueError(
                f"{part} is a link to {os.readlink(part)}, which does not exist; make that or choose another"
            )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose another out_dir")


def out_folder(name: str | Path) -> Path:
    """A folder to write into, made where it is missing. Raises ValueError where that cannot be."""
    folder = Path(name)
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"out_dir={name}: {error.strerror}; choose another folder") from error
    return folder


def _encoded(text: str) -> bytes:
    """Half a surrogate pair, which UTF-8 has not, becomes its escape, which JSON has."""
    return text.encode("utf-8", "backslashreplace")


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:  # a nearly full disk takes a part and says so with the next
        left = left[os.write(file, left) :]
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise


def _finite(number: str) -> float:
    return float(number) if math.isfinite(float(number)) else _refuse(number)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
