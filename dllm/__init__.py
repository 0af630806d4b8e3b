"""Diffusion language models: wrappers over transformers backbones, K/V by canvas column, caches, training."""

from dllm.kinds import load
from dllm.load import save, shipped_models
from dllm.model import DiffusionLM
from dllm.spec import ModelSpec

__all__ = ["DiffusionLM", "ModelSpec", "load", "save", "shipped_models"]
