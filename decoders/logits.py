"""The logits of a step and the statistics of them. Each is computed once, however many parts ask for it.

A vocabulary has 10^5 tokens, so one pass over the logits costs as much as the rest of a decoder's step. A sparse bonus
(`boosted`) therefore corrects the statistics and makes no new pass.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor


class Logits:
    """Logits `[B, W, V]` in float32 (float64 stays), MASK at -inf. Never changed in place.

    Those of some positions may not be there, because nobody asked for them. Every statistic is 0 at these.
    """

    def __init__(self, values: Float[Tensor, "B W V"]) -> None:
        self.shape = values.shape
        self._pieces = (_Piece(_in_float(values).flatten(0, 1), None),)
        self._boost: _Boost | None = None

    @classmethod
    def of(
        cls,
        batch: int,
        width: int,
        pieces: Sequence[tuple[Int[Tensor, " _N"], Float[Tensor, "_N V"]]],
    ) -> "Logits":
        """Logits of some positions of `batch` windows of `width`: each piece has their places among the batch * width
        of all windows (one may come twice), and the logits there."""
        self = cls.__new__(cls)
        self.shape = torch.Size((batch, width, pieces[0][1].shape[-1]))
        self._pieces = tuple(_Piece(_in_float(values), index) for index, values in pieces)
        self._boost = None
        return self

    @classmethod
    def later(cls, shape: torch.Size, make: "Callable[[], Logits]") -> "Logits":
        """Logits that are made when the first statistic of them is asked for."""
        self = cls.__new__(cls)
        self.shape, self._boost, self._make = shape, None, lambda: make()._pieces
        return self

    @property
    def _pieces(self) -> "tuple[_Piece, ...]":
        if self._make is not None:
            self._pieces = self._make()
        return self._made

    @_pieces.setter
    def _pieces(self, pieces: "tuple[_Piece, ...]") -> None:
        self._made, self._make = pieces, None

    def reshaped(self, batch: int) -> "Logits":
        """The same in `batch` windows, of which each is several of these side by side, or a part of one."""
        shape = torch.Size((batch, self.shape[0] * self.shape[1] // batch, self.shape[2]))
        return Logits.later(shape, lambda: self)

    def take(self, rows: Int[Tensor, " R"]) -> "Logits":
        """Those of some of the windows, each of them once."""
        batch, width = self.shape[:2]
        number = rows.new_full((batch,), -1).index_copy(0, rows, torch.arange(len(rows), device=rows.device))
        everywhere, pieces = torch.arange(batch * width, device=rows.device), []
        for piece in self._pieces:
            index = everywhere if piece.index is None else piece.index
            kept = (number[index // width] >= 0).nonzero()[:, 0]
            index = index[kept]
            pieces.append((number[index // width] * width + index % width, piece.values[kept]))
        return Logits.of(len(rows), width, pieces)

    @cached_property
    def values(self) -> Float[Tensor, "B W V"]:
        """The logits, 0 where there are none: as large as all of them, unless they are."""
        if self._boost is not None:
            return self._boost.values()
        (first, *rest) = self._pieces
        if first.index is None:
            return first.values.view(self.shape)
        dense = first.values.new_zeros((self.shape[0] * self.shape[1], self.shape[2]))
        for piece in (first, *rest):
            dense[piece.index] = piece.values
        return dense.view(self.shape)

    @property
    def device(self) -> torch.device:
        return self._pieces[0].values.device

    def each(self, function: Callable[..., Tensor], *tensors: Shaped[Tensor, "B W ..."]) -> "Logits":
        """Other logits where these are: `function` of those of N positions `[N, V]` and what `tensors` hold there."""
        other = Logits.__new__(Logits)
        other.shape, other._boost = self.shape, None
        other._pieces = tuple(replace(piece, values=function(*here)) for piece, here in self._split(*tensors))
        return other

    def _split(self, *tensors: Shaped[Tensor, "B W ..."]) -> Iterator[tuple["_Piece", list[Tensor]]]:
        """Each piece, with its logits, boosted, and what `tensors` hold at its positions."""
        pieces = self._pieces if self._boost is None else Logits(self.values)._pieces
        flat = [tensor.flatten(0, 1) for tensor in tensors]
        for piece in pieces:
            yield piece, [piece.values, *(t if piece.index is None else t[piece.index] for t in flat)]

    def by_position(
        self, function: Callable[..., tuple[Tensor, ...]], *tensors: Shaped[Tensor, "B W ..."], parts: int = 1
    ) -> list[Tensor]:
        """`function` of logits `[N, V]` and what `tensors` hold there, on all positions at once or, where they are
        many, in parts of bounded memory. parts: at least that many, where `function` holds much at once.

        A softmax with its maximum takes 1.6 times one plain softmax over everything. In parts it takes 0.65 times.
        """
        batch, width, vocab = self.shape
        found: list[Tensor] = []
        for piece, here in self._split(*tensors):
            most = -(-len(here[0]) // parts)
            number = max(1, min(most, (_CUDA_PIECE if here[0].is_cuda else _PIECE) // vocab))
            if len(here[0]) <= number:
                results = function(*here)
            else:
                given = [function(*part) for part in zip(*(tensor.split(number) for tensor in here), strict=True)]
                results = [torch.cat(part) for part in zip(*given, strict=True)]
            if piece.index is None:
                return [result.unflatten(0, (batch, width)) for result in results]
            found = found or [result.new_zeros((batch, width, *result.shape[1:])) for result in results]
            for whole, result in zip(found, results, strict=True):
                if result.ndim == 1 and not torch.are_deterministic_algorithms_enabled():  # which refuse put_
                    whole.put_(piece.index, result)
                else:
                    whole.flatten(0, 1)[piece.index] = result
        return found

    @cached_property
    def _best(self) -> tuple[Float[Tensor, "B W"], Int[Tensor, "B W"], Float[Tensor, "B W"]]:
        """Probability, token and logit of the likeliest token.

        The probability is 1 / (1 + all others over it), of a sum without it and in float64. It is 1 only where float64
        has no number below 1 for it; a float32 softmax is from about 1 - 3e-8 on, which makes all surer ones equal.
        """

        def best(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logit, tokens = values.max(-1, keepdim=True)
            prob = values.softmax(-1)
            top = prob.gather(-1, tokens)[:, 0].double()
            others = prob.scatter_(-1, tokens, 0).sum(-1)
            return top / (top + others), tokens[:, 0], logit[:, 0]

        prob, tokens, logit = self.by_position(best)
        return prob, tokens, logit

    @cached_property
    def top(self) -> tuple[Float[Tensor, "B W"], Int[Tensor, "B W"]]:
        """The largest logit and its token."""
        if self._boost is not None:
            return self._boost.top()
        _, tokens, logit = self._best
        return logit, tokens

    @cached_property
    def log_norm(self) -> Float[Tensor, "B W"]:
        """log sum_v exp(l_v), in the logits' precision."""
        logit = self.top[0]
        return logit - self.top_prob().log().to(logit.dtype)

    def at(self, tokens: Int[Tensor, "B W K"]) -> Float[Tensor, "B W K"]:
        """Logits of given tokens."""
        if self._boost is not None:
            return self._boost.at(tokens)
        return self.by_position(lambda values, tokens: (values.gather(-1, tokens),), tokens)[0]

    def probs_at(self, tokens: Int[Tensor, "B W K"]) -> Float[Tensor, "B W K"]:
        """Probabilities of given tokens, float64."""
        below = self.at(tokens).double() - self.top[0].double()[..., None]
        return below.exp() * self.top_prob()[..., None]

    def prob(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Probabilities of given tokens, one per position, float64."""
        return self.probs_at(tokens[..., None])[..., 0]

    def top_prob(self) -> Float[Tensor, "B W"]:
        """Probability of the likeliest token, float64."""
        return self._best[0] if self._boost is None else self._boost.top_prob

    def margin(self) -> Float[Tensor, "B W"]:
        """Probability of the likeliest token minus that of the second, float64."""
        first, second = self.two_best.double().unbind(-1)
        return self.top_prob() * -(second - first).expm1()

    @cached_property
    def two_best(self) -> Float[Tensor, "B W 2"]:
        """The two largest logits, the largest first."""
        return self.by_position(lambda values: (values.topk(2, dim=-1).values,))[0]

    @cached_property
    def entropy(self) -> Float[Tensor, "B W"]:
        """Entropy in nats, float64: -log p of the likeliest token, and how far the others lie below it on average."""

        def entropies(values: Tensor, logit: Tensor, prob: Tensor) -> tuple[Tensor]:
            below = (values - logit[..., None]).clamp_(min=-1e4)  # 0 * -inf would be nan
            entropy = -prob.log() - prob * below.exp().mul_(below).sum(-1)
            return (entropy.masked_fill_(prob == 0, 0),)

        return self.by_position(entropies, self.top[0], self.top_prob())[0]

    def sample(self, draw: Float[Tensor, "B W"], temperature: float) -> Int[Tensor, "B W"]:
        """Tokens of the tempered distribution, by inverse CDF summed in float64.

        draw: uniform numbers in (0, 1), float64. The result is distributed as with Gumbel-max (LLaDA, arXiv 2502.09992,
            which needs float64 noise for each token) and takes one random number per position.
        """

        def choose(values: Tensor, best: Tensor, draw: Tensor) -> tuple[Tensor]:
            return (inverse_cdf((values - best[:, None]).div_(temperature).exp_(), draw),)

        return self.by_position(choose, self.top[0], draw, parts=2)[0]  # float64 sums are as large as two logits

    def nucleus(self, p: float) -> Float[Tensor, "B W"]:
        """The least logit of the fewest likeliest tokens whose probabilities reach p."""

        def least(values: Tensor, log_norm: Tensor) -> tuple[Tensor]:
            ordered = values.sort(dim=-1, descending=True).values
            prob = (ordered - log_norm[:, None]).exp_()
            before = prob.cumsum(-1).sub_(prob)
            return (ordered.masked_fill_(before >= p, float("inf")).amin(-1),)

        return self.by_position(least, self.log_norm)[0]

    def top_p(self, p: float) -> "Logits":
        """The fewest likeliest tokens whose probabilities reach p, and those as likely as the last; others at -inf."""

        def kept(values: Tensor, least: Tensor) -> Tensor:
            return values.masked_fill(values < least[:, None], float("-inf"))

        return self.each(kept, self.nucleus(p))

    def top_k(self, k: int) -> "Logits":
        """The k likeliest tokens, and those as likely as the k-th; others at -inf."""
        k = min(k, self.shape[-1])
        return self.each(lambda v: v.masked_fill(v < v.topk(k, dim=-1).values[..., -1:], float("-inf")))

    def without(self, tokens: Sequence[int]) -> "Logits":
        """All tokens but these, which are at -inf."""

        def kept(values: Tensor) -> Tensor:
            values = values.clone()
            for token in tokens:  # a tensor of them would have to be sent to the device
                values[:, token] = float("-inf")
            return values

        return self.each(kept)

    def probs(self) -> Float[Tensor, "B W V"]:
        """All probabilities, in a new tensor of the logits' size."""
        return (self.values - self.log_norm[..., None]).exp_()

    def boosted(self, tokens: Int[Tensor, "B W K"], bonus: Float[Tensor, "B W K"]) -> "Logits":
        """These logits plus a bonus for a few tokens per position.

        bonus: >= 0. The tokens of a position must differ where their bonus is not 0.
        """
        boosted = self.each(lambda values: values)
        boosted._boost = _Boost(self, tokens, bonus)
        return boosted


@dataclass(frozen=True)
class _Boost:
    """Base logits plus sparse bonuses. The statistics of the sum are exact."""

    base: Logits
    tokens: Int[Tensor, "B W K"]
    bonus: Float[Tensor, "B W K"]

    def values(self) -> Float[Tensor, "B W V"]:
        return self.base.values.scatter_add(-1, self.tokens, self.bonus.to(self.base.values.dtype))

    def top(self) -> tuple[Float[Tensor, "B W"], Int[Tensor, "B W"]]:
        # bonuses are >= 0, so the winner is a boosted token or the old winner
        token = self.base.top[1][..., None]
        rivals = torch.cat([token, self.tokens], dim=-1)
        boosted = self.base.at(self.tokens) + self.bonus  # not `at`, which compares every token with every other
        value, place = torch.cat([self.at(token), boosted], dim=-1).max(-1)
        return value, rivals.gather(-1, place[..., None])[..., 0]

    @cached_property
    def top_prob(self) -> Float[Tensor, "B W"]:
        token, (logit, before) = self.top()[1], self.base.top
        old = self.base.at(self.tokens).double() - logit.double()[..., None]
        gain = old.exp() * self.bonus.double().expm1()  # what a bonus adds, over the old winner's weight
        is_top, stays = self.tokens == token[..., None], token == before
        own = (self.base.at(token[..., None])[..., 0] - logit).double().exp()
        prob = self.base.top_prob()
        others = (1 - prob) / prob + torch.where(stays, 0, 1 - own) + gain.masked_fill(is_top, 0).sum(-1)
        weight = own + gain.masked_fill(~is_top, 0).sum(-1)
        return weight / (weight + others)

    def at(self, tokens: Int[Tensor, "B W K"]) -> Float[Tensor, "B W K"]:
        same = tokens[..., None] == self.tokens[..., None, :]
        return self.base.at(tokens) + (same * self.bonus[..., None, :]).sum(-1)


@dataclass(frozen=True)
class _Piece:
    """Logits `[N, V]`, and the place of each position among the B * W of all windows; None: all of them in order."""

    values: Float[Tensor, "N V"]
    index: Int[Tensor, " N"] | None


_PIECE = 2**22  # elements; small enough that its temporaries are reused, not mapped anew
_CUDA_PIECE = 2**28  # 1 GiB of float32; 16 canvases of 256 with a vocabulary of 262,144 would be 4


def inverse_cdf(weights: Float[Tensor, "... V"], draw: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """A token of each distribution, which need not be normalised. draw: uniform numbers in (0, 1), float64."""
    cumulated = weights.cumsum(-1, dtype=torch.float64)
    total = cumulated[..., -1:]
    # right=True steps over tokens of probability 0; a draw must stay below the total
    target = (draw[..., None] * total).clamp(max=total * (1 - 2**-52))
    return torch.searchsorted(cumulated, target, right=True)[..., 0]


def _in_float(values: Tensor) -> Tensor:
    return values if values.dtype in (torch.float32, torch.float64) else values.float()
