# SPDX-License-Identifier: Apache-2.0
"""Libvirt's current PCI devices reach Nova's PCI tracker at every periodic update.

Nova asks the driver for its PCI devices at every update, but passes them to its PCI
tracker only once, when the service starts. From release 34 on it also caches the
first answer of libvirt. A device that becomes faulty later would be offered until the
service is restarted. The tracker's own method is made for repeated calls ("we sync with
the hypervisor periodically", ``update_devices_from_hypervisor_resources`` of
nova/pci/manager.py). So this process's resource tracker calls it whenever the
devices have changed.

No bug is known to be filed: Nova expects that PCI devices do not become faulty while the service
runs and, from release 34 on, that libvirt's list of them does not change. Nova has no plug-in
between the two.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from nova.virt.libvirt.driver import LibvirtDriver
from oslo_log import log as logging
from oslo_serialization import jsonutils

from nova_hpc.from_nova.gate import Call, Patch, wrap_method

LOG = logging.getLogger(__name__)

SETUP: Final = Patch(
    "nova.compute.resource_tracker:ResourceTracker._setup_pci_tracker",
    parameters=("resources",),
    lines={32: (826, 835), 33: (826, 835), 34: (826, 835)},
    why="Nova hands the devices to its PCI tracker only when the service starts: a device that "
    "falls ill later would be offered until it is restarted.",
    until="Nova updates its PCI tracker at every periodic update",
)
READING: Final = Patch(
    "nova.virt.libvirt.driver:LibvirtDriver._get_pci_passthrough_devices",
    parameters=("self",),
    lines={32: (8749, 8802), 33: (8887, 8940), 34: (9100, 9158)},
    why="Release 34 keeps the first answer (functools.cache): a device that changes while the "
    "service runs would never be noticed.",
    until="Nova asks libvirt at every periodic update again",
    overridden=True,
)

_KEY: Final = "pci_passthrough_devices"


def read_pci_devices_afresh(driver: LibvirtDriver) -> str:
    """Return Nova's reading of the PCI devices, without the cache of release 34."""
    return str(inspect.unwrap(LibvirtDriver._get_pci_passthrough_devices)(driver))


def follow_pci_devices(tracker: Any) -> None:
    """Wrap the resource tracker.

    :raises nova.exception.InvalidConfiguration: the method is not as expected.
    """
    last: list[str | None] = [None]

    # Nova calls it under the resource tracker's own lock, which serialises the calls.
    def around(call: Call) -> Any:
        devices = call.given["resources"].get(_KEY)
        current_text = _canonical_devices_text(devices)
        if tracker.pci_tracker is not None and devices is not None and current_text != last[0]:
            LOG.info("The PCI devices of this node have changed")
            tracker.pci_tracker.update_devices_from_hypervisor_resources(devices)
        result = call()
        last[0] = current_text
        return result

    wrap_method(tracker, SETUP, around)


def _canonical_devices_text(devices: str | None) -> str | None:
    """Return the same text for the same devices: libvirt lists them in any order.

    Every call of the tracker writes each device to the database, so unchanged devices
    must not cause a call.
    """
    if devices is None:
        return None
    return str(jsonutils.dumps(sorted(jsonutils.loads(devices), key=repr), sort_keys=True))
