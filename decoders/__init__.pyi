from .compose import Decoder as Decoder
from .constraints.patterns import (
    Choice as Choice,
    Constraint as Constraint,
    Grammar as Grammar,
    JsonSchema as JsonSchema,
    Regex as Regex,
)
from .credit import Credit as Credit
from .decode_job import DecodeJob as DecodeJob
from .filters import BanEos as BanEos, Cooling as Cooling, Temperature as Temperature, TopK as TopK, TopP as TopP
from .generation import Generation as Generation, generate as generate, generate_verified as generate_verified
from .loop import DecodedRow as DecodedRow, decode as decode, decode_queue as decode_queue
from .recurrent.adaptive_depth import AdaptiveDepth as AdaptiveDepth
from .recurrent.diffusion_forcing import DiffusionForcing as DiffusionForcing
from .remask import (
    ConfidenceDrop as ConfidenceDrop,
    Renoise as Renoise,
    RunningConfidence as RunningConfidence,
    TokenEdit as TokenEdit,
)
from .rescore import (
    DensityPrior as DensityPrior,
    EosLast as EosLast,
    OrderNoise as OrderNoise,
    OriginalProb as OriginalProb,
    PositionPrior as PositionPrior,
)
from .rules.adaptive import (
    EntropyBound as EntropyBound,
    EntropyThreshold as EntropyThreshold,
    Factor as Factor,
    Frechet as Frechet,
)
from .rules.basic import (
    FirstAlone as FirstAlone,
    FixedK as FixedK,
    LeftRun as LeftRun,
    Prefix as Prefix,
    Threshold as Threshold,
)
from .rules.contention import Contention as Contention
from .rules.history import (
    AnswerGap as AnswerGap,
    DynamicThreshold as DynamicThreshold,
    Horizon as Horizon,
    Klass as Klass,
    Prophet as Prophet,
    RunningMean as RunningMean,
    WarmThreshold as WarmThreshold,
)
from .rules.in_blocks import InBlocks as InBlocks
from .rules.indel import InDel as InDel
from .rules.learn2pd import (
    Agreement as Agreement,
    BlockFilter as BlockFilter,
    Learn2PD as Learn2PD,
    PositionFilter as PositionFilter,
)
from .rules.oracle import Oracle as Oracle
from .rules.remasking import LoopMdm as LoopMdm, ReMdm as ReMdm, Wino as Wino
from .rules.schedules import (
    Dilated as Dilated,
    Dimple as Dimple,
    DreamOrigin as DreamOrigin,
    DreamSchedule as DreamSchedule,
    MaskGit as MaskGit,
    Schedule as Schedule,
    ThresholdOrSchedule as ThresholdOrSchedule,
)
from .rules.segments import Hierarchical as Hierarchical
from .running.blocks import RunningSet as RunningSet
from .slowfast import SlowFast as SlowFast
from .soft import SelfCondition as SelfCondition, SelfDoubt as SelfDoubt, Slerp as Slerp, Smoothing as Smoothing
from .spread import NO_CACHE as NO_CACHE, ONE_WINDOW as ONE_WINDOW, Spread as Spread
from .stop import BlockEos as BlockEos, Eotp as Eotp, Never as Never, StopRule as StopRule, StrictEos as StrictEos
from .types import (
    CommitRule as CommitRule,
    LogitTransform as LogitTransform,
    Rescore as Rescore,
    Revise as Revise,
    SoftStep as SoftStep,
)
from .verified.accept import Sampling as Sampling
from .verified.ahead import Ahead as Ahead
from .verified.drafters import (
    Drafter as Drafter,
    LookupDrafts as LookupDrafts,
    MaskDrafts as MaskDrafts,
    ModelDrafts as ModelDrafts,
)
from .verified.lopa import Lookahead as Lookahead
from .verified.rounds import Verified as Verified
