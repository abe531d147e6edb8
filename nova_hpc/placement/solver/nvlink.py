"""NVLink sets: which of them a server could take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from nova_hpc.placement.model import Host, Nvlink, Request
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import Item, Site
from nova_hpc.placement.solver.realise import name_set

#: Ways to choose among the sets that are looked at for one number of groups.
MAX_SELECTIONS = 512


@attrs.frozen(eq=False)
class Links:
    """The NVLink sets of a host, for one request."""

    #: indices of the names that NVLink devices serve
    names: tuple[int, ...]
    #: sets that are exactly what one group wants, in a fixed order
    sets: tuple[tuple[Item, ...], ...]
    #: whether the host has any set at all
    known: bool


def links(request: Request, demand: Demand, site: Site, host: Host) -> Links:
    """Read the host's NVLink sets; those with devices that are not free are none."""
    if request.nvlink is Nvlink.NONE:
        return Links((), (), bool(host.nvlink))
    present = {item.id: item for item in (*site.items, *site.rest)}
    linked = {one for members in host.nvlink for one in members}
    kinds = 0
    for pool in host.pools:
        if pool.id in linked:
            kinds |= demand.kind(pool.serves)
    names = tuple(i for i in range(len(demand.names)) if kinds >> i & 1)
    sets = []
    for members in set(host.nvlink):
        items = [present[one] for one in members if one in present]
        items.sort(key=lambda item: item.order)
        if (
            names
            and items
            and len(items) == len(members)
            and all(item.free == 1 and item.kind for item in items)
            and name_set(demand, names, items) is not None
        ):
            sets.append(tuple(items))
    sets.sort(key=lambda items: [item.order for item in items])
    return Links(names, tuple(sets), bool(host.nvlink))


def selections(sets: Sequence[Sequence[Item]], count: int) -> Iterator[tuple[Sequence[Item], ...]]:
    """Ways to choose *count* sets that share no device."""

    def extend(
        start: int, chosen: tuple[Sequence[Item], ...], used: frozenset[str]
    ) -> Iterator[tuple[Sequence[Item], ...]]:
        if len(chosen) == count:
            yield chosen
            return
        for number in range(start, len(sets) - (count - len(chosen)) + 1):
            members = {item.id for item in sets[number]}
            if not members & used:
                yield from extend(number + 1, (*chosen, sets[number]), used | members)

    return extend(0, (), frozenset())
