# SPDX-License-Identifier: Apache-2.0
"""Guests whose cells differ, on hosts whose NUMA nodes differ: room and pins for each cell."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Iterator, Sequence

import attrs
import pytest
from nova import objects, test
from nova.pci import stats as pci_stats
from nova.virt import hardware
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc.from_nova import patches
from nova_hpc.from_nova.patches import numa_cells
from nova_hpc.from_nova.patches.serving import serve_flavor
from scheduler_filters import nova_fit
from tests.functional.unit_scheduler.states import HostStates, pci_request, pool, spec

FLAVOR = {"hpc:affinity": "host", "hw:pci_numa_affinity_policy": "preferred"}


def a_host(free: Sequence[int], nets: Sequence[str] = ()) -> objects.NUMATopology:
    """NUMA nodes with so many free dedicated CPUs.

    :param nets: physical network of the first nodes.
    """
    cells = []
    for node, count in enumerate(free):
        cpus = set(range(100 * node, 100 * node + 8))
        names = {nets[node]} if node < len(nets) else set()
        cells.append(
            objects.NUMACell(
                id=node,
                socket=0,
                cpuset=set(),
                pcpuset=cpus,
                pinned_cpus=set(sorted(cpus)[count:]),
                siblings=[{cpu} for cpu in cpus],
                memory=4096,
                memory_usage=0,
                cpu_usage=0,
                mempages=[],
                network_metadata=objects.NetworkMetadata(physnets=names, tunneled=False),
            )
        )
    return objects.NUMATopology(cells=cells)


def a_guest(sizes: Sequence[int], policy: str | None = None) -> objects.InstanceNUMATopology:
    """Cells with so many dedicated CPUs."""
    cells = [
        objects.InstanceNUMACell(
            id=index,
            cpuset=set(),
            pcpuset=set(range(sum(sizes[:index]), sum(sizes[: index + 1]))),
            cpu_policy="dedicated",
            cpu_thread_policy=None,
            cpu_pinning_raw=None,
            cpuset_reserved=None,
            memory=64,
            pagesize=None,
        )
        for index in range(len(sizes))
    ]
    return objects.InstanceNUMATopology(cells=cells, emulator_threads_policy=policy)


@attrs.frozen
class Case:
    """A guest, a host, and the nodes that it has to be on besides."""

    free: tuple[int, ...]
    sizes: tuple[int, ...]
    #: The first cell needs so many more.
    first: int = 0
    #: Nodes without which it is refused: those of its devices, or of its networks.
    near: frozenset[int] = frozenset()

    def ways(self) -> Iterator[tuple[int, ...]]:
        """Every legal assignment of nodes to the cells."""
        for way in itertools.permutations(range(len(self.free)), len(self.sizes)):
            needs = (size + (0 if index else self.first) for index, size in enumerate(self.sizes))
            if self.near <= set(way) and all(map(lambda n, s: self.free[n] >= s, way, needs)):
                yield way


def verdict(case: Case, fitted: objects.InstanceNUMATopology | None) -> str:
    """What is wrong with Nova's answer; "": nothing."""
    legal = list(case.ways())
    if fitted is None:
        return "refused, and it fits" if legal else ""
    way = tuple(cell.id for cell in fitted.cells)
    if way not in legal:
        return "taken where it does not fit"
    host = a_host(case.free)
    for index, cell in enumerate(fitted.cells):
        pins = cell.cpu_pinning or {}
        if pins.keys() != cell.pcpuset:
            return "a dedicated cell without pins"
        mine = [*pins.values(), *(cell.cpuset_reserved or ())]
        if len(set(mine)) != len(mine) or not set(mine) <= host.cells[cell.id].free_pcpus:
            return "pins that are not free on the node"
        if len(mine) != case.sizes[index] + (0 if index else case.first):
            return "no CPU for the emulator"
    return ""


def cases(seed: int, number: int, first: int = 0) -> Iterator[Case]:
    rng = random.Random(seed)
    for _ in range(number):
        cells = rng.choice([2, 3, 3, 4])
        free = tuple(rng.randint(0, 6) for _ in range(cells + rng.choice([0, 0, 1, 2])))
        yield Case(free, tuple(rng.randint(1, 6) for _ in range(cells)), first)


class UnequalCellsTest(HostStates):
    """Nova's function as this project wraps it, held against all permutations."""

    def setUp(self) -> None:
        super().setUp()
        plain = hardware.numa_fit_instance_to_host
        self.addCleanup(setattr, hardware, "numa_fit_instance_to_host", plain)
        patches.install_shared_patches()
        self.plain = getattr(plain, "__wrapped__", plain)
        self.flavor = objects.Flavor(flavorid="f", name="f", extra_specs=FLAVOR)

    def served(self, *arguments: object, **keywords: object) -> objects.InstanceNUMATopology | None:
        with serve_flavor(self.flavor, None):
            return hardware.numa_fit_instance_to_host(*arguments, **keywords)

    @pytest.mark.slow
    def test_what_stock_nova_answers(self) -> None:
        """Nova's own function, for the day on which it is right: then the wrap can go."""
        found = collections.Counter(
            verdict(case, self.plain(a_host(case.free), a_guest(case.sizes), None))
            for case in cases(1, 2000)
        )
        self.assertEqual(
            {
                "",
                "refused, and it fits",
                "taken where it does not fit",
                "a dedicated cell without pins",
                "pins that are not free on the node",
            },
            set(found),
        )

    def test_examples(self) -> None:
        """The smallest of each kind."""
        for free, sizes, stock in (
            ((6, 1, 1), (1, 1, 3), "a dedicated cell without pins"),
            ((2, 2, 2), (1, 1, 3), "taken where it does not fit"),
            ((0, 4, 1, 1), (1, 1, 2), "pins that are not free on the node"),
            ((1, 3, 0), (1, 2), "refused, and it fits"),
        ):
            case = Case(free, sizes)
            theirs = self.plain(a_host(free), a_guest(sizes), None)
            self.assertEqual(stock, verdict(case, theirs), case)
            self.assertEqual("", verdict(case, self.served(a_host(free), a_guest(sizes), None)))

    def test_dedicated_cells(self) -> None:
        for case in cases(1, 2000):
            fitted = self.served(a_host(case.free), a_guest(case.sizes), None)
            self.assertEqual("", verdict(case, fitted), case)

    def test_a_cpu_for_the_emulator(self) -> None:
        for case in cases(2, 500, first=1):
            fitted = self.served(a_host(case.free), a_guest(case.sizes, "isolate"), None)
            self.assertEqual("", verdict(case, fitted), case)

    def test_beside_devices(self) -> None:
        """Under ``required`` the node of the device has to be among those of the cells."""
        for number, plain_case in enumerate(cases(3, 500)):
            node = number % len(plain_case.free)
            case = attrs.evolve(plain_case, near=frozenset({node}))
            host = a_host(case.free)
            stats = pci_stats.PciDeviceStats(
                host, objects.PciDevicePoolList(objects=[pool(1, numa=node)])
            )
            flavor = FLAVOR | {"hpc:affinity": "numa", "hw:pci_numa_affinity_policy": "required"}
            self.flavor = objects.Flavor(flavorid="f", name="f", extra_specs=flavor)
            fitted = self.served(
                host,
                a_guest(case.sizes),
                {f"{uuids.request}-0": [uuids.gpu1]},
                pci_requests=[pci_request(policy="required")],
                pci_stats=stats,
            )
            self.assertEqual("", verdict(case, fitted), case)

    def test_beside_networks(self) -> None:
        """The nodes of the guest's networks, too; and what the scheduler offers beforehand."""
        networks = objects.NetworkMetadata(physnets={"rail1"}, tunneled=False)
        limits = objects.NUMATopologyLimits(
            cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0, network_metadata=networks
        )
        for plain_case in cases(4, 300):
            case = attrs.evolve(plain_case, near=frozenset({1}))
            host = a_host(case.free, ["rail0", "rail1"])
            fitted = self.served(host, a_guest(case.sizes), None, limits=limits)
            self.assertEqual("", verdict(case, fitted), case)
            state = self.host(nodes=0)
            state.numa_topology = host
            asked = spec(numa_topology=a_guest(case.sizes), network_metadata=networks)
            offered = {
                frozenset(one)
                for one, *_ in nova_fit.find_cell_rooms(nova_fit.FitQuestion.of(asked), state)
            }
            self.assertEqual(set(map(frozenset, case.ways())), offered, case)

    def test_cells_that_are_alike_are_asked_about_once(self) -> None:
        calls: list[object] = []

        def counted(**keywords: object) -> object:
            calls.append(keywords["host_topology"])
            return self.plain(provider_mapping=None, **keywords)

        guest = numa_cells.Values.of(a_guest((2, 2)))
        fitter = numa_cells.Fitter(counted, a_host((3, 3, 3)), guest)
        self.assertIsNotNone(fitter.on(frozenset({0, 2})))
        self.assertEqual(1, len(calls))

    def test_many_cells_without_room(self) -> None:
        """Sixteen cells of which two do not fit: no permutations are counted."""
        case = Case((4,) * 14 + (1,) * 2, (2,) * 13 + (3,) * 3)
        self.assertIsNone(self.served(a_host(case.free), a_guest(case.sizes), None))

    def test_a_stock_flavor_is_answered_by_nova(self) -> None:
        case = Case((6, 1, 1), (1, 1, 3))
        with serve_flavor(objects.Flavor(flavorid="s", name="s", extra_specs={}), None):
            fitted = hardware.numa_fit_instance_to_host(
                a_host(case.free), a_guest(case.sizes), None
            )
        self.assertEqual("a dedicated cell without pins", verdict(case, fitted))


class PinsTest(test.NoDBTestCase):
    """What Nova answers is looked at, too."""

    def test_a_cell_without_pins_is_no_answer(self) -> None:
        guest = a_guest((1, 1))

        def unpinned(**keywords: object) -> object:
            found = keywords["instance_topology"]
            for cell, node in zip(found.cells, keywords["host_topology"].cells, strict=True):
                cell.id = node.id
            return found

        fitter = numa_cells.Fitter(unpinned, a_host((2, 2)), numa_cells.Values.of(guest))
        self.assertIsNone(fitter.on(frozenset({0, 1})))
