"""Training data: the benchmark's own generators, rows of files and data sets, and a model's own decodes."""
