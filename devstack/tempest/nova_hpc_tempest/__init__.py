# SPDX-License-Identifier: Apache-2.0
"""Tests of a cloud with nova-hpc, for tempest: its public APIs alone."""
