# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: ratios measured in one run, see ``python -m benchmarks --help``."""
