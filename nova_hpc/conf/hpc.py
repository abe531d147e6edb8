"""Group ``[hpc]``: what every part of the project shares."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg, types

GROUP: Final = cfg.OptGroup(
    "hpc",
    title="Virtual HPC clusters (nova-hpc)",
    help="""
Options of nova-hpc: the topology filter and the packing weigher of the
scheduler, and the libvirt driver of the compute nodes. Without ``hpc_*`` tags
in ``[pci]device_spec`` and ``hpc:`` keys in flavors none of them has an
effect.
""",
)

DEFAULT_ROLES: Final = [
    # NVSwitch is a bridge-class function of NVIDIA, so it comes before GPUs.
    '{"role": "nvswitch", "vendor_id": "10de", "class": "0680"}',
    '{"role": "gpu", "vendor_id": "10de", "class": "0302"}',
    '{"role": "gpu", "vendor_id": "10de", "class": "0300"}',
    '{"role": "gpu", "vendor_id": "1002", "class": "1200"}',
    '{"role": "gpu", "vendor_id": "1002", "class": "0380"}',
    '{"role": "gpu", "vendor_id": "8086", "class": "0380"}',
    '{"role": "gpu", "vendor_id": "8086", "class": "1200"}',
    '{"role": "vf", "vendor_id": "15b3", "class": "02*", "dev_type": "type-VF"}',
    '{"role": "pf", "vendor_id": "15b3", "class": "02*", "dev_type": "type-PF"}',
    '{"role": "nic", "vendor_id": "15b3", "class": "02*"}',
]

OPTS: Final[list[cfg.Opt]] = [
    cfg.MultiStrOpt(
        "device_role",
        default=DEFAULT_ROLES,
        help="""
Which PCI functions play which role. May be given several times; the first
entry that matches a function wins, and a function without an entry has no
role and is never offered.

Each value is a JSON object. ``role`` is the name of the role, which is also
the default name of the PCI alias and the word used in ``hpc:group``. The
other keys all have to match: ``vendor_id`` and ``product_id`` (four hex
digits), ``class`` (base class and sub-class, four hex digits) and
``dev_type`` (``type-PCI``, ``type-PF`` or ``type-VF``, as Nova has them). A
value may contain the wildcards ``*`` and ``?``.

The defaults know the GPUs of NVIDIA, AMD and Intel, NVSwitches, and the
adapters of the mlx5 family. Giving the option replaces all of the defaults.

Related options:

* ``[pci]device_spec``
* ``[pci]alias``
""",
    ),
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

Without the option, a node whose inventory has functions of the role
``nvswitch`` has one set, of all its GPUs of the same vendor; other nodes have
none. Giving the option replaces that set.

``nova-hpc configure`` reads it and writes the tag ``hpc_nvlink`` of the
entries of ``[pci]device_spec``; services read the tags only.

Related options:

* ``[hpc]device_role``
* ``[pci]device_spec``
""",
    ),
    cfg.FloatOpt(
        "packing_weight_multiplier",
        default=100.0,
        help="""
Multiplier of HpcPackingWeigher, which prefers, for a server with an ``hpc:``
flavor, the host whose free devices fit the request most tightly, so that
whole switches and whole hosts stay free for larger servers.

A positive value packs, a negative value spreads, and 0 switches the weigher
off. It has no effect on servers without ``hpc:`` keys in their flavor. The
default outweighs Nova's weighers of memory, CPUs and disk, which spread with a
multiplier of 1.0 each, and is far below those of failed builds and of moves
between cells. The value can be overridden for the hosts of an aggregate with
the metadata key ``hpc_packing_weight_multiplier``.

Related options:

* ``[filter_scheduler]weight_classes``
""",
    ),
    cfg.IntOpt(
        "candidates_per_host",
        default=8,
        min=1,
        max=64,
        help="""
How many ranked device sets HpcTopologyFilter tries on one host until one of
them also satisfies Nova's own check of CPUs and memory pages. Only the first
set that passes is offered to the rest of the scheduler.
""",
    ),
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
        "quarantine_file",
        default="$state_path/hpc-quarantine.json",
        help="""
The file in which the compute node keeps the devices that must not be given to
any server until an operator releases them. It is a JSON object of PCI
addresses to reasons; a file that cannot be read withholds nothing by itself,
but is reported in the log and in the node's statistics.
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
* ``reset``: the kernel knows no way to reset the device, so the next server
  would find it as the last one left it.

Always checked, and not to be switched off, are: that the device can be read,
that it is not in quarantine, that its IOMMU group is viable and goes to one
server as a whole, and that it is bound to vfio-pci where ``device_spec`` says
``managed: no``.

Related options:

* ``[hpc]quarantine_file``
* ``[pci]device_spec``
""",
    ),
]


def register(conf: cfg.ConfigOpts) -> None:
    """Register the group on *conf* (idempotent)."""
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)
