# SPDX-License-Identifier: Apache-2.0
"""The fewest moves that make room for a request. Pure: a snapshot in, a plan or a miss out.

The search tries no move, then one, then two, and so on, with each move on the cloud as the moves
before it have left it. A state is given up if its domains need more servers to leave than moves are
left; that number comes from the engine, too. So the first plan has the fewest moves, unless the
search was cut short, and then the plan says so.

An example. Hosts a, b and c have four GPUs; s has two of a, t two of b, and u four of c. A server
with four GPUs fits nowhere. One move is enough: s to b, which empties a.
"""

from __future__ import annotations

import collections
import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.cluster.plan import GangPlan
from nova_hpc.cluster.plan.tree import natural_sort_key
from nova_hpc.fabric.model import FabricLevel
from nova_hpc.placement.model import DeviceSet
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain import judge_node
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.cloud.room.movers import Movers
from nova_hpc_tools.cloud.room.node_fit import FitCounter, NodeContents
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.snapshot import Server, Snapshot, SnapshotNode, owner_words

#: The most moves that are examined for one number of moves, for one node; the least for all.
#: A move of a large cloud takes longer.
_TRIES: Final = 4_000
_LEAST_TRIES: Final = 300
#: Seconds after which a search is cut short: a few servers can go around among full hosts forever.
_SECONDS: Final = 15.0
#: For so many numbers of moves a search may be cut short.
_CUTS: Final = 4
#: The most choices of leaving servers of one node that are judged one by one.
_CHOICES: Final = 300

#: More servers than any domain has: no number of leaving servers is enough.
_NEVER: Final = 1 << 30

#: Level and name of a domain.
Domain = tuple[FabricLevel, str]


@attrs.frozen
class RoomMove:
    """One planned migration of a server.

    :ivar before: how close its devices are now; "" if unknown.
    :ivar level: how close they will be.
    :ivar domain: the domain that its flavor keeps it in, as ``leaf l1``; "" if there is none.
    """

    server: Server
    target: str
    level: str
    before: str = ""
    domain: str = ""

    @property
    def agreed(self) -> bool:
        """Whether its owner has agreed to be moved."""
        return owner_words.may_move(self.server.movable, self.server.extra_specs)

    @property
    def way(self) -> str:
        """``live`` if the server runs on during the move, else ``cold``."""
        return "live" if self.server.live else "cold"


@attrs.frozen
class RoomPlan:
    """The moves that make room, in their order, and the hosts that then have it.

    :ivar proven: whether no plan has fewer moves.
    """

    moves: tuple[RoomMove, ...]
    gang: GangPlan
    proven: bool = True


@attrs.frozen
class RoomMiss:
    """The reason why no moves make room.

    :ivar proven: whether there are none; otherwise the search was cut short.
    """

    reason: str
    proven: bool = True


@attrs.frozen
class _RoomState:
    """The cloud after some moves."""

    #: Nodes and servers that have changed.
    nodes: Mapping[str, SnapshotNode]
    servers: Mapping[str, Server]
    #: Server that has moved -> its node and devices.
    places: Mapping[str, Hashable]

    @property
    def key(self) -> Hashable:
        return frozenset(self.places.items())


class _TooManyTriesError(Exception):
    pass


def find_room_moves(
    cloud: Snapshot,
    question: RoomQuestion,
    seconds: float = _SECONDS,
    agreed: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> RoomPlan | RoomMiss:
    """Find the fewest moves that make room; a plan without moves if there is room already.

    :param seconds: limit of each of two searches, whose answer is then not proven.
    :param agreed: only servers may move whose owners have agreed.
    :param clock: measures the seconds.
    """
    answer = _RoomSearch(cloud, question, seconds, clock, agreed).find()
    if isinstance(answer, RoomMiss) and not answer.proven:
        # Servers that have a place already leave few ways, so that longer plans are found, too.
        simple = _RoomSearch(cloud, question, seconds, clock, agreed, direct=True).find()
        if isinstance(simple, RoomPlan):
            return attrs.evolve(simple, proven=False)
    return answer


class _RoomSearch:
    """A depth-first search with a growing number of moves."""

    def __init__(
        self,
        cloud: Snapshot,
        question: RoomQuestion,
        seconds: float,
        clock: Callable[[], float],
        agreed: bool,
        direct: bool = False,
    ) -> None:
        """Prepare a search.

        :param seconds: its limit.
        :param agreed: only servers may move whose owners have agreed.
        :param direct: only servers may move that have a place elsewhere before the first move.
        """
        self._direct = direct
        self._clock = clock
        self._until = clock() + seconds
        self._start = _RoomState({}, {}, {})
        chooser, contents = Chooser(cloud.profile), NodeContents()
        self._chooser = chooser
        self._contents = contents
        self._question = question
        self._agreed = agreed
        self._movers = Movers(cloud, question.fabric, chooser, contents, agreed)
        self._counter = FitCounter(question.flavor, question.request, chooser, contents)
        self._nodes = {
            node.name: node for node in sorted(cloud.hosts, key=lambda node: (node.host, node.node))
        }
        self._domains: dict[Domain, list[str]] = collections.defaultdict(list)
        for name, node in self._nodes.items():
            domain = question.domain_of(node.host)
            if domain is not None and node.out is None:
                self._domains[domain].append(name)
        self._gains: dict[Hashable, list[int]] = {}
        self._signatures: dict[str, Hashable] = {}
        self._movable: dict[str, list[str]] = {}
        self._accepting: dict[int, list[str]] = {}
        self._needed: dict[Hashable, int] = {}
        self._tries = 0
        self._most_tries = max(_LEAST_TRIES, _TRIES // len(self._nodes))
        self._failed: set[Hashable] = set()
        #: Whether moves or states were given up only because of the present number of moves.
        self._deeper = self._pruned = False
        #: Keys of the states that were reached with the present number of moves.
        self._reached: set[Hashable] = set()

    def find(self) -> RoomPlan | RoomMiss:
        start = self._start
        if not any(self._can_hold(domain, start) for domain in self._domains):
            return RoomMiss(self._explain_miss())
        lacking = self._explain_shortage()
        if lacking:
            return RoomMiss(lacking)
        most = cuts = reached = 0
        while True:
            self._failed, self._reached, self._tries = set(), set(), 0
            self._deeper = self._pruned = False
            try:
                result = self._search(start, most)
            except _TooManyTriesError:
                cuts, result, self._pruned = cuts + 1, None, True
            if result is not None:
                moves, end = result
                return RoomPlan(moves, self._plan_gang(end), proven=not cuts)
            # One move more has reached no further state, so no number of moves does.
            closed = not self._deeper or len(self._reached) == reached
            late = self._clock() > self._until
            if (closed and not self._pruned) or cuts == _CUTS or (cuts and late):
                return RoomMiss(self._explain_miss(), proven=not cuts)
            reached = -1 if self._pruned else len(self._reached)
            # More moves leave more ways, so one of them may be found at once.
            most += 1 + cuts

    # -- the search -----------------------------------------------------------------------

    def _search(
        self, state: _RoomState, left: int
    ) -> tuple[tuple[RoomMove, ...], _RoomState] | None:
        """Find at most *left* further moves that make room, and the cloud after them."""
        self._reached.add(state.key)
        needs = {domain: self._count_leaving(domain, state, left) for domain in self._domains}
        least = min(needs.values())
        if least == 0:
            return (), state
        if least > left:
            self._pruned |= least < _NEVER
            return None
        if (state.key, left) in self._failed:
            return None
        self._failed.add((state.key, left))
        for uuid, name in self._list_candidates(state, needs, left):
            node, server = self._node(state, name), state.servers.get(uuid)
            server = server or self._movers.servers[uuid]
            self._count_try()
            if not self._has_place(state, uuid):
                continue
            without = attrs.evolve(
                state, nodes={**state.nodes, name: snapshot.release_from_node(node, server)}
            )
            # The place that it takes elsewhere makes no domain better.
            domain = self._question.domain_of(node.host)
            others = min((need for key, need in needs.items() if key != domain), default=left)
            if domain in self._domains:
                others = min(others, self._count_leaving(domain, without, left))
            if others > left - 1:
                self._pruned |= others < _NEVER
                continue
            for target, devices in self._list_targets(without, uuid, server):
                self._count_try()
                after = self._move(without, uuid, server, target, devices)
                rest = self._search(after, left - 1)
                if rest is not None:
                    move = self._describe(server, self._nodes[target], devices)
                    return (move, *rest[0]), rest[1]
        return None

    def _list_candidates(
        self, state: _RoomState, needs: Mapping[Domain, int], left: int
    ) -> Iterator[tuple[str, str]]:
        """Yield the servers that may move next, with their nodes: the most useful first.

        Of servers that are alike, on nodes that are alike, there is one.
        """
        later: list[str] = []
        seen: set[Hashable] = set()
        for domain in sorted(
            (domain for domain, need in needs.items() if need <= left),
            key=lambda domain: (needs[domain], natural_sort_key(domain[1])),
        ):
            useful: list[tuple[int, int, str]] = []
            for name in self._domains[domain]:
                node = self._node(state, name)
                gains = self._measure_gains(node, left)
                count = next((count for count, fit in enumerate(gains) if fit > gains[0]), _NEVER)
                ask = sum(map(self._has_not_agreed, self._list_movable(node)))
                useful.append((count, ask, name))
            for count, _, name in sorted(useful, key=lambda row: row[:2]):
                if count < _NEVER:
                    yield from self._list_unlike_servers(state, name, seen)
                else:
                    later.append(name)
        others = (
            pair
            for name in (*later, *self._nodes)
            for pair in self._list_unlike_servers(state, name, seen)
        )
        if min(needs.values()) < left:
            yield from others
        elif not self._deeper:
            self._deeper = any(self._has_place(state, uuid) for uuid, _ in others)

    def _list_unlike_servers(
        self, state: _RoomState, name: str, seen: set[Hashable]
    ) -> Iterator[tuple[str, str]]:
        node = self._node(state, name)
        alike = (self._signature(node), self._place(node))
        for uuid in self._list_movable(node):
            devices = tuple(
                number
                for number, device in enumerate(node.devices)
                for use in device.used
                if use.server == uuid
            )
            key = (alike, self._movers.kind(uuid), devices)
            if key not in seen:
                seen.add(key)
                yield uuid, name

    def _list_targets(
        self, state: _RoomState, uuid: str, server: Server
    ) -> list[tuple[str, DeviceSet]]:
        """List the nodes that take a server, and its devices there; one of several equal nodes."""
        needs = self._movers.find_needs(uuid)
        if isinstance(needs, str):
            return []
        home = self._question.domain_of(server.host)
        options: dict[Hashable, tuple[tuple[Any, ...], str, DeviceSet]] = {}
        for name, distance in self._list_accepting(state, uuid, server):
            node = self._node(state, name)
            key = (self._signature(node), self._place(node))
            if key in options:
                continue
            choice = judge_node(node, needs.flavor, needs.request, self._chooser).choice
            if choice is not None:
                rank = self._chooser.rank(needs.request, choice.devices, node)
                same = self._question.domain_of(node.host) == home
                order = (same, distance, rank, natural_sort_key(name))
                options[key] = (order, name, choice.devices)
        ordered = sorted(options.values(), key=lambda option: option[0])
        return [(name, devices) for _, name, devices in ordered]

    def _list_accepting(
        self, state: _RoomState, uuid: str, server: Server
    ) -> Iterator[tuple[str, int]]:
        """Yield the nodes of other hosts that take a server, and their distance from its domain."""
        needs = self._movers.find_needs(uuid)
        if isinstance(needs, str):
            return
        if id(needs) not in self._accepting:
            self._accepting[id(needs)] = [
                name for name, node in self._nodes.items() if needs.accepts(node)
            ]
        for name in (*self._accepting[id(needs)], *state.nodes):
            node = self._node(state, name)
            if node.host == server.host or (name in state.nodes and not needs.accepts(node)):
                continue
            distance = self._movers.distance(uuid, node, state.servers)
            if distance is not None:
                yield name, distance

    def _has_place(self, state: _RoomState, uuid: str) -> bool:
        server = state.servers.get(uuid) or self._movers.servers[uuid]
        return any(True for _ in self._list_accepting(state, uuid, server))

    def _count_try(self) -> None:
        self._tries += 1
        if self._tries > self._most_tries or self._clock() > self._until:
            raise _TooManyTriesError

    def _move(
        self, state: _RoomState, uuid: str, server: Server, target: str, devices: DeviceSet
    ) -> _RoomState:
        node = self._node(state, target)
        needs = self._movers.find_needs(uuid)
        cells = () if isinstance(needs, str) else needs.request.cells
        moved = attrs.evolve(
            server,
            host=node.host,
            node=node.node,
            cells=snapshot.cells_on_node(devices, cells),
        )
        pools = tuple(sorted(pick.pool for pick in devices.picks))
        return _RoomState(
            {**state.nodes, target: snapshot.take_from_node(node, devices, cells, uuid)},
            {**state.servers, uuid: moved},
            {**state.places, uuid: (target, pools)},
        )

    # -- nodes and domains ------------------------------------------------------------------

    def _node(self, state: _RoomState, name: str) -> SnapshotNode:
        return state.nodes.get(name) or self._nodes[name]

    def _place(self, node: SnapshotNode) -> Hashable:
        return attrs.evolve(self._question.place_of(node.host), host="-", rails=())

    def _list_movable(self, node: SnapshotNode) -> list[str]:
        """List the servers that may leave a node, those whose owners have agreed first."""
        if node is self._nodes[node.name] and node.name in self._movable:
            return self._movable[node.name]
        movable = sorted(
            filter(self._may_move, self._movers.list_on(node)), key=self._has_not_agreed
        )
        if node is self._nodes[node.name]:
            self._movable[node.name] = movable
        return movable

    def _may_move(self, uuid: str) -> bool:
        return not self._direct or self._has_place(self._start, uuid)

    def _has_not_agreed(self, uuid: str) -> bool:
        return not self._movers.has_agreed(uuid)

    def _signature(self, node: SnapshotNode) -> Hashable:
        """Return a key that nodes with the same content and alike servers share."""
        if node is not self._nodes[node.name]:
            return self._sign(node)
        if node.name not in self._signatures:
            self._signatures[node.name] = self._sign(node)
        return self._signatures[node.name]

    def _sign(self, node: SnapshotNode) -> Hashable:
        users: dict[str, list[int]] = collections.defaultdict(list)
        for number, device in enumerate(node.devices):
            for use in device.used:
                users[use.server].append(number)
        servers = self._movers.servers
        return self._contents.key(node), frozenset(
            collections.Counter(
                (self._movers.kind(uuid), self._server_on(node, uuid).cells, tuple(numbers))
                for uuid, numbers in users.items()
                if uuid in servers
            ).items()
        )

    def _measure_gains(self, node: SnapshotNode, most: int) -> tuple[int, ...]:
        """Return the greatest numbers of members that fit after 0 to *most* servers have left."""
        key = self._signature(node)
        if key not in self._gains:
            self._gains[key] = [self._counter.count(node)]
        gains = self._gains[key]
        if len(gains) <= most:
            servers = self._list_movable(node)
            limit = self._counter.bound(node, servers)
            while len(gains) <= most:
                best = gains[-1]
                if best < limit and len(gains) <= len(servers):
                    best = self._count_without(node, servers, len(gains), best)
                gains.append(best)
        return tuple(gains[: most + 1])

    def _count_without(
        self, node: SnapshotNode, servers: Sequence[str], count: int, best: int
    ) -> int:
        """Return how many members fit at most after *count* of these servers have left."""
        if math.comb(len(servers), count) > _CHOICES:
            # Only a bound: no state is given up that could lead to a plan.
            return max(best, self._counter.bound(node, servers))
        free, used = self._counter.count_wanted_devices(node)
        for leaving in itertools.combinations(servers, count):
            freed = [free, *(used[uuid] for uuid in leaving)]
            if self._counter.bound_by(map(sum, zip(*freed, strict=True))) > best:
                best = max(best, self._counter.count(self._release(node, leaving)))
        return best

    def _release(self, node: SnapshotNode, servers: Sequence[str]) -> SnapshotNode:
        return snapshot.release_from_node(node, *(self._server_on(node, uuid) for uuid in servers))

    def _server_on(self, node: SnapshotNode, uuid: str) -> Server:
        """Return a server as it is on this node, for bounds: its CPUs count there."""
        server = self._movers.servers[uuid]
        needs = self._movers.find_needs(uuid)
        if (server.host, server.node) == (node.host, node.node) or isinstance(needs, str):
            return server
        # The NUMA nodes of its cells are unknown here. CPUs that are free too early give up no
        # state.
        cells = tuple(
            snapshot.ServerCell(numa.id, cell.dedicated_cpus, cell.memory_kib, cell.page_kib)
            for cell in needs.request.cells
            for numa in node.numa
        )
        return attrs.evolve(server, host=node.host, node=node.node, cells=cells)

    def _count_leaving(self, domain: Domain, state: _RoomState, most: int) -> int:
        """Return how many servers have to leave a domain at least.

        :returns: *most* + 1 if it is more, and _NEVER if all of them are not enough.
        """
        names = self._domains[domain]
        changed = tuple(
            (name, self._signature(state.nodes[name])) for name in names if name in state.nodes
        )
        key = (domain, changed, most)
        if key not in self._needed:
            gains = collections.Counter(
                self._measure_gains(self._node(state, name), most) for name in names
            )
            needed = _fewest_leaving(gains, self._question.members, most)
            if needed > most and not self._can_hold(domain, state):
                needed = _NEVER
            self._needed[key] = needed
        return self._needed[key]

    def _count_without_all(self, node: SnapshotNode) -> int:
        return self._counter.count(self._release(node, self._list_movable(node)))

    def _can_hold(self, domain: Domain, state: _RoomState) -> bool:
        """Whether a domain has room if all servers leave that may."""
        members = 0
        for name in self._domains[domain]:
            members += self._count_without_all(self._node(state, name))
            if members >= self._question.members:
                return True
        return False

    # -- answers ----------------------------------------------------------------------------

    def _describe(self, server: Server, node: SnapshotNode, devices: DeviceSet) -> RoomMove:
        decided = server.decided
        return RoomMove(
            server,
            node.host,
            devices.level.word,
            "" if decided is None else decided.reached.word,
            self._movers.rule(server.uuid).domain,
        )

    def _plan_gang(self, state: _RoomState) -> GangPlan:
        fit: collections.Counter[str] = collections.Counter()
        for name in self._nodes:
            node = self._node(state, name)
            fit[node.host] += self._counter.count(node)
        plan = self._question.plan(fit)
        if not isinstance(plan, GangPlan):
            raise AssertionError(plan.reason)
        return plan

    def _explain_shortage(self) -> str:
        """Return the shortage of devices that no move changes; "" if there is none."""
        used = [node for node in self._nodes.values() if node.out is None]
        if len(used) < len(self._nodes):
            return ""  # Servers on disabled hosts may use devices of a kind that is short.
        for want in self._question.flavor.wants:
            serving = [
                device for node in used for device in node.devices if want.alias in device.aliases
            ]
            aliases = frozenset().union(*(device.aliases for device in serving))
            alike = all(
                device.aliases == aliases
                for node in used
                for device in node.devices
                if device.aliases & aliases
            )
            free = sum(device.free for device in serving)
            needed = want.count * self._question.members
            if alike and free < needed:
                return (
                    f"{free} {want.alias} are free, and {self._question.text} needs {needed}: "
                    "moves free none, so servers have to end"
                )
        return ""

    def _explain_miss(self) -> str:
        """Return the domain that would hold most if all servers left that may, for people."""
        holds = {
            domain: sum(self._count_without_all(self._nodes[name]) for name in names)
            for domain, names in self._domains.items()
        }
        members = self._question.members
        if not holds:
            return "no host is in use"
        most = min(holds, key=lambda domain: (-holds[domain], natural_sort_key(domain[1])))
        name = f"{most[0].noun(1)} {most[1]}" if most[1] else "the cloud"
        whose = " whose owners have agreed" if self._agreed else ""
        if holds[most] < members:
            servers = f"servers{whose}" if whose else "movable servers"
            return f"{name} has room for {holds[most]} of {members} without all {servers}"
        return f"{name} would have room, but its servers{whose} have no place elsewhere"


def _fewest_leaving(gains: Mapping[tuple[int, ...], int], members: int, most: int) -> int:
    """Return the fewest servers that have to leave nodes until *members* fit on them.

    :param gains: members that fit on a node after 0, 1, ... servers have left -> number of nodes.
    :returns: *most* + 1 if more than *most* have to leave.
    """
    # After k servers have left: how many members fit at most.
    best = [sum(gain[0] * count for gain, count in gains.items())] + [0] * most
    best[1:] = [best[0]] * most
    for gain, count in gains.items():
        steps = [number - gain[0] for number in gain]
        for _ in range(min(count, most) if steps[-1] else 0):
            best = [
                max(best[total - part] + steps[part] for part in range(total + 1))
                for total in range(most + 1)
            ]
    return next((count for count, held in enumerate(best) if held >= members), most + 1)
