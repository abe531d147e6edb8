# SPDX-License-Identifier: Apache-2.0
"""The data about one request on one host that the exact search looks up.

States of the search are counts, packed into one integer each. So adding two
states is one addition, and one mask shows whether a sum exceeds a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from nova_hpc.placement.model import HostNode, Request, WantedCell
from nova_hpc.placement.profile import HostProfile, Limits, Open, Profile
from nova_hpc.placement.solver.cells import fits_on_node
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import Site


@attrs.frozen(eq=False)
class CellSort:
    """Guest cells with the same requirements, so that the search may exchange them."""

    cell: WantedCell
    ids: tuple[int, ...]


@attrs.frozen(eq=False)
class SearchProblem:
    """The input of the search: one request on one host, with aliases and labels as indices."""

    request: Request
    demand: Demand
    site: Site
    profile: HostProfile
    sorts: tuple[CellSort, ...]
    #: indices of the names that are served by devices given one by one
    countable: frozenset[int]
    #: label index of each item by its id, -1 if it does not count
    label: Mapping[str, int]
    #: for each name the label of all devices that serve it; None if there are several
    label_of: tuple[int | None, ...]
    #: labels whose taken devices are counted separately
    tracked: tuple[int, ...]
    #: item id -> the request's caps that it counts for, as a bit mask; 0 is left out
    capped: Mapping[str, int]
    #: the number of servers of each shape that CPUs and pages allow, before and after
    host_limits: tuple[Limits | None, Limits | None]
    #: which shapes the host can hold, before and after: the devices that may
    #: have any of several labels are not counted as taken
    open: tuple[Open, Open]

    @classmethod
    def of(cls, request: Request, demand: Demand, site: Site, profile: Profile) -> SearchProblem:
        """Prepare the search for *request* on the host of *site*.

        :raises ValueError: the profile is invalid.
        """
        # A name that shares a device with a plentiful one is plentiful, too. So the devices
        # that count do not depend on the name that they serve.
        plenty, before = 0, -1
        while plenty != before:
            before = plenty
            for item in site.items:
                if item.free > 1 or item.kind & plenty:
                    plenty |= item.kind
        countable = frozenset(i for i in range(len(demand.names)) if not plenty >> i & 1)
        mask = sum(1 << i for i in countable)
        everything = (*site.items, *site.rest)
        host_profile = HostProfile.of(
            profile,
            frozenset(item.label for item in everything if item.label is not None),
            frozenset(i.label for i in site.items if i.label is not None and i.kind & mask),
        )
        index = {label: number for number, label in enumerate(host_profile.labels)}
        label = {item.id: index.get(item.label or "", -1) for item in everything}
        # Devices of several labels may serve one name. The search must then count how many of
        # each label it takes; otherwise the count for the name is enough.
        seen: list[set[int]] = [set() for _ in demand.names]
        for item in site.items:
            for i in range(len(demand.names)):
                if item.kind >> i & 1:
                    seen[i].add(label[item.id])
        label_of = tuple(
            (next(iter(labels)) if labels else -1) if len(labels) < 2 else None for labels in seen
        )
        tracked = {number for labels in seen if len(labels) > 1 for number in labels if number >= 0}
        # Cells with equal requirements are one sort: the search only counts them.
        sorts: dict[tuple[object, ...], list[WantedCell]] = {}
        for cell in sorted(request.cells, key=lambda cell: cell.id):
            alike = (
                cell.dedicated_cpus,
                cell.memory_kib,
                cell.page_kib,
                cell.host_node,
                cell.nodes,
            )
            sorts.setdefault(alike, []).append(cell)
        capped: dict[str, int] = {}
        for number, cap in enumerate(request.caps):
            for identifier in cap.pools:
                capped[identifier] = capped.get(identifier, 0) | 1 << number
        limits: tuple[Limits | None, Limits | None] = (None, None)
        if host_profile.limited:
            limits = (
                host_profile.limits_on_host(site.nodes, ()),
                host_profile.limits_on_host(site.nodes, request.cells),
            )
        free = [0] * len(host_profile.labels)
        for item in everything:
            if label[item.id] >= 0:
                free[label[item.id]] += item.free
        left = list(free)
        for i, only_label in enumerate(label_of):
            if only_label is not None and only_label >= 0:
                left[only_label] -= demand.per_group[i] * demand.groups
        return cls(
            request,
            demand,
            site,
            host_profile,
            tuple(CellSort(cells[0], tuple(cell.id for cell in cells)) for cells in sorts.values()),
            countable,
            label,
            label_of,
            tuple(sorted(tracked)),
            capped,
            limits,
            (host_profile.open(free, limits[0]), host_profile.open(left, limits[1])),
        )

    def suits(self, node: HostNode) -> tuple[bool, ...]:
        """Return for each sort of guest cells whether *node* has room for one cell."""
        return tuple(fits_on_node(sort.cell, node) for sort in self.sorts)

    def limits(self, node: HostNode | None, sort: int | None) -> Limits | None:
        """Return how many groups of each shape fit on *node* after such a cell took its share.

        None if CPUs and pages are unknown or do not limit the profile.
        """
        if node is None or not self.profile.limited:
            return None
        return self.profile.limits_of(node, None if sort is None else self.sorts[sort].cell)


class Layout:
    """The bit fields of a packed state of the search.

    *closed* groups, *hits* (closed groups around an NVLink set), *waiting*
    groups (closed, without a guest cell yet), seated cells of each sort, *more*
    (cells with one group more than others), devices taken for each name (devices
    of NVLink sets separately), devices taken of each tracked label, devices that count
    for each cap.

    Each field has one bit more than its maximum needs. *offset* adds so much to every field that
    this bit (in *guard*) is set exactly if the field exceeds its maximum. For example, a field
    with the maximum 5 has 4 bits and the offset 2: 5 + 2 is 0111, 6 + 2 is 1000.
    """

    def __init__(self, problem: SearchProblem, hits: int, nvlink: Sequence[int]) -> None:
        demand = problem.demand
        groups = demand.groups
        cells = sum(len(sort.ids) for sort in problem.sorts)
        self.guard = self.offset = self._shift = 0
        self.closed, _ = self._field(groups - hits)
        self.hit, self.hit_at = self._field(hits)
        self.waiting, self.waiting_at = self._field(groups if cells else 0)
        self.seats = [self._field(len(sort.ids))[0] for sort in problem.sorts]
        first = self._shift
        self.more, self.more_at = self._field(groups % cells if cells else 0)
        self.seat_mask = 0
        if cells:
            self.seat_mask = (1 << first) - self.seats[0]
        #: Devices of each name that the groups take, without the hits' devices.
        self.totals = tuple(
            need * (groups - hits if i in nvlink else groups)
            for i, need in enumerate(demand.per_group)
        )
        first = self._shift
        pairs = [self._field(total) for total in self.totals]
        self.names = [unit for unit, _ in pairs]
        self.names_at = [at for _, at in pairs]
        self.name_mask = (1 << self._shift) - (1 << first)
        # Top bits of the names' fields: a bit that is set before a subtraction is
        # still set after it exactly if nothing was borrowed.
        self.borrow = self.guard & self.name_mask
        pairs = [self._field(demand.size * groups) for _ in problem.tracked]
        self.tracked = [unit for unit, _ in pairs]
        self.tracked_at = [at for _, at in pairs]
        self.taken_mask = (1 << self._shift) - (1 << first)
        first = self._shift
        #: For each cap: its unit, its maximum, and the indices of its names.
        self.caps = [
            (
                self._field(cap.most)[0],
                cap.most,
                frozenset(i for i, name in enumerate(demand.names) if name in cap.names),
            )
            for cap in problem.request.caps
        ]
        self.cap_mask = (1 << self._shift) - (1 << first)
        self.need = sum(
            need * unit for need, unit in zip(demand.per_group, self.names, strict=True)
        )
        self.rest = sum(
            need * unit
            for i, (need, unit) in enumerate(zip(demand.per_group, self.names, strict=True))
            if i not in nvlink
        )
        self.width = [total.bit_length() + 1 for total in self.totals]
        self.tracked_width = (demand.size * groups).bit_length() + 1
        self.group_mask = (1 << (groups - hits).bit_length() + 1) - 1
        self.hit_mask = (1 << hits.bit_length() + 1) - 1
        self.waiting_mask = (1 << (groups if cells else 0).bit_length() + 1) - 1
        self.more_mask = (1 << (groups % cells if cells else 0).bit_length() + 1) - 1
        self.seats_at = [unit.bit_length() - 1 for unit in self.seats]
        self.seats_masks = [(1 << len(sort.ids).bit_length() + 1) - 1 for sort in problem.sorts]
        self.base = groups // cells if cells else 0

    def _field(self, most: int) -> tuple[int, int]:
        """Add a field for values up to *most*; returns its unit and its position."""
        at = self._shift
        width = most.bit_length() + 1
        self.guard |= 1 << at + width - 1
        self.offset |= (1 << width - 1) - 1 - most << at
        self._shift += width
        return 1 << at, at

    def groups(self, state: int) -> int:
        """Count the closed groups in *state* that are not hits (a hit is a whole NVLink set)."""
        return state & self.group_mask

    def hits(self, state: int) -> int:
        """Return the number of closed groups in *state* that are whole NVLink sets."""
        return state >> self.hit_at & self.hit_mask

    def waits(self, state: int) -> int:
        """Return the number of closed groups in *state* that have no guest cell yet."""
        return state >> self.waiting_at & self.waiting_mask

    def quota(self, state: int) -> int:
        """Return the number of groups that the seated guest cells of *state* have to get."""
        seated = sum(
            state >> at & mask for at, mask in zip(self.seats_at, self.seats_masks, strict=True)
        )
        return self.base * seated + (state >> self.more_at & self.more_mask)

    def hungry(self, state: int) -> int:
        """Return the number of groups that the seated guest cells of *state* still lack."""
        local = self.groups(state) + self.hits(state) - self.waits(state)
        return self.quota(state) - local

    def taken(self, state: int) -> list[int]:
        """Return the number of devices taken for each alias in *state*.

        Devices of whole NVLink sets do not count.
        """
        return [
            state >> at & (1 << width) - 1
            for at, width in zip(self.names_at, self.width, strict=True)
        ]

    def tracks(self, state: int) -> list[int]:
        """Count the devices taken of each tracked label, without devices of whole NVLink sets."""
        mask = (1 << self.tracked_width) - 1
        return [state >> at & mask for at in self.tracked_at]
