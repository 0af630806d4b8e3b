"""Depth-recurrent language models: a few layers applied again and again to the same columns (arXiv 2502.05171)."""

from dllm.recurrent.depth import Depth, DepthCache, Place, RecurrentLM
from dllm.recurrent.llama import LlamaRecurrentLM, save_recurrent
from dllm.recurrent.loading import is_recurrent, load_recurrent, recurrent_folder
from dllm.recurrent.raven import RavenBackbone, RavenConfig, RavenLM
