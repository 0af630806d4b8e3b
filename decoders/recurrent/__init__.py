"""Samplers of depth-recurrent models, whose forwards are passes of one core over columns that are not yet settled."""

from decoders.recurrent.adaptive_depth import AdaptiveDepth
from decoders.recurrent.diffusion_forcing import DiffusionForcing
from decoders.recurrent.sampling import Draws
