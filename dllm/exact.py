"""Ideal models: exact posteriors of small answer distributions. A decoder's losses on them are never the network's
fault.

A perfect masked diffusion LM gives p(token at a column | what is decided) for every masked column. These models do, for
distributions whose answers can be listed or counted. `ExactModel` makes each a `Denoiser`.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm.plan import Plan
from dllm.protocols import Text
from dllm.soft import SoftInput
from dllm.spec import ModelSpec

UNDECIDED = -1


@runtime_checkable
class Posterior(Protocol):
    """length: columns of an answer.
    num_tokens: answers hold tokens 0 .. num_tokens - 1."""

    @property
    def length(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    def marginals(self, tokens: Int[Tensor, "R n"]) -> Float[Tensor, "R n V"]:
        """Probability of each token at each undecided column (UNDECIDED), given the decided ones. At decided columns
        the numbers mean nothing."""
        ...

    def valid(self, answers: Int[Tensor, "R n"]) -> Bool[Tensor, " R"]:
        """Which answers have positive probability."""
        ...


@dataclass(frozen=True)
class Enumerated:
    """Any distribution that can be listed.

    answers: `[A, n]` tokens.
    weights: their probabilities, `[A]`, which sum to one.

    After a mistake no answer has all decided tokens. Then those answers count that agree with most of them.
    """

    answers: Int[Tensor, "A n"]
    weights: Float[Tensor, " A"]

    def __post_init__(self) -> None:
        if len(self.answers) != len(self.weights) or not len(self.weights) or self.weights.min() < 0:
            raise ValueError("each answer needs a weight that is not negative")
        if abs(float(self.weights.sum()) - 1) > 1e-6:
            raise ValueError(f"the weights of the answers sum to {float(self.weights.sum()):.6g}, not to 1")

    @classmethod
    def uniform(cls, answers: Int[Tensor, "A n"]) -> "Enumerated":
        """All answers equally likely."""
        return cls(answers, torch.full((len(answers),), 1 / len(answers), dtype=torch.float64))

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

    def valid(self, answers: Int[Tensor, "R n"]) -> Bool[Tensor, " R"]:
        return (answers[:, None] == self.answers[self.weights > 0]).all(-1).any(1)


@dataclass(frozen=True)
class Permutations:
    """Every order of n items is equally likely (ParallelBench's shuffle).

    identity: whether the given order 0 .. n - 1 counts, as in ParallelBench's analysis, or not, as for its scorer.

    Answers are counted and not listed. Marginals of R rows take R n^2 numbers: 8 MB and a few ms for 10,000 rows of n =
    10, whose n! answers alone would take 290 MB.
    """

    length: int
    identity: bool = True

    @property
    def num_tokens(self) -> int:
        return self.length

    def marginals(self, tokens: Int[Tensor, "R n"]) -> Float[Tensor, "R n V"]:
        items = torch.arange(self.length)
        left = (tokens[..., None] != items).all(1)
        left = left | ~left.any(1, keepdim=True)  # after a mistake all may be gone
        number = left.sum(1)[:, None, None]
        if self.identity:
            return (left[:, None].double() / number).expand(-1, self.length, -1)
        orders = torch.arange(self.length + 1).clamp(min=1).double().cumprod(0)  # factorials
        unmoved = (((tokens == UNDECIDED) | (tokens == items)).all(1)[:, None, None] & (number > 1)).double()
        counts = left[:, None] * orders[number - 1] - unmoved * left[:, None] * torch.eye(self.length)
        return counts / (orders[number] - unmoved)

    def valid(self, answers: Int[Tensor, "R n"]) -> Bool[Tensor, " R"]:
        items = torch.arange(self.length)
        moved = (answers != items).any(1) if not self.identity else torch.tensor(True)
        return (answers.sort(1).values == items).all(1) & moved


@dataclass(frozen=True)
class OneReplaced:
    """Items 0 .. n - 1 in order. One of them, any with equal probability, is replaced by item n (ParallelBench's
    replace random)."""

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

    def valid(self, answers: Int[Tensor, "R n"]) -> Bool[Tensor, " R"]:
        replaced, kept = answers == self.length, answers == torch.arange(self.length)
        return (replaced.sum(1) == 1) & (replaced | kept).all(1)


@dataclass(frozen=True)
class ExactModel:
    """A posterior as a `Denoiser`. The response is the answer, whatever the prompt says.

    eos_id: the token of its answers that ends a text, if there is one.

    MASK, EOS and PAD are the three ids after the posterior's tokens. The model is bidirectional. It reads the canvas
    alone and is therefore exact under every cache. As text, tokens are their numbers: "2 0 1".
    """

    passes, device, dtype, max_length = 1, torch.device("cpu"), torch.float64, None

    posterior: Posterior
    eos_id: int | None = None
    name: str = "ideal"
    spec: ModelSpec = field(init=False)

    def __post_init__(self) -> None:
        first = self.posterior.num_tokens
        eos_id = first + 1 if self.eos_id is None else self.eos_id
        object.__setattr__(self, "spec", ModelSpec(mask_id=first, eos_ids=(eos_id,), pad_id=first + 2))

    @property
    def vocab_size(self) -> int:
        return self.posterior.num_tokens + 3

    def identity(self) -> str:
        fields = {name: v.tolist() if isinstance(v, Tensor) else v for name, v in vars(self.posterior).items()}
        return repr((type(self.posterior).__name__, fields, self.eos_id))

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        return ()

    def encode(self, text: Text) -> list[int]:
        """A number below `num_tokens` becomes itself. Any other word becomes a token that its letters decide; prompts
        are not read."""
        words = text.split() if isinstance(text, str) else " ".join(message["content"] for message in text).split()
        known = {str(token): token for token in range(self.posterior.num_tokens)}
        return [known.get(word, zlib.crc32(word.encode()) % self.posterior.num_tokens) for word in words]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def new_kv(self, prompt_len: Int[Tensor, " B"], length: int) -> Int[Tensor, " B"]:
        """Keeps only where responses begin."""
        return prompt_len.clone()

    def renew_kv(self, kv: Int[Tensor, " B"], rows: Int[Tensor, " N"], prompt_len: Int[Tensor, " N"]) -> None:
        kv[rows] = prompt_len

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
        """Log probabilities for the columns `want`, in float64, where -inf is exact. At columns after the answer they
        mean nothing. Raises ValueError for soft inputs."""
        if soft is not None:
            raise ValueError("an exact posterior takes no soft inputs")
        begin, last = kv[plan.rows, None], self.posterior.length - 1
        columns = (begin + torch.arange(last + 1)).clamp(max=canvas.shape[1] - 1)
        tokens = canvas[plan.rows].gather(1, columns)
        marginals = self.posterior.marginals(tokens.masked_fill(tokens >= self.posterior.num_tokens, UNDECIDED))
        place = (want - begin).clamp(0, last)[..., None].expand(-1, -1, marginals.shape[-1])
        logits = marginals.gather(1, place).log()
        return torch.nn.functional.pad(logits, (0, 3), value=float("-inf"))
