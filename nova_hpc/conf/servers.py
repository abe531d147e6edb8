# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: permitted actions on servers that have devices."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

OPTS: Final[list[cfg.Opt]] = [
    cfg.BoolOpt(
        "suspend_with_devices",
        default=False,
        help="""
Whether a server with passed-through PCI devices may be suspended on this compute
node, or be snapshot in a way that suspends it.

A guest has to give up its devices before its memory can be saved. A guest whose driver is busy,
or that has not booted, does not answer. The request cannot be taken back, and the guest's next
reset completes it, perhaps days later: the server goes on without the devices that it pays for.
So by default a suspend is refused, and the refusal names the alternatives: shelve and stop.

Set it if the guests reliably answer. If a guest does not, the server runs on and is marked. A
device that it gives up later is put back at its place, at the event or at the next periodic
update. The log and the node's statistics name a device that cannot be put back; a hard reboot
brings it back.

Related options:

* ``[libvirt]device_detach_timeout``
* ``[libvirt]device_detach_attempts``
""",
    ),
    cfg.IntOpt(
        "boot_patience",
        default=60,
        min=0,
        help="""
Seconds for which servers that come back with their host wait for resources that the host provides
late: devices that a systemd unit binds to vfio-pci, and huge pages. After that time the service
goes on, and each failed start reports its reason. It is one time for all servers of a start of
the service.

Nova brings servers back where ``[DEFAULT]resume_guests_state_on_host_boot`` is set, and
answers no request before.

Related options:

* ``[DEFAULT]resume_guests_state_on_host_boot``
""",
    ),
    cfg.BoolOpt(
        "server_metadata",
        default=True,
        help="""
Whether the metadata of a server shows its owner the devices that this compute node has given it.

With it, a server of a flavor with ``hpc:`` keys has the items ``hpc_devices`` (its devices, and
how close they are) and, if the fabric is known, ``hpc_position`` (its place among its siblings);
``openstack hpc server show`` shows them. They are information only: nothing reads them back.

Switch it off if a program compares a server's metadata with the request, as Tempest's tests do.
Existing items are removed when the server starts the next time.
""",
    ),
]
