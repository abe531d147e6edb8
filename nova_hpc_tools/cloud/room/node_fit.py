# SPDX-License-Identifier: Apache-2.0
"""The number of servers that fit on a node, counted once for all nodes of equal content.

A search asks for thousands of states of nodes. Most of them are alike: their devices are at equal
addresses, and as many are free. The engine itself decides about each kind of state.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import Request
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud import capacity
from nova_hpc_tools.cloud.explain import judge_node
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.snapshot import Flavor, Server, SnapshotNode

#: A number of devices that no node has.
_MANY: Final = 1 << 30


class NodeContents:
    """Keys of nodes: equal for nodes that the engine judges alike.

    The devices of a node stay at their places, so that part of its key is built once.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, int] = {}
        self._kind_of_node: dict[str, int] = {}

    def key(self, node: SnapshotNode, leaving: Iterable[Server] = ()) -> Hashable:
        """Return the key of a node in its present state.

        :param leaving: servers whose devices, CPUs and pages count as free.
        """
        kind = self._kind_of_node.get(node.name)
        if kind is None:
            kind = self._kinds.setdefault(self._describe(node), len(self._kinds))
            self._kind_of_node[node.name] = kind
        free, numa = snapshot.count_free_without(node, leaving)
        amounts = tuple([(each.dedicated_cpus, _sort_pages(each.pages)) for each in numa])
        return kind, free, amounts

    def _describe(self, node: SnapshotNode) -> Hashable:
        names = {device.provider: device.address for device in node.devices}
        return (
            node.out,
            tuple(
                (
                    *(device.address, device.location, device.aliases),
                    *(device.role, device.unit, device.ports),
                )
                for device in node.devices
            ),
            tuple((numa.id, numa.socket) for numa in node.numa),
            frozenset(frozenset(names[member] for member in members) for members in node.nvlink),
        )


def _sort_pages(pages: object) -> Hashable:
    return tuple(sorted(pages.items())) if isinstance(pages, dict) else None


@attrs.define
class FitCounter:
    """Counts the servers of one flavor that fit on nodes."""

    flavor: Flavor
    request: Request
    chooser: Chooser
    contents: NodeContents
    _counts: dict[Hashable, int] = attrs.field(factory=dict, init=False)
    _accepted: dict[Hashable, bool] = attrs.field(factory=dict, init=False)

    def count(self, node: SnapshotNode, leaving: Sequence[Server] = ()) -> int:
        """Count the servers that fit on a node.

        :param leaving: servers that leave it before.
        """
        key = self.contents.key(node, leaving)
        if key not in self._counts:
            left = snapshot.release_from_node(node, *leaving) if leaving else node
            self._counts[key] = capacity.measure_node_capacity(
                left, self.flavor, self.request, self.chooser, self.bound(left)
            ).fit
        return self._counts[key]

    def accepts(self, node: SnapshotNode) -> bool:
        """Whether one server fits on a node."""
        if node.out is not None or not self.bound(node):
            return False
        key = self.contents.key(node)
        if key not in self._accepted:
            verdict = judge_node(node, self.flavor, self.request, self.chooser)
            self._accepted[key] = verdict.choice is not None
        return self._accepted[key]

    def bound(self, node: SnapshotNode, leaving: Iterable[str] = ()) -> int:
        """Return a number of servers that are not exceeded, by the free devices alone.

        :param leaving: UUIDs of servers on the node whose devices count as free.
        """
        free, used = self.count_wanted_devices(node)
        freed = [free, *(used[uuid] for uuid in leaving)]
        return self.bound_by(map(sum, zip(*freed, strict=True)))

    def bound_by(self, free: Iterable[int]) -> int:
        """Return the bound for these numbers of free devices, one for each want."""
        wants = self.flavor.wants
        return min(
            (number // want.count for number, want in zip(free, wants, strict=True)), default=_MANY
        )

    def count_wanted_devices(self, node: SnapshotNode) -> tuple[list[int], dict[str, list[int]]]:
        """Count the devices that serve each want: the free ones, and those of each server."""
        wants = self.flavor.wants
        free = [0] * len(wants)
        used: dict[str, list[int]] = {}
        for device in node.devices:
            for use in device.used:
                used.setdefault(use.server, [0] * len(wants))
            for number, want in enumerate(wants):
                if device.ports is None and want.alias in device.aliases:
                    free[number] += device.free
                    for use in device.used:
                        used[use.server][number] += 1
        return free, used
