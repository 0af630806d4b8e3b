"""Generators: what a run benchmarks. One wraps a dLLM and a decoder; a method with a loop of its own is
another."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from decoders import Decoder, Generation, StopRule
from decoders.compose import check_is_decoder
from decoders.constraints.automaton import automata_of
from decoders.constraints.held import Constraints
from decoders.constraints.patterns import Constraint
from decoders.decode_job import check_can_hold, check_parts
from decoders.generation import Template, describe, encode, encode_template
from decoders.loop import ONE_TOKEN, DecodedRow, decode_queue
from decoders.noise import numbered
from decoders.spread import ONE_WINDOW, Spread
from decoders.types import Turn, check_lengths, in_order, responses
from dllm.cache import CacheStrategy
from dllm.protocols import DenoisingLM, LanguageModel
from dllm.recurrent import RecurrentLM
from dllm.validation import Checked, Count, Number, check_blocks
from parallelbench.records.facts import Facts
from parallelbench.records.trace import Step
from parallelbench.run.recorder import StepRecorder

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Request(Checked):
    """A chat prompt and how many tokens its answer may take.

    form: see `Sample`. draw: which sample of its prompt it asks for, from 0. None: equal ones of a call are numbered.
    constraint: what its answer is held to.
    """

    messages: Messages
    gen_len: Count
    form: str | None = None
    draw: Number | None = None
    constraint: Constraint | None = None


@runtime_checkable
class Generator(Protocol):
    """Requests of one batch to generations in the same order. `describe` is what a record says of it (JSON values):
    model, device, and those `Facts` that are not as they are anyway."""

    def prompt_len(self, request: Request) -> int:
        """Tokens of the rendered prompt. Raises ValueError when the request cannot be served."""
        ...

    def warm_up(self, batch: Sequence[Request]) -> None: ...

    def __call__(self, batch: Sequence[Request]) -> Sequence[Generation]: ...

    def describe(self) -> dict[str, object]: ...

    def fingerprint(self) -> str:
        """Tells one set of weights from another."""
        ...


@runtime_checkable
class Refilling(Generator, Protocol):
    """A generator that serves a queue of requests, so that none waits for others of its batch."""

    def stream(self, requests: Sequence[Request], slots: int) -> Iterator[Turn[Generation]]:
        """Serves at most `slots` requests at once. When one ends, the next takes its place."""
        ...


@runtime_checkable
class Traceable(Protocol):
    """A generator that can also tell what each forward did."""

    @property
    def model(self) -> LanguageModel: ...

    def traced(
        self, batch: Sequence[Request], tell: Callable[[Step], None] | None = None
    ) -> Sequence[tuple[Generation, list[Step]]]:
        """The generations of a call, each with its steps. tell: is called with each step, as soon as it is made."""
        ...


@runtime_checkable
class Method(Protocol):
    """A decoder with a loop of its own: instead of a `decoders.Decoder`, what a decoder's yaml may instantiate."""

    def bind(
        self, model: LanguageModel, *, cache: CacheStrategy, stop: StopRule, block_len: int | None, seed: int
    ) -> Generator:
        """The generator of a run. Raises ValueError for a model, cache or stop rule that the loop cannot use."""
        ...


def make_generator(
    model: Any,
    decoder: Decoder | Method,
    *,
    cache: CacheStrategy,
    stop: StopRule,
    block_len: int | None,
    seed: int,
    template: Template | None = None,
) -> Generator:
    """The generator of a model and a decoder. template: what every answer looks like, see `decoders.generate`. Raises
    ValueError when they do not fit."""
    if isinstance(decoder, Method):
        if template is not None:
            raise ValueError("template needs a decoder of the denoising loop, such as decoder=threshold; give it none")
        if not isinstance(model, LanguageModel):
            raise ValueError(lacks(model, LanguageModel))
        return decoder.bind(model, cache=cache, stop=stop, block_len=block_len, seed=seed)
    check_is_decoder(decoder)
    if isinstance(model, DenoisingLM):
        return DiffusionGenerator(model, decoder, cache, stop, block_len, seed, template=template)
    if not isinstance(model, LanguageModel):
        raise ValueError(lacks(model, DenoisingLM))
    if isinstance(model, RecurrentLM):
        what = "depth-recurrent; use decoder=diffusion_forcing, or a diffusion model such as model=tiny"
    else:
        what = (
            "autoregressive; use decoder=ar or decoder=prompt_lookup, or a diffusion model such as model=tiny (if this "
            "is one, +model.spec.mask_id=ID says so)"
        )
    raise ValueError(
        f"a denoising decoder ({type(decoder.rule).__name__}) cannot use model {model.name!r}, which is {what}"
    )


def lacks(model: object, protocol: type) -> str:
    """A sentence on what a model would need to be benchmarked."""
    wanted = {name for base in protocol.__mro__ for name in vars(base) if base.__module__ == protocol.__module__}
    missing = sorted(name for name in wanted if not name.startswith("_") and name not in dir(model))
    return (
        f"a {type(model).__name__} is no model that can be benchmarked: it has no {', '.join(missing)} (see "
        f"dllm.protocols.{protocol.__name__})"
    )


@dataclass(frozen=True)
class DiffusionGenerator(Checked):
    """Decodes with the one denoising loop, in blocks of `block_len`. Checks at construction that model, decoder, cache,
    stop rule and spread fit.

    block_len: None makes each response one block. Those of one length then share a queue.
    template: what every answer looks like, instead of the requests' lengths.
    text_of: see `Facts`.
    """

    model: DenoisingLM
    decoder: Decoder
    cache: CacheStrategy
    stop: StopRule
    block_len: Count | None = None
    seed: int = 0
    spread: Spread = ONE_WINDOW
    template: Template | None = None
    text_of: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self.model, self.decoder, self.cache)
        self.spread.check(self.model, self.decoder, self.cache, self.stop)

    def prompt_len(self, request: Request) -> int:
        """Tokens of a rendered prompt; raises ValueError when it is empty, too long for the model, or its lengths are
        impossible."""
        (wanted,) = self._wanted([request.gen_len], [request.form])
        if request.constraint is not None:
            check_can_hold(self.decoder, self.stop)
            Constraints.of(automata_of(self.model, request.constraint, 1), [wanted], self.model.spec)
        block_len = self.block_len or len(wanted)
        if self.template is None:
            check_lengths(self.model.spec, request.gen_len, block_len)
            check_blocks(request.gen_len, block_len)
        self.decoder.check_window(block_len)
        return fitting_prompt_len(self.model, Request(request.messages, len(wanted)))

    def warm_up(self, batch: Sequence[Request]) -> None:
        """Two forwards outside all timing: lazy initialisation, kernel choice, allocator."""
        for _ in self.stream(batch, len(batch), max_steps=2):
            pass

    def __call__(self, batch: Sequence[Request]) -> Sequence[Generation]:
        return list(in_order(self.stream(batch, len(batch))))

    def traced(
        self, batch: Sequence[Request], tell: Callable[[Step], None] | None = None
    ) -> Sequence[tuple[Generation, list[Step]]]:
        recorder = StepRecorder(len(batch), tell)
        return list(zip(in_order(self.stream(batch, len(batch), recorder=recorder)), recorder.rows, strict=True))

    def describe(self) -> dict[str, object]:
        rule, one_window = self.decoder.rule, self.spread == ONE_WINDOW
        facts = Facts(
            is_baseline=one_window and self.decoder == ONE_TOKEN,
            fixed_number=one_window and rule.fixed_number,
            commits_k=one_window and rule.commits_k,
            block_is_knob=one_window and rule.block_is_knob,
            is_ceiling=self.decoder.needs_reference,
            text_of=self.text_of,
        )
        return describe_model(self.model, facts)

    def fingerprint(self) -> str:
        return fingerprint(self.model, self.decoder.identity)

    def _wanted(self, gen_lens: Sequence[int], forms: Sequence[str | None]) -> list[list[int]]:
        """What is to be decoded for each request. Raises ValueError for a template without MASK, and for forms that do
        not fit."""
        shape = None if self.template is None else encode_template(self.model, self.template)
        masks = ([self.model.spec.mask_id] * length if shape is None else shape for length in gen_lens)
        wanted = [
            plain if form is None else self._filled(form, length)
            for plain, form, length in zip(masks, forms, gen_lens, strict=True)
        ]
        return responses(self.model.spec, len(wanted), None, wanted, self.block_len or max(map(len, wanted)))

    def _filled(self, form: str, length: int) -> list[int]:
        """A form with EOS after it up to the length."""
        if self.template is not None:
            raise ValueError("template and suite.infill both say what an answer looks like; leave one of them out")
        ids = encode_template(self.model, form)
        if len(ids) > length:
            raise ValueError(f"the form {form:.40}... takes {len(ids)} tokens; give gen_length={len(ids)} or more")
        return [*ids, *[self.model.spec.eos_ids[0]] * (length - len(ids))]

    def turns(
        self,
        prompts: Sequence[Sequence[int]],
        gen_lens: Sequence[int],
        slots: int,
        max_steps: int | None = None,
        recorder: StepRecorder | None = None,
        forms: Sequence[str | None] | None = None,
        draws: Sequence[int] | None = None,
        constraints: Sequence[Constraint | None] | None = None,
    ) -> Iterator[Turn[DecodedRow]]:
        """Decodes prompts, at most `slots` at once, each with its own length of a response, its form if that is given,
        and what its answer is held to. draws: as in `decode`. All arguments are checked at the call."""
        draws = numbered(map(tuple, prompts)) if draws is None else draws
        wanted = self._wanted(gen_lens, forms or [None] * len(gen_lens))
        blocks = [self.block_len or len(response) for response in wanted]
        automata = automata_of(self.model, constraints or [None] * len(prompts), len(prompts))
        groups = {block: [i for i, its in enumerate(blocks) if its == block] for block in dict.fromkeys(blocks)}
        queues = [
            decode_queue(
                self.model,
                [prompts[i] for i in group],
                slots=slots,
                templates=[wanted[i] for i in group],
                block_len=block,
                decoder=self.decoder,
                cache=self.cache,
                stop=self.stop,
                spread=self.spread,
                seed=self.seed,
                draws=[draws[i] for i in group],
                max_steps=max_steps,
                on_step=None if recorder is None else partial(recorder, group),
                device=self.model.device,
                constraints=[automata[i] for i in group],
            )
            for block, group in groups.items()
        ]
        return (
            Turn([group[place] for place in turn.live], {group[place]: row for place, row in turn.ended.items()})
            for group, queue in zip(groups.values(), queues, strict=True)
            for turn in queue
        )

    def stream(
        self,
        requests: Sequence[Request],
        slots: int,
        max_steps: int | None = None,
        recorder: StepRecorder | None = None,
    ) -> Iterator[Turn[Generation]]:
        prompts = [encode(self.model, request.messages, i) for i, request in enumerate(requests)]
        gen_lens, forms = [request.gen_len for request in requests], [request.form for request in requests]
        constraints = [request.constraint for request in requests]
        draws = draws_of(requests, prompts)
        turns = self.turns(prompts, gen_lens, slots, max_steps, recorder, forms, draws, constraints)
        return described(self.model, turns)


def described(model: LanguageModel, turns: Iterator[Turn[DecodedRow]]) -> Iterator[Turn[Generation]]:
    """The same turns, their rows with text."""
    return (Turn(turn.live, dict(zip(turn.ended, describe(model, turn.ended.values()), strict=True))) for turn in turns)


def draws_of(requests: Sequence[Request], prompts: Sequence[Sequence[int]]) -> list[int]:
    """Which sample of its prompt (token ids) each request asks for."""
    places = numbered(map(tuple, prompts))
    return [place if one.draw is None else one.draw for one, place in zip(requests, places, strict=True)]


def fitting_prompt_len(model: LanguageModel, request: Request) -> int:
    """Tokens of a rendered prompt. Raises ValueError when it is empty, leaves no room for its answer, or has a form."""
    if request.form is not None:
        raise ValueError("suite.infill needs a decoder of the denoising loop, such as decoder=threshold; leave it out")
    length, limit = len(encode(model, request.messages)), model.max_length
    if limit is not None and length + request.gen_len > limit:
        raise ValueError(
            f"a prompt of {length} tokens and gen_length={request.gen_len} are more than the {limit} positions of "
            f"model {model.name!r}; use a smaller gen_length"
        )
    return length


def describe_model(model: LanguageModel, facts: Facts) -> dict[str, object]:
    """What a record says of a model and of what decodes with it: JSON values."""
    parameters = sum(weight.numel() for _, weight in model.named_parameters())
    dtype = str(model.dtype).removeprefix("torch.")
    about = {"model": model.name, "parameters": parameters, "dtype": dtype, "device": device_name(model)}
    return about | {name: value for name, value in asdict(facts).items() if value}


def fingerprint(model: LanguageModel, decoder: str = "") -> str:
    """A hash of every weight's name, shape and float64 sum (of offloaded ones, which are elsewhere, name and shape),
    of what the model is besides them, and of what the decoder has learned."""
    digest = hashlib.sha256((model.identity() + decoder).encode())
    for name, weight in model.named_parameters():
        total = "offloaded" if weight.is_meta else f"{_sum(weight):.12g}"
        digest.update(f"{name} {tuple(weight.shape)} {total}".encode())
    return digest.hexdigest()[:16]


def _sum(weight: torch.Tensor) -> float:
    """In float64, 64M numbers at a time: torch makes float64 of all that it sums, 4 GB of an 8B model's embedding."""
    return sum(part.sum(dtype=torch.float64).item() for part in weight.detach().flatten().split(1 << 26))


def device_name(model: LanguageModel) -> str:
    """The device a number was measured on: GPU name, or CPU with its thread count."""
    if model.device.type == "cuda":
        return torch.cuda.get_device_name(model.device)
    threads = torch.get_num_threads()
    return f"{model.device.type}, {threads} thread{'s' if threads > 1 else ''}"
