# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's subnet manager (MLNX_SM, of MLNX_OFED and DOCA), with virtualisation.

It descends from opensm: the program has the same name, file of partitions, signal and log. It adds
virtual ports to upstream's opensm. With ``virt_enabled 2`` a virtual function has a GUID and
a P_Key table of its own, so functions of one physical port can be in different networks.

**Written from NVIDIA's public documentation and not tested with the real product**; the tests
compare this module with ``tests/data/nvidia_manager/contract.json``. Reading back has two limits:

* a function's table is not in the tables of the fabric's ports: MADs of virtualisation read it, and
  infiniband-diags does not support them. So functions count as *not on the fabric*: only the file
  in force proves their state, and ``[hpc_partitions]activate_absent_ports`` has to be set for them.
* the tables of a physical port, and of the switch port facing it, may also contain the keys of its
  functions. This module cannot read which function is at which port. So a further key at a physical
  port passes if a function is to have exactly that entry. Any other key is a stranger, as with
  opensm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import attrs

from nova_hpc.fabric.partitions.backends.base import AuditRow, Capabilities
from nova_hpc.fabric.partitions.backends.opensm import OpensmSubnetManager
from nova_hpc.fabric.partitions.backends.opensm_checks import read_running
from nova_hpc.fabric.partitions.backends.opensm_files import read_text
from nova_hpc.fabric.partitions.hardening import (
    audit_nvidia_manager,
    audit_virtualisation,
    is_enforced,
)
from nova_hpc.fabric.partitions.keys import table_entry
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions
from nova_hpc.fabric.partitions.partition_file import PartitionLayout
from nova_hpc.fabric.partitions.port_tables import (
    FabricPorts,
    PortTables,
    Strangers,
    TableExpectations,
)


@attrs.frozen
class FunctionTableExpectations(TableExpectations):
    """The expected P_Key tables of physical ports if their virtual functions have own tables."""

    def judge_port(self, guid: int, tables: PortTables) -> str | None:
        """Compare a port's P_Key table with the expected; keys of virtual functions are ignored.

        See :meth:`TableExpectations.judge_port`.
        """
        return super().judge_port(guid, self._without_functions(guid, tables))

    def find_strangers(
        self, read: Mapping[int, PortTables], leaving: frozenset[tuple[int, int]] = frozenset()
    ) -> Strangers:
        """Find unexpected P_Keys in the tables that were read, besides those of virtual functions.

        See :meth:`TableExpectations.find_strangers`.
        """
        plain = {guid: self._without_functions(guid, tables) for guid, tables in read.items()}
        # A function's key that has to go is at a physical port, whose GUID is another one.
        functions = {pkey for guid, pkey in leaving if guid not in self.fabric.ports}
        going = {(guid, pkey) for guid in read for pkey in functions}
        return super().find_strangers(plain, leaving | going)

    def _without_functions(self, guid: int, tables: PortTables) -> PortTables:
        extra = self._entries_of_functions() - self.entries_of(guid)
        return attrs.evolve(
            tables,
            own=None if tables.own is None else tables.own - extra,
            facing=None if tables.facing is None else tables.facing - extra,
        )

    def _entries_of_functions(self) -> frozenset[int]:
        return frozenset(
            table_entry(pkey, membership)
            for pkey, members in self.layout.partitions.items()
            for guid, membership in members.items()
            if guid not in self.fabric.ports
        )


class NvidiaSubnetManager(OpensmSubnetManager):
    """NVIDIA's subnet manager on this host, controlled by the same files as opensm."""

    capabilities: ClassVar[Capabilities] = Capabilities(separates_functions=True)

    def audit(self) -> Sequence[AuditRow]:
        """Check the settings on which the isolation depends, and the manager's virtualisation.

        See :meth:`SubnetManager.audit`; the management keys are those of NVIDIA's manager.
        """
        options = read_running(self._conf).overlay_options(
            read_text(Path(self._conf.opensm_config))
        )
        return (*self._checks.audit(audit_nvidia_manager), audit_virtualisation(options))

    def _expect_tables(
        self, layout: PartitionLayout, own: OwnPartitions, fabric: FabricPorts
    ) -> TableExpectations:
        return FunctionTableExpectations(layout, own, fabric, is_enforced(self._read_options()))
