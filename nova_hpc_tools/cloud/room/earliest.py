# SPDX-License-Identifier: Apache-2.0
"""The earliest time at which a request fits, from known ends of servers. Pure.

Servers end one after the other. The engine counts a node again only after its domain has enough
free devices for the request, because devices alone are counted fast.
"""

from __future__ import annotations

import collections
import datetime
import itertools
from collections.abc import Iterable, Sequence

import attrs

from nova_hpc.cluster.plan import GangPlan
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.cloud.room.end_times import KnownEnd
from nova_hpc_tools.cloud.room.moves import Domain
from nova_hpc_tools.cloud.room.node_fit import FitCounter, NodeContents, release_servers
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.snapshot import Server, Snapshot, SnapshotNode


@attrs.frozen
class RoomTime:
    """The earliest time at which a request fits, and the hosts that then have room.

    :ivar time: None for now.
    :ivar leaving: the ends of servers on these hosts until then.
    """

    time: datetime.datetime | None
    gang: GangPlan
    leaving: tuple[KnownEnd, ...] = ()


@attrs.define
class _WaitingNode:
    """A node, with the servers that have ended on it since it was counted."""

    node: SnapshotNode
    #: Free devices of each want of the request, and the most servers that they allow.
    free: list[int]
    bound: int
    #: Server -> its devices of each want.
    used: dict[str, list[int]]
    count: int | None = None
    ended: list[Server] = attrs.Factory(list)


def find_earliest_time(
    cloud: Snapshot, question: RoomQuestion, ends: Sequence[KnownEnd]
) -> RoomTime | None:
    """Find the earliest time at which the request fits; None if the known ends are not enough.

    :param ends: in their order.
    """
    wait = _RoomWait(cloud, question)
    if wait.fits(wait.domains):
        return RoomTime(None, wait.plan())
    done: list[KnownEnd] = []
    for time, together in itertools.groupby(ends, key=lambda end: end.time):
        ended = tuple(together)
        done += ended
        if wait.fits(wait.end(end.server for end in ended)):
            plan = wait.plan()
            leaving = tuple(end for end in done if end.server.host in plan.hosts)
            return RoomTime(time, plan, leaving)
    return None


class _RoomWait:
    """The nodes of a cloud while servers end."""

    def __init__(self, cloud: Snapshot, question: RoomQuestion) -> None:
        self._question = question
        self._counter = FitCounter(
            question.flavor, question.request, Chooser(cloud.profile), NodeContents()
        )
        #: Domain -> names of its nodes, and the sum of their bounds.
        self.domains: dict[Domain, list[str]] = collections.defaultdict(list)
        self._bounds: collections.Counter[Domain] = collections.Counter()
        self._nodes: dict[str, _WaitingNode] = {}
        self._nodes_of: dict[str, list[str]] = collections.defaultdict(list)
        for node in cloud.hosts:
            domain = question.domain_of(node.host)
            if domain is None or node.out is not None:
                continue
            free, used = self._counter.count_wanted_devices(node)
            bound = self._counter.bound_by(free)
            self._nodes[node.name] = _WaitingNode(node, free, bound, used)
            self.domains[domain].append(node.name)
            self._bounds[domain] += bound
            for uuid in used:
                self._nodes_of[uuid].append(node.name)

    def end(self, servers: Iterable[Server]) -> set[Domain]:
        """End servers; returns the domains in which more may fit now."""
        changed: set[Domain] = set()
        for server in servers:
            for name in self._nodes_of[server.uuid]:
                waiting = self._nodes[name]
                waiting.ended.append(server)
                waiting.count = None
                domain = self._question.domain_of(waiting.node.host)
                if domain is None:
                    continue
                more = waiting.used[server.uuid]
                waiting.free = [sum(pair) for pair in zip(waiting.free, more, strict=True)]
                bound = self._counter.bound_by(waiting.free)
                self._bounds[domain] += bound - waiting.bound
                waiting.bound = bound
                changed.add(domain)
        return changed

    def fits(self, domains: Iterable[Domain]) -> bool:
        """Whether the request fits into one of these domains."""
        members = self._question.members
        return any(
            self._bounds[domain] >= members
            and sum(self._count(name) for name in self.domains[domain]) >= members
            for domain in domains
        )

    def plan(self) -> GangPlan:
        """Plan the hosts of a request that fits."""
        fit: collections.Counter[str] = collections.Counter()
        for names in self.domains.values():
            for name in names:
                fit[self._nodes[name].node.host] += self._count(name)
        plan = self._question.plan(fit)
        if not isinstance(plan, GangPlan):
            raise AssertionError(plan.reason)
        return plan

    def _count(self, name: str) -> int:
        waiting = self._nodes[name]
        if waiting.count is None:
            waiting.node = release_servers(waiting.node, waiting.ended)
            waiting.ended = []
            waiting.count = self._counter.count(waiting.node) if waiting.bound else 0
        return waiting.count
