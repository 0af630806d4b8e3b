"""Decoders with a loop of their own, apart from the one denoising loop."""
