"""Hydra configuration; a package, so that it is found from any directory."""
