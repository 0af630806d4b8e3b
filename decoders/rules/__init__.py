"""Commit rules: which positions a step writes."""
