"""Hydra configuration and what its values may be (`conf.knobs`); a package, so that it is found from any directory."""
