# SPDX-License-Identifier: Apache-2.0
"""The number of servers of a flavor that still fit on each host. Pure.

The count uses the scheduler's own choice. For each host it gets the choice, takes the chosen
devices, CPUs and pages away, and repeats. So the count is the number of servers that the scheduler
would place one after the other. If devices can be combined in several ways (groups of unlike size,
for example), it may be less than the maximum over all ways.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import Request, Unmet
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain import find_flavor, find_nodes, judge_node
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.snapshot import Flavor, Snapshot, SnapshotError, SnapshotNode
from nova_hpc_tools.snapshot.direct_ports import DirectPorts


@attrs.frozen
class NodeCapacity:
    """The number of servers of a flavor that fit on one node, or the reason why none fits."""

    #: As it would be then.
    node: SnapshotNode
    #: How many servers.
    fit: int
    #: The reason why one more does not fit, for operators.
    reason: str
    #: The sign of that reason; None if the host gets no servers at all.
    unmet: Unmet | None = None


@attrs.frozen
class Capacity:
    """The number of servers of a flavor that fit on each node of a cloud."""

    flavor: Flavor
    rooms: tuple[NodeCapacity, ...]
    #: Data of the cloud that could not be read, for operators.
    problems: tuple[str, ...] = ()
    #: Of the servers that were counted.
    request: Request | None = None

    @property
    def by_host(self) -> dict[str, int]:
        """Nova host -> number of servers that fit. A host may have several nodes."""
        counts: dict[str, int] = {}
        for room in self.rooms:
            counts[room.node.host] = counts.get(room.node.host, 0) + room.fit
        return counts

    @property
    def total(self) -> int:
        """The number of servers that fit on all nodes together."""
        return sum(room.fit for room in self.rooms)


def measure_capacity(
    cloud: Snapshot, name: str, image: str | None = None, ports: Iterable[DirectPorts] = ()
) -> Capacity:
    """Count the servers of the flavor *name* that fit on each node of *cloud*.

    :param ports: the direct ports that each server brings.
    :raises SnapshotError: the flavor does not exist, or no server can be created from it.
    """
    return measure_flavor(
        cloud, snapshot.flavor_with_ports(cloud, find_flavor(cloud, name, image), ports)
    )


def measure_flavor(cloud: Snapshot, flavor: Flavor) -> Capacity:
    """Count the servers that fit on each node, for a flavor that may not be in the cloud.

    :raises SnapshotError: no server can be created from it.
    """
    try:
        request = snapshot.request_of_flavor(flavor, cloud.hosts)
    except FlavorError as error:
        raise SnapshotError(f"flavor {flavor.name}: {error}") from error
    chooser = Chooser(cloud.profile)
    rooms = (
        measure_node_capacity(node, flavor, request, chooser) for node in find_nodes(cloud, None)
    )
    return Capacity(flavor, tuple(rooms), cloud.problems, request)


def measure_node_capacity(
    node: SnapshotNode, flavor: Flavor, request: Request, chooser: Chooser, most: int | None = None
) -> NodeCapacity:
    """Count the servers that fit on one node.

    :param most: count no more, and give no reason then.
    :raises SnapshotError: the flavor takes no devices.
    """
    fit = 0
    while most is None or fit < most:
        answer = judge_node(node, flavor, request, chooser)
        if answer.choice is None:
            return NodeCapacity(node, fit, answer.reason, answer.unmet)
        devices = answer.choice.devices
        if not devices.picks:
            # Every server of the engine takes devices; without them this would never end.
            raise SnapshotError(f"flavor {flavor.name} takes no device of {node.name}")
        fit += 1
        node = snapshot.take_from_node(node, devices, request.cells, f"new server {fit}")
    return NodeCapacity(node, fit, "")
