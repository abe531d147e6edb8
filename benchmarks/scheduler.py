# SPDX-License-Identifier: Apache-2.0
"""Filters and weigher over many hosts: ours with Nova's, against only Nova's."""

from __future__ import annotations

import contextlib
import functools
import statistics
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from nova import objects
from nova.scheduler import weights
from nova.scheduler.filters import numa_topology_filter, pci_passthrough_filter
from nova.scheduler.weights import pci as pci_weigher
from oslo_config import cfg

from benchmarks import measure, nova_hosts
from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import hosts as reader
from nova_hpc.from_nova import pools
from nova_hpc.from_nova.patches import numa_fit
from nova_hpc_tools.site import settings as plugin
from scheduler_filters import choice, hpc_packing_weigher, hpc_topology_filter, nova_fit

CONF = cfg.CONF
PART = "filters and weigher"
MEMORY = "memory of the filter"


def set_up() -> None:
    """Set the configuration of a scheduler with the filter."""
    hpc_conf.register_all_options(CONF)
    CONF([], project="nova", default_config_files=[])
    objects.register_all()
    CONF.set_override("pci_in_placement", True, group="filter_scheduler")
    CONF.set_override(
        "enabled_filters", plugin.place_own_filters(plugin.NOVA_FILTERS), group="filter_scheduler"
    )
    CONF.set_override("disable_fallback_pcpu_query", True, group="workarounds")


class Pass:
    """One request on many hosts, for our filters and for Nova's."""

    def __init__(
        self, machines: Sequence[nova_hosts.Machine], gpus: int, limit: int, cell: bool = False
    ) -> None:
        self.machines = machines
        self.ours = nova_hosts.request(gpus, ours=True, cell=cell)
        self.stock = nova_hosts.request(gpus, ours=False, cell=cell)
        self._answers = {
            id(spec): {
                machine.state.uuid: nova_hosts.candidates(
                    machine, spec, max(1, limit // len(machines))
                )
                for machine in machines
            }
            for spec in (self.ours, self.stock)
        }
        self._placement = nova_hosts.FreeDevices(machines)
        nova = [
            numa_topology_filter.NUMATopologyFilter(),
            pci_passthrough_filter.PciPassthroughFilter(),
        ]
        self._filters = {
            id(self.stock): nova,
            id(self.ours): [hpc_topology_filter.HpcTopologyFilter(), *nova],
        }
        self._weighers = {
            id(self.stock): [pci_weigher.PCIWeigher()],
            id(self.ours): [hpc_packing_weigher.HpcPackingWeigher()],
        }

    def hosts(self, spec: objects.RequestSpec) -> list[Any]:
        """The host states as Nova hands them to the filters."""
        return nova_hosts.prepare(self.machines, self._answers[id(spec)])

    def run(self, spec: objects.RequestSpec, hosts: list[Any]) -> list[Any]:
        """Filter and weigh; return the hosts, best first."""
        left: Any = hosts
        for each in self._filters[id(spec)]:
            left = list(each.filter_all(left, spec))
        handler = weights.HostWeightHandler()
        return list(handler.get_weighed_objects(self._weighers[id(spec)], left, spec))

    def seconds(self, spec: objects.RequestSpec) -> float:
        """Seconds of one pass."""
        hosts = self.hosts(spec)
        with self.placement():
            return measure.timed(self.run, spec, hosts)

    def placement(self) -> contextlib.AbstractContextManager[Any]:
        """Give Placement's answers to the filter during the block."""
        return mock.patch(
            "nova.scheduler.client.report.report_client_singleton", return_value=self._placement
        )


def run(counts: Sequence[int], rounds: Sequence[int], limit: int) -> Iterator[measure.Row]:
    """The rows of passes.

    :param counts: numbers of hosts, ascending. Guests with NUMA cells are measured
        only on the first one, because Nova's own filter is slow for them.
    :param rounds: number of measurements for each of *counts*.
    :param limit: number of candidates that Placement returns; at least one a host.
    """
    set_up()
    per_host: dict[int, list[tuple[int, float, float]]] = {}
    for count, times in zip(counts, rounds, strict=True):
        machines = nova_hosts.machines(count)
        for gpus in (1, 4):
            found = _sides(Pass(machines, gpus, limit), times)
            yield from _rows(f"{count} hosts, {_gpus(gpus)}", gpus, found)
            ours, stock = (statistics.median(found[side]) / count for side in ("ours", "stock"))
            per_host.setdefault(gpus, []).append((count, ours, stock))
        if count == counts[0]:
            for gpus in (1, 4):
                one = Pass(machines, gpus, limit)
                found = _sides(one, max(2, times), before=forget)
                yield from _rows(
                    f"{count} hosts, {_gpus(gpus)}, nothing known yet", gpus, found, 1.2
                )
            for gpus in (1, 4):
                found = _sides(Pass(machines, gpus, limit, cell=True), 1)
                yield from _rows(f"{count} hosts, {_gpus(gpus)}, one guest cell", gpus, found)
    for gpus, points in per_host.items():
        first, last = points[0], points[-1]
        if first is not last:
            yield measure.row(
                PART,
                f"{_gpus(gpus)}: time a host at {last[0]} hosts / at {first[0]} hosts",
                "x",
                [last[1] / first[1]],
                "linear: about 1 or less",
                1.25,
                note=f"stock Nova: {last[2] / first[2]:.2f}",
            )


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def forget() -> None:
    """Clear the filter's caches, as in a scheduler that was just started."""
    for known in (
        pools.KNOWN,
        reader._PATTERNS,
        reader._NODES,
        choice._REDUCED,
        choice._ANSWERS,
        choice._TURNED,
        choice._JUDGED,
        choice._PLACES,
        nova_fit._FITS,
        nova_fit._ROOMS,
        numa_fit._TIERS,
    ):
        known.clear()


def _sides(
    one: Pass, rounds: int, before: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    def ours() -> float:
        before()
        return one.seconds(one.ours)

    sides = {
        "ours": ours,
        "stock": functools.partial(one.seconds, one.stock),
    }
    # Passes of minutes have only one round, without a warm one before.
    return measure.interleave(sides, rounds, warm=rounds > 1)


def _rows(
    what: str, gpus: int, found: Mapping[str, Sequence[float]], several: float = 1.0
) -> Iterator[measure.Row]:
    for side, name in (("ours", "with nova-hpc"), ("stock", "stock Nova")):
        values = [value * 1000 for value in found[side]]
        yield measure.row(PART, f"{what}, {name}", "ms", values)
    yield measure.row(
        PART,
        f"{what}, ratio",
        "x",
        measure.ratios(found["ours"], found["stock"]),
        "at most 1.2" if gpus == 1 or several > 1 else "below 1",
        1.2 if gpus == 1 else several,
    )


def memory(counts: Sequence[int]) -> Iterator[measure.Row]:
    """The memory of only the filter, at its peak and after it."""
    set_up()
    peaks = []
    for count in counts:
        one = Pass(nova_hosts.machines(count), 4, count)
        hosts = one.hosts(one.ours)
        topology = hpc_topology_filter.HpcTopologyFilter()
        with one.placement():
            tracemalloc.start()
            try:
                before, _ = tracemalloc.get_traced_memory()
                passed = list(topology.filter_all(hosts, one.ours))
                after, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert passed
        peaks.append((peak - before) / count / 1024)
        for title, value in (("peak", peak), ("kept until the request ends", after)):
            yield measure.row(MEMORY, f"{count} hosts, {title}", "MiB", [(value - before) / 2**20])
    if len(peaks) > 1:
        yield measure.row(
            MEMORY,
            f"peak a host at {counts[-1]} hosts / at {counts[0]} hosts",
            "x",
            [peaks[-1] / peaks[0]],
            "linear: about 1 or less",
            1.25,
            note=f"{peaks[-1]:.1f} KiB a host",
        )
