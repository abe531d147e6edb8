# SPDX-License-Identifier: Apache-2.0
"""Neutron's direct ports beside the groups: which function of which adapter.

Every port belongs to one group, and has to be as close to the group's devices as
they are to each other. Ports are dealt evenly: the numbers of two groups differ by
one at most, for each word of ``hpc:group`` by itself. Which port goes to which group
is not laid down, so of all even dealings the best counts.

The solver knows groups that are alike, and devices that serve a name. So its request
has one name for all ports of a word, whatever their networks, and where the groups
cannot have equally many ports, *blanks* beside every device stand for those that are
missing. What it finds may take more of one network, or more blanks, than there are
ports for it. By Hall's theorem it then takes too much from some set of adapters, and
every real solution takes less from one of them: the search branches over which. Best
bounds come first, so the first solution that holds is the best one.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import (
    Answer,
    DeviceSet,
    Group,
    Host,
    Miss,
    Pick,
    Pool,
    Ports,
    Request,
    Unmet,
    Want,
)
from nova_hpc.topology.level import Location

#: Choose for a request without ports.
Plain = Callable[[Request, Host, int], Answer]

#: Searches for one request on one host, at most.
TRIES: Final = 96

#: Begins the key and the pools of what stands for a port that is not there.
_BLANK: Final = "\0"

#: Ends the key of ports that only some groups have one of.
_MORE: Final = "\0more"

#: Pool id -> how many of its functions ports may take.
_Caps = Mapping[str, int]


def choose(request: Request, host: Host, limit: int, plain: Plain) -> Answer:
    """The best device sets of *host* with an adapter's function for every port.

    :param plain: chooses for a request without ports.
    :returns: as :func:`nova_hpc.placement.choose.choose`; the picks name ports by
        :attr:`Ports.key`.
    """
    short = _short(request, host)
    if short is not None:
        return Answer(miss=short)
    dealt = Dealt.of(request)
    found = _search(dealt, host, plain)
    if isinstance(found, Answer):
        return Answer(miss=_because_of_ports(request, host, found.miss, plain))
    best, caps = found
    sets = [best]
    if limit > 1:
        for more in plain(dealt.request, dealt.host(host, caps), limit).sets:
            real = dealt.real(host, more)
            if isinstance(real, DeviceSet) and real.picks != best.picks:
                sets.append(real)
    return Answer(sets=tuple(sets))


def turned(
    request: Request,
    host: Host,
    devices: DeviceSet,
    turn: Callable[[Request, Host, DeviceSet], DeviceSet],
) -> DeviceSet:
    """An exchange of *devices* for others that are as good, if the ports allow it.

    :param turn: exchanges them for a request without ports.
    """
    dealt = Dealt.of(request)
    if dealt.blanks:
        return devices
    other = dealt.real(host, turn(dealt.request, dealt.host(host, {}), devices))
    return other if isinstance(other, DeviceSet) else devices


@attrs.frozen
class Dealt:
    """A request with ports as the solver understands it."""

    request: Request
    ports: tuple[Ports, ...]
    #: Word -> blanks of it.
    blanks: Mapping[str, int]

    @classmethod
    def of(cls, request: Request) -> Dealt:
        """Deal the ports of *request* to its groups."""
        number = len(request.groups)
        blanks: dict[str, int] = {}
        hands = [dict(group.counts) for group in request.groups]
        wants: dict[tuple[str, str], int] = {}
        for name, kinds in _by_name(request.ports).items():
            keys = [ports.key for ports in kinds for _ in range(ports.count)]
            every, odd = divmod(len(keys), number)
            # Every group has so many ports, and some have one more.
            rounds = [(name, key) for key in keys[: every * number]]
            last = [(f"further {name}" if every else name, key) for key in keys[every * number :]]
            if odd:
                blanks[name] = number - odd
                more = last[0][0]
                last = [(more, key + _MORE) for _, key in last]
                last += [(more, _BLANK + name)] * blanks[name]
            for group, hand in enumerate(hands):
                mine = rounds[group * every : (group + 1) * every] + last[group : group + 1]
                for _, key in mine:
                    hand[key] = hand.get(key, 0) + 1
            for pair in (*rounds, *last):
                wants[pair] = wants.get(pair, 0) + 1
        plain = attrs.evolve(
            request,
            wants=(
                *request.wants,
                *(Want(key, name, count) for (name, key), count in wants.items()),
            ),
            groups=tuple(Group(hand) for hand in hands),
            ports=(),
        )
        return cls(plain, request.ports, blanks)

    @property
    def keys(self) -> frozenset[str]:
        """The keys of the ports."""
        return frozenset(ports.key for ports in self.ports)

    def host(self, host: Host, caps: _Caps) -> Host:
        """*host* with blanks, and with no more functions than there are ports for."""
        counts = {ports.key: ports.count for ports in self.ports}
        if self.blanks:
            host = attrs.evolve(host, pools=tuple(map(_placed, host.pools)))
        pools: list[Pool] = []
        for pool in host.pools:
            mine = pool.serves & counts.keys()
            others = pool.serves - mine
            most = min(caps.get(pool.id, pool.free), sum(counts[key] for key in mine))
            # As far as the solver knows: which of a word's networks it is comes later.
            words = {ports.name for ports in self.ports if ports.key in mine}
            every = others | {
                key
                for ports in self.ports
                if ports.name in words
                for key in (ports.key, ports.key + _MORE)
            }
            if not mine:
                pools.append(pool)
            elif not most:
                pools.append(attrs.evolve(pool, serves=others))
            else:
                free = pool.free if others else min(pool.free, most)
                pools.append(attrs.evolve(pool, free=free, serves=every))
        places = self._places(host) if self.blanks else ()
        for name, count in self.blanks.items():
            for number, place in enumerate(places):
                identifier = f"{_BLANK}{name}{_BLANK}{number}"
                free = min(count, caps.get(identifier, count))
                if free:
                    serves = frozenset({_BLANK + name})
                    pools.append(Pool(identifier, identifier, place, free, serves))
        return attrs.evolve(host, pools=tuple(pools))

    def _places(self, host: Host) -> Sequence[Location]:
        """Where a group could be: beside each device that it could have."""
        keys = self.keys
        plain = [pool for pool in host.pools if pool.free > 0 and pool.serves - keys]
        if not plain:
            plain = [pool for pool in host.pools if pool.free > 0 and pool.serves]
        nodes = (Location(numa=node.id, socket=node.socket) for node in host.nodes)
        known = [pool.location for pool in plain]
        # A group of ports alone may be where no adapter is.
        return list(dict.fromkeys([*known, *nodes] if not self._has_devices else known))

    @property
    def _has_devices(self) -> bool:
        keys = self.keys
        return any(_port(want.key) not in keys | {""} for want in self.request.wants)

    def wanted(self, host: Host, pools: Sequence[str]) -> int:
        """For how many ports, or blanks, any of *pools* could be."""
        serves = {pool.id: pool.serves for pool in host.pools}
        blank = [pool for pool in pools if pool.startswith(_BLANK)]
        return sum(
            count for name, count in self.blanks.items() if any(name in pool for pool in blank)
        ) + sum(
            ports.count
            for ports in self.ports
            if any(ports.key in serves.get(pool, ()) for pool in pools)
        )

    def real(self, host: Host, devices: DeviceSet) -> DeviceSet | Sequence[str]:
        """*devices* with each port's own function, without the blanks.

        :returns: or the pools of which it takes too much: any real solution takes
            less from one of them.
        """
        serves = {pool.id: pool.serves for pool in host.pools}
        names = {ports.key: ports.name for ports in self.ports}
        names.update((_BLANK + name, name) for name in self.blanks)
        picks: list[Pick] = []
        by_name: dict[str, list[Pick]] = {}
        for pick in devices.picks:
            key = pick.want.removesuffix(_MORE)
            if key in names:
                by_name.setdefault(names[key], []).append(pick)
            else:
                picks.append(pick)
        for name, taken in by_name.items():
            kinds = {ports.key: ports.count for ports in self.ports if ports.name == name}
            kinds[_BLANK + name] = self.blanks.get(name, 0)
            given = _match([pick.pool for pick in taken], kinds, serves)
            if not isinstance(given, list):
                return sorted(given)
            for pick, key in zip(taken, given, strict=True):
                if not key.startswith(_BLANK):
                    picks.append(attrs.evolve(pick, want=key))
        clash = _clash(host, picks)
        if clash:
            return clash
        picks.sort(key=lambda pick: (pick.group, pick.want, pick.pool))
        return attrs.evolve(devices, picks=tuple(picks))


def _port(key: str) -> str:
    """The key of a want without what was added here; "" for one of blanks."""
    return "" if key.startswith(_BLANK) else key.removesuffix(_MORE)


def _placed(pool: Pool) -> Pool:
    """A device whose place is not known is in one of its own, which a blank can be in."""
    place = pool.location
    if pool.free != 1 or (place.root is not None and place.switches):
        return pool
    own = _BLANK + pool.id
    return attrs.evolve(pool, location=attrs.evolve(place, root=place.root or own, switches=(own,)))


def _because_of_ports(request: Request, host: Host, miss: Miss | None, plain: Plain) -> Miss | None:
    """The wish that is not met is that of the ports, where it is met without them."""
    if miss is None or miss.unmet not in (Unmet.DEVICES, Unmet.TOGETHER):
        return miss
    if request.wants and not plain(attrs.evolve(request, ports=()), host, 1).sets:
        return miss
    return attrs.evolve(miss, unmet=Unmet.PORTS)


def _by_name(ports: Sequence[Ports]) -> dict[str, list[Ports]]:
    found: dict[str, list[Ports]] = {}
    for each in ports:
        found.setdefault(each.name, []).append(each)
    return found


def _search(dealt: Dealt, host: Host, plain: Plain) -> Answer | tuple[DeviceSet, _Caps]:
    """Best first: the least bound, and of equal ones the one nearest to a solution."""
    first = plain(dealt.request, dealt.host(host, {}), 1)
    if not first.sets:
        return first
    order = itertools.count()
    known = {frozenset[tuple[str, int]]()}
    # Bound, minus depth, order, caps, the set where it is known already.
    heap: list[tuple[tuple[int, ...], int, int, dict[str, int], DeviceSet | None]] = [
        (first.sets[0].score, 0, next(order), {}, first.sets[0])
    ]
    tries = 1
    while heap:
        bound, depth, _, caps, devices = heapq.heappop(heap)
        if devices is None:
            if tries >= TRIES:
                heap.append((bound, depth, 0, caps, None))
                break
            tries += 1
            answer = plain(dealt.request, dealt.host(host, caps), 1)
            if not answer.sets:
                continue
            devices = answer.sets[0]
            if devices.score > bound:
                heapq.heappush(heap, (devices.score, depth, next(order), caps, devices))
                continue
        real = dealt.real(host, devices)
        if isinstance(real, DeviceSet):
            return real, caps
        for pool in real:
            used = sum(1 for pick in devices.picks if pick.pool == pool)
            more = {**caps, pool: max(used - 1, 0)}
            name = frozenset(more.items())
            if name not in known:
                known.add(name)
                heapq.heappush(heap, (devices.score, depth - 1, next(order), more, None))
    if heap:
        found = _dive(dealt, host, plain)
        if found is not None:
            return found
    text = "the adapters' functions that are free for the ports are not beside the groups"
    networks = ", ".join(sorted({ports.network for ports in dealt.ports}))
    tried = f", after {tries} searches" if heap else ""
    operator = f"{text} ({networks}{tried})"
    return Answer(miss=Miss(operator=operator, user=text, unmet=Unmet.PORTS))


def _dive(dealt: Dealt, host: Host, plain: Plain) -> tuple[DeviceSet, _Caps] | None:
    """Any solution that holds: what is too much is taken from all adapters alike."""
    caps: dict[str, int] = {}
    for _ in range(TRIES):
        answer = plain(dealt.request, dealt.host(host, caps), 1)
        if not answer.sets:
            return None
        real = dealt.real(host, answer.sets[0])
        if isinstance(real, DeviceSet):
            return real, caps
        used = {pool: sum(1 for pick in answer.sets[0].picks if pick.pool == pool) for pool in real}
        left = max(dealt.wanted(host, real), 0)
        if sum(used.values()) <= left:
            left = 0  # an adapter and its functions: the first of them has to do
            used = dict(list(used.items())[1:])
        for number, pool in enumerate(real):
            if pool in used:
                caps[pool] = (left + len(real) - 1 - number) // len(real)
    return None


def _match(
    pools: Sequence[str], kinds: Mapping[str, int], serves: Mapping[str, frozenset[str]]
) -> list[str] | set[str]:
    """A port of a kind for each function that was taken.

    :param pools: of the functions.
    :param kinds: key -> ports of the kind.
    :returns: the kind of each; or the pools of a set of functions for which there
        are fewer ports.
    """
    slots = [key for key, count in kinds.items() for _ in range(count)]
    of_slot: list[int | None] = [None] * len(slots)

    def fits(function: int, slot: int) -> bool:
        pool, key = pools[function], slots[slot]
        if pool.startswith(_BLANK) or key.startswith(_BLANK):
            return pool.startswith(key + _BLANK)
        return key in serves.get(pool, ())

    def place(function: int, seen: set[int]) -> bool:
        for slot in range(len(slots)):
            if slot in seen or not fits(function, slot):
                continue
            seen.add(slot)
            other = of_slot[slot]
            if other is None or place(other, seen):
                of_slot[slot] = function
                return True
        return False

    for function in range(len(pools)):
        seen: set[int] = set()
        if not place(function, seen):
            # All slots that were seen are taken, by functions that fit no others.
            within = {of_slot[slot] for slot in seen} | {function}
            return {pools[each] for each in within if each is not None}
    given = {function: slots[slot] for slot, function in enumerate(of_slot) if function is not None}
    return [given[function] for function in range(len(pools))]


def _clash(host: Host, picks: Sequence[Pick]) -> Sequence[str]:
    """Pools of one adapter, itself and its virtual functions: Nova gives only one."""
    rivals = {pool.id: pool.rival for pool in host.pools}
    mine: dict[str, set[str]] = {}
    for pick in picks:
        rival = rivals[pick.pool]
        if rival is not None:
            mine.setdefault(rival, set()).add(pick.pool)
    for pools in mine.values():
        if len(pools) > 1:
            return sorted(pools)
    return ()


def _short(request: Request, host: Host) -> Miss | None:
    """Whether there are not enough functions, wherever they are."""
    serves = {pool.id: pool.serves for pool in host.pools}
    keys = {ports.key for ports in request.ports}
    total = sum(ports.count for ports in request.ports)
    functions = [
        pool.id for pool in host.pools if pool.serves & keys for _ in range(min(pool.free, total))
    ]
    lacking = []
    for ports in request.ports:
        have = sum(1 for pool in functions if ports.key in serves[pool])
        if have < ports.count:
            lacking.append((ports, have))
    if not lacking:
        return None
    counts = ", ".join(
        f"{have} functions of adapters free for {ports.count} ports of {ports.network}"
        for ports, have in lacking
    )
    have, need = sum(have for _, have in lacking), sum(ports.count for ports, _ in lacking)
    text = f"{have} functions of adapters free for ports of a network (needs {need})"
    return Miss(operator=counts, user=text, unmet=Unmet.PORTS)
