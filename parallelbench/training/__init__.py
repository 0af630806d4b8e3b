"""Training data from the benchmark's own tasks and runs."""
