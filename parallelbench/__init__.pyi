from .methods.autoregressive import Autoregressive as Autoregressive
from .methods.depth_recurrent import AdaptiveDepth as AdaptiveDepth, DiffusionForcing as DiffusionForcing
from .methods.running import Running as Running
from .methods.verified import (
    FreeDave as FreeDave,
    LinearSpec as LinearSpec,
    LoPA as LoPA,
    PromptLookup as PromptLookup,
    SelfSpec as SelfSpec,
)
from .report.sinks import TensorBoard as TensorBoard, Wandb as Wandb
from .tasks import Suite as Suite
from .tasks.code.tasks import HumanEval as HumanEval, Mbpp as Mbpp
from .tasks.mathematics import Gsm8k as Gsm8k, Math as Math
from .tasks.official.suite import OfficialSuite as OfficialSuite, OfficialV2Suite as OfficialV2Suite
from .tasks.prompts import Prompts as Prompts
from .tasks.shapes import Shapes as Shapes
from .training.mixture import TaskMixture as TaskMixture
from .training.sources import Mixed as Mixed, Rows as Rows
from .wiring.notebook import compare as compare, plot as plot
