# SPDX-License-Identifier: Apache-2.0
"""The profile of a cloud's flavors, and the damage that a placement does to it.

A *profile* is the expected mix of flavors of later servers. The *damage* of a
choice is the number of devices that the servers of a profile could use before it
and cannot use after it: summed over the shapes, each with its
weight. A shape can use the free devices of a domain of its own level if a group
fits there. It can use none anywhere if the host has too few devices, CPUs or pages for
one server. This is the fragmentation gradient of FGD (Weng et al., "Beware of
Fragmentation", USENIX ATC 2023), carried from nodes to the nested domains of
their topology; for shapes that accept the whole host it is the same.

Among choices with the same damage the one that loses fewer *groups* is better: the
devices in whole groups that still fit, summed over the shapes and over the levels up to
the shape's own, as far as CPUs and pages suffice.

Both are sums over domains, so that a dynamic program over the tree of domains
finds their least values. The condition that the host has enough for one server is the
same for every choice on it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import HostNode, WantedCell
from nova_hpc_common.level import Level


def _sort_counts(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


@attrs.frozen
class FlavorShape:
    """The device request of one flavor, as later servers are expected to use it."""

    #: role -> devices in one group
    counts: Mapping[str, int] = attrs.field(converter=_sort_counts, hash=False)
    #: Number of such groups in the server.
    groups: int = 1
    #: The widest level that its groups accept.
    level: Level = Level.HOST
    #: Relative frequency; only the proportions matter.
    weight: int = 1
    #: Dedicated CPUs of the whole server; 0 if they do not limit it.
    cpus: int = 0
    #: Memory of the whole server in KiB of hugepages of *page_kib*; 0 if it does not limit it.
    memory_kib: int = 0
    page_kib: int | None = None


@attrs.frozen
class Profile:
    """The mix of flavors that later servers are expected to have.

    Damage is measured against it: the capacity that these flavors lose by a placement.
    """

    shapes: tuple[FlavorShape, ...] = ()
    #: If False, no damage is measured, even for a host without devices of any shape.
    measured: bool = True


#: The profile if no steps of a pass are left.
UNMEASURED: Final = Profile(measured=False)
#: The profile without knowledge of flavors: one, two, four, eight and sixteen GPUs, each worth
#: its size, so that a lost group of eight weighs as much as four lost pairs.
DEFAULT: Final = Profile(
    tuple(FlavorShape({"gpu": size}, level=Level.HOST) for size in (1, 2, 4, 8, 16))
)


#: For each shape the maximum of groups that CPUs and pages allow; None for any number.
Limits = tuple[int | None, ...]

#: For each shape whether the counts of the host allow any server.
Open = tuple[bool, ...]


@attrs.frozen
class _HostShape:
    """A shape, with its roles as indices of the host profile's labels."""

    needs: tuple[tuple[int, int], ...]  # (label, devices in one group)
    groups: int
    size: int  # devices of one group
    weight: int
    worth: int  # weight times devices of one group
    level: Level
    cpus: int
    page_kib: int | None
    pages: int  # of the whole server


@attrs.frozen
class HostProfile:
    """A profile translated for one host, ready to measure damage there.

    Labels are the roles of the host's devices. Shapes refer to them by index.
    """

    labels: tuple[str, ...]
    shapes: tuple[_HostShape, ...]
    #: Whether CPUs or pages limit any shape.
    limited: bool
    #: Most devices of one shape, over all; only for bounds.
    worth: int
    #: As :attr:`Profile.measured`.
    measured: bool = True

    @classmethod
    def of(cls, profile: Profile, present: frozenset[str], wanted: frozenset[str]) -> HostProfile:
        """Read *profile* for one host.

        :param present: labels of the host's devices: the role, or for a
            device without one the name of the want that it serves
        :param wanted: labels of devices that the request wants one by one. If
            no shape names any label that is present, DEFAULT's shapes are
            applied to each of these: an untagged host is packed as well.
        :raises ValueError: a shape is invalid
        """
        return _build_host_profile(profile, present, wanted)

    def open(self, free: Sequence[int], limits: Limits | None = None) -> Open:
        """Whether the host's free devices suffice for each shape, by the counts alone.

        :param free: free devices of each label on the host
        :param limits: see limits_on_host()
        """
        return tuple(
            all(free[label] >= need * shape.groups for label, need in shape.needs)
            and (limits is None or limits[number] is None or limits[number] != 0)
            for number, shape in enumerate(self.shapes)
        )

    def usable(self, level: Level, free: Sequence[int], open_: Open) -> int:
        """Count the weighted devices of one domain that the shapes of exactly this level can use.

        A shape of eight GPUs can use none of seven free ones, and all of twelve.

        :param free: free devices of each label
        :param open_: for each shape, whether its servers still fit
        """
        total = 0
        on_host = level is Level.HOST
        for number, shape in enumerate(self.shapes):
            if shape.level is not level or not open_[number]:
                continue
            times = shape.groups if on_host else 1
            if len(shape.needs) == 1:
                label, need = shape.needs[0]
                if free[label] >= need * times:
                    total += shape.weight * free[label]
            elif all(free[label] >= need * times for label, need in shape.needs):
                # The scarcest role decides; devices of an incomplete group count in part.
                total += shape.weight * min(
                    [shape.size * free[label] // need for label, need in shape.needs]
                )
        return total

    def count(self, level: Level, free: Sequence[int], limits: Limits | None = None) -> int:
        """Count the weighted devices in whole groups that fit into one domain of *level*.

        A shape of eight GPUs has one whole group in twelve free ones, so eight devices count.

        :param free: free devices of each label
        :param limits: see limits_of(); None if only devices limit it
        """
        total = 0
        on_host = level is Level.HOST
        for number, shape in enumerate(self.shapes):
            if shape.level < level:
                continue
            # On the host whole servers count, below it their groups.
            times = shape.groups if on_host else 1
            if len(shape.needs) == 1:
                label, need = shape.needs[0]
                count = free[label] // (need * times)
            else:
                count = min([free[label] // (need * times) for label, need in shape.needs])
            if limits is not None:
                limit = limits[number]
                if limit is not None and limit < count:
                    count = limit
            total += shape.worth * times * count
        return total

    def limits_of(self, node: HostNode, cell: WantedCell | None = None) -> Limits:
        """Return for each shape how many groups the free CPUs and pages of one NUMA node allow.

        :param cell: a guest cell that takes its share first
        :returns: in the order of the shapes; None for a shape without a limit.
        """
        return tuple(
            _room_for_shape([node], [] if cell is None else [cell], shape, True)
            for shape in self.shapes
        )

    def limits_on_host(self, nodes: Sequence[HostNode], cells: Sequence[WantedCell]) -> Limits:
        """Return for each shape how many servers the free CPUs and pages of the host allow.

        :returns: in the order of the shapes; None for a shape without a limit.
        """
        return tuple(_room_for_shape(nodes, cells, shape, False) for shape in self.shapes)


@functools.lru_cache(maxsize=256)
def _build_host_profile(
    profile: Profile, present: frozenset[str], wanted: frozenset[str]
) -> HostProfile:
    """See :meth:`HostProfile.of`. Shapes with a role that the host lacks are left out."""
    for shape in profile.shapes:
        _check_shape(shape)
    shapes = [shape for shape in profile.shapes if shape.weight and set(shape.counts) <= present]
    if profile.measured and not any(present & set(shape.counts) for shape in profile.shapes):
        shapes = [
            attrs.evolve(shape, counts=dict.fromkeys([label], *shape.counts.values()))
            for label in sorted(wanted)
            for shape in DEFAULT.shapes
        ]
    labels = tuple(sorted({label for shape in shapes for label in shape.counts}))
    host_shapes = tuple(_host_shape(shape, labels) for shape in shapes)
    return HostProfile(
        labels,
        host_shapes,
        any(host_shape.cpus or host_shape.pages for host_shape in host_shapes),
        sum(host_shape.worth for host_shape in host_shapes),
        profile.measured,
    )


def _room_for_shape(
    nodes: Sequence[HostNode], cells: Sequence[WantedCell], shape: _HostShape, per_group: bool
) -> int | None:
    """Return how many servers of a shape, or how many of their groups, CPUs and pages allow.

    An unknown amount limits nothing; None without any limit.
    """
    share = shape.groups if per_group else 1
    rooms = []
    if shape.cpus and nodes and all(node.dedicated_cpus is not None for node in nodes):
        have = sum(max(node.dedicated_cpus or 0, 0) for node in nodes)
        have -= sum(cell.dedicated_cpus for cell in cells)
        rooms.append(max(have, 0) // -(-shape.cpus // share))
    if shape.pages and nodes and all(node.pages is not None for node in nodes):
        have = sum(max((node.pages or {}).get(shape.page_kib or 0, 0), 0) for node in nodes)
        have -= sum(pages_of_cell(cell) for cell in cells if cell.page_kib == shape.page_kib)
        rooms.append(max(have, 0) // -(-shape.pages // share))
    return min(rooms, default=None)


def pages_of_cell(cell: WantedCell) -> int:
    """Return the number of pages that a guest cell needs, in pages of its own size."""
    return -(-cell.memory_kib // cell.page_kib) if cell.page_kib else 0


def _host_shape(shape: FlavorShape, labels: Sequence[str]) -> _HostShape:
    size = sum(shape.counts.values())
    return _HostShape(
        needs=tuple((labels.index(label), count) for label, count in shape.counts.items()),
        groups=shape.groups,
        size=size,
        weight=shape.weight,
        worth=shape.weight * size,
        level=shape.level,
        cpus=shape.cpus,
        page_kib=shape.page_kib,
        pages=-(-shape.memory_kib // shape.page_kib) if shape.page_kib else 0,
    )


def _check_shape(shape: FlavorShape) -> None:
    counts: Mapping[str, int] = shape.counts
    if not counts or min(counts.values()) < 1:
        raise ValueError(f"a shape of the profile has no devices: {dict(counts)}")
    if shape.groups < 1 or shape.weight < 0:
        raise ValueError(
            f"the shape {dict(counts)} has {shape.groups} groups and weight {shape.weight}; "
            "groups must be 1 or more, weights 0 or more"
        )
    if shape.cpus < 0 or shape.memory_kib < 0 or (shape.page_kib or 1) < 1:
        raise ValueError(f"the shape {dict(counts)} has negative CPUs or memory")
