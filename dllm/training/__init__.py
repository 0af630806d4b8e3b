"""Training of diffusion LMs: what is masked, the objectives, the one training loop, and the tokenizer of the shipped
model."""

from dllm.training.certainty import CertaintyForcing
from dllm.training.drafting import Drafting
from dllm.training.fit import FitConfig
from dllm.training.objectives import BlockDiffusion, MaskedDiffusion, NextToken
from dllm.training.on_policy import OnPolicy
from dllm.training.scratch import scratch_causal, scratch_llama, scratch_recurrent, scratch_vision
from dllm.training.uniform import UniformDiffusion
