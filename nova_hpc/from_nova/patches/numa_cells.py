# SPDX-License-Identifier: Apache-2.0
"""Puts a guest's cells on given NUMA nodes, so that each has room and its own pins.

``numa_fit_instance_to_host`` remembers which cell fits which node under the cell's id, and
overwrites that id with the node's as soon as the cell fits. From the second permutation on it
uses the answer for one cell for another. A cell is then taken without pins, with the pins of
another node, or on a node without room, and cells that would fit are refused
(``docs/source/contributor/upstream/index.rst``, numa-fit-cache). Its *first*
permutation checks each pair itself. So Nova checks one cell on one node at a time, the
permutation is chosen from these answers, and Nova's function gets the nodes in that order. Its
result for any other order is discarded.

The nearness of devices and networks depends only on the set of nodes, not on their
order.

No bug is known to be filed for it; this wrap goes with
:mod:`nova_hpc.from_nova.patches.numa_fit`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
from nova import objects
from nova.objects import fields
from nova.virt import hardware

from nova_hpc.from_nova.gate import Patch

NETWORKS: Final = Patch(
    "nova.virt.hardware:_numa_cells_support_network_metadata",
    parameters=("host_topology", "chosen_host_cells", "network_metadata"),
    lines={32: (2393, 2492), 33: (2407, 2506), 34: (2603, 2702)},
    why="Called: whether the networks are near enough to the nodes that were chosen for a "
    "guest's cells. Nova checks this together with its permutations.",
    until="numa_fit_instance_to_host is not wrapped any more",
    overridden=True,
)

#: With so many cells Nova's permutations cost more than a check of the devices before them.
_MANY: Final = 3

#: Nova's function with the same arguments, except the named ones.
Fit = Callable[..., Any]


@attrs.frozen
class Values:
    """The field values of a guest's NUMA topology; a copy is much cheaper than a clone of Nova's
    object.
    """

    own: Mapping[str, Any]
    cells: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, guest: objects.InstanceNUMATopology) -> Values:
        """Copy the field values of Nova's topology object of a guest."""
        own = _values_of_fields(guest)
        del own["cells"]
        return cls(own, tuple(_values_of_fields(cell) for cell in guest.cells))

    def guest(self) -> objects.InstanceNUMATopology:
        """Build a new topology object of Nova with these values."""
        return self._guest(self.cells)

    def alone(self, index: int) -> objects.InstanceNUMATopology:
        """Build a topology of Nova with only the cell at *index*."""
        own = self._guest(self.cells[index : index + 1])
        if index and "emulator_threads_policy" in self.own:
            # Nova counts the CPU of the emulator threads with the first cell.
            own.emulator_threads_policy = None
        return own

    def _guest(self, cells: Sequence[Mapping[str, Any]]) -> objects.InstanceNUMATopology:
        made = [objects.InstanceNUMACell(**_copy_pinned_values(cell)) for cell in cells]
        return objects.InstanceNUMATopology(cells=made, **_copy_pinned_values(self.own))

    @property
    def alike(self) -> bool:
        """Whether Nova treats all cells alike, so that only the set of nodes matters."""
        first, *others = [_needs_of_cell(cell) for cell in self.cells]
        isolated = self.own.get("emulator_threads_policy") is not None
        return not isolated and all(needs == first for needs in others)


def _values_of_fields(thing: Any) -> dict[str, Any]:
    return _copy_pinned_values(
        {name: getattr(thing, name) for name in thing.fields if name in thing}
    )


def _copy_pinned_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the values; values that Nova changes in place (pinned CPUs) are copied, too."""
    return {k: copy.copy(v) if isinstance(v, dict | set) else v for k, v in values.items()}


def _needs_of_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell's needs of a node: the number of its CPUs, not their numbers in the guest."""
    needs = {key: value for key, value in cell.items() if key != "id"}
    for key in ("cpuset", "pcpuset"):
        needs[key] = len(needs.get(key) or ())
    return needs


@attrs.define
class Fitter:
    """Fits one guest on one host, for any choice of host NUMA nodes for its cells."""

    #: Nova's function, bound to all other arguments.
    fit: Fit
    host: objects.NUMATopology
    guest: Values
    limits: Any = None
    requests: Any = None
    stats: Any = None
    mapping: Any = None
    #: Node, cell (by position) -> whether the node has room for that cell by itself.
    _known: dict[tuple[int, int], bool] = attrs.field(factory=dict, init=False)

    def on(self, choice: frozenset[int]) -> objects.InstanceNUMATopology | None:
        """Fit the guest with one cell on each of these nodes, with pins; None if it does not fit.

        Networks, and with many cells also devices, are checked for the set of nodes first. Then
        each pair of node and cell is checked at most once, and Nova gets the first permutation that
        fits.
        """
        part = [cell for cell in self.host.cells if cell.id in choice]
        if not self._networks(part) or (len(part) >= _MANY and not self._devices(part)):
            return None
        if self.guest.alike:
            return self._in_order(part)
        order = _first_fitting_order(len(part), lambda node, cell: self._fits(part[node], cell))
        return None if order is None else self._in_order([part[node] for node in order])

    def _in_order(self, part: Sequence[objects.NUMACell]) -> objects.InstanceNUMATopology | None:
        """Return Nova's result for these nodes in this order; None if it used another order."""
        fitted = self.fit(
            host_topology=objects.NUMATopology(cells=list(part)),
            instance_topology=self.guest.guest(),
            limits=self._quiet(),
            pci_requests=self.requests,
            pci_stats=self.stats,
        )
        if not fitted or [cell.id for cell in fitted.cells] != [node.id for node in part]:
            return None
        pinned = all(map(_is_pinned, fitted.cells, part))
        return fitted if pinned else None

    def _fits(self, node: objects.NUMACell, cell: int) -> bool:
        """Whether the node has room for one cell by itself, without devices and networks."""
        key = (node.id, cell)
        if key not in self._known:
            self._known[key] = bool(
                self.fit(
                    host_topology=objects.NUMATopology(cells=[node]),
                    instance_topology=self.guest.alone(cell),
                    limits=self._quiet(),
                    pci_requests=None,
                    pci_stats=None,
                )
            )
        return self._known[key]

    def _quiet(self) -> Any:
        """Return the limits without networks, which are checked for all nodes together."""
        if not self._network_metadata():
            return self.limits
        quiet = self.limits.obj_clone()
        quiet.network_metadata = objects.NetworkMetadata(physnets=set(), tunneled=False)
        return quiet

    def _network_metadata(self) -> Any:
        limits = self.limits
        return limits.network_metadata if limits and "network_metadata" in limits else None

    def _networks(self, part: Sequence[objects.NUMACell]) -> bool:
        wanted = self._network_metadata()
        if not wanted:
            return True
        return bool(hardware._numa_cells_support_network_metadata(self.host, list(part), wanted))

    def _devices(self, part: Sequence[objects.NUMACell]) -> bool:
        if not self.requests or not self.stats:
            return True
        return bool(self.stats.support_requests(self.requests, self.mapping, list(part)))


def _is_pinned(cell: objects.InstanceNUMACell, node: objects.NUMACell) -> bool:
    """Whether each dedicated CPU of a cell has one of its node's free CPUs to itself."""
    if cell.cpu_policy not in (
        fields.CPUAllocationPolicy.DEDICATED,
        fields.CPUAllocationPolicy.MIXED,
    ):
        return True
    pins = cell.cpu_pinning or {}
    used_cpus = [*pins.values(), *(cell.cpuset_reserved or ())]
    return (
        pins.keys() == cell.pcpuset
        and len(set(used_cpus)) == len(used_cpus)
        and node.free_pcpus >= set(used_cpus)
    )


def _first_fitting_order(count: int, fits: Callable[[int, int], bool]) -> tuple[int, ...] | None:
    """Return the node of each cell, in the first permutation that fits; None if there is none.

    :param count: number of nodes and of cells.
    :param fits: whether a node (the first argument) takes a cell.
    """
    dead: set[frozenset[int]] = set()

    def rest(taken: tuple[int, ...]) -> tuple[int, ...] | None:
        if len(taken) == count:
            return taken
        used = frozenset(taken)
        if used in dead:
            return None
        for node in range(count):
            if node not in used and fits(node, len(taken)):
                full_order = rest((*taken, node))
                if full_order is not None:
                    return full_order
        dead.add(used)
        return None

    return rest(())
