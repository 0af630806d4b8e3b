"""Exact inference over what an automaton accepts within a window.

A window is a chain: in each of its W columns a token leads from one state to another. Committed columns are given,
masked ones are free, and after the last column stand only states from which the columns that are left can complete
the answer. Sums over all accepted strings are then sums over pairs of states, column by column, and three of them are
taken: the likeliest completion of each state from the right, the weight of all its completions, and from the left how
probable each pair is. What they give is exact: the likeliest accepted string, samples of the accepted ones, and the
probability of every token at every column given that the string is accepted.

Everything is done for all rows of a batch at once, with no loop over rows and no wait for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from decoders.constraints.automaton import FAR, TokenAutomaton
from decoders.logits import Logits, inverse_cdf

LOWEST = -600.0  # log-weight of a class next to the likeliest of its column, at least: exp of it is a float64 above 0
TINY = 1e-300
MANY = 2**23  # elements of a temporary
LARGE = 512  # tokens of a class that is summed by itself


@dataclass(frozen=True)
class Lines:
    """Automata, one a line, each padded to the largest of them: see `TokenAutomaton`. A pair that is padding begins and
    ends in a state of its own, the last. sets, classes: every class of every set, as pairs of numbers."""

    member: Float[Tensor, "U G C"]
    sets: Int[Tensor, "U F"]
    classes: Int[Tensor, "U F"]
    source: Int[Tensor, "U P"]
    target: Int[Tensor, "U P"]
    of_set: Int[Tensor, "U P"]
    least: Int[Tensor, "U S"]


@dataclass(frozen=True)
class Split:
    """The tokens of one automaton by the size of their classes, without those that lead nowhere: a class of most of a
    vocabulary is one pass over it, and the small ones are a pass over few tokens.

    most: the class of more than half of all tokens, or -1. others: all tokens but those of that class. many: other
    large classes and their tokens. few, class_of: the tokens of small classes, and the class of each.
    """

    most: int
    others: Int[Tensor, " M"]
    many: Sequence[tuple[int, Int[Tensor, " _N"]]]
    few: Int[Tensor, " K"]
    class_of: Int[Tensor, " K"]

    @classmethod
    def of(cls, automaton: TokenAutomaton, device: torch.device) -> "Split":
        size = automaton.class_of.bincount(minlength=automaton.member.shape[1])
        size[0] = 0
        most = int(size.argmax()) if 2 * size.max() > len(automaton.class_of) else -1
        large = [c for c in (size >= LARGE).nonzero()[:, 0].tolist() if c != most]
        many = [(c, (automaton.class_of == c).nonzero()[:, 0].to(device)) for c in large]
        few = (size[automaton.class_of] < LARGE) & (automaton.class_of > 0) & (automaton.class_of != most)
        others = automaton.class_of != most
        few, others = (which.nonzero()[:, 0] for which in (few, others))
        return cls(most, others.to(device), many, few.to(device), automaton.class_of[few].to(device))

    def scores(self, values: Float[Tensor, "N V"], classes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of each of so many classes the largest logit, the log of the sum of all above it, and its token, `[N, C]`."""
        lowest, infinite = torch.finfo(values.dtype).min, float("-inf")
        most, above = (values.new_full((len(values), classes), fill) for fill in (lowest, infinite))
        tokens = torch.zeros_like(most, dtype=torch.long)
        part, index = values.index_select(1, self.few), self.class_of.expand(len(values), -1)
        most.scatter_reduce_(1, index, part, "amax").clamp_(min=lowest)
        best, last = most.gather(1, index), values.shape[1]
        first = torch.where(part == best, self.few, last)
        tokens = tokens.add_(last).scatter_reduce_(1, index, first, "amin").clamp_(max=last - 1)
        sums = torch.zeros_like(most).scatter_add_(1, index, part.sub_(best).exp_())
        above.copy_(sums.log_())
        for number, of_class in [*([(self.most, None)] if self.most >= 0 else []), *self.many]:
            if of_class is None:
                part = values.clone().index_fill_(1, self.others, infinite)
            else:
                part = values.index_select(1, of_class)
            top, at = part.max(1)
            top.clamp_(min=lowest)
            most[:, number], above[:, number] = top, part.sub_(top[:, None]).exp_().sum(1).log_()
            tokens[:, number] = at if of_class is None else of_class[at]
        return most, above, tokens


@dataclass(frozen=True)
class Tables:
    """The automata of a batch, and the class of each token by each of them. split: of an automaton that is alone."""

    lines: Lines
    class_of: Int[Tensor, "U V"]
    split: Split | None

    @classmethod
    def of(cls, automata: Sequence[TokenAutomaton], device: torch.device) -> "Tables":
        """Of automata over one vocabulary."""
        states = max(a.num_states for a in automata) + 1
        classes, pairs = max(a.member.shape[1] for a in automata), max(len(a.source) for a in automata)
        sets = max(a.member.shape[0] for a in automata) + 1
        members = [a.member.nonzero() for a in automata]
        edges = max(map(len, members))

        def each(rows: Sequence[Tensor], width: int, value: int) -> Tensor:
            return torch.stack([pad(row, (0, width - len(row)), value=value) for row in rows]).to(device)

        member = [pad(a.member.double(), (0, classes - a.member.shape[1], 0, sets - len(a.member))) for a in automata]
        lines = Lines(
            member=torch.stack(member).to(device),
            sets=each([edge[:, 0] for edge in members], edges, sets - 1),
            classes=each([edge[:, 1] for edge in members], edges, 0),
            source=each([a.source for a in automata], pairs, states - 1),
            target=each([a.target for a in automata], pairs, states - 1),
            of_set=each([a.of_set for a in automata], pairs, sets - 1),
            least=each([a.least for a in automata], states, FAR),
        )
        split = Split.of(automata[0], device) if len(automata) == 1 else None
        return cls(lines, torch.stack([a.class_of for a in automata]).to(device), split)

    @property
    def vocab(self) -> int:
        return self.class_of.shape[1]

    def at(self, which: Int[Tensor, " B"]) -> Lines:
        """A line for each row."""
        if len(self.class_of) == 1:
            return Lines(
                **{name: value.expand(len(which), *value.shape[1:]) for name, value in vars(self.lines).items()}
            )
        return Lines(**{name: value[which] for name, value in vars(self.lines).items()})

    def class_at(self, which: Int[Tensor, "B ..."], tokens: Int[Tensor, "B ..."]) -> Int[Tensor, "B ..."]:
        """The class of tokens. What is no token of the automaton means nothing."""
        return self.class_of[which, tokens.clamp(max=self.vocab - 1)]

    def classes_at(self, which: Int[Tensor, " N"]) -> Int[Tensor, "N V"]:
        """The class of each token, by the automata of N positions."""
        return self.class_of.expand(len(which), -1) if len(self.class_of) == 1 else self.class_of[which]


@dataclass(frozen=True)
class Window:
    """What B rows may write into their windows.

    which: the automaton of each row. held: rows that have one; the others are free. entry: its state before the window.
    last: states in which it may be after the window. tokens: ids in the window. free: columns to be filled; the others
    are given. skip: columns that are no part of the answer. mixed: whether any row may be free.
    """

    tables: Tables
    which: Int[Tensor, " B"]
    held: Bool[Tensor, " B"]
    entry: Int[Tensor, " B"]
    last: Bool[Tensor, "B S"]
    tokens: Int[Tensor, "B W"]
    free: Bool[Tensor, "B W"]
    skip: Bool[Tensor, "B W"]
    mixed: bool = False
    _last: "list[tuple[Logits, Weighed]]" = field(default_factory=list, init=False, compare=False, repr=False)

    def weigh(self, logits: Logits) -> "Weighed":
        """The sums over what is accepted; of the same logits as the last time, the same. logits: of the free columns,
        in windows of any width with B * W columns."""
        if not self._last or self._last[0][0] is not logits:
            self._last[:] = [(logits, Weighed(self, logits.reshaped(len(self.entry))))]
        return self._last[0][1]


@dataclass(frozen=True)
class Weighed:
    """A window with logits. What is asked for is computed once."""

    window: Window
    logits: Logits

    @cached_property
    def _of_row(self) -> Lines:
        return self.window.tables.at(self.window.which)

    @cached_property
    def _which(self) -> Int[Tensor, "B W"]:
        return self.window.which[:, None].expand(self.window.tokens.shape)

    @cached_property
    def _classes(self) -> tuple[Float[Tensor, "B W C"], Float[Tensor, "B W C"], Int[Tensor, "B W C"] | None]:
        """The largest logit of each class of tokens, the log of their sum, and with one automaton alone the likeliest
        token."""
        tables, number = self.window.tables, self.window.tables.lines.member.shape[2]
        if (split := tables.split) is not None:
            most, above, tokens = self.logits.by_position(lambda values: split.scores(values, number))
            return most.double(), most.double() + above, tokens

        def scores(values: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
            of_class = tables.classes_at(which)
            most = values.new_full((len(values), number), float("-inf"))
            most = most.scatter_reduce_(1, of_class, values, "amax").clamp_(min=torch.finfo(values.dtype).min)
            below = torch.sub(values, most.gather(1, of_class)).exp_()
            return most.double(), values.new_zeros(most.shape).scatter_add_(1, of_class, below).log_()

        most, above = self.logits.by_position(scores, self._which)
        return most, most + above, None

    @cached_property
    def _given(self) -> Float[Tensor, "B W G"]:
        """0 for sets with the class of a given token, -inf for others."""
        window = self.window
        of_class = window.tables.class_at(self._which, window.tokens)
        member = self._of_row.member
        rows = torch.arange(len(member), device=member.device)[:, None]
        return member.transpose(1, 2)[rows, of_class].log()

    @cached_property
    def _sets(self) -> tuple[Float[Tensor, "B W G"], Float[Tensor, "B W G"]]:
        """The largest logit of each set of classes, and the log of their sum."""
        most, total, _ = self._classes
        free = self.window.free[..., None]
        top = total.amax(-1, keepdim=True)
        weight = (total - top).clamp_(min=LOWEST).exp_() @ self._of_row.member.transpose(1, 2)
        total = torch.where(free, weight.log() + top, self._given)
        sets, classes = self._of_row.sets, self._of_row.classes
        best = most.new_full((*most.shape[:2], self._of_row.member.shape[1]), float("-inf"))
        for columns in range(0, most.shape[1], step := max(1, MANY // sets.numel())):
            part = most[:, columns : columns + step]
            index = (len(part), part.shape[1], sets.shape[1])
            found = (part - top[:, columns : columns + step]).clamp_(min=LOWEST)
            found = found.gather(2, classes[:, None].expand(index))
            best[:, columns : columns + step].scatter_reduce_(2, sets[:, None].expand(index), found, "amax")
        return torch.where(free, best + top, self._given), total

    @cached_property
    def _pairs(self) -> tuple[Float[Tensor, "B W P"], Float[Tensor, "B W P"]]:
        """The largest logit that leads from one state to another, and the log of their sum."""
        most, total = self._sets
        index = self._of_row.of_set[:, None].expand(-1, most.shape[1], -1)
        return most.gather(2, index), total.gather(2, index)

    @cached_property
    def _best(self) -> tuple[list[Float[Tensor, "B S"]], list[Float[Tensor, "B P"]]]:
        """By column the log-weight of each state's likeliest completion, and of each pair's; the former once more
        after the last column."""
        rows, skip, (most, _) = self._of_row, self.window.skip, self._pairs
        best = torch.zeros_like(self.window.last, dtype=torch.float64).masked_fill_(~self.window.last, float("-inf"))
        states, pairs = [best], list[Tensor]()
        for column in reversed(range(most.shape[1])):
            pairs.append(most[:, column] + best.gather(1, rows.target))
            new = torch.full_like(best, float("-inf")).scatter_reduce_(1, rows.source, pairs[-1], "amax")
            states.append(best := torch.where(skip[:, column, None], best, new))
        return states[::-1], pairs[::-1]

    @cached_property
    def _moves(self) -> Float[Tensor, "B W P"]:
        """How probable each pair is after its state, given that the answer is accepted."""
        rows, skip, (_, total), (states, _) = self._of_row, self.window.skip, self._pairs, self._best
        before, behind = torch.stack(states[:-1], 1), torch.stack(states[1:], 1)
        index = (len(total), total.shape[1], -1)
        source, target = rows.source[:, None].expand(index), rows.target[:, None].expand(index)
        begun = before.gather(2, source)
        ratio = (total + behind.gather(2, target) - begun).masked_fill_(begun == float("-inf"), float("-inf")).exp_()
        weight, moves, sums = self.window.last.double(), list[Tensor](), list[Tensor]()
        for column in reversed(range(total.shape[1])):
            moves.append(ratio[:, column] * weight.gather(1, rows.target))
            new = torch.zeros_like(weight).scatter_add_(1, rows.source, moves[-1])
            sums.append(new)
            new = new / new.amax(1, keepdim=True).clamp(min=TINY)
            weight = torch.where(skip[:, column, None], weight, new)
        return torch.stack(moves[::-1], 1) / torch.stack(sums[::-1], 1).clamp_(min=TINY).gather(2, source)

    @cached_property
    def _taken(self) -> Float[Tensor, "B W G"]:
        """How probable each set is at each column."""
        rows, skip, moves = self._of_row, self.window.skip, self._moves
        place = torch.zeros_like(self.window.last, dtype=torch.float64).scatter_(1, self.window.entry[:, None], 1)
        taken = list[Tensor]()
        for column in range(moves.shape[1]):
            taken.append(moves[:, column] * place.gather(1, rows.source))
            new = torch.zeros_like(place).scatter_add_(1, rows.target, taken[-1])
            place = torch.where(skip[:, column, None], place, new)
        index = rows.of_set[:, None].expand(-1, moves.shape[1], -1)
        sets = torch.zeros((*moves.shape[:2], rows.member.shape[1]), dtype=torch.float64, device=moves.device)
        return sets.scatter_add_(2, index, torch.stack(taken, 1))

    @cached_property
    def tilt(self) -> Float[Tensor, "B W C"]:
        """What a logit of each class of tokens lacks to the log of its exact probability, given that the answer is
        accepted. -inf for classes that no accepted answer has there. At given columns 0."""
        (_, total), taken = self._sets, self._taken
        weight = (taken.log() - total).masked_fill_(~self.window.free[..., None] | (taken == 0), float("-inf"))
        top = weight.amax(2, keepdim=True).clamp_(min=-1e30)
        tilt = ((weight - top).exp_() @ self._of_row.member).log_() + top
        return torch.where(self.chained[..., None], tilt, 0)

    @cached_property
    def chained(self) -> Bool[Tensor, "B W"]:
        """Columns whose tokens the automaton decides: free ones of rows that have one and can be completed."""
        possible = self._taken.sum(2) > 0
        return self.window.free & ~self.window.skip & self.window.held[:, None] & possible

    def _walk(self, choose: Sequence[Float[Tensor, "B P"]], draw: Float[Tensor, "B W"] | None) -> Int[Tensor, "B W"]:
        """The sets on a path from the first column on. choose: of each column how good each pair is, or how probable
        where one is drawn."""
        rows, skip, state = self._of_row, self.window.skip, self.window.entry[:, None]
        chosen = list[Tensor]()
        for column, value in enumerate(choose):
            here = rows.source == state
            if draw is None:
                pair = value.masked_fill(~here, float("-inf")).argmax(1, keepdim=True)
            else:
                pair = inverse_cdf(value * here, draw[:, column])[:, None].clamp(max=value.shape[1] - 1)
            chosen.append(rows.of_set.gather(1, pair))
            state = torch.where(skip[:, column, None], state, rows.target.gather(1, pair))
        return torch.cat(chosen, 1)

    def _allowed(self, sets: Int[Tensor, "B W"]) -> Logits:
        """The logits of the tokens in one set of each column, all others at -inf. Columns that the automaton does not
        decide keep theirs."""
        rows = torch.arange(len(sets), device=sets.device)[:, None]
        bonus = self._of_row.member[rows, sets].log()
        return self._plus(torch.where(self.chained[..., None], bonus, 0))

    def _plus(self, bonus: Float[Tensor, "B W C"]) -> Logits:
        tables = self.window.tables

        def raised(values: Tensor, bonus: Tensor, which: Tensor) -> Tensor:
            bonus = bonus.to(values)
            if len(tables.class_of) == 1:
                return bonus.index_select(1, tables.class_of[0]).add_(values)
            return bonus.gather(1, tables.classes_at(which)).add_(values)

        return self.logits.each(raised, bonus, self._which)

    def best(self) -> Int[Tensor, "B W"]:
        """The likeliest accepted tokens. Columns that are not `chained` keep theirs."""
        sets, (most, _, tokens) = self._walk(self._best[1], None), self._classes
        if tokens is None:
            best = self._allowed(sets).top[1]
        else:
            rows = torch.arange(len(sets), device=sets.device)[:, None]
            within = most.masked_fill(self._of_row.member[rows, sets] == 0, float("-inf"))
            best = tokens.gather(2, within.argmax(2, keepdim=True))[..., 0]
        return torch.where(self.chained, best, self.window.tokens)

    def sample(self, draw: Float[Tensor, "B W 2"]) -> Int[Tensor, "B W"]:
        """An exact sample of the accepted tokens. draw: two uniform numbers in (0, 1) a column."""
        return self._allowed(self._walk(self._moves.unbind(1), draw[..., 0])).sample(draw[..., 1], 1.0)

    def marginals(self) -> "Logits":
        """The logits of each column given that the answer is accepted, normalised where they are `chained`. They take
        a pass over the vocabulary, which is made when somebody asks for one of them."""
        return Logits.later(self.logits.shape, lambda: self._plus(self.tilt))

    def log_prob(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """The log of the exact probability of tokens, each by itself, where they are `chained`."""
        of_class = self.window.tables.class_at(self._which, tokens)
        tilt = self.tilt.gather(2, of_class[..., None])[..., 0]
        return (self.logits.at(tokens[..., None])[..., 0].double() + tilt).clamp(max=0)
