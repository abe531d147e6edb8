# SPDX-License-Identifier: Apache-2.0
"""The requests for servers that never got a host. Data only.

No part of a snapshot: a snapshot is what the scheduler knows of the cloud, and this is
what users wanted of it.
"""

from __future__ import annotations

import attrs

from nova_hpc_tools.snapshot import Flavor
from nova_hpc_tools.snapshot.direct_ports import DirectPorts


@attrs.frozen
class UnplacedRequest:
    """One request for one server or several, as Nova stored it."""

    #: UUIDs, in their order.
    servers: tuple[str, ...]
    name: str
    #: The flavor and the image as they were then.
    flavor: Flavor
    #: Nova's state of the server: ``error``, ``building``.
    state: str
    #: What its user reads.
    fault: str | None = None
    #: Of the request that made it.
    request: str | None = None
    #: Neutron's direct ports that it brought.
    ports: tuple[DirectPorts, ...] = ()
    #: UUID of the server group that it is a member of.
    group: str | None = None
    #: How many members were announced for that; None: nothing was.
    members: int | None = None
    #: Why Placement has no candidate for it now; None: that is not why.
    placement: str | None = None
    #: What else was asked for, about which ``explain`` knows nothing.
    notes: tuple[str, ...] = ()
