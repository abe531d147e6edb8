# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's subnet manager (MLNX_SM, of MLNX_OFED and DOCA), with virtualisation.

It descends from opensm: a program of that name, with the same file of partitions, signal and log.
What it has beyond upstream is virtual ports: with ``virt_enabled 2`` a virtual function has a
GUID and a P_Key table of its own, so functions of one physical port can be in different networks.

**Written from NVIDIA's public documentation and not tried on the real product**; the tests hold
what is written against ``tests/data/nvidia_manager/contract.json``. What is known of reading back:

* a function's table is not one of the fabric's ports (it is read by MADs of virtualisation, which
  infiniband-diags does not know). So functions count as *not on the fabric*: the file in force is
  the proof, and ``[hpc_partitions]activate_absent_ports`` has to be set for them.
* the tables of a physical port, and of the switch port facing it, may also have the keys of its
  functions, and nothing here tells whose functions are where. So at a physical port a key beside
  its own passes where some function is to have exactly that entry; any other is a stranger, as
  with opensm.
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
    """What the tables of physical ports have to be where their functions have tables, too."""

    def judge_port(self, guid: int, tables: PortTables) -> str | None:
        """See :meth:`TableExpectations.judge_port`; keys of functions are no difference."""
        return super().judge_port(guid, self._without_functions(guid, tables))

    def find_strangers(
        self, read: Mapping[int, PortTables], leaving: frozenset[tuple[int, int]] = frozenset()
    ) -> Strangers:
        """See :meth:`TableExpectations.find_strangers`; keys of functions are no strangers."""
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
    """NVIDIA's subnet manager on this host."""

    capabilities: ClassVar[Capabilities] = Capabilities(separates_functions=True)

    def audit(self) -> Sequence[AuditRow]:
        """See :meth:`SubnetManager.audit`; with the keys that this manager has."""
        options = read_running(self._conf).overlay_options(
            read_text(Path(self._conf.opensm_config))
        )
        return (*self._checks.audit(audit_nvidia_manager), audit_virtualisation(options))

    def _expect_tables(
        self, layout: PartitionLayout, own: OwnPartitions, fabric: FabricPorts
    ) -> TableExpectations:
        return FunctionTableExpectations(layout, own, fabric, is_enforced(self._read_options()))
