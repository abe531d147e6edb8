# SPDX-License-Identifier: Apache-2.0
"""Subnet managers with another ``sm_key``, found in opensm's log.

opensm 3.3.23 ignores such a manager and logs two lines (``opensm/osm_sminfo_rcv.c``). The first
line contains the other manager's key, so this module passes on only the place in a line.
"""

from __future__ import annotations

import re
from typing import Final

from nova_hpc.fabric.partitions.keys import format_guid
from nova_hpc.fabric.partitions.port_tables import EndPort, FabricPorts

#: opensm's first line.
_START: Final = "-> OpenSM "
#: The place is a route from opensm's own port, or a LID.
_FOUND: Final = re.compile(
    r"(?:Found remote SM|Got SM) \((LID \d+|[\d,]+)\) with (?:non-matching sm_key|sm_key 0x)"
)


def find_manager_places(text: str) -> tuple[str, ...]:
    """Find subnet managers with another key in opensm's log; return their places as it writes them.

    Only lines of opensm's last run count: an earlier run may have met a manager that is gone.
    """
    return tuple(dict.fromkeys(_FOUND.findall(text.rpartition(_START)[2])))


def describe_other_manager(place: str, fabric: FabricPorts) -> str:
    """Return a sentence on a manager with another key, with its GUID if the place has one.

    :param fabric: as read from the port of opensm's own host.
    """
    port = _find_port(place, fabric)
    where = f"at {place}" if port is None else f"at port {format_guid(port.guid)} ({place})"
    if port is not None and port.facing is not None:
        where += f", port {port.facing[1]} of the switch with LID {port.facing[0]}"
    return (
        f"another subnet manager is {where}: its sm_key is another one, so opensm ignores it, and "
        "both write the tables of all ports; take its host off the fabric and restart opensm"
    )


def _find_port(place: str, fabric: FabricPorts) -> EndPort | None:
    if place.startswith("LID "):
        lid = int(place.removeprefix("LID "))
        ports = [port for port in fabric.ports.values() if port.lid == lid]
    else:
        # A route begins with a place that is not used.
        route = tuple(int(hop) for hop in place.split(",")[1:] if hop)
        ports = [port for port in fabric.ports.values() if route and port.path == route]
    return ports[0] if len(ports) == 1 else None
