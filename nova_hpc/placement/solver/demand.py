# SPDX-License-Identifier: Apache-2.0
"""The needs of a request, in counts; and which capacities can serve it.

Wants with one name are the same alias written twice and are one need here.
A device may serve several needs (two aliases may match one device), so
"enough" is Hall's theorem: every subset of the needs must find enough devices
that serve any of it.

For example, a group needs one ``a`` and one ``b``. Two devices that serve only ``a`` are
enough for ``a`` but not for both. One device for ``a`` and one for both names are enough.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from nova_hpc.placement.model import MAX_COUNT, Request

#: Hall's condition is checked for every subset of the names.
MAX_NAMES = 8


@attrs.frozen
class Demand:
    """A request as counts: *groups* equal groups, each of *per_group[i]* devices of the i-th
    alias.
    """

    names: tuple[str, ...]
    per_group: tuple[int, ...]
    groups: int
    keys: tuple[frozenset[str], ...]  # Want keys of each name
    #: need of one group by subset of the names (as a bit mask)
    weights: tuple[int, ...]

    @classmethod
    def of(cls, request: Request) -> Demand:
        """Read the counts from *request*.

        :raises ValueError: its groups are not alike, or do not add up to its
            wants; flavor.build_request() never makes such a request.
        """
        names = tuple(sorted({want.name for want in request.wants}))
        if not names or not request.groups:
            raise ValueError("a request needs at least one want and one group")
        if len(names) > MAX_NAMES:
            raise ValueError(f"{len(names)} different aliases; at most {MAX_NAMES} are supported")
        name_of = {want.key: names.index(want.name) for want in request.wants}
        if len(name_of) != len(request.wants):
            raise ValueError("two wants of the request have the same key")
        sizes = set()
        used = dict.fromkeys(name_of, 0)
        for group in request.groups:
            size = [0] * len(names)
            for key, count in group.counts.items():
                if key not in name_of or count < 0:
                    raise ValueError(f"a group wants {count} of {key!r}, which is no want")
                size[name_of[key]] += count
                used[key] += count
            sizes.add(tuple(size))
        if len(sizes) != 1:
            raise ValueError("the groups of the request are not alike")
        for want in request.wants:
            if want.count < 1 or used[want.key] != want.count:
                raise ValueError(
                    f"{want.count} of {want.name!r} are wanted, the groups hold {used[want.key]}"
                )
            if want.count > MAX_COUNT:
                raise ValueError(f"{want.count} of {want.name!r} are wanted, at most {MAX_COUNT}")
        ids = [cell.id for cell in request.cells]
        if len(set(ids)) != len(ids):
            raise ValueError("two guest cells of the request have the same number")
        for cell in request.cells:
            if min(cell.dedicated_cpus, cell.memory_kib) < 0 or (cell.page_kib or 1) < 1:
                raise ValueError(f"guest cell {cell.id} requests negative CPUs or memory")
        per_group = sizes.pop()
        weights = tuple(
            sum(count for i, count in enumerate(per_group) if mask >> i & 1)
            for mask in range(1 << len(names))
        )
        keys = tuple(
            frozenset(key for key, index in name_of.items() if index == i)
            for i in range(len(names))
        )
        return cls(names, per_group, len(request.groups), keys, weights)

    @property
    def size(self) -> int:
        """The number of devices in one group."""
        return self.weights[-1]

    def kind(self, serves: Collection[str]) -> int:
        """Return the bit mask of the aliases of a pool, by the keys of the wants that match it."""
        return sum(1 << i for i, keys in enumerate(self.keys) if not keys.isdisjoint(serves))

    def most(self, caps: Mapping[int, int]) -> int:
        """Return the number of whole groups that these devices can form.

        :param caps: kind (bit mask of aliases) -> number of devices.
        """
        best = self.groups
        if not any(kind & (kind - 1) for kind in caps):
            # No device serves several needs, so each need is checked by itself.
            for index, need in enumerate(self.per_group):
                best = min(best, caps.get(1 << index, 0) // need)
            return best
        for mask in range(1, len(self.weights)):
            need = self.weights[mask]
            if need:
                have = sum(count for kind, count in caps.items() if kind & mask)
                best = min(best, have // need)
        return best

    def absorbs(self, must: Mapping[int, int], groups: int) -> bool:
        """Whether *groups* groups can use all of these devices, so that no device is left over.

        :param must: kind (bit mask of aliases) -> number of devices.
        """
        for mask in range(1, len(self.weights)):
            have = sum(count for kind, count in must.items() if not kind & ~mask)
            if have > groups * self.weights[mask]:
                return False
        return True

    def serving(self, caps: Mapping[int, int], index: int) -> int:
        """Count those of these devices that match the alias with this index."""
        return sum(count for kind, count in caps.items() if kind >> index & 1)


def add_capacities(first: Mapping[int, int], second: Mapping[int, int]) -> dict[int, int]:
    """Add two mappings of kind (bit mask of aliases) -> number of devices, key by key."""
    total = dict(first)
    for kind, count in second.items():
        total[kind] = total.get(kind, 0) + count
    return total


def assign_devices_to_names(
    demand: Demand, free: Mapping[int, int], must: Mapping[int, int], groups: int
) -> dict[tuple[int, int], int]:
    """Decide how many devices of each kind serve each name.

    All of *must* are used, and as many of *free* as needed. First the devices that must
    be used find a need, then the remaining needs find a device. An augmenting path never
    takes away the need that the first round gave a device
    (the theorem of Mendelsohn and Dulmage).

    :returns: (kind, index of the name) -> count
    :raises ValueError: it is impossible; check most() and absorbs() first.
    """
    flow: dict[tuple[int, int], int] = {}
    open_need = [groups * count for count in demand.per_group]

    def push(kind: int, amount: int, seen: set[int]) -> int:
        """Place up to *amount* devices of *kind*, moving others aside."""
        for index in range(len(open_need)):
            if not kind >> index & 1 or index in seen:
                continue
            seen.add(index)
            if open_need[index]:
                done = min(amount, open_need[index])
                open_need[index] -= done
                flow[kind, index] = flow.get((kind, index), 0) + done
                return done
            for other_kind in sorted(k for k, i in flow if i == index and flow[k, i]):
                done = push(other_kind, min(amount, flow[other_kind, index]), seen)
                if done:
                    flow[other_kind, index] -= done
                    flow[kind, index] = flow.get((kind, index), 0) + done
                    return done
        return 0

    for supply, forced in ((must, True), (free, False)):
        for kind in sorted(supply):
            left = supply[kind]
            while left:
                done = push(kind, left, set())
                if not done:
                    break
                left -= done
            if forced and left:
                raise ValueError("devices that must be used find no need")
    if any(open_need):
        raise ValueError("the devices do not suffice")
    return {pair: count for pair, count in flow.items() if count}
