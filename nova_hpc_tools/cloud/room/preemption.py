# SPDX-License-Identifier: Apache-2.0
"""The fewest preemptible servers whose removal makes room for a request. Pure.

Only the key ``hpc:preemptible=yes`` of its flavor makes a server preemptible, as the server has it
since it was created or resized; its metadata never does. For each node, the engine counts the
members that fit without each choice of its preemptible servers. A knapsack over the nodes of each
domain then finds the fewest servers, and the domain with the least wins. Of equal choices, the one
wins whose servers have fewer devices; then the order of hosts and of devices decides.

An example. Hosts a, b and c of a leaf have four GPUs each. Preemptible servers have them: r and s
two each on a; t, u and v on b, where t has two; and w one of c, whose others are free. One server
with four GPUs needs w to leave. Two need three servers: w from c, and r and s from a, because b
would lose three.
"""

from __future__ import annotations

import collections
import itertools
import math
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.cluster.plan import GangPlan
from nova_hpc.cluster.plan.tree import natural_sort_key
from nova_hpc.placement import flavor as hpc_flavor
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.cloud.room.moves import Domain, RoomMiss
from nova_hpc_tools.cloud.room.node_fit import FitCounter, NodeContents
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.snapshot import Server, Snapshot, SnapshotNode

#: Seconds after which choices are not compared any more, but made.
_SECONDS: Final = 15.0
#: The cost of a server in devices: more than all servers of a cloud have.
_SERVER: Final = 1 << 30
#: The most choices of one number of servers of one node that the engine judges.
_CHOICES: Final = 2_000


@attrs.frozen
class PreemptionPlan:
    """The servers whose removal makes room, in their order, and the hosts that then have it.

    :ivar proven: whether no plan has fewer servers.
    """

    servers: tuple[Server, ...]
    gang: GangPlan
    proven: bool = True


@attrs.frozen
class _Choice:
    """Servers of one node that leave, and the members that fit in addition then."""

    more: int
    #: _SERVER for each of them, and 1 for each of their devices.
    cost: int
    #: Their numbers in the order of the node's preemptible servers.
    leaving: tuple[int, ...]


@attrs.frozen
class _Chain:
    """Choices of several nodes of a domain."""

    cost: int = 0
    node: str = ""
    leaving: tuple[int, ...] = ()
    rest: _Chain | None = None


def is_preemptible(extra_specs: Mapping[str, str]) -> bool:
    """Whether the flavor of a server allows operators to shelve it for others."""
    return extra_specs.get(hpc_flavor.PREEMPTIBLE) == hpc_flavor.YES


def find_preemption(
    cloud: Snapshot,
    question: RoomQuestion,
    only: Collection[str] | None = None,
    seconds: float = _SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> PreemptionPlan | RoomMiss:
    """Find the fewest servers whose removal makes room; none if there is room already.

    :param only: UUIDs of the servers that Nova shelves now, also paused ones. None for those that
        Nova would also move: a snapshot contains no more.
    :param seconds: after so many, choices are not compared any more, and the plan is not proven.
    :param clock: measures the seconds.
    """
    return _PreemptionSearch(cloud, question, only, clock() + seconds, clock).find()


class _PreemptionSearch:
    def __init__(
        self,
        cloud: Snapshot,
        question: RoomQuestion,
        only: Collection[str] | None,
        until: float,
        clock: Callable[[], float],
    ) -> None:
        self._question, self._until, self._clock = question, until, clock
        self._contents = NodeContents()
        self._counter = FitCounter(
            question.flavor, question.request, Chooser(cloud.profile), self._contents
        )
        self._nodes = {
            node.name: node
            for node in sorted(
                cloud.hosts, key=lambda node: (natural_sort_key(node.host), node.node)
            )
        }
        self._domains: dict[Domain, list[str]] = collections.defaultdict(list)
        for name, node in self._nodes.items():
            domain = question.domain_of(node.host)
            if domain is not None and node.out is None:
                self._domains[domain].append(name)
        #: Numbers of the devices of each server, on its only node.
        self._devices: dict[str, tuple[int, ...]] = {}
        self._servers = self._list_preemptible(cloud, only)
        self._choices: dict[Hashable, tuple[_Choice, ...]] = {}
        self._proven = True

    def _list_preemptible(
        self, cloud: Snapshot, only: Collection[str] | None
    ) -> dict[str, list[Server]]:
        """List the servers of each node that may leave, in the order of their devices."""
        candidates = {
            server.uuid: server
            for server in cloud.servers
            if is_preemptible(server.extra_specs)
            and (server.immobile is None if only is None else server.uuid in only)
        }
        numbers: dict[str, dict[str, list[int]]] = collections.defaultdict(dict)
        for node in self._nodes.values():
            for number, device in enumerate(node.devices):
                for use in device.used:
                    if use.server in candidates:
                        numbers[use.server].setdefault(node.name, []).append(number)
        servers_by_node: dict[str, list[Server]] = collections.defaultdict(list)
        for uuid, nodes in numbers.items():
            # A server with devices of two nodes is being moved.
            for name in nodes if len(nodes) == 1 else ():
                server, node = candidates[uuid], self._nodes[name]
                if (server.host, server.node) == (node.host, node.node):
                    self._devices[uuid] = tuple(nodes[name])
                    servers_by_node[name].append(server)
        for servers in servers_by_node.values():
            servers.sort(key=lambda server: (self._devices[server.uuid], server.uuid))
        return servers_by_node

    def find(self) -> PreemptionPlan | RoomMiss:
        best: _Chain | None = None
        for domain in sorted(self._domains, key=lambda domain: natural_sort_key(domain[1])):
            chain = self._choose_in(domain)
            if chain is not None and (best is None or chain.cost < best.cost):
                best = chain
                if not best.cost:
                    break
        if best is None:
            return RoomMiss(self._explain_miss())
        leaving = dict(_list_leaving(best))
        servers = tuple(
            self._servers[name][number] for name in self._nodes for number in leaving.get(name, ())
        )
        return PreemptionPlan(servers, self._plan_gang(leaving), self._proven or not servers)

    # -- one domain -----------------------------------------------------------------------

    def _choose_in(self, domain: Domain) -> _Chain | None:
        """Choose the cheapest servers of a domain without which the request fits there."""
        names = self._domains[domain]
        members = self._question.members
        if sum(self._bound_without_all(name) for name in names) < members:
            return None
        needed = members - sum(self._counter.count(self._nodes[name]) for name in names)
        if needed <= 0:
            return _Chain()
        #: The cheapest choices after which at least so many more members fit.
        best: list[_Chain | None] = [_Chain(), *([None] * needed)]
        alike: collections.Counter[tuple[_Choice, ...]] = collections.Counter()
        for name in names:
            choices = self._list_choices(name)
            alike[choices] += 1
            # Each node gives one member at least, so further nodes that are alike give no more.
            if not choices or alike[choices] > needed:
                continue
            if best[needed] is not None and self._clock() > self._until:
                self._proven = False
                break
            best = _add_node(best, name, choices)
        return best[needed]

    def _bound_without_all(self, name: str) -> int:
        servers = [server.uuid for server in self._servers.get(name, ())]
        return self._counter.bound(self._nodes[name], servers)

    # -- one node -------------------------------------------------------------------------

    def _list_choices(self, name: str) -> tuple[_Choice, ...]:
        """List the cheapest choice of servers of a node for each number of further members."""
        node, servers = self._nodes[name], self._servers.get(name, ())
        if not servers:
            return ()
        kinds = [(self._devices[server.uuid], server.cells) for server in servers]
        key = (self._contents.key(node), tuple(kinds))
        if key not in self._choices:
            self._choices[key] = tuple(self._compare_choices(node, servers, kinds))
        return self._choices[key]

    def _compare_choices(
        self, node: SnapshotNode, servers: Sequence[Server], kinds: Sequence[Hashable]
    ) -> Iterator[_Choice]:
        present = best = self._counter.count(node)
        uuids = [server.uuid for server in servers]
        most = min(self._counter.bound(node, uuids), present + self._question.members)
        free, used = self._counter.count_wanted_devices(node)
        for count in range(1, len(servers) + 1):
            if best >= most:
                return
            if math.comb(len(servers), count) > _CHOICES or self._clock() > self._until:
                yield from self._make_choices(node, servers, present, best)
                return
            cheapest: dict[int, _Choice] = {}
            for leaving in _list_unlike_choices(kinds, count):
                freed = [free, *(used[uuids[number]] for number in leaving)]
                if self._counter.bound_by(map(sum, zip(*freed, strict=True))) <= best:
                    continue
                fit = self._counter.count(node, [servers[number] for number in leaving])
                if fit > best:
                    choice = self._describe(servers, leaving, fit - present)
                    if fit not in cheapest or choice.cost < cheapest[fit].cost:
                        cheapest[fit] = choice
            yield from cheapest.values()
            best = max(best, *cheapest) if cheapest else best

    def _make_choices(
        self, node: SnapshotNode, servers: Sequence[Server], present: int, best: int
    ) -> Iterator[_Choice]:
        """Make a choice for each further number of members: all leave except those in no way."""
        self._proven = False
        leaving = list(range(len(servers)))
        fit = self._counter.count(node, servers)
        most = min(fit, present + self._question.members)
        for target in range(most, best, -1):
            for number in list(leaving):
                rest = [servers[index] for index in leaving if index != number]
                if self._counter.count(node, rest) >= target:
                    leaving.remove(number)
            yield self._describe(servers, tuple(leaving), target - present)

    def _describe(self, servers: Sequence[Server], leaving: tuple[int, ...], more: int) -> _Choice:
        devices = sum(len(self._devices[servers[number].uuid]) for number in leaving)
        return _Choice(more, _SERVER * len(leaving) + devices, leaving)

    # -- answers --------------------------------------------------------------------------

    def _plan_gang(self, leaving: Mapping[str, tuple[int, ...]]) -> GangPlan:
        fit: collections.Counter[str] = collections.Counter()
        for name, node in self._nodes.items():
            servers = [self._servers[name][number] for number in leaving.get(name, ())]
            fit[node.host] += self._counter.count(node, servers)
        plan = self._question.plan(fit)
        if not isinstance(plan, GangPlan):
            raise AssertionError(plan.reason)
        return plan

    def _explain_miss(self) -> str:
        """Return the domain that would hold most without all preemptible servers, for people."""
        holds = {
            domain: sum(
                self._counter.count(self._nodes[name], self._servers.get(name, ()))
                for name in names
            )
            for domain, names in self._domains.items()
        }
        if not holds:
            return "no host is in use"
        most = min(holds, key=lambda domain: (-holds[domain], natural_sort_key(domain[1])))
        name = f"{most[0].noun(1)} {most[1]}" if most[1] else "the cloud"
        return (
            f"{name} has room for {holds[most]} of {self._question.members} without all "
            "preemptible servers"
        )


def _list_unlike_choices(kinds: Sequence[Hashable], count: int) -> Iterator[tuple[int, ...]]:
    """Yield the choices of so many servers; of choices with servers of equal kinds, the first."""
    before = [
        [earlier for earlier in range(number) if kinds[earlier] == kind]
        for number, kind in enumerate(kinds)
    ]
    for leaving in itertools.combinations(range(len(kinds)), count):
        chosen = set(leaving)
        if all(chosen.issuperset(before[number]) for number in leaving):
            yield leaving


def _add_node(
    best: Sequence[_Chain | None], name: str, choices: Sequence[_Choice]
) -> list[_Chain | None]:
    """Add a node to a domain's cheapest choices; the node's servers leave by one of *choices*."""
    after = list(best)
    for begun, chain in enumerate(best):
        if chain is None:
            continue
        for choice in choices:
            number = min(begun + choice.more, len(best) - 1)
            cheapest, cost = after[number], chain.cost + choice.cost
            if cheapest is None or cost < cheapest.cost:
                after[number] = _Chain(cost, name, choice.leaving, chain)
    return after


def _list_leaving(chain: _Chain) -> Iterator[tuple[str, tuple[int, ...]]]:
    while chain.rest is not None:
        yield chain.node, chain.leaving
        chain = chain.rest
