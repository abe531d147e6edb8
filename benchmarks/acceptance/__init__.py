# SPDX-License-Identifier: Apache-2.0
"""Trials of ``nova-hpc-guest accept``: deliberate faults, and the causes that it names."""
