"""The constraints of a call: which automaton each prompt has, and what its window may hold."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.constraints.automaton import TokenAutomaton, automata_of, vocabulary_of
from decoders.constraints.chain import Lines, Tables, Window
from decoders.constraints.grammars import Grammars
from decoders.constraints.patterns import Constraint, ContextFree
from dllm.spec import ModelSpec


@dataclass
class Constraints:
    """Of all prompts of a call. Only the automata of rows that are being decoded stand on the device.

    automata: of each prompt, None where it is free. completable: by the number of a prompt whose response has fixed
        tokens, the states from which they and the free columns after each column are accepted, `[columns + 1, S]`.
    """

    automata: Sequence[TokenAutomaton | None]
    completable: dict[int, Bool[Tensor, "L S"]]
    _tables: Tables | None = field(default=None, init=False)
    _admitted: frozenset[int] = field(default=frozenset(), init=False)
    _among: list[TokenAutomaton] = field(default_factory=list, init=False)
    _at: Int[Tensor, " N"] = field(init=False)
    _form: Int[Tensor, " N"] = field(init=False)
    _forms: Bool[Tensor, "R L S"] | None = field(default=None, init=False)
    _mixed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._at = torch.full((len(self.automata),), -1)
        self._form = self._at.clone()

    @classmethod
    def from_left(cls, automata: Sequence[TokenAutomaton | None], gen_lens: Sequence[int]) -> "Constraints":
        """For answers that are written from left to right. Raises ValueError for a constraint that no answer of its
        length can keep."""
        for row, (automaton, gen_len) in enumerate(zip(automata, gen_lens, strict=True)):
            if automaton is not None:
                check_length(automaton, gen_len, f"the constraint of prompt {row}")
        return cls(automata, {})

    @classmethod
    def of(
        cls, automata: Sequence[TokenAutomaton | None], responses: Sequence[Sequence[int]], spec: ModelSpec
    ) -> "Constraints":
        """responses: MASK where a token is wanted; any other id is fixed. Raises ValueError for a constraint that no
        answer of this length, or of this template, can keep."""
        completable = dict[int, Tensor]()
        for row, (automaton, response) in enumerate(zip(automata, responses, strict=True)):
            if automaton is None:
                continue
            check_length(automaton, len(response), f"the constraint of prompt {row}")
            if set(response) != {spec.mask_id}:
                completable[row] = _completable(automaton, response, spec)
                if not completable[row][0, automaton.start]:
                    raise ValueError(
                        f"no answer keeps both the constraint and the template of prompt {row}; change one of them"
                    )
        return cls(automata, completable)

    def begin(self) -> Int[Tensor, " N"]:
        """The first state of each prompt's automaton."""
        return self._begin

    @cached_property
    def _begin(self) -> Int[Tensor, " N"]:
        return torch.tensor([0 if automaton is None else automaton.start for automaton in self.automata])

    def admit_(self, prompts: Sequence[int], device: torch.device) -> None:
        """Puts the automata of these prompts, which are all that are being decoded, on the device."""
        if frozenset(prompts) == self._admitted:
            return
        self._admitted = frozenset(prompts)
        number = {id(a): a for p in prompts if (a := self.automata[p]) is not None}
        among = list(number.values())
        if not self._among or [id(a) for a in among] != [id(a) for a in self._among]:
            self._among = among
            self._tables = Tables.of(among, device) if among else None
        place = {id(automaton): i for i, automaton in enumerate(among)}
        templates = [p for p in prompts if p in self.completable]
        form = {prompt: i for i, prompt in enumerate(templates)}
        self._forms = None
        if templates and self._tables is not None:
            length, states = max(len(self.completable[p]) for p in templates), self._tables.lines.least.shape[1]
            forms = torch.zeros(len(templates), length, states, dtype=torch.bool)
            for i, prompt in enumerate(templates):
                known = self.completable[prompt]
                forms[i, : len(known), : known.shape[1]] = known
            self._forms = forms.to(device)
        self._at, self._form = self._at.to(device), self._form.to(device)
        admitted = torch.tensor(prompts, device=device)
        self._at[admitted] = torch.tensor([place.get(id(self.automata[p]), -1) for p in prompts], device=device)
        self._form[admitted] = torch.tensor([form.get(p, -1) for p in prompts], device=device)
        self._mixed = any(self.automata[prompt] is None for prompt in prompts)

    def follow(
        self,
        entry: Int[Tensor, " B"],
        request: Int[Tensor, " B"],
        canvas: Int[Tensor, "B T"],
        begin: Int[Tensor, " B"],
        end: Int[Tensor, " B"],
        columns: int,
    ) -> Int[Tensor, " B"]:
        """The states after the columns from `begin` to `end`, which hold no MASK and are at most so many."""
        if self._tables is None:
            return entry
        which = self._at[request].clamp(min=0)
        rows, each = self._tables.at(which), torch.arange(len(which), device=which.device)
        for offset in range(columns):
            column = begin + offset
            token = canvas[each, column.clamp(max=canvas.shape[1] - 1)]
            of_class = self._tables.class_at(which, token)
            target = self._step(rows, entry, of_class)
            entry = torch.where((column < end) & (target >= 0), target, entry)
        return entry

    def allowed(
        self,
        entry: Int[Tensor, " R"],
        request: Int[Tensor, " R"],
        drafts: Int[Tensor, "R K"],
        left: Int[Tensor, " R"],
    ) -> Bool[Tensor, "R N V"]:
        """The tokens that may stand in the place of the first draft, of the second, ... and after the last one, N of
        them: those with which an answer can still be completed. After a draft that may not stand there: all.

        left: columns of the answer from the first draft on.
        """
        vocab = 0 if self._tables is None else self._tables.vocab
        if self._tables is None:
            return torch.ones((len(drafts), drafts.shape[1] + 1, 1), dtype=torch.bool, device=drafts.device)
        at = self._at[request]
        which, places = at.clamp(min=0), list[Tensor]()
        rows, state = self._tables.at(which), torch.where(at >= 0, entry, -1)
        for place in range(drafts.shape[1] + 1):
            within = rows.least.gather(1, rows.target) <= (left - place - 1)[:, None]
            open_sets = torch.zeros(rows.member.shape[:2], dtype=torch.bool, device=drafts.device)
            open_sets = open_sets.scatter_reduce(1, rows.of_set, (rows.source == state[:, None]) & within, "amax")
            classes = (open_sets.double()[:, None] @ rows.member)[:, 0] > 0
            places.append(classes | (state < 0)[:, None])
            if place < drafts.shape[1]:
                of_class = self._tables.class_at(which, drafts[:, place])
                state = torch.where(
                    places[-1].gather(1, of_class[:, None])[:, 0], self._step(rows, state, of_class), -1
                )
        classes = torch.stack(places, 1)
        index = self._tables.classes_at(which)[:, None].expand(-1, len(places), vocab)
        return classes.gather(2, index)

    @staticmethod
    def _step(rows: Lines, state: Int[Tensor, " R"], of_class: Int[Tensor, " R"]) -> Int[Tensor, " R"]:
        """Where a class leads from a state, -1 for nowhere."""
        each = torch.arange(len(state), device=state.device)
        leads = rows.member[each, :, of_class].gather(1, rows.of_set) > 0
        return torch.where(leads & (rows.source == state[:, None]), rows.target, -1).amax(1)

    def window(
        self,
        entry: Int[Tensor, " B"],
        request: Int[Tensor, " B"],
        canvas: Int[Tensor, "B T"],
        columns: Int[Tensor, "B N"],
        prompt_len: Int[Tensor, " B"],
        behind: Int[Tensor, " B"],
        end: Int[Tensor, " B"],
        mask_id: int,
    ) -> Window | None:
        """What rows may write into the columns of their windows before column `behind`. end: of the whole answer."""
        if self._tables is None:
            return None
        at, stop = self._at[request], torch.minimum(behind, end)
        which = at.clamp(min=0)
        tokens = canvas.gather(1, columns.clamp(max=canvas.shape[1] - 1))
        skip = (columns < prompt_len[:, None]) | (columns >= stop[:, None])
        last = self._tables.at(which).least <= (end - stop)[:, None]
        if self._forms is not None:
            form, place = self._form[request], (stop - prompt_len).clamp(min=0, max=self._forms.shape[1] - 1)
            last = torch.where((form >= 0)[:, None], self._forms[form.clamp(min=0), place], last)
        free = (tokens == mask_id) & ~skip
        return Window(self._tables, which, at >= 0, entry, last, tokens, free, skip, self._mixed)


def _completable(automaton: TokenAutomaton, response: Sequence[int], spec: ModelSpec) -> Bool[Tensor, "L S"]:
    source, target = automaton.source.numpy(), automaton.target.numpy()
    member, class_of = automaton.member.numpy()[automaton.of_set.numpy()], automaton.class_of.numpy()
    states = np.zeros((len(response) + 1, automaton.num_states), dtype=bool)
    states[-1] = automaton.accepting.numpy()
    for column in reversed(range(len(response))):
        leads = states[column + 1][target]
        if response[column] != spec.mask_id:
            leads = leads & member[:, class_of[response[column]]]
        states[column, source[leads]] = True
    return torch.from_numpy(states)


def check_length(automaton: TokenAutomaton, gen_len: int, what: str) -> None:
    """Raises ValueError where no answer of `gen_len` tokens is accepted."""
    if automaton.least_tokens > gen_len:
        raise ValueError(
            f"the shortest answer that keeps {what} takes {automaton.least_tokens} tokens, and gen_length={gen_len}; "
            f"give gen_length={automaton.least_tokens} or more"
        )


def from_left(
    model: Any, constraints: Constraint | Sequence[Constraint | None], gen_lens: Sequence[int]
) -> Constraints | Grammars | None:
    """The constraints of prompts whose answers are written from left to right; None where there are none. Raises
    ValueError for those that cannot be kept, and for grammars next to others."""
    number = len(gen_lens)
    each = [constraints] * number if isinstance(constraints, Constraint) else list(constraints)
    grammars = [constraint for constraint in each if isinstance(constraint, ContextFree)]
    if grammars and len(each) == number:
        if any(constraint is not None and not isinstance(constraint, ContextFree) for constraint in each):
            raise ValueError("some constraints of this call are grammars and others are not; decode them in two calls")
        return Grammars([one if isinstance(one, ContextFree) else None for one in each], vocabulary_of(model))
    automata = automata_of(model, each, number)
    return Constraints.from_left(automata, gen_lens) if any(automata) else None
