# SPDX-License-Identifier: Apache-2.0
"""Trials of ``nova-hpc-guest accept``: faults that are made on purpose, and the names they get."""
