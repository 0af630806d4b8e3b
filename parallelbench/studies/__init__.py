"""Studies: ParallelBench's theory, ideal models, and the best that any decoder could do."""
