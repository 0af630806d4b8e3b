"""Parallel decoders for diffusion language models: one denoising loop and everything that decides what to commit."""

from decoders.adaptive import EntropyBound, EntropyThreshold, Factor, Frechet
from decoders.compose import Decoder
from decoders.credit import Credit
from decoders.generate import Generation, generate
from decoders.history import DynamicThreshold, Klass, Prophet, RunningMean, SlowFast, WarmThreshold
from decoders.loop import NO_CACHE, DecodedRow, decode
from decoders.remask import (
    ConfidenceDrop,
    LoopRemask,
    LoopRule,
    MaskGit,
    ReMdmRemask,
    ReMdmRule,
    RunningConfidence,
    TokenEdit,
    WideIn,
    Wino,
)
from decoders.rules import FixedK, Schedule, Threshold
from decoders.segments import Hierarchical
from decoders.soft import Slerp, Smoothing
from decoders.stop import BlockEos, Never, StopRule, StrictEos

__all__ = [
    "NO_CACHE",
    "BlockEos",
    "ConfidenceDrop",
    "Credit",
    "DecodedRow",
    "Decoder",
    "DynamicThreshold",
    "EntropyBound",
    "EntropyThreshold",
    "Factor",
    "FixedK",
    "Frechet",
    "Generation",
    "Hierarchical",
    "Klass",
    "LoopRemask",
    "LoopRule",
    "MaskGit",
    "Never",
    "Prophet",
    "ReMdmRemask",
    "ReMdmRule",
    "RunningConfidence",
    "RunningMean",
    "Schedule",
    "Slerp",
    "SlowFast",
    "Smoothing",
    "StopRule",
    "StrictEos",
    "Threshold",
    "TokenEdit",
    "WarmThreshold",
    "WideIn",
    "Wino",
    "decode",
    "generate",
]
