# SPDX-License-Identifier: Apache-2.0
"""Requests for servers that never got a host. Data only.

They are not a part of a snapshot. A snapshot contains the scheduler's view of the cloud; this
module contains requests of users.
"""

from __future__ import annotations

import attrs

from nova_hpc_tools.snapshot import Flavor
from nova_hpc_tools.snapshot.direct_ports import DirectPorts


@attrs.frozen
class UnplacedRequest:
    """A stored request of Nova whose servers found no host.

    One request may be for several servers.
    """

    #: UUIDs of the servers, in their order.
    servers: tuple[str, ...]
    name: str
    #: The flavor and the image as they were at the time of the request.
    flavor: Flavor
    #: Nova's state of the server: ``error``, ``building``.
    state: str
    #: The fault that Nova shows to the user.
    fault: str | None = None
    #: Id of the API request that made it.
    request: str | None = None
    #: Neutron's direct ports in the request.
    ports: tuple[DirectPorts, ...] = ()
    #: UUID of the server group that it is a member of.
    group: str | None = None
    #: The number of members that the request announced for the group; None if it announced none.
    members: int | None = None
    #: The reason why Placement has no candidate for it now; None if that is not the reason.
    placement: str | None = None
    #: Other parts of the request, which ``explain`` does not evaluate.
    notes: tuple[str, ...] = ()
