"""ParallelBench's own data, prompts and scorers."""
