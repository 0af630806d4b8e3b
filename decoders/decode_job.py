"""What a decode is asked: one frozen description, checked once, that `decode` and its kin are all made of."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from inspect import Parameter, signature
from typing import Concatenate, ParamSpec, TypeVar

import torch

from decoders.compose import Decoder, check_is_decoder
from decoders.constraints.automaton import TokenAutomaton
from decoders.constraints.held import Constraints
from decoders.noise import row_seeds
from decoders.spread import NO_CACHE, ONE_WINDOW, Spread
from decoders.state import DecodeState
from decoders.stop import StopRule, check_is_stop_rule, check_stop
from decoders.types import Shape, Update, View, responses
from dllm.cache import CacheStrategy
from dllm.model import DiffusionLM
from dllm.protocols import Denoiser, LanguageModel, ShadowDenoiser, check_is_denoiser
from dllm.validation import Count, Number, Token, check_named, named

OnStep = Callable[[DecodeState, View, Update], None]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class DecodeJob:
    """What a decode is asked: to fill the columns after each prompt, block by block.

    prompts: token ids.
    block_len: columns per window.
    decoder, cache, stop: what is decided, what is computed again, and where a text ends.
    gen_len: columns to fill, for all rows or for each.
    templates: instead of `gen_len`, each row's response with MASK where a token is wanted. Its other ids are fixed:
        they are never masked or overwritten. No EOS before them ends the row, a given EOS after them does.
    spread: how a row becomes rows of a forward: one window, several blocks in flight (`RunningSet`), or several states
        (`Ahead`, `Lookahead`).
    slots: rows that are decoded at once at most. When one ends, the next prompt takes its place. None: all.
    seed: of the random numbers. They depend on it, the prompt and the draw alone.
    draws: which sample of its prompt each row is, from 0. None: equal prompts of the call are numbered in order.
    max_steps: forwards after which a row is given up. None: `decoder.max_steps`.
    on_step: called after each step. Its view has the logits of the whole window, and all open blocks side by side.
    reference: responses that the view shows next to each step. Where the decoder needs them and None is given, they are
        decoded first with one token per forward, which costs no NFE.
    device: where the canvas is.
    constraints: the automaton that each row's answer has to be accepted by, None where it is free. A row that is given
        up may be left without an answer.

    Raises ValueError for a value that no model could be asked for, and for a rule or a name in place of a decoder.
    """

    prompts: Sequence[Sequence[Token]]
    _: KW_ONLY
    block_len: Count
    decoder: Decoder
    cache: CacheStrategy
    stop: StopRule
    gen_len: Count | Sequence[Count] | None = None
    templates: Sequence[Sequence[Number]] | None = None
    spread: Spread = ONE_WINDOW
    slots: Count | None = None
    seed: int = 0
    draws: Sequence[Number] | None = None
    max_steps: Count | None = None
    on_step: OnStep | None = None
    reference: Sequence[Sequence[Number]] | None = None
    device: torch.device | str = "cpu"
    constraints: Sequence[TokenAutomaton | None] | None = None

    def __post_init__(self) -> None:
        check_is_decoder(self.decoder)
        check_is_stop_rule(self.stop)
        given = {field.name: vars(self)[field.name] for field in fields(self)}
        check_named(type(self), given, owner=" of decode")
        self.decoder.check_window(self.block_len)
        if not self.prompts:
            raise ValueError("no prompts given; give at least one")
        for row, prompt in enumerate(self.prompts):
            if not len(prompt):
                raise ValueError(f"prompt {row} is empty; a canvas needs at least one prompt token")
        for name in ("draws", "reference", "constraints"):
            numbers = vars(self)[name]
            if numbers is not None and len(numbers) != len(self.prompts):
                what = {"draws": "numbers", "reference": "rows"}.get(name, "automata")
                raise ValueError(f"{name} has {len(numbers)} {what} for {len(self.prompts)} prompts; give one for each")

    def begin(self, model: Denoiser) -> tuple[DecodeState, list[list[int]]]:
        """The state of all rows before the first step, on the CPU, and what is to be decoded after each prompt. Raises
        ValueError for a model, lengths and templates that cannot be decoded, and for parts that do not go together."""
        check_parts(model, self.decoder, self.cache)
        check_stop(self.stop, model.spec)
        self.spread.check(model, self.decoder, self.cache, self.stop)
        wanted = responses(model.spec, len(self.prompts), self.gen_len, self.templates, self.block_len)
        _check_ids(model, "prompt", self.prompts)
        _check_ids(model, "response", wanted)
        if self.reference is not None and not all(
            len(row) <= len(response) for row, response in zip(self.reference, wanted, strict=True)
        ):
            raise ValueError("a row of reference is longer than its response; cut it to gen_len")
        constraints = self._constraints(model, wanted)
        most, seeds = self.max_steps, row_seeds(self.seed, self.prompts, self.draws)
        budgets = [most or self.decoder.max_steps(len(response), self.block_len) for response in wanted]
        cpu = torch.device("cpu")
        state = DecodeState.begin(model.spec, self.prompts, wanted, self.block_len, seeds, budgets, cpu)
        if constraints is not None:
            state.constraints, state.entry = constraints, constraints.begin()
        return state, wanted

    def _constraints(self, model: Denoiser, wanted: Sequence[Sequence[int]]) -> Constraints | None:
        """Raises ValueError for constraints that these parts, or these responses, cannot keep."""
        given = [automaton for automaton in self.constraints or () if automaton is not None]
        if not given or self.constraints is None:
            return None
        check_can_hold(self.decoder, self.stop)
        sizes = {len(automaton.class_of) for automaton in given}
        if isinstance(model, LanguageModel) and sizes != {model.vocab_size}:
            raise ValueError(
                f"constraints are over {sizes} tokens and model {model.name!r} has {model.vocab_size}; make them with "
                "its vocabulary"
            )
        return Constraints.of(self.constraints, wanted, model.spec)


def takes(
    make: Callable[P, DecodeJob],
) -> Callable[[Callable[[Denoiser, DecodeJob], R]], Callable[Concatenate[Denoiser, P], R]]:
    """A function of a model and a job as one of a model and of all that a job is made of."""

    def decorate(function: Callable[[Denoiser, DecodeJob], R]) -> Callable[Concatenate[Denoiser, P], R]:
        def call(model: Denoiser, *args: P.args, **given: P.kwargs) -> R:
            return function(model, make(*args, **given))

        model = Parameter("model", Parameter.POSITIONAL_OR_KEYWORD, annotation=Denoiser)
        call.__name__, call.__qualname__, call.__doc__ = function.__name__, function.__qualname__, function.__doc__
        call.__module__ = function.__module__
        call.__signature__ = signature(function).replace(  # type: ignore[attr-defined]
            parameters=[model, *signature(make).parameters.values()]
        )
        return named(call)

    return decorate


def check_can_hold(decoder: Decoder, stop: StopRule) -> None:
    """Raises ValueError for a decoder or a stop rule with which no constraint can be kept."""
    if decoder.revise is not None and decoder.revise.rewrites:
        raise ValueError(
            f"{type(decoder.revise).__name__} writes over tokens one by one, so an answer may break its constraint; "
            "use a decoder without it, such as decoder=threshold, or leave the constraint out"
        )
    if stop.looks is not None:
        raise ValueError(
            f"{type(stop).__name__} cuts an answer at an EOS that is only expected, which may break its constraint; "
            "use stop=strict_eos, block_eos, eotp_committed or never, or leave the constraint out"
        )


def check_parts(model: Denoiser, decoder: Decoder, cache: CacheStrategy) -> None:
    """Raises ValueError for what is no model or no cache, when the model cannot use the cache, or the decoder cannot
    use the model or the cache."""
    check_is_denoiser(model)
    check_named(DecodeJob, {"cache": cache}, owner=" of decode")
    spec = model.spec
    cache.check(spec)
    for part in decoder.tree():
        part.check(spec)
    if isinstance(model, LanguageModel):
        decoder.init(Shape(1, 1, model.vocab_size, model.device))  # parts may refuse a vocabulary
    if decoder.needs_noise and not spec.noise:
        raise ValueError("renoising needs a uniform-state model (spec.noise); use one such as model=diffusion_gemma")
    if decoder.needs_shadow and cache != NO_CACHE:
        raise ValueError("this decoder looks at its tokens in the same forward, which needs cache=none")
    if decoder.needs_shadow and not (spec.kv and isinstance(model, ShadowDenoiser)):
        raise ValueError("this decoder looks at its tokens in the same forward, which this kind of model cannot do")
    if decoder.needs_shadow and spec.shift:
        raise ValueError(
            "this decoder looks at its tokens in the same forward, which needs a model without token shift"
        )


def _check_ids(model: Denoiser, what: str, rows: Sequence[Sequence[int]]) -> None:
    """Raises ValueError for a token that the model has no embedding of. Prompts of an ideal model are no tokens."""
    for row, ids in enumerate(rows):
        if isinstance(model, DiffusionLM) and max(ids) >= model.id_limit:
            raise ValueError(
                f"{what} {row} has the token {max(ids)}; give ids below the {model.vocab_size} of model {model.name!r}"
            )
