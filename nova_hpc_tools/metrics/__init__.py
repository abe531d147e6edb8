# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: the facts of other commands as numbers, never a second count."""
