"""Numbers from records: metrics with their intervals, curves, sweeps, bounds. No files, plots or configs."""
