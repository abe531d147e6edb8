# SPDX-License-Identifier: Apache-2.0
"""New places for the servers of a host. Pure: a snapshot in, a plan or its refusals out.

The scheduler's own functions judge each server, on hosts as they would be after the moves before
it. Servers that need most are placed first, each on the best host of its domain. If a later server
finds no room, earlier choices are taken back, up to a bound of tries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.fabric.aggregates import read_aggregate_place
from nova_hpc.fabric.model import FabricLevel, FabricPlace
from nova_hpc.placement.flavor import FABRIC, FABRIC_POLICY, has_hpc_keys
from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import DeviceSet, Request
from nova_hpc_common.level import AffinityPolicy
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain import find_flavor, find_nodes, judge_node
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.snapshot import Flavor, Snapshot, SnapshotDevice, SnapshotError, SnapshotNode
from nova_hpc_tools.snapshot.direct_ports import DirectPorts, merge_equal_ports

#: The most verdicts of the engine in one search.
_TRIES: Final = 5000


@attrs.frozen
class DrainedServer:
    """A server that has to leave the drained host.

    :ivar apart: hosts that its server groups forbid it.
    :ivar tied: why it cannot leave at all; "" if it can.
    """

    uuid: str
    name: str
    flavor: str
    extra_specs: Mapping[str, str]
    apart: frozenset[str] = frozenset()
    tied: str = ""


@attrs.frozen
class Move:
    """One planned move of a server off the drained host.

    :ivar target: host that it goes to; None if Nova chooses, since it has no devices that
        could be planned.
    :ivar level: how close its devices will be; "" without devices.
    :ivar domain: the domain that it stays in, as ``leaf l1``; "" if its flavor requires none.
    """

    server: str
    name: str
    target: str | None
    level: str = ""
    domain: str = ""


@attrs.frozen
class DrainPlan:
    """The planned moves in their order, and the servers without a target.

    :ivar refusals: UUID of a server -> the reason why it has no place.
    """

    moves: tuple[Move, ...] = ()
    refusals: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@attrs.frozen
class _PlannedServer:
    """A server with devices that has to move, with its engine request."""

    mover: DrainedServer
    flavor: Flavor
    request: Request
    devices: int
    domain: str
    #: Hosts that it may go to: hosts in a domain that it has to share come first.
    hosts: tuple[frozenset[str], ...]


def plan_drain(cloud: Snapshot, host: str, movers: Iterable[DrainedServer]) -> DrainPlan:
    """Plan a target for all *movers* on *host*; if one has none, the plan has the reasons instead.

    One server that cannot leave at all ends the plan, so a plan moves all servers or none. Nova
    chooses the host of servers without devices.
    """
    places = {
        node.host: read_aggregate_place(node.host, node.aggregates.values()).place
        for node in cloud.hosts
    }
    servers = {server.uuid for server in cloud.servers}
    wanted: list[_PlannedServer] = []
    free: list[Move] = []
    refusals: dict[str, str] = {}
    for mover in sorted(movers, key=lambda mover: (mover.name, mover.uuid)):
        try:
            if mover.tied:
                raise SnapshotError(mover.tied)
            domain, hosts = _find_allowed_hosts(mover, places, host)
            if mover.uuid in servers and has_hpc_keys(mover.extra_specs):
                wanted.append(_build_planned_server(cloud, mover, domain, hosts))
            else:
                free.append(Move(mover.uuid, mover.name, None, domain=domain))
        except SnapshotError as error:
            refusals[mover.uuid] = f"{mover.name} ({mover.uuid}): {error}"
    if refusals:
        return DrainPlan(refusals=refusals)
    # The largest first: the smaller ones find room in the rest.
    wanted.sort(key=lambda server: -server.devices)
    search = _DrainSearch(cloud, host)
    moves = search.place(tuple(wanted))
    if moves is None:
        return DrainPlan(refusals=search.why(wanted))
    return DrainPlan(moves=(*moves, *free))


def plan_evacuation(cloud: Snapshot, host: str, movers: Iterable[DrainedServer]) -> DrainPlan:
    """Find places for servers of a dead host; servers without a place stay there, with a reason.

    No further server could be added to the plan. For example, a cloud with room for two GPUs takes
    two servers with one GPU each when the server with four GPUs has no place.
    """
    # The search is exhaustive and places large servers first. So a server that is left out has no
    # place beside the larger ones, which all keep theirs.
    left = list(movers)
    stay: dict[str, str] = {}
    while (plan := plan_drain(cloud, host, left)).refusals:
        stay |= plan.refusals
        left = [mover for mover in left if mover.uuid not in stay]
    return DrainPlan(plan.moves, stay)


@attrs.frozen
class DomainRule:
    """The domain that a server has, and whether ``hpc:fabric`` of its flavor lets it leave."""

    #: None if the flavor has no ``hpc:fabric``.
    level: FabricLevel | None = None
    #: Level and name of the domain; None if unknown.
    home: tuple[FabricLevel, str] | None = None
    required: bool = False

    @classmethod
    def of(cls, extra_specs: Mapping[str, str], host: str, home: FabricPlace | None) -> DomainRule:
        """Read the rule of a server's flavor.

        :param host: the server's host, at the place *home*.
        :raises SnapshotError: the server has to stay in a domain, and the domain is unknown.
        """
        word = extra_specs.get(FABRIC)
        if word is None:
            return cls()
        policy = extra_specs.get(FABRIC_POLICY, AffinityPolicy.REQUIRED.value)
        level = FabricLevel.from_word(word)
        domain = None if home is None else home.enclosing(level)
        rule = cls(level, domain, policy == AffinityPolicy.REQUIRED.value)
        if rule.required and rule.home is None:
            raise SnapshotError(
                f"its flavor requests {FABRIC}={word}, and Nova has no {word} of {host}: write a "
                "map into Nova with nova-hpc fabric sync"
            )
        return rule

    @property
    def domain(self) -> str:
        """The domain for people, such as ``leaf l1``; "" if there is none."""
        return f"{self.home[0].word} {self.home[1]}" if self.home else ""

    def distance(self, place: FabricPlace) -> int | None:
        """Return 0 for a host in the domain, 1 for one outside, None if the server may not go."""
        if self.level is None or (self.home and place.enclosing(self.level) == self.home):
            return 0
        return None if self.required else 1


def _find_allowed_hosts(
    mover: DrainedServer, places: Mapping[str, FabricPlace], host: str
) -> tuple[str, tuple[frozenset[str], ...]]:
    """The domain that the server stays in, and its hosts; then, if it may leave, all others."""
    rule = DomainRule.of(mover.extra_specs, host, places.get(host))
    everywhere = frozenset(places) - {host} - mover.apart
    inside = frozenset(name for name in everywhere if rule.distance(places[name]) == 0)
    if rule.level is None or rule.required:
        return rule.domain, (inside,)
    return rule.domain, (inside, everywhere - inside)


def read_server_needs(
    cloud: Snapshot,
    name: str,
    extra_specs: Mapping[str, str],
    devices: Iterable[SnapshotDevice],
) -> tuple[Flavor, Request]:
    """Return a server's flavor with its direct ports, and its request to the engine.

    :param name: of the flavor, with these extra specs when the server was created.
    :param devices: the devices that it has, one for each function.
    :raises SnapshotError: it cannot be planned.
    """
    flavor = find_flavor(cloud, name)
    if dict(flavor.extra_specs) != dict(extra_specs):
        raise SnapshotError(
            f"its flavor {flavor.name} was changed since it was created, so its needs are "
            "unknown: resize it to an existing flavor"
        )
    flavor = snapshot.flavor_with_ports(
        cloud,
        flavor,
        merge_equal_ports(
            DirectPorts(
                network=device.ports.network,
                whole=device.ports.whole,
                trusted=device.ports.trusted,
                remote=device.ports.remote,
            )
            for device in devices
            if device.ports is not None
        ),
    )
    try:
        return flavor, snapshot.request_of_flavor(flavor, cloud.hosts)
    except FlavorError as error:
        raise SnapshotError(f"flavor {flavor.name}: {error}") from error


def _build_planned_server(
    cloud: Snapshot, mover: DrainedServer, domain: str, hosts: tuple[frozenset[str], ...]
) -> _PlannedServer:
    """The server in the engine's words.

    :raises SnapshotError: it cannot be planned.
    """
    devices = [
        device
        for node in cloud.hosts
        for device in node.devices
        for use in device.used
        if use.server == mover.uuid
    ]
    flavor, request = read_server_needs(cloud, mover.flavor, mover.extra_specs, devices)
    return _PlannedServer(mover, flavor, request, len(devices), domain, hosts)


class _DrainSearch:
    """Backtracking search: assigns servers to nodes one after the other, and undoes choices."""

    def __init__(self, cloud: Snapshot, host: str) -> None:
        self._nodes = [node for node in find_nodes(cloud, None) if node.host != host]
        self._chooser = Chooser(cloud.profile)
        self._host = host
        self._tries = 0
        #: How many servers were placed when one found no room: the most, and which one.
        self._stuck: tuple[int, _PlannedServer | None] = (-1, None)

    def place(self, wanted: Sequence[_PlannedServer]) -> tuple[Move, ...] | None:
        """Place all servers in *wanted*; None if there is no way."""
        return self._place(wanted, {node.name: node for node in self._nodes}, 0)

    def _place(
        self, wanted: Sequence[_PlannedServer], state: Mapping[str, SnapshotNode], at: int
    ) -> tuple[Move, ...] | None:
        """Place the servers from *at* on: a depth-first search that takes choices back.

        :returns: their moves; None without a plan, or if the tries are used up.
        """
        if at == len(wanted):
            return ()
        server = wanted[at]
        options = self._options(server, state)
        if not options and at > self._stuck[0]:
            self._stuck = (at, server)
        for name, devices in options:
            node = state[name]
            after = snapshot.take_from_node(node, devices, server.request.cells, server.mover.uuid)
            rest = self._place(wanted, {**state, name: after}, at + 1)
            if rest is not None:
                level = devices.level.word
                move = Move(server.mover.uuid, server.mover.name, node.host, level, server.domain)
                return (move, *rest)
            if self._tries >= _TRIES:
                return None
        return None

    def _options(
        self, server: _PlannedServer, state: Mapping[str, SnapshotNode]
    ) -> list[tuple[str, DeviceSet]]:
        """Nodes that take it and its devices there, the best first; one of several equal nodes."""
        options = []
        for nearness, hosts in enumerate(server.hosts):
            for name, node in state.items():
                if node.host not in hosts or self._tries >= _TRIES:
                    continue
                self._tries += 1
                choice = judge_node(node, server.flavor, server.request, self._chooser).choice
                if choice is not None:
                    rank = self._chooser.rank(server.request, choice.devices, node)
                    options.append(((nearness, rank, name), name, choice.devices))
        return [
            (name, devices) for _, name, devices in sorted(options, key=lambda option: option[0])
        ]

    def why(self, wanted: Sequence[_PlannedServer]) -> dict[str, str]:
        """Return why :meth:`place` found nothing, for the server that it could not place.

        If the search was cut off, it is the first server, and the reason is the number of tries.
        """
        at, server = self._stuck
        if self._tries >= _TRIES or server is None:
            server = server or wanted[0]
            text = f"no plan was found in {_TRIES} tries: move some of the servers by hand"
            return {server.mover.uuid: text}
        within = f" in {server.domain}" if server.domain and len(server.hosts) == 1 else ""
        fits = sum(len(self._options(server, {node.name: node})) for node in self._nodes)
        sentence = f"{server.mover.name} ({server.mover.uuid}): no host{within} has room for it"
        reasons = Counter(
            judge_node(node, server.flavor, server.request, self._chooser).reason
            for node in self._nodes
            if node.host in frozenset().union(*server.hosts)
        ).most_common(3)
        if fits:
            sentence += f" beside the {at} that go before it"
        elif reasons:
            sentence += ": " + "; ".join(f"{count} x {reason}" for reason, count in reasons)
        return {server.mover.uuid: sentence}
