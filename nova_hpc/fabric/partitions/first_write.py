# SPDX-License-Identifier: Apache-2.0
"""The losses by the agent's first write on a fabric that was managed by others so far.

The first write replaces the whole file of partitions. So the check first names each port that
would lose a P_Key, or full membership of one, and the operator decides. The decision is kept in
a file: it holds only for exactly those losses, and for the file of partitions as it was. A longer
list, or another file, needs a new decision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Final, Protocol, runtime_checkable

from nova_hpc.fabric.partitions.backends.base import AuditRow, AuditState
from nova_hpc.fabric.partitions.file_meaning import RulePort, list_lost_entries
from nova_hpc.fabric.partitions.members import DesiredPartitions
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions
from nova_hpc.fabric.partitions.partition_file import PartitionLayout
from nova_hpc.fabric.partitions.port_tables import FabricPorts, PortTables, expect_entries

#: Name of the row.
FIRST_WRITE: Final = "first_write"
_ISOLATION: Final = "SDN04-04"
_TITLE: Final = "# nova-hpc accepted losses, version 1, of the file of partitions sha256"


@runtime_checkable
class PlansFirstWrite(Protocol):
    """A subnet manager that can take the members of networks into account before its first
    write.
    """

    def plan_first_write(self, desired: DesiredPartitions) -> None:
        """Do not count the P_Keys of the desired members as losses from now on."""


def list_table_losses(
    fabric: FabricPorts,
    tables: Mapping[int, PortTables],
    own: OwnPartitions,
    networks: PartitionLayout,
) -> Iterator[str]:
    """Yield one sentence for each P_Key that a port would lose by the agent's first write.

    :param tables: port GUID -> the P_Key tables that were read.
    :param own: the administrator's own partitions.
    :param networks: the members of Neutron's networks, if known. Another agent of the fabric may
        serve them already.
    """
    keys = networks.pkeys_by_guid()
    for guid, port in sorted(fabric.ports.items()):
        manages = guid == fabric.manager
        name = RulePort(guid, port.kind)
        table = tables[guid].own if guid in tables else None
        if table is None:
            yield f"{name}: its P_Key table could not be read"
            continue
        after = expect_entries(guid, port.kind, manages, keys.get(guid, {}), own)
        yield from list_lost_entries(name, table, after)
    if fabric.silent:
        yield f"{fabric.silent} ports are up and do not answer: their P_Keys are unknown"


def audit_first_write(losses: Collection[str], accepted: Collection[str]) -> AuditRow:
    """Check that the first write of the agent causes no losses but accepted ones.

    :param losses: all losses.
    :param accepted: losses that the operator has accepted.
    """
    left = [loss for loss in losses if loss not in accepted]
    if left:
        return AuditRow(
            FIRST_WRITE,
            _ISOLATION,
            AuditState.NOT_MET,
            f"would be lost: {'; '.join(left)}",
            "write them into the own partitions; or accept exactly these losses: "
            "nova-hpc fabric check --accept-losses",
            needed=True,
        )
    found = f"{len(losses)} losses, which the operator has accepted" if losses else "loses nothing"
    return AuditRow(FIRST_WRITE, _ISOLATION, AuditState.MET, found, needed=True)


def render_accepted_losses(text: str | None, losses: Collection[str]) -> str:
    """Render the file that stores the operator's decision to accept losses.

    :param text: the file of partitions that the agent replaces.
    """
    return "\n".join((f"{_TITLE} {_digest(text)}", *losses, ""))


def parse_accepted_losses(decision: str | None, text: str | None) -> frozenset[str]:
    """Return the accepted losses in a stored decision; empty if it is about another file.

    :param decision: the operator's decision; None if there is none.
    :param text: the file of partitions as it is.
    """
    title, *losses = (decision or "").split("\n")
    if title != f"{_TITLE} {_digest(text)}" or losses[-1:] != [""]:
        return frozenset()
    return frozenset(losses[:-1])


def _digest(text: str | None) -> str:
    return hashlib.sha256((text or "").encode("utf-8", "surrogateescape")).hexdigest()
