# SPDX-License-Identifier: Apache-2.0
"""A server's requirements: the input of a request.

The scheduler reads a request specification, a node reads the claim of the server, and
``explain`` reads a flavor in a snapshot. All of them make the same value from it, and this
value makes the request.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

import attrs

from nova_hpc.placement import flavor, grouping
from nova_hpc.placement.model import Ports, Request, Want, WantedCell


@attrs.frozen
class ServerSpec:
    """The device requirements of one server, read from its flavor, image and ports.

    The scheduler, the node and the tools read them from different objects; this class is the same
    for all.
    """

    #: All keys of the flavor, ``hpc:`` and others.
    extra_specs: Mapping[str, str] = attrs.field(hash=False)
    #: The aliases in their order; the keys are the positions: "0", "1" and so on.
    wants: tuple[Want, ...] = ()
    #: The guest's NUMA cells; () if it has none.
    cells: tuple[WantedCell, ...] = ()
    #: Nova's policy for the devices: the flavor's, the image's or the aliases'. None if the
    #: flavor's own key decides.
    numa_policy: str | None = None
    #: Neutron's direct ports, named by the roles of their networks.
    ports: tuple[Ports, ...] = ()
    #: The roles that networks can have, by which ``hpc:group`` may name ports.
    port_roles: tuple[str, ...] = ()

    def request(self, roles: Mapping[str, str]) -> Request:
        """Build the request for the placement engine.

        :param roles: Want.key -> role, by which ``hpc:group`` may name devices.
        :raises nova_hpc.placement.grouping.FlavorError: for the user: the key,
            its value, and the remedy.
        """
        # The scheduler checks this before it reads any host, so all callers give one answer.
        grouping.check_wants(self.wants)
        return flavor.build_request(
            self.extra_specs,
            self.wants,
            self.cells,
            roles,
            self.numa_policy,
            self.ports,
            self.port_roles,
        )


def most_counted_name(counter: collections.Counter[str]) -> str:
    """Return the name with the highest count; of equal counts the first in the alphabet.

    The tie-break makes the answers of all processes equal.
    """
    return min(counter.items(), key=lambda item: (-item[1], item[0]))[0]
