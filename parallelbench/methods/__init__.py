"""Decoders with a loop of their own, beside the one denoising loop."""
