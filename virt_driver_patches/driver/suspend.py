# SPDX-License-Identifier: Apache-2.0
"""Refuses actions that could make a running guest give up devices later, unnoticed.

A suspend detaches the devices from the guest, and so does a snapshot of a guest that is
not snapshot live. The guest has to agree. QEMU keeps a request that the guest does not answer.
It cannot be withdrawn, and the guest's next reset completes it. So no device is requested by
default. If ``[hpc]suspend_with_devices`` allows it, a server whose guest has not
answered is marked until its guest is started anew.
"""

from __future__ import annotations

from typing import Any, Final

import nova.conf
from nova import exception, objects
from nova.compute import power_state
from oslo_log import log as logging

from nova_hpc.from_nova.claim import instance_has_hpc_keys
from nova_hpc.wire import unplug
from nova_hpc.wire.unplug import Unplug
from nova_hpc_common.wire.version import WireError
from virt_driver_patches.domain import attach
from virt_driver_patches.errors import ClaimRefused

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_REFUSED: Final = (
    "A server with PCI devices cannot be suspended, or snapshot while it runs here: its guest "
    "could lose the devices for good. Shelve the server, or stop it, instead."
)
_NOT_ANSWERED: Final = (
    "The guest did not give up its PCI devices in time, so it runs on as before. It may still give "
    "up {asked} of them when it restarts: they are put back then; hard reboot the server if one "
    "stays missing."
)


def is_answering_for_guest(instance: objects.Instance, active: bool) -> bool:
    """Whether this project is responsible for the devices in the server's guest.

    :param active: whether the node's ``device_spec`` has ``hpc_*`` tags.
    """
    return active or instance_has_hpc_keys(instance)


def check_suspend_allowed(instance: objects.Instance, guest: Any) -> None:
    """Refuse an action that would detach devices from a running guest. Detaches nothing.

    :param guest: Nova's ``Guest``.
    :raises ClaimRefused: with a text for the server's user.
    """
    definition = attach.read_inactive_domain(guest)
    if not (
        definition.passed_through() or attach.list_attached_addresses(guest) or instance.pci_devices
    ):
        return
    if not CONF.hpc.suspend_with_devices:
        raise ClaimRefused(_REFUSED)
    attach.check_suspend(definition)


def does_snapshot_suspend(guest: Any, host: Any) -> bool:
    """Whether Nova would suspend a guest to take a snapshot of it.

    The conditions are those of ``snapshot`` and ``_needs_suspend_resume_for_snapshot``
    (nova/virt/libvirt/driver.py, 32 to 34).

    :param host: Nova's ``Host``.
    """
    cold = (
        CONF.libvirt.images_type == "lvm"
        or CONF.ephemeral_storage_encryption.enabled
        or CONF.workarounds.disable_libvirt_livesnapshot
    )
    return bool(cold) and guest.get_power_state(host) in (power_state.RUNNING, power_state.PAUSED)


def mark_left_asked(
    instance: objects.Instance, error: exception.PciDeviceDetachFailed
) -> ClaimRefused:
    """Mark a server whose guest has not answered; return the error for its user."""
    asked = error.left if isinstance(error, attach.NotLetGo) else 1
    LOG.warning(
        "The guest did not give up its PCI devices (%s). QEMU keeps the requests, and the guest's "
        "next reset completes them; what goes is put back. A hard reboot of the server ends them",
        error,
        instance=instance,
    )
    instance.system_metadata[unplug.KEY] = Unplug(asked).dumps()
    instance.save()
    return ClaimRefused(_NOT_ANSWERED.format(asked=asked))


def forget_unplug_requests(instance: objects.Instance) -> None:
    """Remove the mark: a new QEMU has no requests. Nova saves it with the server's state."""
    instance.system_metadata.pop(unplug.KEY, None)


def is_marked(instance: objects.Instance) -> bool:
    """Whether QEMU may still keep a request; also False if the mark cannot be read."""
    try:
        return unplug.read_unplug(instance.system_metadata.get(unplug.KEY)) is not None
    except WireError as error:
        LOG.warning("%s", error, instance=instance)
        return False
