from .compose import Decoder as Decoder
from .credit import Credit as Credit
from .decode_job import DecodeJob as DecodeJob
from .filters import BanEos as BanEos
from .filters import Cooling as Cooling
from .filters import Temperature as Temperature
from .filters import TopK as TopK
from .filters import TopP as TopP
from .generation import Generation as Generation
from .generation import generate as generate
from .generation import generate_verified as generate_verified
from .loop import NO_CACHE as NO_CACHE
from .loop import DecodedRow as DecodedRow
from .loop import decode as decode
from .loop import decode_queue as decode_queue
from .remask import (
    ConfidenceDrop as ConfidenceDrop,
)
from .remask import (
    Renoise as Renoise,
)
from .remask import (
    RunningConfidence as RunningConfidence,
)
from .remask import (
    TokenEdit as TokenEdit,
)
from .rescore import (
    DensityPrior as DensityPrior,
)
from .rescore import (
    EosLast as EosLast,
)
from .rescore import (
    OrderNoise as OrderNoise,
)
from .rescore import (
    OriginalProb as OriginalProb,
)
from .rescore import (
    PositionPrior as PositionPrior,
)
from .rules.adaptive import (
    EntropyBound as EntropyBound,
)
from .rules.adaptive import (
    EntropyThreshold as EntropyThreshold,
)
from .rules.adaptive import (
    Factor as Factor,
)
from .rules.adaptive import (
    Frechet as Frechet,
)
from .rules.basic import (
    FirstAlone as FirstAlone,
)
from .rules.basic import (
    FixedK as FixedK,
)
from .rules.basic import (
    LeftRun as LeftRun,
)
from .rules.basic import (
    Prefix as Prefix,
)
from .rules.basic import (
    Threshold as Threshold,
)
from .rules.contention import Contention as Contention
from .rules.history import (
    AnswerGap as AnswerGap,
)
from .rules.history import (
    DynamicThreshold as DynamicThreshold,
)
from .rules.history import (
    Horizon as Horizon,
)
from .rules.history import (
    Klass as Klass,
)
from .rules.history import (
    Prophet as Prophet,
)
from .rules.history import (
    RunningMean as RunningMean,
)
from .rules.history import (
    WarmThreshold as WarmThreshold,
)
from .rules.in_blocks import InBlocks as InBlocks
from .rules.indel import InDel as InDel
from .rules.learn2pd import (
    Agreement as Agreement,
)
from .rules.learn2pd import (
    BlockFilter as BlockFilter,
)
from .rules.learn2pd import (
    Learn2PD as Learn2PD,
)
from .rules.learn2pd import (
    PositionFilter as PositionFilter,
)
from .rules.oracle import Oracle as Oracle
from .rules.remasking import LoopMdm as LoopMdm
from .rules.remasking import ReMdm as ReMdm
from .rules.remasking import Wino as Wino
from .rules.schedules import (
    Dilated as Dilated,
)
from .rules.schedules import (
    Dimple as Dimple,
)
from .rules.schedules import (
    DreamOrigin as DreamOrigin,
)
from .rules.schedules import (
    DreamSchedule as DreamSchedule,
)
from .rules.schedules import (
    MaskGit as MaskGit,
)
from .rules.schedules import (
    Schedule as Schedule,
)
from .rules.schedules import (
    ThresholdOrSchedule as ThresholdOrSchedule,
)
from .rules.segments import Hierarchical as Hierarchical
from .running.blocks import RunningSet as RunningSet
from .slowfast import SlowFast as SlowFast
from .soft import SelfCondition as SelfCondition
from .soft import SelfDoubt as SelfDoubt
from .soft import Slerp as Slerp
from .soft import Smoothing as Smoothing
from .spread import ONE_WINDOW as ONE_WINDOW
from .spread import Spread as Spread
from .stop import BlockEos as BlockEos
from .stop import Eotp as Eotp
from .stop import Never as Never
from .stop import StopRule as StopRule
from .stop import StrictEos as StrictEos
from .types import (
    CommitRule as CommitRule,
)
from .types import (
    LogitTransform as LogitTransform,
)
from .types import (
    Rescore as Rescore,
)
from .types import (
    Revise as Revise,
)
from .types import (
    SoftStep as SoftStep,
)
from .verified.accept import Sampling as Sampling
from .verified.ahead import Ahead as Ahead
from .verified.drafters import (
    Drafter as Drafter,
)
from .verified.drafters import (
    LookupDrafts as LookupDrafts,
)
from .verified.drafters import (
    MaskDrafts as MaskDrafts,
)
from .verified.drafters import (
    ModelDrafts as ModelDrafts,
)
from .verified.lopa import Lookahead as Lookahead
from .verified.rounds import Verified as Verified
