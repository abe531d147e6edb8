# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: the stage in which devices are cleaned from within between servers."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg, types

#: Where the devices of a role are checked.
MODES: Final = ("none", "service-vm", "host")

OPTS: Final[list[cfg.Opt]] = [
    cfg.ListOpt(
        "offer_anyway",
        default=[],
        help="""
Devices that nova-hpc would never offer, and that may be given anyway: PCI addresses, or
``vendor:product``. Such devices are functions by which NVSwitches are managed, functions with
unreadable vital product data, and models that do not come back from their reset. The reason in
nova-compute's log names the case. Storage devices are not among them: one is offered only if the
cleaner of its role proves that it erases the data.
""",
    ),
    cfg.Opt(
        "clean_stage",
        type=types.Dict(value_type=types.String(choices=list(MODES))),
        default={},
        help="""
Where the devices of a role are cleaned and checked from within after a server, beside the
reset that every device gets, as ``role:mode`` separated by commas.

* ``none``: nowhere. For every role that is not named.
* ``service-vm``: in a virtual machine of the node's own that gets the device, and is
  thrown away. Needs ``[hpc]clean_vm_kernel`` and ``[hpc]clean_vm_initrd``.
* ``host``: on the node, with the driver that ``[hpc]clean_drivers`` names.

No server gets such a device before its stage has passed. Needs ``[hpc]clean_devices``.

Related options:

* ``[hpc]clean_checks``
* ``[hpc]clean_timeout``
""",
    ),
    cfg.Opt(
        "clean_checks",
        type=types.Dict(value_type=types.String()),
        default={},
        help="""
The checks of the devices of a role in their stage, as ``role:check+check`` separated by
commas. Every role that has a stage needs one.

* ``memory``: writes a pattern to all memory that the device's prefetchable BARs contain, reads it
  back, and leaves zeros. Not for devices that have registers there.
* ``nvidia``: NVIDIA's management library, by nvidia-ml-py: MIG off, ECC on, no memory row to be
  remapped, versions as in ``[hpc]clean_pins``.
* ``amd``: amdgpu's uncorrected errors, partitions and VBIOS.
* ``nic``: firmware of an adapter as in ``[hpc]clean_pins``.
* ``nvme``: erases an NVMe disk and proves it, by the kernel's driver ``nvme``. On the host,
  ``[hpc]clean_drivers`` has to name that driver for the role.

In a service VM any other name is the operator's own program in the initial RAM file system,
``/checks/NAME``.
""",
    ),
    cfg.Opt(
        "reported_checks",
        type=types.Dict(value_type=types.String()),
        default={},
        help="""
Further checks of a device whose last owner has reported a fault of it, as ``role:check+check``
separated by commas, for example a program that tests the hardware for minutes. They follow a stage
that has passed, at most once for each server, and may take ``[hpc]clean_timeout`` again. Other
devices do not wait for them: a node runs up to ``[hpc]clean_vm_at_once`` more service VMs. A
device that fails is in quarantine. If the checks come to no answer, the stage alone counts. The
role needs a stage (``[hpc]clean_stage``).

Related options:

* ``[hpc]clean_checks``
""",
    ),
    cfg.Opt(
        "clean_drivers",
        type=types.Dict(value_type=types.String()),
        default={},
        help="""
The driver of the node that devices of a role are bound to in a stage of mode ``host``, as
``role:driver`` separated by commas, for example ``gpu:nvidia``.
""",
    ),
    cfg.MultiStrOpt(
        "clean_pins",
        default=[],
        help="""
The required properties of the devices of a role in their stage. May be given several times; each
value is a JSON object whose ``role`` names the role. The other keys are compared with the results
of a check, for example ``{"role": "gpu", "vbios": "96.00.74.00.0D", "ecc": true}``. See the
documentation of the checks for their keys.
""",
    ),
    cfg.FloatOpt(
        "clean_timeout",
        default=300.0,
        min=5.0,
        max=3600.0,
        help="""
Seconds that the stage of a device may take. After that its program is killed, and the device is
suspect and tried again.
""",
    ),
    cfg.StrOpt(
        "clean_vm_kernel",
        default="",
        help="""
The file of the kernel that a service VM boots, on the compute node. nova-compute has to be
able to read it; the kernel of the node itself will do.
""",
    ),
    cfg.StrOpt(
        "clean_vm_initrd",
        default="",
        help="""
The file of the initial RAM file system that a service VM boots, on the compute node.
``python3 -m nova_hpc.tenancy.stage.build`` makes one.
""",
    ),
    cfg.StrOpt(
        "clean_vm_arguments",
        default="",
        help="""
More arguments for the kernel of a service VM, after the ones from nova-hpc: for example
parameters of a device's driver.
""",
    ),
    cfg.IntOpt(
        "clean_vm_memory",
        default=512,
        min=64,
        help="""
MiB of memory of a service VM. It comes from the memory of ``[DEFAULT]reserved_host_memory_mb``,
not from the hugepages of servers; a node that cannot spare it does not start the VM, and the
device waits.
""",
    ),
    cfg.IntOpt(
        "clean_vm_at_once",
        default=1,
        min=1,
        max=16,
        help="""
Number of service VMs that a node runs at once, each for the devices of one IOMMU group. Each
takes ``[hpc]clean_vm_memory`` of the node's own memory.
""",
    ),
    cfg.StrOpt(
        "clean_vm_machine",
        default="q35",
        help="""
The machine type of a service VM, as libvirt and QEMU call it. The stage was tried with q35;
another type must have PCI Express ports.
""",
    ),
]
