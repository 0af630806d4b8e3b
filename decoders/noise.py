"""Random numbers that are a function of row seed, step, stream and position. A row decodes alike alone or in any batch,
on any device.

With a torch.Generator that a batch shares, each row would depend on its neighbours. Here every number is the SplitMix64
hash (Steele et al., OOPSLA 2014) of its own coordinates. That needs no state and no transfer from the device.
"""

import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

_INCREMENT = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit number
_MULTIPLIERS = (-4658895280553007687, -7723592293110705685)  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

# recorded runs depend on these numbers; a stream without one has the hash of its name
STREAMS = {
    "candidate": 1,
    "order": 2,
    "completion": 3,
    "remdm fill": 11,
    "remdm mask": 12,
    "origin": 21,
    "dimple": 22,
    "order noise": 31,
    "draft": 41,
    "accept draft": 42,
    "verified token": 43,
    "canvas": 51,
    "renoise": 52,
    "beyond": 53,
}


@dataclass(frozen=True)
class Noise:
    """What a step draws from. It costs nothing until the first draw.

    seeds: of each row.
    step: which of a row's steps it is.
    """

    seeds: Int[Tensor, " B"]
    step: Int[Tensor, " B"]

    @cached_property
    def _mixed(self) -> Int[Tensor, " B"]:
        return _hash(_hash(self.seeds) + self.step * _INCREMENT)

    def uniform(self, *sizes: int, stream: str) -> Float[Tensor, "B ..."]:
        """Float64 in (0, 1), of shape `[B, *sizes]`.

        stream: a name that belongs to the drawing part. Draws of different names are independent. The same name repeats
            its draw.
        """
        number = STREAMS[stream] if stream in STREAMS else 2**32 + zlib.crc32(stream.encode())
        bits = _hash(self._mixed + number)
        for size in sizes:
            bits = _hash(bits[..., None] + torch.arange(1, size + 1, device=bits.device) * _INCREMENT)
        return (_shift_right(bits, 11).double() + 0.5) * 2.0**-53


def row_seeds(seed: int, prompts: Sequence[Sequence[int]], draws: Sequence[int] | None = None) -> list[int]:
    """What each row's randomness is made of. draws: which sample of its prompt each row is. None: `numbered`."""
    draws = numbered(map(tuple, prompts)) if draws is None else draws
    keys = ((seed, list(prompt), *([draw] if draw else [])) for prompt, draw in zip(prompts, draws, strict=True))
    return [zlib.crc32(repr(key).encode()) for key in keys]


def numbered(items: Iterable[Hashable]) -> list[int]:
    """How many equal items come before each."""
    seen: Counter[Hashable] = Counter()
    places = []
    for item in items:
        places.append(seen[item])
        seen[item] += 1
    return places


def noise_tokens(noise: Noise, width: int, vocab: int, stream: str) -> Int[Tensor, "B W"]:
    """Tokens drawn uniformly from 0 .. vocab - 1."""
    return (noise.uniform(width, stream=stream) * vocab).long()


def _hash(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """SplitMix64's finaliser on int64 (wrapping arithmetic)."""
    x = x + _INCREMENT
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIERS[0]
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIERS[1]
    return x ^ _shift_right(x, 31)


def _shift_right(x: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Logical shift of a signed 64-bit number."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
