"""Ideal models: exact posteriors of small answer distributions, so that no loss of a decoder can be the network's.

A perfect masked diffusion LM gives p(token at column | what is decided) for every masked column. These do, for
distributions whose answers can be listed or counted; each is a `Denoiser` through `ExactModel`.
"""

from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm.cache import Plan
from dllm.soft import SoftInput
from dllm.spec import ModelSpec

UNDECIDED = -1


@runtime_checkable
class Posterior(Protocol):
    """length: columns of an answer. num_tokens: tokens 0 .. num_tokens - 1 occur in answers."""

    @property
    def length(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    def marginals(self, tokens: Int[Tensor, "R n"]) -> Float[Tensor, "R n V"]:
        """Probability of each token at each undecided column given the decided ones (UNDECIDED: not yet); what it
        says of decided columns means nothing."""
        ...


@dataclass(frozen=True)
class Enumerated:
    """Any distribution that can be listed: `answers` `[A, n]` with `weights` `[A]` that sum to one.

    Decided tokens that no answer has (a decoder's mistake) leave the answers that agree with most of them.
    """

    answers: Int[Tensor, "A n"]
    weights: Float[Tensor, " A"]

    def __post_init__(self) -> None:
        if len(self.answers) != len(self.weights) or not len(self.weights) or self.weights.min() < 0:
            raise ValueError("each answer needs a weight that is not negative")
        if abs(float(self.weights.sum()) - 1) > 1e-6:
            raise ValueError(f"the weights of the answers sum to {float(self.weights.sum()):.6g}, not to 1")

    @property
    def length(self) -> int:
        return self.answers.shape[1]

    @property
    def num_tokens(self) -> int:
        return int(self.answers.max()) + 1

    def marginals(self, tokens: Int[Tensor, "R n"]) -> Float[Tensor, "R n V"]:
        agree = ((tokens[:, None] == self.answers) & (tokens[:, None] != UNDECIDED)).sum(-1)
        weights = self.weights * (agree == agree.amax(1, keepdim=True))
        weights = weights / weights.sum(1, keepdim=True)
        one_hot = torch.nn.functional.one_hot(self.answers, self.num_tokens).to(weights.dtype)
        return torch.einsum("ra,anv->rnv", weights, one_hot)


@dataclass(frozen=True)
class Permutations:
    """Every order of n items equally likely (ParallelBench's shuffle, the identity counted)."""

    length: int

    @property
    def num_tokens(self) -> int:
        return self.length

    def marginals(self, tokens: Int[Tensor, "R n"]) -> Float[Tensor, "R n V"]:
        items = torch.arange(self.length)
        left = (tokens[..., None] != items).all(1)
        left = left | ~left.any(1, keepdim=True)  # after a mistake all may be gone
        shares = left.double() / left.sum(1, keepdim=True)
        return shares[:, None].expand(-1, self.length, -1)

    def enumerated(self) -> Enumerated:
        answers = torch.tensor(list(permutations(range(self.length))))
        return Enumerated(answers, torch.full((len(answers),), 1 / len(answers), dtype=torch.float64))


@dataclass(frozen=True)
class OneReplaced:
    """Items 0 .. n - 1 in order, one of them (any, equally likely) replaced by item n: ParallelBench's replace
    random."""

    length: int

    @property
    def num_tokens(self) -> int:
        return self.length + 1

    def marginals(self, tokens: Int[Tensor, "R n"]) -> Float[Tensor, "R n V"]:
        open_, there = tokens == UNDECIDED, (tokens == self.length).any(1, keepdim=True)
        replaced = torch.where(there, 0.0, open_ / open_.sum(1, keepdim=True).clamp(min=1))[..., None].double()
        marginals = torch.eye(self.length, self.num_tokens, dtype=torch.float64) * (1 - replaced)
        marginals[..., self.length] = replaced[..., 0]
        return marginals

    def enumerated(self) -> Enumerated:
        answers = torch.arange(self.length).repeat(self.length, 1).fill_diagonal_(self.length)
        return Enumerated(answers, torch.full((self.length,), 1 / self.length, dtype=torch.float64))


@dataclass(frozen=True)
class ExactModel:
    """A posterior as a `Denoiser`: the response is the answer, whatever the prompt says. MASK, EOS and PAD are the
    three ids after its tokens. Bidirectional, and exact under every cache, since it reads the canvas alone."""

    posterior: Posterior
    spec: ModelSpec = field(init=False)

    def __post_init__(self) -> None:
        first = self.posterior.num_tokens
        object.__setattr__(self, "spec", ModelSpec(mask_id=first, eos_ids=(first + 1,), pad_id=first + 2))

    def new_kv(self, prompt_len: Int[Tensor, " B"], length: int) -> Int[Tensor, " B"]:
        """Where responses begin is all that it keeps."""
        return prompt_len

    def logits(
        self,
        canvas: Int[Tensor, "B T"],
        plan: Plan,
        want: Int[Tensor, "R W"],
        *,
        end: Int[Tensor, " B"],
        kv: Any,
        soft: SoftInput | None = None,
    ) -> Float[Tensor, "R W V"]:
        """Log probabilities for the columns `want`, in float64; -inf is exact. A column past the answer is anybody's
        guess. Raises ValueError for soft inputs."""
        if soft is not None:
            raise ValueError("an exact posterior takes no soft inputs")
        begin, last = kv[plan.rows, None], self.posterior.length - 1
        columns = (begin + torch.arange(last + 1)).clamp(max=canvas.shape[1] - 1)
        tokens = canvas[plan.rows].gather(1, columns)
        marginals = self.posterior.marginals(tokens.masked_fill(tokens >= self.posterior.num_tokens, UNDECIDED))
        place = (want - begin).clamp(0, last)[..., None].expand(-1, -1, marginals.shape[-1])
        logits = marginals.gather(1, place).log()
        return torch.nn.functional.pad(logits, (0, 3), value=float("-inf"))
