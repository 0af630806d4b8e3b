"""Parallel decoders for diffusion language models: one denoising loop and everything that decides what to commit."""

from decoders.compose import Decoder
from decoders.credit import Credit
from decoders.filters import BanEos, Cooling, Temperature, TopK, TopP
from decoders.generate import Generation, generate, generate_verified
from decoders.loop import NO_CACHE, DecodedRow, decode, decode_queue
from decoders.remask import ConfidenceDrop, Renoise, RunningConfidence, TokenEdit
from decoders.rescore import DensityPrior, EosLast, OrderNoise, OriginalProb, PositionPrior
from decoders.rules.adaptive import EntropyBound, EntropyThreshold, Factor, Frechet
from decoders.rules.basic import FirstAlone, FixedK, LeftRun, Prefix, Threshold
from decoders.rules.contention import Contention
from decoders.rules.history import AnswerGap, DynamicThreshold, Horizon, Klass, Prophet, RunningMean, WarmThreshold
from decoders.rules.in_blocks import InBlocks
from decoders.rules.indel import InDel
from decoders.rules.learn2pd import Agreement, BlockFilter, Learn2PD, PositionFilter
from decoders.rules.oracle import Oracle
from decoders.rules.remasking import LoopMdm, ReMdm, Wino
from decoders.rules.schedules import Dilated, Dimple, DreamOrigin, DreamSchedule, MaskGit, Schedule, ThresholdOrSchedule
from decoders.rules.segments import Hierarchical
from decoders.running.blocks import RunningSet
from decoders.running.flight import decode_running
from decoders.slowfast import SlowFast
from decoders.soft import SelfCondition, SelfDoubt, Slerp, Smoothing
from decoders.stop import BlockEos, Eotp, Never, StopRule, StrictEos
from decoders.types import CommitRule, LogitTransform, Rescore, Revise, SoftStep
from decoders.verified.accept import Sampling
from decoders.verified.ahead import decode_ahead
from decoders.verified.drafters import Drafter, LookupDrafts, MaskDrafts, ModelDrafts
from decoders.verified.lopa import decode_lookahead
from decoders.verified.rounds import Verified
