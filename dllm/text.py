"""Text in and out of a model by its tokenizer, and what all models of this package share because of it."""

import re
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any, Protocol, cast, runtime_checkable

import jinja2.filters
import jinja2.utils
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dllm.checkpoint import PLAIN_TEMPLATE
from dllm.layers import moved
from dllm.protocols import LanguageModel, Text

Show = Callable[[Mapping[str, Any]], str]
MARK = "\ue000\ue001"  # private characters: what no template writes of its own
MAX_LINES, MAX_SECONDS, MAX_GROWTH = 300_000, 2, 100_000  # of a template: steps, their time, characters it adds
MAX_BYTES = 2**30  # of memory that it takes while it works
TIMED = {"<template>", jinja2.filters.__file__, jinja2.utils.__file__}  # files whose loops a template can run
NUMBERS = ("integer", "float", "string")  # Jinja's names of what is in a template
_ALONE = threading.Lock()


@runtime_checkable
class Tokenized(Protocol):
    """A model that says what its tokenizer is."""

    @property
    def tokenizer(self) -> Any: ...


class TextModel(nn.Module, ABC):
    """A model with a name and a tokenizer, which is None where it is given token ids alone."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, name: str) -> None:
        super().__init__()
        self.tokenizer, self.name = tokenizer, name

    @abstractmethod
    def identity(self) -> str:
        """What the weights do not say."""

    def encode(self, text: Text) -> list[int]:
        """Token ids of a text, or of a chat up to where the answer begins. Raises ValueError as `encode_text` does."""
        return encode_text(self.tokenizer, self.name, text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, empty without a tokenizer."""
        return "" if self.tokenizer is None else cast(str, self.tokenizer.decode(list(ids)))


class BackboneLM(TextModel, ABC):
    """One over a transformers backbone.

    entry: where token ids belong when the backbone is spread over several devices.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        name: str,
        entry: torch.device | None = None,
    ) -> None:
        super().__init__(tokenizer, name)
        self.backbone, self.entry = backbone, entry

    @property
    def device(self) -> torch.device:
        """Where token ids belong and logits come back."""
        return self.entry or self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.dtype

    @property
    def vocab_size(self) -> int:
        return self.backbone.config.get_text_config().vocab_size

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Logits of the last layer's states, on their device."""
        head = self.backbone.get_output_embeddings()
        assert head is not None
        return moved(head(hidden), hidden.device)


def encode_text(
    tokenizer: PreTrainedTokenizerBase | None, name: str, text: Text, show: Show | None = None
) -> list[int]:
    """Token ids of a text, or of a chat rendered with the tokenizer's template. A chat that says nothing has none.

    A text begins with BOS where the tokenizer writes one, and so does a chat by the plain template; any other template
    writes what its model wants. show: what is in the text for a message's part of the type image. None: the model
    reads text alone. Raises ValueError, with the model's name, when there is no tokenizer or no chat template, and as
    `render_chat` does.
    """
    if tokenizer is None:
        raise ValueError(
            f"model {name!r} has no tokenizer; give prompts as token ids, and templates to decode() likewise, or put "
            "its tokenizer.json into its folder"
        )
    if isinstance(text, str):
        return _begun(tokenizer, encode_piece(tokenizer, text))
    if tokenizer.chat_template is None:
        raise ValueError(
            f'the tokenizer of model {name!r} has no chat template; load the model with chat_template="plain", or give '
            "prompts as text or token ids"
        )
    rendered = render_chat(tokenizer, name, text, show)
    ids = encode_piece(tokenizer, rendered) if rendered else []
    return _begun(tokenizer, ids) if tokenizer.chat_template == PLAIN_TEMPLATE else ids


def check_is_chat(of: object, text: str) -> None:
    """Warns where a model that was trained on chats is given a plain text, unless the text begins as its chats do. of:
    a model."""
    tokenizer = of.tokenizer if isinstance(of, Tokenized) else None
    if tokenizer is None or tokenizer.chat_template in (None, PLAIN_TEMPLATE):
        return
    said = "first words"
    begun = render_chat(tokenizer, "", [{"role": "user", "content": said}]).partition(said)[0].strip()
    if not (begun and text.lstrip().startswith(begun)):
        warnings.warn(
            "a prompt is plain text, to which no chat template is applied; for an answer of this model to a chat, give "
            '[{"role": "user", "content": TEXT}]',
            stacklevel=4,
        )


def encode_piece(of: object, text: str) -> list[int]:
    """Token ids of a text that is after others, so without BOS. of: a tokenizer or a model."""
    _check_whole(text)
    tokenizer = of if isinstance(of, PreTrainedTokenizerBase) else of.tokenizer if isinstance(of, Tokenized) else None
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        try:
            return cast(list[int], tokenizer(text, add_special_tokens=False)["input_ids"])
        except BaseException as error:  # Rust's panics are no Exceptions
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ValueError(f"the tokenizer fails on the text {text[:40]!r} ({said}); mend its files") from error
    return cast(LanguageModel, of).encode(text)


def _begun(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    """Ids after BOS, once, where the tokenizer begins texts with it. No ids stay none."""
    bos = tokenizer.bos_token_id
    begins = ids and bos is not None and ids[0] != bos and cast(list[int], tokenizer("a")["input_ids"])[0] == bos
    return [cast(int, bos), *ids] if begins else ids


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    chat: Sequence[Mapping[str, Any]],
    show: Show | None = None,
    **how: Any,
) -> str:
    """A chat as the tokenizer's template writes it, empty if it says nothing. Contents are given to the template as
    texts, and where it leaves those out or fails, as parts of the type text, which some templates want.

    how: other arguments of `apply_chat_template`. Raises ValueError for messages that are none, parts that the model
    cannot read, and a template that fails, does not end or does not show what the user says last.
    """
    messages = [_message(message, name, show) for message in chat]
    said = [i for i, message in enumerate(messages) if message["content"].strip()]
    if not said:
        return ""
    asked = max([i for i in said if messages[i]["role"] == "user"] or said)
    failed: ValueError | None = None
    for in_parts in (False, True):
        try:
            text = _rendered(tokenizer, name, messages, in_parts, how)
            marked = [{**message, "content": MARK} if i == asked else message for i, message in enumerate(messages)]
            if _shows(text, messages[asked]["content"]) and MARK in _rendered(tokenizer, name, marked, in_parts, how):
                return text
        except ValueError as error:
            failed = failed or error
    raise failed or ValueError(
        f"the chat template of model {name!r} leaves out what the {messages[asked]['role']} says "
        f"({messages[asked]['content'][:40]!r}); give one that shows it, such as chat_template=plain"
    )


def _shows(text: str, said: str) -> bool:
    """Whether most words of what was said are there: templates may take words such as /no_think for themselves."""
    words = re.findall(r"\w+", said)
    return 2 * sum(word in text for word in words) >= len(words)


def _rendered(
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    messages: list[dict[str, Any]],
    in_parts: bool,
    how: Mapping[str, Any],
) -> str:
    """Raises ValueError, with the template's own words, when it fails, or writes or works beyond all measure."""
    size = sum(len(message["content"]) for message in messages)
    if in_parts:
        messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    options = {"add_generation_prompt": True, "tokenize": False, **how}
    try:
        _check_powers(str(tokenizer.chat_template))
        with _in_memory(), _at_most(MAX_LINES + MAX_LINES // 100 * len(messages)):
            text = tokenizer.apply_chat_template(messages, **options)
    except Exception as error:  # a template is a program of someone else's, and may fail in any way
        much = f"it takes more than {MAX_BYTES // 2**20:,} MiB of memory" if isinstance(error, MemoryError) else ""
        said = much or str(error).strip() or type(error).__name__
        raise ValueError(
            f"the chat template of model {name!r} fails on this chat: {said.splitlines()[0][:200]}; change the "
            "messages, or give another chat_template"
        ) from error
    if not isinstance(text, str) or len(text) > MAX_GROWTH + 4 * size:
        raise ValueError(
            f"the chat template of model {name!r} writes {len(text):,} characters for a chat of {size:,}; give another "
            "chat_template"
        )
    return text


@lru_cache
def _check_powers(template: str) -> None:
    """Raises ValueError for a template one step of which can take hours that nothing ends, with numbers of any length:
    by the operator **, by * but for a product with one number or text that is there, and by round(PLACES)."""
    lexed = jinja2.Environment().lex(template)
    code = [(kind, text) for _, kind, text in lexed if kind not in ("whitespace", "data")]
    code = [("", "")] * 2 + code + [("", "")] * 3
    for i, (kind, text) in enumerate(code[2:-3], 2):
        stands = [code[i + side][0] in NUMBERS and code[i + 2 * side][1] != "*" for side in (-1, 1)]
        if text == "**" or (text == "*" and not any(stands)):
            raise ValueError(f"it uses {text}, which may take without end")
        rounds = kind == "string" or (code[i + 1][1] == "(" and not re.fullmatch("[0-9]{1,2}", code[i + 2][1]))
        if text.strip("'\"") == "round" and rounds:
            raise ValueError("it rounds to a number of places, which may take without end")


@contextmanager
def _in_memory() -> Iterator[None]:
    """Lets the process take at most MAX_BYTES more, one template at a time: one operator can ask for any amount. Only
    Linux says how much it has taken."""
    if sys.platform != "linux":
        yield
        return
    import resource  # which Windows lacks

    with _ALONE:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm", encoding="ascii") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + MAX_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class _EndlessTemplate(BaseException):
    """What jinja does not catch: it would go on, no longer watched, where it computes constants."""


@contextmanager
def _at_most(lines: int) -> Iterator[None]:
    """Ends a template that runs more lines of its code, as loops in loops do, or computes for MAX_SECONDS: loops
    without a body count as one line."""
    before, ran, late = sys.gettrace(), 0, time.thread_time() + MAX_SECONDS

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal ran
        ran += event == "line" and frame.f_code.co_filename == "<template>"
        if ran > lines or time.thread_time() > late:
            raise _EndlessTemplate
        return line

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename in TIMED else None

    sys.settrace(enter)
    try:
        yield
    except _EndlessTemplate:
        raise RuntimeError(f"it does not end within {lines:,} steps or {MAX_SECONDS} seconds") from None
    finally:
        sys.settrace(before)


def _message(message: Any, name: str, show: Show | None) -> dict[str, Any]:
    """A message with its content as one text."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError(f"{str(message)[:80]} is no message; give {{'role': 'user', 'content': TEXT}}")
    said = _said(message.get("content"), name, show)
    _check_whole(said)
    return {**message, "content": said}


def _said(content: Any, name: str, show: Show | None) -> str:
    """A message's content as one text. Its parts follow on each other with nothing between them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ValueError(
            f"a message has the content {str(content)[:80]}; give a text, or parts of the type text or image"
        )
    said = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "image") or (kind == "text" and not isinstance(part.get("text"), str)):
            raise ValueError(f"a message has the part {str(part)[:80]}; give parts of the type text or image")
        if kind == "image" and show is None:
            raise ValueError(
                f"model {name!r} reads text alone, but a message shows an image; use model=dimple for images"
            )
        said.append(part["text"] if kind == "text" or show is None else show(part))
    return "".join(said)


def _check_whole(text: str) -> None:
    if half := re.search("[\ud800-\udfff]", text):
        raise ValueError(
            f"the text {text[max(half.start() - 20, 0) : half.end()]!r} ends in half a character (a lone surrogate); "
            "mend the text"
        )
