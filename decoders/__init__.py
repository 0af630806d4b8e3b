"""Parallel decoders for diffusion language models: one denoising loop and everything that decides what to commit."""

from decoders.adaptive import EntropyBound, EntropyThreshold, Factor, Frechet
from decoders.compose import Decoder
from decoders.contention import Contention
from decoders.credit import Credit
from decoders.filters import BanEos, Temperature, TopK, TopP
from decoders.generate import Generation, generate
from decoders.history import DynamicThreshold, Klass, Prophet, RunningMean, SlowFast, WarmThreshold
from decoders.learn2pd import Agreement, BlockFilter, Learn2PD, PositionFilter
from decoders.loop import NO_CACHE, DecodedRow, decode
from decoders.oracle import Oracle
from decoders.remask import (
    ConfidenceDrop,
    LoopRemask,
    LoopRule,
    ReMdmRemask,
    ReMdmRule,
    RunningConfidence,
    TokenEdit,
    WideIn,
    Wino,
)
from decoders.rescore import DensityPrior, EosLast, OrderNoise, OriginalProb, PositionPrior
from decoders.rules import FixedK, Prefix, Threshold
from decoders.schedules import Dilated, Dimple, DreamOrigin, DreamSchedule, MaskGit, Schedule, ThresholdOrSchedule
from decoders.segments import Hierarchical
from decoders.soft import Slerp, Smoothing
from decoders.stop import BlockEos, Eotp, Never, StopRule, StrictEos

__all__ = [
    "NO_CACHE",
    "Agreement",
    "BanEos",
    "BlockEos",
    "BlockFilter",
    "ConfidenceDrop",
    "Contention",
    "Credit",
    "DecodedRow",
    "Decoder",
    "DensityPrior",
    "Dilated",
    "Dimple",
    "DreamOrigin",
    "DreamSchedule",
    "DynamicThreshold",
    "EntropyBound",
    "EntropyThreshold",
    "EosLast",
    "Eotp",
    "Factor",
    "FixedK",
    "Frechet",
    "Generation",
    "Hierarchical",
    "Klass",
    "Learn2PD",
    "LoopRemask",
    "LoopRule",
    "MaskGit",
    "Never",
    "Oracle",
    "OrderNoise",
    "OriginalProb",
    "PositionFilter",
    "PositionPrior",
    "Prefix",
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
    "Temperature",
    "Threshold",
    "ThresholdOrSchedule",
    "TokenEdit",
    "TopK",
    "TopP",
    "WarmThreshold",
    "WideIn",
    "Wino",
    "decode",
    "generate",
]
