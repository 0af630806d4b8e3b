"""Diffusion language models: wrappers over transformers backbones, K/V by canvas column, caches, training.

What it exports is in `__init__.pyi`, and is imported when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
