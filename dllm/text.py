"""Text in and out of a model by its tokenizer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from dllm.protocols import Text

Show = Callable[[Mapping[str, Any]], str]


def encode_text(
    tokenizer: PreTrainedTokenizerBase | None, name: str, text: Text, show: Show | None = None
) -> list[int]:
    """Token ids of a text, or of a chat rendered with the tokenizer's template. A chat that says nothing has none.

    show: what stands in the text for a message's part of the type image. None: the model reads text alone. Raises
    ValueError, with the model's name, when there is no tokenizer or no chat template, and for a part that the model
    cannot read.
    """
    if tokenizer is None:
        raise ValueError(
            f"model {name!r} has no tokenizer; give prompts as token ids, and templates to decode() likewise"
        )
    if isinstance(text, str):
        return cast(list[int], tokenizer(text, add_special_tokens=False)["input_ids"])
    if tokenizer.chat_template is None:
        raise ValueError(
            f'the tokenizer of model {name!r} has no chat template; load the model with chat_template="plain", or give '
            "prompts as text or token ids"
        )
    messages = [{**message, "content": _said(message["content"], name, show)} for message in text]
    if not any(message["content"].strip() for message in messages):
        return []
    return cast(list[int], tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def decode_text(tokenizer: PreTrainedTokenizerBase | None, ids: Sequence[int]) -> str:
    """Text of token ids. A model without a tokenizer gives none."""
    return "" if tokenizer is None else cast(str, tokenizer.decode(list(ids)))


def _said(content: str | Sequence[Mapping[str, Any]], name: str, show: Show | None) -> str:
    """A message's content as one text. Its parts follow on each other with nothing between them."""
    if isinstance(content, str):
        return content
    said = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in ("text", "image"):
            raise ValueError(f"a message has the part {str(part)[:80]}; give parts of the type text or image")
        if part["type"] == "image" and show is None:
            raise ValueError(
                f"model {name!r} reads text alone, but a message shows an image; use model=dimple for images"
            )
        said.append(str(part.get("text", "")) if part["type"] == "text" or show is None else show(part))
    return "".join(said)
