"""Benchmarks: ratios measured in one run, see ``python -m benchmarks --help``."""
