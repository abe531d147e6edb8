# SPDX-License-Identifier: Apache-2.0
"""The faults of a member and its planned work, from the records that its owner can read.

The node's words are tags of the server. Three words come from elsewhere: the measurement's verdict,
the status of the host if Nova's policy shows it to owners, and the status of the ports.

Only a port in ERROR is outside its partition. A port is DOWN for a moment during each binding and
each change of its membership. Neutron's member watch sets a port to ERROR if its membership does
not come back (neutron_drivers/member_watch.py, ``fail_overdue_ports``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from nova_hpc_common.wire import member_verdict, planned_work, server_faults
from nova_hpc_common.wire.server_faults import FaultWord

#: Values of ``host_status`` of hosts that do not answer (nova/objects/fields.py, ``HostStatus``).
_SILENT_HOSTS: Final = ("UNKNOWN", "DOWN")
#: Status of a port that is not a member of its partition.
_FAILED_PORT: Final = "ERROR"


def read_faults(
    server: Mapping[str, Any], ports: Iterable[Mapping[str, Any]] = ()
) -> tuple[FaultWord, ...]:
    """Read the present faults of a server, the worst first.

    :param server: a record of Nova's API.
    :param ports: records of Neutron's API; those of other servers are left out.
    """
    words = set(server_faults.read_fault_tags(server.get("tags") or ()))
    if server.get("host_status") in _SILENT_HOSTS:
        words.add(FaultWord.HOST)
    verdict = member_verdict.verdict_of_metadata(server.get("metadata") or {})
    if verdict is not None and verdict.rejects:
        words.add(FaultWord.SLOW)
    failed = {port.get("device_id") for port in ports if port.get("status") == _FAILED_PORT}
    # A server that is still built fails with its port.
    if server["id"] in failed and server.get("status") == "ACTIVE":
        words.add(FaultWord.PARTITION)
    return tuple(word for word in FaultWord if word in words)


def read_planned_time(server: Mapping[str, Any]) -> str:
    """Read the earliest announced time of work on a server's host or devices; "" without one.

    :param server: a record of Nova's API.
    """
    return planned_work.earliest_planned_time(
        server.get("tags") or (), str(server.get("hostId") or "")
    )
