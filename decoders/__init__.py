"""Parallel decoders for diffusion language models: one denoising loop and everything that decides what to commit."""

from decoders.adaptive import EntropyBound, EntropyThreshold, Factor, Frechet
from decoders.compose import Decoder
from decoders.credit import Credit
from decoders.generate import Generation, generate
from decoders.loop import NO_CACHE, DecodedRow, decode
from decoders.rules import FixedK, Schedule, Threshold
from decoders.stop import BlockEos, Never, StopRule, StrictEos

__all__ = [
    "NO_CACHE",
    "BlockEos",
    "Credit",
    "DecodedRow",
    "Decoder",
    "EntropyBound",
    "EntropyThreshold",
    "Factor",
    "FixedK",
    "Frechet",
    "Generation",
    "Never",
    "Schedule",
    "StopRule",
    "StrictEos",
    "Threshold",
    "decode",
    "generate",
]
