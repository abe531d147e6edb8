# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: how a node reads, checks and cleans its devices."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg, types

OPTS: Final[list[cfg.Opt]] = [
    cfg.StrOpt(
        "sysfs_root",
        default="/",
        help="""
The directory below which ``sys`` and ``proc`` of the compute node are read.
Meant for tests and for looking at captures of other machines; on a compute
node it is ``/``.
""",
    ),
    cfg.StrOpt(
        "ledger_file",
        default="$state_path/hpc-ledger.json",
        help="""
The ledger: the file in which the compute node keeps its records of its devices: which are in
quarantine, the baseline of each, which server has had it since it was last found clean, the
settings of its virtual function, and which server has which NVLink partition. It has a copy and
locks beside it. While neither the file nor its copy can be read, the node offers no device,
because it cannot see which ones are clean; see the documentation of ``nova-hpc device``.
""",
    ),
    cfg.BoolOpt(
        "clean_devices",
        default=True,
        help="""
Whether the compute node cleans and checks its passthrough devices between two servers. A device
is reset when its server is gone and must then match its baseline. Before the next server starts,
the device is checked once more. A device that fails goes into quarantine.

Related options:

* ``[hpc]ledger_file``
* ``[hpc]reset_timeout``
* ``[hpc]cleaners``
""",
    ),
    cfg.FloatOpt(
        "reset_timeout",
        default=60.0,
        min=1.0,
        max=600.0,
        help="""
Seconds after which the reset of a device is given up and the device goes into
quarantine. The kernel itself waits up to 60 seconds for a function that comes
back from a reset.
""",
    ),
    cfg.DictOpt(
        "cleaners",
        default={"vf": "vf"},
        help="""
Which cleaner makes the devices of a role ready for the next server, as
``role:cleaner`` separated by commas. Cleaners are found by the entry points of
the namespace ``nova_hpc.cleaners``: ``generic``, for all roles that are not
named, ``vf``, and ``nvidia-gpu``, which uses ``nvidia-smi`` on a GPU that is
bound to NVIDIA's driver.
""",
    ),
    cfg.ListOpt(
        "health_checks",
        item_type=types.String(choices=["link", "reset"]),
        default=["link", "reset"],
        help="""
Which of the optional health checks of passthrough devices the compute node
makes. A device that fails a check is not offered to any server; a server that
already has it keeps it.

* ``link``: the PCIe link is narrower than both of its ends can be.
* ``reset``: the kernel has no way to reset the device, so the next server would find it as the
  last one left it.

Always checked, and not to be switched off, are: that the device can be read, that it is not in
quarantine, that its IOMMU group is viable and goes to one server as a whole, and that the kernel
reports a VFIO driver if ``device_spec`` contains ``managed: no``. Devices of entries without
``hpc_*`` tags are judged only by faults that harm the host, and not by their driver, their link,
the ways to reset them or the devices in their group.

Related options:

* ``[hpc]ledger_file``
* ``[pci]device_spec``
""",
    ),
    cfg.BoolOpt(
        "gpudirect_clique",
        default=False,
        help="""
Whether NVIDIA GPUs of servers with ``hpc:guest_topology`` ``mirror`` or ``numa`` show the
GPUDirect clique that they belong to: all those below one PCIe switch of the host. NVIDIA's driver
in a guest then sees which GPUs can reach each other directly. Without the clique, it may refuse
peer-to-peer traffic in a virtual machine.

It holds for servers that start on this compute node for the first time. A server keeps the
setting with which it first started. Such servers cannot be suspended.
""",
    ),
]
