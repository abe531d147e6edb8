"""A gated patch: let Nova's PCI tracker follow every periodic update.

Nova asks the driver for its PCI devices at every update, but hands them to
its PCI tracker only once, when the service starts. A device that falls ill
later would be offered until the service is restarted. The tracker's own
method is made for repeated calls ("we sync with the hypervisor periodically"),
so the one resource tracker of this process is wrapped, where this project is
in use, to call it whenever the devices have changed.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from nova import exception
from oslo_log import log as logging
from oslo_serialization import jsonutils

LOG = logging.getLogger(__name__)

_METHOD = "_setup_pci_tracker"
_NEEDED = ["context", "compute_node", "resources"]
_KEY = "pci_passthrough_devices"


def follow(virtapi: Any) -> None:
    """Wrap the resource tracker behind *virtapi*.

    :raises nova.exception.InvalidConfiguration: it is not as expected.
    """
    tracker = getattr(getattr(virtapi, "_compute", None), "rt", None)
    setup = getattr(tracker, _METHOD, None)
    if setup is None or list(inspect.signature(setup).parameters) != _NEEDED:
        raise exception.InvalidConfiguration(
            "This Nova keeps its PCI devices in a way that nova-hpc does not know. Install "
            "releases that fit together, or set [DEFAULT]compute_driver = "
            "libvirt.LibvirtDriver."
        )
    last: list[str | None] = [None]

    # Called below the resource tracker's own lock, which serialises it.
    @functools.wraps(setup)
    def wrapper(context: Any, compute_node: Any, resources: dict[str, Any]) -> Any:
        devices = resources.get(_KEY)
        now = _canonical(devices)
        if tracker.pci_tracker is not None and devices is not None and now != last[0]:
            LOG.info("The PCI devices of this node have changed")
            tracker.pci_tracker.update_devices_from_hypervisor_resources(devices)
        result = setup(context, compute_node, resources)
        last[0] = now
        return result

    setattr(tracker, _METHOD, wrapper)


def _canonical(devices: str | None) -> str | None:
    """The same text for the same devices: libvirt lists them in any order.

    Every call of the tracker writes each device to the database, so it must
    not be called for nothing.
    """
    if devices is None:
        return None
    return str(jsonutils.dumps(sorted(jsonutils.loads(devices), key=repr), sort_keys=True))
