# SPDX-License-Identifier: Apache-2.0
"""Subnet managers: one module each, found by the entry points ``nova_hpc.subnet_managers``."""
