# SPDX-License-Identifier: Apache-2.0
"""The servers of a cloud that the planner can move, and the hosts that each may go to."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Mapping
from typing import Final

from nova_hpc.fabric.model import FabricMap, FabricPlace
from nova_hpc.placement.flavor import has_hpc_keys
from nova_hpc_tools.cloud.drain import DomainRule, read_server_needs
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.cloud.room.node_fit import FitCounter, NodeContents
from nova_hpc_tools.snapshot import (
    Server,
    Snapshot,
    SnapshotDevice,
    SnapshotError,
    SnapshotGroup,
    SnapshotNode,
    owner_words,
)

_AFFINITY: Final = "affinity"


class Movers:
    """Reads the servers of a cloud for a search of moves, each when it is asked for."""

    def __init__(
        self,
        cloud: Snapshot,
        fabric: FabricMap,
        chooser: Chooser,
        contents: NodeContents,
        agreed: bool = False,
    ) -> None:
        """Prepare the reading.

        :param agreed: only servers may move whose owners have agreed.
        """
        self._cloud = cloud
        self._agreed = agreed
        self._fabric = fabric
        self._chooser = chooser
        self._contents = contents
        self.servers: Mapping[str, Server] = {server.uuid: server for server in cloud.servers}
        self._uses: dict[str, list[SnapshotDevice]] = collections.defaultdict(list)
        self._nodes: dict[str, set[tuple[str, str]]] = collections.defaultdict(set)
        for node in cloud.hosts:
            for device in node.devices:
                for use in device.used:
                    self._uses[use.server].append(device)
                    self._nodes[use.server].add((node.host, node.node))
        self._groups: dict[str, list[SnapshotGroup]] = collections.defaultdict(list)
        for group in cloud.groups:
            for uuid in group.members:
                self._groups[uuid].append(group)
        self._needs: dict[Hashable, FitCounter | str] = {}
        self._found: dict[str, FitCounter | str] = {}
        self._rules: dict[str, DomainRule] = {}

    def find_needs(self, uuid: str) -> FitCounter | str:
        """Return the needs of a server in the engine's words, or why it cannot be moved."""
        if uuid not in self._found:
            self._found[uuid] = self._read_needs(uuid)
        return self._found[uuid]

    def _read_needs(self, uuid: str) -> FitCounter | str:
        server = self.servers[uuid]
        if server.immobile is not None:
            return server.immobile
        if self._agreed and not self.has_agreed(uuid):
            return "its owner has not agreed to a move"
        if self._nodes[uuid] != {(server.host, server.node)}:
            return "it is being moved: wait for it"
        if not has_hpc_keys(server.extra_specs):
            return "its flavor has no hpc: keys, so Nova alone decides about it"
        place = self._fabric.place(server.host)
        try:
            self._rules[uuid] = DomainRule.of(server.extra_specs, server.host, place)
        except SnapshotError as error:
            return str(error)
        uses = self._uses[uuid]
        ports = tuple(device.ports for device in uses if device.ports is not None)
        key = (server.flavor, tuple(server.extra_specs.items()), ports)
        if key not in self._needs:
            try:
                flavor, request = read_server_needs(
                    self._cloud, server.flavor, server.extra_specs, uses
                )
                self._needs[key] = FitCounter(flavor, request, self._chooser, self._contents)
            except SnapshotError as error:
                self._needs[key] = str(error)
        return self._needs[key]

    def has_agreed(self, uuid: str) -> bool:
        """Whether the owner of a server has agreed to its moves."""
        server = self.servers[uuid]
        return owner_words.may_move(server.movable, server.extra_specs)

    def kind(self, uuid: str) -> Hashable:
        """Return a key that servers of equal needs and rights share."""
        needs = self.find_needs(uuid)
        if isinstance(needs, str):
            return ""
        alone = uuid if self._groups.get(uuid) else ""
        return id(needs), alone, self._rules[uuid].home

    def rule(self, uuid: str) -> DomainRule:
        """Return the rule about the domain of a server that has needs."""
        return self._rules[uuid]

    def distance(self, uuid: str, node: SnapshotNode, moved: Mapping[str, Server]) -> int | None:
        """Return 0 for a node in the server's domain, 1 for one outside, None if it may not go.

        :param moved: the servers with new hosts.
        """
        place = self._fabric.place(node.host) or FabricPlace(host=node.host)
        distance = self._rules[uuid].distance(place)
        if distance is None:
            return None
        for group in self._groups.get(uuid, ()):
            hosts = [
                moved[member].host if member in moved else host
                for member, host in group.members.items()
                if member != uuid
            ]
            if group.policy == _AFFINITY and hosts and node.host not in hosts:
                return None
            if group.policy != _AFFINITY and hosts.count(node.host) >= group.most:
                return None
        return distance

    def list_on(self, node: SnapshotNode) -> list[str]:
        """List the servers with devices of a node that the planner can move."""
        users = dict.fromkeys(use.server for device in node.devices for use in device.used)
        return [
            uuid
            for uuid in users
            if uuid in self.servers and not isinstance(self.find_needs(uuid), str)
        ]
