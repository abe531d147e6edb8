# SPDX-License-Identifier: Apache-2.0
"""The place of a node on the fabric, in the names that one project has for it.

Nova keeps aggregates in its API database. A nova-compute has no database at all, so it
queries the conductor of its cell (``AggregateList.get_by_host`` is remotable in releases 32 to
34, nova/objects/aggregate.py; Nova itself gets availability zones in this way,
nova/availability_zones.py, ``get_host_availability_zone``). The conductor of a cell cannot
answer if it may not reach the API database. That is one more of the upcalls in Nova's guide to
cells, and the node then has no place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
from nova import context as nova_context
from nova import objects
from oslo_log import log as logging

from nova_hpc.fabric import aggregates
from nova_hpc.fabric.pseudonym import Names
from nova_hpc.from_nova.log_throttle import LOG_THROTTLE, format_held_back
from nova_hpc.topology.model import Node

LOG = logging.getLogger(__name__)


@attrs.frozen
class FabricPosition:
    """A node's place on the fabric, with the pseudonyms for one project.

    :ivar domains: level -> the project's name of the domain; unknown ones are missing.
    :ivar rails: the host's name of a rail -> the project's name.
    """

    domains: Mapping[str, str] = attrs.Factory(dict)
    rails: Mapping[str, str] = attrs.Factory(dict)

    def rails_of(self, node: Node, addresses: Iterable[str]) -> dict[str, str]:
        """Return device address -> the project's name of its rail, for devices on a known rail.

        The map uses the kernel's name for a rail: the RDMA device (``mlx5_0``) or the network
        device of the physical function. A virtual function is on the rail of its physical one.
        """
        rail_by_address = {}
        for address in addresses:
            function = node.function(address)
            if function is not None and function.physical_function is not None:
                function = node.function(function.physical_function) or function
            if function is None:
                continue
            called = [rdma_device.name for rdma_device in function.rdma]
            called += [os_device.partition(" ")[2] for os_device in function.os_devices]
            rail = next((self.rails[name] for name in called if name in self.rails), None)
            if rail is not None:
                rail_by_address[address] = rail
        return rail_by_address


def read_fabric_position(host: str, project: str) -> FabricPosition:
    """Read the domains and rails of *host*, with one project's names; empty if unreadable.

    Never raises: the place is only information, and its absence does not stop a server.

    :param host: the name of the compute service, as in Nova's aggregates.
    :param project: of the servers.
    """
    try:
        host_aggregates = objects.AggregateList.get_by_host(nova_context.get_admin_context(), host)
        reading = aggregates.read_aggregate_place(
            host, [dict(aggregate.metadata or {}) for aggregate in host_aggregates]
        )
        if not reading.salt:
            return FabricPosition()  # no aggregate of a map, or a map that was never synced
        names = Names(reading.salt, reading.map, project)
        return FabricPosition(names.domains(reading.place), names.rails(reading.place))
    except Exception as error:
        held = LOG_THROTTLE.due(("whereabouts", type(error).__name__))
        if held is not None:
            LOG.warning(
                "Servers do not get their place on the fabric%s: this host's aggregates cannot "
                "be read: %s: %s",
                format_held_back(held),
                type(error).__name__,
                error,
            )
        return FabricPosition()
