"""Diffusion language models: wrappers over transformers backbones, K/V by canvas column, caches, training."""

from dllm.cache import BlockCache, DelayedCache, SubBlockCache, WindowCache
from dllm.causal import load_causal
from dllm.kinds import load
from dllm.load import save, shipped_models
from dllm.model import DiffusionLM
from dllm.recurrent import load_recurrent
from dllm.spec import ModelSpec
