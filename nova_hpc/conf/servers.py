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

A guest has to give up its devices before its memory can be saved. One whose
driver is busy, or that has not booted, does not answer; the request cannot be
taken back, and the guest's next reset completes it, perhaps days later: the
server goes on without the devices that it pays for. So nothing is asked of a
guest by default, and the refusal names what does the same job: shelve and stop.

Set it where the guests are known to answer. If one does not, the server runs on and
is marked. What it gives up later is put back where it was, at the event or at the
next periodic update; what cannot be put back is named in the log and in the
node's statistics, and a hard reboot brings it back.

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
Seconds for which servers that come back with their host wait for what the host itself
makes late: devices that a unit of the host binds to vfio-pci, and huge pages. Once they are
over, the service goes on, and the starts say what is wrong. It is one time for all servers
of a start of the service.

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
Whether owners of servers read in the metadata what this compute node has given them.

With it, a server of a flavor with ``hpc:`` keys has the items ``hpc_devices`` (which
devices, and how close they are) and, where the fabric is known, ``hpc_position`` (where
it is among its siblings); ``openstack hpc server show`` shows them. They are information
only: nothing reads them back.

Switch it off where something compares a server's metadata with what was asked for, as
Tempest's tests do. What is there already goes when the server starts the next time.
""",
    ),
]
