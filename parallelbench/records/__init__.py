"""The files of a run: what they hold, how they are written, and what earlier ones said. Computes nothing."""
