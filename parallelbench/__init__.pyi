from .methods.adaptive_depth import AdaptiveDepth as AdaptiveDepth
from .methods.autoregressive import Autoregressive as Autoregressive
from .methods.diffusion_forcing import DiffusionForcing as DiffusionForcing
from .methods.running import Running as Running
from .methods.verified import (
    FreeDave as FreeDave,
)
from .methods.verified import (
    LinearSpec as LinearSpec,
)
from .methods.verified import (
    LoPA as LoPA,
)
from .methods.verified import (
    PromptLookup as PromptLookup,
)
from .methods.verified import (
    SelfSpec as SelfSpec,
)
from .report.sinks import TensorBoard as TensorBoard
from .report.sinks import Wandb as Wandb
from .tasks import Suite as Suite
from .tasks.code.tasks import HumanEval as HumanEval
from .tasks.code.tasks import Mbpp as Mbpp
from .tasks.mathematics import Gsm8k as Gsm8k
from .tasks.mathematics import Math as Math
from .tasks.official.suite import OfficialSuite as OfficialSuite
from .tasks.official.suite import OfficialV2Suite as OfficialV2Suite
from .tasks.prompts import Prompts as Prompts
from .tasks.shapes import Shapes as Shapes
from .training.mixture import TaskMixture as TaskMixture
from .training.sources import Mixed as Mixed
from .training.sources import Rows as Rows
