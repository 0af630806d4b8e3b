"""Parallel decoders for diffusion language models: one denoising loop and everything that decides what to commit.

What it exports is in `__init__.pyi`, and is imported when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
