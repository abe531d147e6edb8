# SPDX-License-Identifier: Apache-2.0
"""Questions and reports of ``explain``. Data only."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from nova_hpc.placement.model import DeviceSet, Request, Unmet
from nova_hpc.wire.decision import Decision
from nova_hpc_common.level import Distance, Level
from nova_hpc_tools.snapshot import Flavor, Server, SnapshotDevice, SnapshotNode
from nova_hpc_tools.snapshot.direct_ports import DirectPorts
from nova_hpc_tools.snapshot.unplaced_requests import UnplacedRequest


@attrs.frozen
class FlavorQuestion:
    """A question to ``explain``: the flavor, the number of servers, and the limits."""

    flavor: str
    image: str | None = None
    #: Number of servers, one after the other.
    count: int = 1
    #: Only this host; None for all of them.
    host: str | None = None
    #: Direct ports that each of the servers brings.
    ports: tuple[DirectPorts, ...] = ()


@attrs.frozen
class NodeChoice:
    """The devices that the scheduler would choose on one node."""

    devices: DeviceSet

    def providers(self) -> Mapping[str, int]:
        """Return provider -> number of its devices in the choice."""
        counts: dict[str, int] = {}
        for pick in self.devices.picks:
            counts[pick.pool] = counts.get(pick.pool, 0) + 1
        return counts


@attrs.frozen
class NodeVerdict:
    """Whether a server fits on one node, with the reason or the chosen devices."""

    node: SnapshotNode
    #: A sentence: why these devices, or the nearest miss.
    reason: str
    choice: NodeChoice | None = None
    #: Faults of the node's devices.
    notes: tuple[str, ...] = ()
    #: The requirement that it does not meet; None if it fits, or gets no servers at all.
    unmet: Unmet | None = None
    #: Number of devices that are missing, if too few are free; 0 for any other reason.
    lacking: int = 0


@attrs.frozen
class PlacedServer:
    """The place of one of several servers, and the node before and after it."""

    before: SnapshotNode
    choice: NodeChoice
    after: SnapshotNode


@attrs.frozen
class Remedy:
    """A change after which the server would fit, as verified with the scheduler's functions."""

    #: affinity, group, size or server
    kind: str
    #: The change, as a sentence without its end.
    text: str
    #: The node on which it then fits, and at which level.
    node: str
    level: Level


@attrs.frozen
class FlavorReport:
    """The answer of ``explain`` about a flavor: verdicts by node, placed servers, remedies."""

    question: FlavorQuestion
    flavor: Flavor
    request: Request
    verdicts: tuple[NodeVerdict, ...]
    placed: tuple[PlacedServer, ...]
    remedies: tuple[Remedy, ...] = ()
    problems: tuple[str, ...] = ()
    #: Names of the servers, by UUID.
    names: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: The request that was refused before, if the question is about one.
    asked: UnplacedRequest | None = None

    @property
    def fits(self) -> bool:
        """Whether all the servers of the question fit."""
        return len(self.placed) == self.question.count


@attrs.frozen
class AssignedDevices:
    """The devices of one Placement provider that a server has, with their addresses."""

    device: SnapshotDevice
    #: Addresses of the functions, by Nova's PCI records.
    addresses: tuple[str, ...]


@attrs.frozen
class ServerReport:
    """The answer of ``explain`` about a server: its devices, recorded decision and their level."""

    server: Server
    node: SnapshotNode
    given: tuple[AssignedDevices, ...]
    decision: Decision | None
    #: The devices in the groups of the flavor; None if the flavor has changed.
    choice: NodeChoice | None = None
    #: The level and the longest path by the places of the devices: inside groups if the groups are
    #: known, otherwise of all devices. None if a place is unknown.
    level: Level | None = None
    distance: Distance | None = None
    #: Remarks for operators on the above.
    notes: tuple[str, ...] = ()
    #: Names of the servers, by UUID.
    names: Mapping[str, str] = attrs.field(factory=dict, hash=False)
