"""Text in and out of a model by its tokenizer, and what all models of this package share because of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dllm.layers import moved
from dllm.protocols import Text

Show = Callable[[Mapping[str, Any]], str]


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
