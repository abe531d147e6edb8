# SPDX-License-Identifier: Apache-2.0
"""Ports dealt to the groups of a request, and the bounds for every real dealing.

The solver handles groups that are alike, and devices that serve a name. So its request
has one name for all ports of a word, whatever their networks. If the groups cannot have
equally many ports, *blanks* beside every device stand for the missing ones. A solution may
then take more functions of one network, or more blanks, than there are ports for it.
:meth:`Dealt.real` detects this, and :meth:`Dealt.cap` returns the bound for the next search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import (
    Cap,
    DeviceGroup,
    DevicePool,
    DeviceSet,
    FreeHost,
    Pick,
    Ports,
    Request,
    Want,
)
from nova_hpc_common.level import Location

#: Begins the key and the pools of blanks, which stand for missing ports.
_BLANK: Final = "\0"

#: Ends the key of ports that only some groups have one of.
_MORE: Final = "\0more"

#: Pool id -> how many of its functions ports may take; CLOSED if ports may take none.
Caps = Mapping[str, int]

#: In place of a number of functions.
CLOSED: Final = -1


@attrs.frozen
class OverusedPools:
    """Pools that give a choice more functions than the server's ports can use.

    Every possible assignment of ports to functions takes less from at least one of them.
    """

    pools: tuple[str, ...]
    #: The word of the ports; None for an adapter and its functions, which exclude each other.
    name: str | None
    #: Pools of the adapter itself, and of its functions.
    sides: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def branches(self, used: Mapping[str, int]) -> list[dict[str, int]]:
        """Return alternative upper bounds for the next search; each valid choice keeps one.

        :param used: pool id -> number of functions that the failed choice takes.
        :returns: each a mapping of pool id -> largest number of functions.
        """
        if self.name is None:
            return [dict.fromkeys(side, CLOSED) for side in self.sides]
        return [{pool: max(used[pool] - 1, 0)} for pool in self.pools]


@attrs.frozen
class Dealt:
    """A request whose ports are dealt to the device groups, as the solver needs it.

    The solver treats a port like one more device of a group.
    """

    request: Request
    ports: tuple[Ports, ...]
    #: Word -> blanks of it.
    blanks: Mapping[str, int]

    @classmethod
    def of(cls, request: Request) -> Dealt:
        """Deal the ports of *request* to its groups.

        For example, three ports of one word and two groups: every group gets one port. One group
        gets the third port and the other one a blank, so that all groups have equally many.
        """
        number = len(request.groups)
        blanks: dict[str, int] = {}
        hands = [dict(group.counts) for group in request.groups]
        wants: dict[tuple[str, str], int] = {}
        for name, kinds in _group_ports_by_name(request.ports).items():
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
                dealt_pairs = rounds[group * every : (group + 1) * every] + last[group : group + 1]
                for _, key in dealt_pairs:
                    hand[key] = hand.get(key, 0) + 1
            for pair in (*rounds, *last):
                wants[pair] = wants.get(pair, 0) + 1
        plain = attrs.evolve(
            request,
            wants=(
                *request.wants,
                *(Want(key, name, count) for (name, key), count in wants.items()),
            ),
            groups=tuple(DeviceGroup(hand) for hand in hands),
            ports=(),
        )
        return cls(plain, request.ports, blanks)

    @property
    def keys(self) -> frozenset[str]:
        """Keys of all kinds of ports (:attr:`Ports.key`)."""
        return frozenset(ports.key for ports in self.ports)

    def host(self, host: FreeHost, caps: Caps) -> FreeHost:
        """Return *host* with placeholders for the blanks, and at most as many functions as ports.

        A blank stands for the port that a group lacks, so that all groups are equally large. A
        function serves all ports of its word here, whatever their networks.

        :param caps: pool id -> maximum of functions to offer.
        """
        counts = {ports.key: ports.count for ports in self.ports}
        if self.blanks:
            beside = {pool.id for pool in self._beside(host)}
            placed = [_give_own_place(pool) if pool.id in beside else pool for pool in host.pools]
            host = attrs.evolve(host, pools=tuple(placed))
        pools: list[DevicePool] = []
        for pool in host.pools:
            own_keys = pool.serves & counts.keys()
            others = pool.serves - own_keys
            if caps.get(pool.id) == CLOSED:
                pools.append(attrs.evolve(pool, serves=frozenset()))
                continue
            most = min(caps.get(pool.id, pool.free), sum(counts[key] for key in own_keys))
            # The solver does not separate a word's networks; that comes later.
            words = {ports.name for ports in self.ports if ports.key in own_keys}
            every = others | {
                key
                for ports in self.ports
                if ports.name in words
                for key in (ports.key, ports.key + _MORE)
            }
            if not own_keys:
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
                    pools.append(DevicePool(identifier, identifier, place, free, serves))
        return attrs.evolve(host, pools=tuple(pools))

    def _places(self, host: FreeHost) -> Sequence[Location]:
        """Return the places where a group could be: beside each device that it could have."""
        nodes = (Location(numa=node.id, socket=node.socket) for node in host.nodes)
        locations = [pool.location for pool in self._beside(host)]
        # A group that consists only of ports may be on a node without adapters.
        return list(dict.fromkeys([*locations, *nodes] if not self._has_devices else locations))

    def _beside(self, host: FreeHost) -> Sequence[DevicePool]:
        """Return the devices that a group could have; without any, the functions for ports."""
        keys = self.keys
        device_pools = [pool for pool in host.pools if pool.free > 0 and pool.serves - keys]
        return device_pools or [pool for pool in host.pools if pool.free > 0 and pool.serves]

    @property
    def _has_devices(self) -> bool:
        keys = self.keys
        return any(_port_key_of(want.key) not in keys | {""} for want in self.request.wants)

    def wanted(self, host: FreeHost, pools: Sequence[str]) -> int:
        """Return the number of ports and blanks that the functions of *pools* could serve.

        :param pools: pool ids.
        """
        serves = {pool.id: pool.serves for pool in host.pools}
        blank = [pool for pool in pools if pool.startswith(_BLANK)]
        return sum(
            count for name, count in self.blanks.items() if any(name in pool for pool in blank)
        ) + sum(
            ports.count
            for ports in self.ports
            if any(ports.key in serves.get(pool, ()) for pool in pools)
        )

    def cap(self, host: FreeHost, much: OverusedPools) -> Cap | None:
        """Return the limit that excludes a choice with overused poolsbut no valid one.

        None if *much* does not name one kind of ports.
        """
        if much.name is None:
            return None
        name = much.name
        kinds = {ports.key: ports.count for ports in self.ports if ports.name == name}
        serves = {pool.id: pool.serves & kinds.keys() for pool in host.pools}
        if any(pool.startswith(_BLANK) for pool in much.pools):
            every = self.host(host, {}).pools
            pool_ids = frozenset(p.id for p in every if p.id.startswith(_BLANK + name + _BLANK))
            most = self.blanks.get(name, 0)
        else:
            within = frozenset[str]().union(*(serves[pool] for pool in much.pools))
            pool_ids = frozenset(pool for pool, keys in serves.items() if keys and keys <= within)
            most = sum(kinds[key] for key in within)
        names = {want.name for want in self.request.wants if self._word(want.key) == name}
        return Cap(pool_ids, frozenset(names), most)

    def _word(self, key: str) -> str | None:
        """Return the word of ``hpc:group`` for the ports or blanks of a want; None for devices."""
        if key.startswith(_BLANK):
            return key.removeprefix(_BLANK)
        plain = key.removesuffix(_MORE)
        return next((ports.name for ports in self.ports if ports.key == plain), None)

    def real(self, host: FreeHost, devices: DeviceSet) -> DeviceSet | OverusedPools:
        """Replace the blanks in *devices* and give each port its own function.

        The functions of each word are matched with its networks. If that fails, the taken functions
        of some networks exceed their ports (Hall's theorem).

        :returns: the real device set, or the pools that the choice uses too much.
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
            given = _match_functions([pick.pool for pick in taken], kinds, serves)
            if not isinstance(given, list):
                return OverusedPools(tuple(sorted(given)), name)
            for pick, key in zip(taken, given, strict=True):
                if not key.startswith(_BLANK):
                    picks.append(attrs.evolve(pick, want=key))
        clash = _find_adapter_clash(host, picks)
        if clash is not None:
            return clash
        picks.sort(key=lambda pick: (pick.group, pick.want, pick.pool))
        return attrs.evolve(devices, picks=tuple(picks))


def _port_key_of(key: str) -> str:
    """Return the key of a want without the additions of this module; "" for blanks."""
    return "" if key.startswith(_BLANK) else key.removesuffix(_MORE)


def _give_own_place(pool: DevicePool) -> DevicePool:
    """Give a device of unknown place a place of its own, which a blank can share.

    A pool with several devices, or with a known place, is returned as it is.
    """
    place = pool.location
    if pool.free != 1 or (place.root is not None and place.switches):
        return pool
    own = _BLANK + pool.id
    return attrs.evolve(pool, location=attrs.evolve(place, root=place.root or own, switches=(own,)))


def _group_ports_by_name(ports: Sequence[Ports]) -> dict[str, list[Ports]]:
    by_name: dict[str, list[Ports]] = {}
    for port_kind in ports:
        by_name.setdefault(port_kind.name, []).append(port_kind)
    return by_name


def _match_functions(
    pools: Sequence[str], kinds: Mapping[str, int], serves: Mapping[str, frozenset[str]]
) -> list[str] | set[str]:
    """Match each function that was taken with a port of a kind.

    :param pools: of the functions that were taken.
    :param kinds: key -> ports of the kind.
    :param serves: pool id -> keys of the kinds that it can serve.
    :returns: the kind of each; or the pools of a set of functions with
        fewer ports than functions.
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
            occupant = of_slot[slot]
            if occupant is None or place(occupant, seen):
                of_slot[slot] = function
                return True
        return False

    for function in range(len(pools)):
        seen: set[int] = set()
        if not place(function, seen):
            # The seen slots are all taken, by functions that fit no other slot.
            within = {of_slot[slot] for slot in seen} | {function}
            return {pools[index] for index in within if index is not None}
    given = {function: slots[slot] for slot, function in enumerate(of_slot) if function is not None}
    return [given[function] for function in range(len(pools))]


def _find_adapter_clash(host: FreeHost, picks: Sequence[Pick]) -> OverusedPools | None:
    """Find an adapter that is taken beside its own functions: Nova gives only one; else None."""
    used = {pick.pool for pick in picks}
    rivals: dict[str, dict[bool, list[str]]] = {}
    for pool in host.pools:
        if pool.rival is not None:
            sides = rivals.setdefault(pool.rival, {True: [], False: []})
            sides[pool.whole].append(pool.id)
    for sides in rivals.values():
        if used.intersection(sides[True]) and used.intersection(sides[False]):
            both = (tuple(sorted(sides[True])), tuple(sorted(sides[False])))
            return OverusedPools(tuple(sorted((*both[0], *both[1]))), None, both)
    return None
