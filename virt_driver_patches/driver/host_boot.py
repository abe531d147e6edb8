# SPDX-License-Identifier: Apache-2.0
"""Servers that start with their host wait for resources that the host creates late.

Nova resumes them while its service starts (``_resume_guests_state`` of
nova/compute/manager.py). At that time a unit of the host may not yet have bound devices to
vfio-pci or allocated huge pages. Then a start fails that would have succeeded some seconds
later, and the server stays in ERROR. All servers of a start share one limit for this wait.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

import attrs
from nova import objects
from oslo_log import log as logging

from nova_hpc.tenancy.sign import HealthSign
from nova_hpc.topology.model import AddressError, Node, normalise_address
from virt_driver_patches.driver.reading import NodeReading

LOG = logging.getLogger(__name__)

#: Seconds between two checks.
_PAUSE: Final = 1.0
_KIB: Final = 1024


def list_missing_resources(instance: objects.Instance, reading: NodeReading) -> tuple[str, ...]:
    """List resources of a server that the host still lacks; one sentence each, for operators."""
    return (*_missing_devices_of(instance, reading), *_missing_pages_of(instance, reading.node))


def _missing_devices_of(instance: objects.Instance, reading: NodeReading) -> Iterator[str]:
    symptoms = reading.judge(reading.offers(), frozenset({HealthSign.ABSENT, HealthSign.DRIVER}))
    for device in instance.pci_devices or ():
        try:
            address = normalise_address(device.address)
        except AddressError:
            continue
        function, symptom = reading.node.function(address), symptoms.get(address)
        if function is None:
            yield f"PCI device {address} is not there"
        elif symptom is not None:
            yield f"PCI device {address}: {symptom.reason}"


def _missing_pages_of(instance: objects.Instance, node: Node) -> Iterator[str]:
    """Yield missing huge pages. Small pages are not checked: there are always some."""
    topology = instance.numa_topology
    need: dict[tuple[int, int], int] = defaultdict(int)
    for cell in () if topology is None else topology.cells:
        if cell.pagesize:
            # Memory is in MiB, page sizes are in KiB.
            need[cell.id, cell.pagesize] += -(-cell.memory * _KIB // cell.pagesize)
    free = {
        (numa.id, pool.size_kib): pool.free for numa in node.numa_nodes for pool in numa.hugepages
    }
    for (numa_id, size), count in sorted(need.items()):
        there = free.get((numa_id, size))
        if there is not None and there < count:
            yield (
                f"NUMA node {numa_id} has {there} free huge pages of {size} KiB, and the server "
                f"needs {count}"
            )


@attrs.define
class HostBoot:
    """Waits for the host, up to *patience* seconds for all servers together."""

    #: Reads the node afresh.
    read: Callable[[], NodeReading]
    #: Seconds, from the first server that has to wait.
    patience: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _deadline: float | None = None

    def wait(self, instance: objects.Instance) -> None:
        """Wait until the server's resources exist, or until the time is up.

        The start itself reports an error then.
        """
        logged: tuple[str, ...] = ()
        while lacks := list_missing_resources(instance, self.read()):
            if lacks != logged:
                LOG.info("Waiting for the host: %s", "; ".join(lacks), instance=instance)
                logged = lacks
            current_time = self.clock()
            if self._deadline is None:
                self._deadline = current_time + self.patience
            if current_time >= self._deadline:
                LOG.error("The host is not ready: %s", "; ".join(lacks), instance=instance)
                return
            self.sleep(min(_PAUSE, self._deadline - current_time))
