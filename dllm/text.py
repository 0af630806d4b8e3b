"""Text in and out of a model by its tokenizer."""

from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

from dllm.protocols import Text


def encode_text(tokenizer: PreTrainedTokenizerBase | None, name: str, text: Text) -> list[int]:
    """Token ids of a text, or of a chat rendered with the tokenizer's template. A chat that says nothing has none.

    Raises ValueError, with the model's name, when there is no tokenizer or no chat template.
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
    if not any(message["content"].strip() for message in text):
        return []
    messages = [dict(message) for message in text]
    return cast(list[int], tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def decode_text(tokenizer: PreTrainedTokenizerBase | None, ids: Sequence[int]) -> str:
    """Text of token ids. A model without a tokenizer gives none."""
    return "" if tokenizer is None else cast(str, tokenizer.decode(list(ids)))
