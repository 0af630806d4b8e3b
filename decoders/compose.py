"""A decoder is put together from parts: transforms, candidates, rescoring, a rule, at least one commit, a revision, a
soft step."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from decoders.logits import Logits
from decoders.propose import propose, propose_held
from decoders.types import (
    ANY,
    Candidates,
    CommitRule,
    Confidence,
    LogitTransform,
    Memory,
    Part,
    Rescore,
    Revise,
    Shape,
    SoftStep,
    Update,
    View,
)
from dllm.validation import Checked, NonNegative


@dataclass(frozen=True)
class Decoder(Checked):
    """Decides what a step writes. It is a frozen config. All state is in the memory that the loop keeps for one decode
    call.

    rule: says which masked positions take their candidate.
    transforms: change the logits, in order.
    rescore: change the candidates' confidence, in order.
    revise: turns the commits into the final update. None: that of the rule (`CommitRule.revision`), or they are the
        update.
    soft: says what undecided positions show the model next. None: MASK.
    temperature: of the draw of candidates. 0 takes the likeliest token. Confidences are of the distribution without it,
        unless the rule is `tempered`.
    confidence: how positions are compared (`decoders.propose`). None: the usual one of the rule (`Part.scale`).
    at_least_one: a step that would commit nothing commits the surest position. None: unless the rule or the revision
        has `empty_steps`, as published.

    Raises ValueError for a part of another kind than its place asks for, and for parts that do not go together.
    """

    rule: CommitRule
    transforms: Sequence[LogitTransform] = ()
    rescore: Sequence[Rescore] = ()
    revise: Revise | None = None
    soft: SoftStep | None = None
    temperature: NonNegative = 0.0
    confidence: Confidence | None = None
    at_least_one: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        own, rule = self.rule.revision, type(self.rule).__name__
        if own is not None and self.revise not in (None, own):
            raise ValueError(f"revise={self.revise}, but {rule} has a revision of its own; leave revise out")
        self._fill("revise", own)
        self._fill("confidence", self._usual_confidence())
        assert self.confidence is not None
        for part in self.tree():
            part.check_partners(self.rule, self.revise, self.confidence)
        waits = any(part.empty_steps for part in (*_tree([self.rule]), self.revise) if part is not None)
        if self.at_least_one is False and not waits:
            raise ValueError(f"at_least_one=False, but {rule} has no empty steps as published; leave at_least_one out")
        self._fill("at_least_one", not waits)

    def _fill(self, name: str, value: Any) -> None:
        """Sets a field that was not given."""
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _usual_confidence(self) -> Confidence:
        """The first confidence of the rule, or of the one inside it, that every part can read. Raises ValueError where
        there is none, and for another one that was given."""
        *_, rule = (part for part in _tree([self.rule]) if isinstance(part, CommitRule))
        parts = list(self.tree())
        fitting: list[Confidence] = [kind for kind in rule.scale if all(kind in part.scale for part in parts)]
        readers = [part for part in parts if set(part.scale) != set(ANY)]
        orders = [part for part in self.rescore if part.orders]
        if orders and any(isinstance(part, CommitRule) for part in readers):
            raise ValueError(
                f"{type(orders[0]).__name__} only orders positions, and {type(self.rule).__name__} compares how sure "
                "they are; use a rule that counts, such as FixedK"
            )
        read = "; ".join(f"{type(part).__name__} reads {' or '.join(part.scale)}" for part in readers)
        if not fitting:
            raise ValueError(f"these parts have no confidence in common: {read}; use others together")
        if self.confidence is not None and self.confidence not in fitting:
            raise ValueError(f"confidence={self.confidence!r} of Decoder, but {read}; give {' or '.join(fitting)}")
        return fitting[0]

    def tree(self) -> Iterator[Part]:
        """All parts. The parts inside a part come right after it."""
        return _tree(self._parts())

    def init(self, shape: Shape) -> list[Memory]:
        """Empty memory of every part, for one decode call."""
        return [part.init(shape) for part in self._parts()]

    def step(self, view: View, memory: list[Memory]) -> Update:
        """One decision for all rows. Changes `memory` only."""
        if any(memory):
            reset(memory, view.step == 0)
        parts = iter(memory)
        logits = self._tempered(view.logits)
        for transform in self.transforms:
            logits = transform(view, logits, next(parts))
        if view.window is not None and logits is not view.logits:
            logits = _reached(logits, view.logits)
        candidates = self._propose(view, logits)
        if view.window is not None:
            view, logits = _given_accepted(view, logits)
        for rescore in self.rescore:
            candidates = rescore(view, candidates, next(parts))
        of_rule = next(parts)
        write = self.rule(view, candidates, of_rule) & view.masked
        if self.at_least_one:
            forced = view.masked if view.forced is None else view.masked & view.forced[:, None]
            write = or_surest(write, candidates.confidence, forced)
        if view.together is not None:
            confidence, masked = (
                t.reshape(-1, view.together * t.shape[1]) for t in (candidates.confidence, view.masked)
            )
            write = write | surest(confidence, masked).view_as(write)
        update = Update(candidates.tokens, write)
        if self.revise is not None:
            update = self.revise(view, candidates, write, next(parts))
            update = replace(update, write=update.write & view.live)
        soft = None if self.soft is None else self.soft(view, logits, next(parts))
        return replace(update, soft=soft, accepted=of_rule.get("accepted"))

    def propose(self, view: View, logits: Logits) -> Candidates:
        """What a decoder without transforms and rescoring compares."""
        return self._propose(view, self._tempered(logits))

    def _tempered(self, logits: Logits) -> Logits:
        """What the transforms are given."""
        return logits.each(lambda values: values / self.temperature) if self._tempers else logits

    def _propose(self, view: View, logits: Logits) -> Candidates:
        assert self.confidence is not None, "it was filled in"
        temperature = 1.0 if self._tempers else self.temperature
        if view.window is None:
            return propose(view, logits, temperature, self.confidence)
        return propose_held(view, view.window, logits, temperature, self.confidence)

    @property
    def _tempers(self) -> bool:
        """Whether the temperature comes before everything else, and not at the draw."""
        return self.temperature > 0 and any(part.tempered for part in _tree([self.rule]))

    @property
    def needs_shadow(self) -> bool:
        """Whether a step needs `View.shadow`."""
        return any(part.needs_shadow for part in self.tree())

    @property
    def needs_reference(self) -> bool:
        """Whether a step needs `View.reference`."""
        return any(part.needs_reference for part in self.tree())

    @property
    def needs_decided(self) -> bool:
        """Whether a step needs the logits of positions that are decided already."""
        return self.revise is not None or any(part.needs_decided for part in self.tree())

    @property
    def needs_noise(self) -> bool:
        """Whether it is for uniform-state models alone."""
        return any(part.needs_noise for part in self.tree())

    @property
    def needs_one_block(self) -> bool:
        """Whether it cannot decide several open blocks of a row."""
        return any(part.needs_one_block for part in self.tree())

    @property
    def identity(self) -> str:
        """A text that tells the decoder's learned weights from others, empty where it has none."""
        return "".join(part.identity for part in self.tree())

    def check_window(self, block_len: int) -> None:
        """Raises ValueError when a part was made for narrower windows."""
        for part in self.tree():
            if part.widest is not None and block_len > part.widest:
                raise ValueError(
                    f"block_length={block_len}, but the filter of this decoder was trained on blocks of {part.widest}; "
                    f"use block_length={part.widest} or a filter trained on {block_len}"
                )

    def max_steps(self, gen_len: int, block_len: int) -> int:
        """Forwards after which the loop gives a row up.

        A decoder that commits in each step and revises nothing needs at most one per token. Any other one gets, per
        window, eight per column or twice the steps that it was given, whichever is more.
        """
        if self.at_least_one and self.revise is None:
            return gen_len
        steps = max(part.steps for part in self.tree())
        num_windows = -(-gen_len // block_len) + 1  # on a model's grid the first and the last may be cut
        return num_windows * max(8 * block_len, 2 * steps, 32)

    def _parts(self) -> list[Part]:
        optional = [part for part in (self.revise, self.soft) if part is not None]
        return [*self.transforms, *self.rescore, self.rule, *optional]


OUT_OF_REACH = 300.0  # nats below its logit, of a token that a filter left out


def _reached(logits: Logits, before: Logits) -> Logits:
    """What transforms gave, where tokens that they left out are very improbable: a constraint may leave no other."""

    def kept(values: Tensor, before: Tensor) -> Tensor:
        return torch.where(values == float("-inf"), before - OUT_OF_REACH, values)

    return logits.each(kept, before.values)


def _given_accepted(view: View, logits: Logits) -> tuple[View, Logits]:
    """A view whose logits are exact given that the answers are accepted, and so those that transforms gave."""
    assert view.window is not None
    exact = view.window.weigh(logits).marginals().reshaped(len(view.tokens))
    plain = exact if logits is view.logits else view.window.weigh(view.logits).marginals().reshaped(len(view.tokens))
    return replace(view, logits=plain), exact


def check_is_decoder(decoder: object) -> None:
    """Raises ValueError, with how to make a decoder, unless it is one."""
    if isinstance(decoder, Decoder):
        return
    if isinstance(decoder, CommitRule):
        raise ValueError(f"{decoder!r} is a rule, not a decoder; wrap it: decoders.Decoder({decoder!r})")
    what = "a name" if isinstance(decoder, str) else "a part" if isinstance(decoder, Part) else "something else"
    raise ValueError(
        f"{decoder!r} is {what}, not a decoder; give decoders.Decoder(rule), such as "
        "decoders.Decoder(decoders.Threshold())"
    )


def _tree(parts: Iterable[Part]) -> Iterator[Part]:
    """Parts and the parts inside them."""
    for part in parts:
        yield part
        yield from _tree(part.parts())


def reset(memory: list[Memory], rows: Bool[Tensor, " B"]) -> None:
    """Zeroes the memory of the given rows, in place. Evidence of one block or request must not reach the next."""
    for part in memory:
        for tensor in part.values():
            tensor.masked_fill_(rows.view(-1, *[1] * (tensor.ndim - 1)), 0)


def or_surest(
    write: Bool[Tensor, "B W"], confidence: Float[Tensor, "B W"], where: Bool[Tensor, "B W"]
) -> Bool[Tensor, "B W"]:
    """`write`, and in rows where it is empty the `surest` of `where`."""
    may = torch.where(write.any(1, keepdim=True), write, where)
    return write.scatter(1, _place_of_surest(confidence, may), True) & may


def surest(confidence: Float[Tensor, "B W"], where: Bool[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
    """The most confident position of `where` in each row, the leftmost of equals. A row where none is allowed gets
    none."""
    return torch.zeros_like(where).scatter_(1, _place_of_surest(confidence, where), True) & where


def _place_of_surest(confidence: Float[Tensor, "B W"], where: Bool[Tensor, "B W"]) -> Int[Tensor, "B 1"]:
    return torch.where(where, confidence, float("-inf")).argmax(1, keepdim=True)
