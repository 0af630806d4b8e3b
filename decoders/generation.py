"""Decoding from Python: prompts in; texts, and what they cost, out."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tqdm import tqdm

from decoders.compose import Decoder, check_is_decoder
from decoders.constraints.automaton import automata_of
from decoders.constraints.held import from_left
from decoders.constraints.patterns import Constraint
from decoders.decode_job import DecodeJob
from decoders.loop import denoise
from decoders.noise import row_seeds
from decoders.rules.basic import Threshold
from decoders.spread import NO_CACHE, ONE_WINDOW, Spread
from decoders.stop import StopRule, StrictEos
from decoders.types import DecodedRow, Drafted, in_order, responses
from decoders.verified.rounds import Verified, verify_queue
from dllm.cache import CacheStrategy
from dllm.causal import CausalStream
from dllm.protocols import DenoisingLM, LanguageModel, Text, check_is_denoiser
from dllm.text import check_is_chat, encode_piece
from dllm.validation import Count, Number, Token, check, named

Prompt = Text | Sequence[Token]  # raw text, chat messages, or token ids
Template = str | Sequence[str | Number]  # text with [MASK] per token to decode, or fixed texts and numbers of tokens


@dataclass(frozen=True)
class Generation:
    """The text of one prompt and its cost. The other fields are those of `decoders.loop.DecodedRow`."""

    text: str
    token_ids: list[int]
    num_tokens: int
    nfe: int
    queried: int
    tokens_per_forward: float
    stopped_by: str
    committed_at: list[int]
    drafts: Sequence[Drafted] = ()


@named
def generate(
    model: DenoisingLM,
    prompts: Sequence[Prompt],
    *,
    decoder: Decoder | None = None,
    cache: CacheStrategy = NO_CACHE,
    stop: StopRule | None = None,
    gen_len: Count | Sequence[Count] | None = None,
    templates: Sequence[Template] | None = None,
    spread: Spread = ONE_WINDOW,
    block_len: Count = 32,
    batch_size: Count = 16,
    seed: int = 0,
    progress: bool = False,
    constraints: Constraint | Sequence[Constraint | None] | None = None,
) -> list[Generation]:
    """Decodes prompts, `batch_size` at a time, and returns one Generation each, in order.

    prompts: raw texts, token ids, or chat messages, which the tokenizer's chat template renders. A raw text warns once
        where the model was trained on chats.
    decoder: by default `Threshold(0.9)`.
    cache: by default none.
    stop: by default `StrictEos()`.
    gen_len: tokens to decode, for all prompts or for each. By default 32. Also gen_length, as on the command line.
    templates: instead of `gen_len`, what each response looks like (examples below).
    spread: several blocks in flight, as in `RunningSet(4)`, or several states of a row. By default neither.
    block_len: columns per block. Also block_length.
    batch_size: prompts per forward; when one ends, the next takes its place.
    seed: of the random numbers. A prompt that is given n times at a temperature above 0 gets n samples.
    progress: shows a progress bar.
    constraints: what answers must look like, for all prompts or for each, as in `JsonSchema({"type": "array"})`.

        ['{"name": "', 4, '", "age": ', 2, "}"]    4 and 2 tokens in a JSON skeleton
        [16, " The end."]                          16 tokens before a suffix
        '["[MASK]", "[MASK]"]'                     a token for each [MASK] (ParallelBench's output formats)

    Raises ValueError for what is no diffusion model, for an empty prompt, for lengths or a cache that do not fit, and
    for a rule or a name in place of a decoder. So for a constraint that no answer can keep, and for a decoder or a stop
    rule that cannot keep it.
    """
    check_is_denoiser(model, DenoisingLM)
    decoder = Decoder(Threshold()) if decoder is None else decoder
    stop = StrictEos() if stop is None else stop
    check_is_decoder(decoder)
    if templates is None and gen_len is None:
        gen_len = 32
    if isinstance(prompts, str) or (
        isinstance(prompts, Sequence) and prompts and isinstance(prompts[0], Mapping | int)
    ):
        raise ValueError("one prompt was given; put it into a list of prompts")
    check(generate, prompts=prompts, gen_len=gen_len, templates=templates, block_len=block_len)
    check(generate, batch_size=batch_size, seed=seed, progress=progress, constraints=constraints)
    ids = [encode(model, prompt, i) for i, prompt in enumerate(prompts)]
    for prompt in [prompt for prompt in prompts if isinstance(prompt, str)][:1]:
        check_is_chat(model, prompt)
    shapes = None if templates is None else [encode_template(model, template) for template in templates]
    wanted = responses(model.spec, len(ids), gen_len, shapes, block_len)
    if not ids:
        return []
    job = DecodeJob(
        ids,
        templates=wanted,
        block_len=block_len,
        decoder=decoder,
        cache=cache,
        stop=stop,
        spread=spread,
        slots=batch_size,
        seed=seed,
        device=model.device,
        constraints=None if constraints is None else automata_of(model, constraints, len(ids)),
    )
    rows: dict[int, DecodedRow] = {}
    with tqdm(total=len(ids), desc="decode", disable=not progress) as bar:
        for turn in denoise(model, job):
            rows |= turn.ended
            bar.update(len(turn.ended))
    return list(describe(model, [rows[place] for place in range(len(ids))]))


@named
def generate_verified(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    how: Verified,
    gen_len: Count = 32,
    batch_size: Count = 16,
    seed: int = 0,
    constraints: Constraint | Sequence[Constraint | None] | None = None,
) -> list[Generation]:
    """Decodes up to `gen_len` tokens after each prompt with drafts that the model's causal mode verifies: greedy texts
    are those of one token per forward, sampled ones are distributed as its samples.

    For example `generate_verified(model, ["Hello"], how=Verified(MaskDrafts()))`. model: an autoregressive one, or a
    diffusion model whose settled columns are causal. Raises ValueError for a model without a causal mode, a drafter
    that does not fit it, and an empty prompt. constraints: as in `generate`, and `Grammar` too.
    """
    check(generate_verified, prompts=prompts, how=how, gen_len=gen_len, batch_size=batch_size, seed=seed)
    check(generate_verified, constraints=constraints)
    stream = CausalStream(model, drafts=how.drafter is not None)
    ids = [encode(model, prompt, i) for i, prompt in enumerate(prompts)]
    gen_lens = [gen_len] * len(ids)
    held = None if constraints is None else from_left(model, constraints, gen_lens)
    turns = verify_queue(stream, how, ids, gen_lens, row_seeds(seed, ids), batch_size, held)
    return list(describe(model, in_order(turns)))


def encode(model: LanguageModel, prompt: Prompt, index: int = 0) -> list[int]:
    """Token ids of a prompt. Raises ValueError when it is empty or the model cannot read it."""
    is_text = isinstance(prompt, str) or (len(prompt) and isinstance(prompt[0], Mapping))
    ids = model.encode(cast(Text, prompt)) if is_text else list(cast(Sequence[int], prompt))
    if not ids:
        raise ValueError(f"prompt {index} is empty; give at least one token")
    return ids


def encode_template(model: DenoisingLM, template: Template) -> list[int]:
    """Token ids of a response: its fixed parts, each tokenized on its own, with MASKs between them."""
    if isinstance(template, str):
        template = [1 if part == "[MASK]" else part for part in re.split(r"(\[MASK\])", template) if part]
    ids: list[int] = []
    for part in template:
        if isinstance(part, int):
            ids += [model.spec.mask_id] * part
        else:
            ids += encode_piece(model, part)
    return ids


def describe(model: LanguageModel, rows: Iterable[DecodedRow]) -> Iterator[Generation]:
    """Decoded rows as generations with text."""
    for row in rows:
        counts = {"num_tokens": row.num_tokens, "tokens_per_forward": row.tokens_per_forward}
        yield Generation(model.decode(row.token_ids), **counts, **vars(row))
