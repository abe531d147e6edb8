# SPDX-License-Identifier: Apache-2.0
"""One server as its owner sees it: its requested and given devices, and its neighbours.

Everything is read from the metadata of servers, which the node wrote when they started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from nova_hpc_client.cluster.members import member_faults
from nova_hpc_common.wire import position, server_devices
from nova_hpc_common.wire.position import LEVELS, Position
from nova_hpc_common.wire.server_devices import ServerDevices
from nova_hpc_common.wire.server_faults import FaultWord


@attrs.frozen
class OneServer:
    """A server.

    :ivar devices: None if its metadata contains none that can be read.
    :ivar beside: level -> names of the siblings whose narrowest common level with it is this.
    :ivar faults: its present faults, the worst first.
    :ivar planned: the earliest time at which work on its host or its devices begins, in UTC; "" if
        none is announced.
    """

    id: str
    name: str
    status: str
    devices: ServerDevices | None
    position: Position
    beside: Mapping[str, tuple[str, ...]] = attrs.Factory(dict)
    faults: tuple[FaultWord, ...] = ()
    planned: str = ""

    @property
    def groups(self) -> tuple[str, ...]:
        """Its groups of devices, with the count of equal ones: ``4 x gpu:1,vf:1``."""
        groups = self.devices.groups if self.devices else ()
        return tuple(f"{count} x {_format_roles(group)}" for count, group in groups)


def _format_roles(group: Mapping[str, int]) -> str:
    return ",".join(f"{role}:{count}" for role, count in group.items())


def read_own_server(
    server: Mapping[str, Any],
    siblings: Iterable[Mapping[str, Any]] = (),
    ports: Iterable[Mapping[str, Any]] = (),
) -> OneServer:
    """Read a server record of Nova's API.

    :param siblings: the servers of its server groups, with or without itself.
    :param ports: its ports, records of Neutron's API.
    """
    metadata = server.get("metadata") or {}
    own_position = position.position_of_metadata(metadata)
    beside: dict[str, list[str]] = {}
    for sibling in siblings:
        if sibling["id"] == server["id"]:
            continue
        level = narrowest_common_level(
            own_position, position.position_of_metadata(sibling.get("metadata") or {})
        )
        if level:
            beside.setdefault(level, []).append(str(sibling.get("name") or sibling["id"]))
    return OneServer(
        id=str(server["id"]),
        name=str(server.get("name") or ""),
        status=str(server.get("status") or "UNKNOWN"),
        devices=server_devices.server_devices_of_metadata(metadata),
        position=own_position,
        beside={
            level: tuple(sorted(beside[level])) for level in reversed(LEVELS) if level in beside
        },
        faults=member_faults.read_faults(server, ports),
        planned=member_faults.read_planned_time(server),
    )


def narrowest_common_level(first: Position, second: Position) -> str:
    """Return the narrowest level that two servers are known to share; "" if there is none.

    An NVLink domain counts as narrower than a leaf, although it may cross one.
    """
    for level in reversed(LEVELS):
        name = first.domains.get(level)
        if name is not None and name == second.domains.get(level):
            return level
    return ""
