# SPDX-License-Identifier: Apache-2.0
"""The earliest time at which a request fits, from known ends of servers. Pure.

Servers end one after the other. Free devices alone bound the servers that fit on a node, and are
counted fast. The engine counts a node only while its domain could have room by these bounds.
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
from nova_hpc_tools.cloud.room.node_fit import FitCounter, NodeContents
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
    """A node, with the servers that have ended on it."""

    node: SnapshotNode
    domain: Domain
    #: Free devices of each want of the request.
    free: list[int]
    #: Server -> its devices of each want.
    used: dict[str, list[int]]
    #: The servers that fit: the engine's count, or the most that the free devices allow.
    most: int
    ended: list[Server] = attrs.Factory(list)


@attrs.define
class _WaitingDomain:
    """A domain, with the sum over its nodes of the servers that fit at most."""

    nodes: list[_WaitingNode] = attrs.Factory(list)
    most: int = 0
    #: Nodes by name that the engine has to count before the sum is exact.
    uncounted: dict[str, _WaitingNode] = attrs.Factory(dict)


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
        self.domains: dict[Domain, _WaitingDomain] = collections.defaultdict(_WaitingDomain)
        self._nodes_of: dict[str, list[_WaitingNode]] = collections.defaultdict(list)
        for node in cloud.hosts:
            domain = question.domain_of(node.host)
            if domain is None or node.out is not None:
                continue
            free, used = self._counter.count_wanted_devices(node)
            waiting = _WaitingNode(node, domain, free, used, 0)
            self.domains[domain].nodes.append(waiting)
            self._bound(waiting)
            for uuid in used:
                self._nodes_of[uuid].append(waiting)

    def end(self, servers: Iterable[Server]) -> set[Domain]:
        """End servers; returns the domains in which more may fit now."""
        changed: set[Domain] = set()
        for server in servers:
            for waiting in self._nodes_of[server.uuid]:
                waiting.ended.append(server)
                more = waiting.used[server.uuid]
                waiting.free = [sum(pair) for pair in zip(waiting.free, more, strict=True)]
                self._bound(waiting)
                changed.add(waiting.domain)
        return changed

    def fits(self, domains: Iterable[Domain]) -> bool:
        """Whether the request fits into one of these domains."""
        return any(self._fits_into(self.domains[domain]) for domain in domains)

    def plan(self) -> GangPlan:
        """Plan the hosts of a request that fits."""
        fit: collections.Counter[str] = collections.Counter()
        for domain in self.domains.values():
            if self._fits_into(domain):
                for waiting in domain.nodes:
                    fit[waiting.node.host] += waiting.most
        plan = self._question.plan(fit)
        if not isinstance(plan, GangPlan):
            raise AssertionError(plan.reason)
        return plan

    def _fits_into(self, domain: _WaitingDomain) -> bool:
        while domain.uncounted and domain.most >= self._question.members:
            _, waiting = domain.uncounted.popitem()
            domain.most -= waiting.most
            waiting.most = self._counter.count(waiting.node, waiting.ended)
            domain.most += waiting.most
        return domain.most >= self._question.members

    def _bound(self, waiting: _WaitingNode) -> None:
        """Bound the servers that fit on a node by its free devices."""
        domain = self.domains[waiting.domain]
        domain.most -= waiting.most
        waiting.most = self._counter.bound_by(waiting.free)
        domain.most += waiting.most
        if waiting.most:
            domain.uncounted[waiting.node.name] = waiting
