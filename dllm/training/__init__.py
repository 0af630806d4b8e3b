"""Training of diffusion LMs: what is masked, the objectives, the one training loop, and the tokenizer of the shipped
model."""
