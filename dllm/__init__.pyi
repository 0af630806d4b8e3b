from .cache import (
    BlockCache as BlockCache,
    DelayedCache as DelayedCache,
    SubBlockCache as SubBlockCache,
    WindowCache as WindowCache,
)
from .causal import load_causal as load_causal
from .diffusion import save as save, shipped_models as shipped_models
from .kinds import load as load
from .model import DiffusionLM as DiffusionLM
from .recurrent import load_recurrent as load_recurrent
from .spec import ModelSpec as ModelSpec
