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
from typing import Any

from oslo_log import log as logging
from oslo_serialization import jsonutils

from virt_driver_patches.patches import compat

LOG = logging.getLogger(__name__)

_METHOD = "_setup_pci_tracker"
_KEY = "pci_passthrough_devices"


def follow(virtapi: Any) -> None:
    """Wrap the resource tracker behind *virtapi*.

    :raises nova.exception.InvalidConfiguration: it is not as expected.
    """
    tracker = getattr(compat.manager_of(virtapi), "rt", None)
    setup, signature = compat.expect(tracker, _METHOD, "resources")
    last: list[str | None] = [None]

    # Called below the resource tracker's own lock, which serialises it.
    @functools.wraps(setup)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        devices = signature.bind(*args, **kwargs).arguments["resources"].get(_KEY)
        now = _canonical(devices)
        if tracker.pci_tracker is not None and devices is not None and now != last[0]:
            LOG.info("The PCI devices of this node have changed")
            tracker.pci_tracker.update_devices_from_hypervisor_resources(devices)
        result = setup(*args, **kwargs)
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
