"""ParallelBench: tasks, runs, metrics and reports. The only package that knows tasks, files and plots."""
