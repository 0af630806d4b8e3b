"""A word-level tokenizer over printable ASCII for small models: known phrases are one token each, the rest goes by
character."""

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

PAD, EOS, MASK, USER, ASSISTANT, UNKNOWN = SPECIAL_TOKENS = (
    "<pad>",
    "<eos>",
    "<mask>",
    "<user>",
    "<assistant>",
    "<unk>",
)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{{% if message.role == 'user' %}}{{{{ '{USER}' + message.content }}}}"
    f"{{% else %}}{{{{ '{ASSISTANT}' + message.content + '{EOS}' }}}}{{% endif %}}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{{{{ '{ASSISTANT}' }}}}{{% endif %}}"
)


def build_tokenizer(phrases: Iterable[str]) -> PreTrainedTokenizerFast:
    """A tokenizer in which each phrase is one token; decoding joins tokens verbatim, so text survives the round trip.

    Raises ValueError for a phrase with characters outside printable ASCII and newline.
    """
    characters = ["\n", *map(chr, range(32, 127))]
    phrases = list(dict.fromkeys(phrases))
    for phrase in phrases:
        if not set(phrase) <= set(characters):
            raise ValueError(f"phrase {phrase!r} has characters outside printable ASCII")
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *characters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token=UNKNOWN))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        mask_token=MASK,
        unk_token=UNKNOWN,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
