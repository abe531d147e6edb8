# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: NVLink sets, and the program that activates their partitions."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg, types

OPTS: Final[list[cfg.Opt]] = [
    cfg.MultiStrOpt(
        "nvlink_set",
        default=[],
        help="""
The NVLink sets of the node: which of its GPUs a server with ``hpc:nvlink`` may
get together. May be given several times, and a GPU may be in several sets.

Each value is a JSON object: ``name`` is up to 32 letters, digits, ``.``, ``_``
and ``-``, and ``devices`` a list of the PCI addresses of all members, e.g.
``{"name": "left", "devices": ["0000:07:00.0", "0000:0a:00.0"]}``. Write one
set for each partition of the NVSwitches that the fabric manager offers, or for
each group of GPUs with direct links to one another.

Without the option, a node whose inventory has functions of the role ``nvswitch`` has one set, of
the GPUs of the same vendor and of one product, and a node whose GPUs report links by xGMI (while
``amdgpu`` has them) has one set for each hive. Other nodes have none, because the kernel does not
report NVLink bridges between cards. Giving the option replaces those sets.

``nova-hpc configure`` reads it and writes the tag ``hpc_nvlink`` of the
entries of ``[pci]device_spec``; services read the tags only.

Related options:

* ``[hpc]device_role``
* ``[pci]device_spec``
""",
    ),
    cfg.StrOpt(
        "nvlink_backend",
        default="none",
        help="""
The backend that activates the NVLink partition of a server before it starts, and deactivates it
afterwards. Backends are found by the entry points of the namespace ``nova_hpc.nvlink_backends``.

* ``none``: no backend. For nodes without NVLinks, for GPUs with direct links to one another, and
  for guests that get the NVSwitches with the GPUs.
* ``fabric-manager``: NVIDIA Fabric Manager in its shared NVSwitch mode (``FABRIC_MODE=1``).
  nova-compute does not start where it cannot be reached; later a failure refuses the start of a
  server, or withholds GPUs.

Related options:

* ``[hpc]nvlink_address``
* ``[hpc]nvlink_gpus``
* ``[hpc]nvlink_set``
""",
    ),
    cfg.StrOpt(
        "nvlink_address",
        default="127.0.0.1:6666",
        help="""
The address of the manager of the NVLink fabric: an IPv4 address with a port, or the path of a
Unix socket. Any program that reaches it can link GPUs, so only nova-compute should reach it.
""",
    ),
    cfg.StrOpt(
        "nvlink_library",
        default="libnvfm.so.1",
        help="""
The shared library that speaks to the manager of the NVLink fabric, a name or a
path. It is loaded by a process of its own for each call.
""",
    ),
    cfg.FloatOpt(
        "nvlink_timeout",
        default=20.0,
        min=1.0,
        max=600.0,
        help="""
Seconds after which a call to the manager of the NVLink fabric is given up. Its
process is ended two seconds later, and the server does not start.
""",
    ),
    cfg.Opt(
        "nvlink_gpus",
        type=types.Dict(value_type=types.String()),
        default={},
        help="""
The PCI address in this node of each GPU that the manager of the NVLink fabric lists, as a list of
``physical id:address``, for example ``1:0000:1b:00.0,2:0000:43:00.0``. NVIDIA's Fabric Manager
does not report the addresses of GPUs from the H100 on. If it runs in a virtual machine, it
reports the addresses in that machine. Name all GPUs in both cases. The physical id is the
``Module ID`` that ``nvidia-smi -q`` shows.
""",
    ),
]
