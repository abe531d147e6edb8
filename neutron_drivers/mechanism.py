# SPDX-License-Identifier: Apache-2.0
"""Neutron's mechanism driver ``hpc_partitions``: a network is an InfiniBand partition."""

from __future__ import annotations

from neutron_lib.plugins.ml2 import api


class PartitionMechanismDriver(api.MechanismDriver):
    """Binds ports to partitions."""

    def initialize(self) -> None:
        """Read the options."""
