from .cache import (
    BlockCache as BlockCache,
)
from .cache import (
    DelayedCache as DelayedCache,
)
from .cache import (
    SubBlockCache as SubBlockCache,
)
from .cache import (
    WindowCache as WindowCache,
)
from .causal import load_causal as load_causal
from .diffusion import save as save
from .diffusion import shipped_models as shipped_models
from .kinds import load as load
from .model import DiffusionLM as DiffusionLM
from .recurrent import load_recurrent as load_recurrent
from .spec import ModelSpec as ModelSpec
