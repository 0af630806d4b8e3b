"""Families that keep the layout of a causal LM of transformers under a model_type of their own, and the trial of
backbones that no test knows."""
