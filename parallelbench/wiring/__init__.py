"""From configs to jobs and back: the only files that know Hydra."""
