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
    cfg.StrOpt(
        "nvlink_backend",
        default="none",
        help="""
Who activates the NVLink partition of a server before it starts, and deactivates
it afterwards. Backends are found by the entry points of the namespace
``nova_hpc.nvlink_backends``.

* ``none``: nobody. For nodes without NVLinks, for GPUs with direct links to one
  another, and where guests get the NVSwitches with the GPUs.
* ``fabric-manager``: NVIDIA Fabric Manager in its shared NVSwitch mode
  (``FABRIC_MODE=1``). nova-compute does not start where it cannot be reached;
  later a failure refuses the start of a server, or withholds GPUs.

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
Where the manager of the NVLink fabric listens: an IPv4 address with a port, or
the path of a Unix socket. Whoever reaches it decides which GPUs are linked, so
keep everybody else away from it.
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
The PCI address in this node of each GPU that the manager of the NVLink fabric
knows, as a list of ``physical id:address``, for example
``1:0000:1b:00.0,2:0000:43:00.0``. NVIDIA's Fabric Manager does not say the
addresses of GPUs from the H100 on, and one that runs in a virtual machine says
those of that machine; then all GPUs have to be named. The physical id is the
``Module ID`` that ``nvidia-smi -q`` shows.
""",
    ),
    cfg.StrOpt(
        "nvlink_file",
        default="$state_path/hpc-nvlink.json",
        help="""
The file in which the compute node keeps which server has which NVLink
partition. A manager of the fabric that was restarted has to be told. It has a
copy and a lock beside it.
""",
    ),
    cfg.FloatOpt(
        "packing_weight_multiplier",
        default=10000.0,
        help="""
Multiplier of HpcPackingWeigher, which prefers, for a server with an ``hpc:``
flavor, the host whose free devices fit the request most tightly, so that
whole switches and whole hosts stay free for larger servers.

A positive value packs, a negative value spreads, and 0 switches the weigher
off. It has no effect on servers without ``hpc:`` keys in their flavor. Nova
brings the weights of each weigher to the range from 0 to 1, so between hosts
whose scores are next to each other there is the multiplier divided by the
number of different scores. The default outweighs Nova's weighers of memory,
CPUs, disk and PCI devices, with a multiplier of 1.0 each, up to some two
thousand different scores, and is far below those of failed builds and of moves
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
them also satisfies Nova's own check of CPUs and memory pages. The best is tried
first, and the others are only made where Nova would refuse it. Only the first
set that passes is offered to the rest of the scheduler.
""",
    ),
    cfg.Opt(
        "flavor_weights",
        type=types.Dict(value_type=types.Integer(min=0)),
        default={},
        help="""
How much each flavor counts when HpcTopologyFilter measures what a placement
takes away from later servers: a list of ``flavor name:weight``, for example
``hpc.gpu8:4,hpc.gpu1:10``. Only the proportions matter, and the share of a
flavor among the servers that are asked for is a good weight. A flavor that is
not named has the weight 1, and one with the weight 0 is left out.

The filter reads the flavors that ask for PCI devices from the API database, at
most every five minutes. Where it cannot, or where there are none, servers with
1, 2, 4, 8 and 16 GPUs are the measure.
""",
    ),
    cfg.BoolOpt(
        "spread_equal_sets",
        default=True,
        help="""
Whether equally good device sets of a host are offered in an order that depends
on the server. Schedulers that work at the same moment then mostly choose
different devices; without it all but one of them would lose the host, because
Nova tries only one set of devices of each host before it goes on to the next.

Related options:

* ``[filter_scheduler]shuffle_best_same_weighed_hosts``
""",
    ),
    cfg.IntOpt(
        "cache_size",
        default=4096,
        min=0,
        help="""
How many results of each kind the scheduler keeps: what a device's tags say,
what a host with certain free devices has, and which of its devices are best
for a request. Hosts with the same free devices, CPUs and pages share them. A
host of 16 devices that is like no other takes some 20 kilobytes in all; the
results used last are kept, and 0 keeps none.
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
addresses to reasons, with a copy beside it. While neither the file nor its copy
can be read, nobody knows which devices are in it, and none is offered.
""",
    ),
    cfg.BoolOpt(
        "clean_devices",
        default=True,
        help="""
Whether the compute node cleans and checks its passthrough devices between two
servers. A device is reset when its server is gone and must then look as its
baseline says; before the next server starts it is looked at once more. A
device that fails goes into quarantine.

Related options:

* ``[hpc]quarantine_file``
* ``[hpc]hygiene_file``
* ``[hpc]reset_timeout``
* ``[hpc]cleaners``
""",
    ),
    cfg.StrOpt(
        "hygiene_file",
        default="$state_path/hpc-hygiene.json",
        help="""
The file in which the compute node keeps the baseline of each device, and which
server has had it since it was last found clean. It has a copy and locks beside
it. While neither the file nor its copy can be read, no device is offered; see
the documentation of ``nova-hpc device``.
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
    cfg.StrOpt(
        "set_adapters",
        choices=[
            ("off", "Virtual functions are left as they are."),
            ("keep", "Set where it is possible; addresses that were there before stay."),
            ("own", "Always set, to addresses of this cloud's prefix, or the start is refused."),
        ],
        default="keep",
        help="""
Whether the compute node sets the virtual functions of network adapters before a
server starts, and puts them back after it: GUIDs on InfiniBand; MAC, spoof
check, trust and link state on Ethernet. It concerns functions with an
``hpc_role`` tag that a server gets by an alias. With ``own``, the functions of
direct ports get a spoof check, no trust and a link that follows the adapter's
before their owners (Neutron, Nova, libvirt) set them; otherwise they are
theirs alone.

With ``keep``, a MAC or GUIDs that an operator has set stay, and an adapter that
nothing here can set works as without this option, which is logged. VLAN and
rates of such functions always stay what they were.

Related options:

* ``[hpc]address_prefix``
* ``[hpc]adapters_file``
""",
    ),
    cfg.StrOpt(
        "address_prefix",
        default="0e",
        help="""
The first octets, one to three, of the MAC addresses and GUIDs that this project
gives to virtual functions, for example ``0e`` or ``0e:5a``. The second digit has
to be 2, 6, a or e (locally administered, of one interface). The rest is computed
from the server's UUID. It has to be the same on all nodes of a cloud, and
different for clouds that share a fabric, and nobody else may give addresses that
begin with it; a longer prefix leaves less room, so
that two addresses are the same more easily. A running server keeps what it has
until it moves.
""",
    ),
    cfg.StrOpt(
        "adapters_file",
        default="$state_path/hpc-adapters.json",
        help="""
The file in which the compute node keeps which virtual functions it has set, and
what they go back to. It has a copy and a lock beside it. While neither the file
nor its copy can be read, no virtual function is offered.
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
    cfg.BoolOpt(
        "gpudirect_clique",
        default=False,
        help="""
Whether NVIDIA GPUs of servers with ``hpc:guest_topology`` ``mirror`` or ``numa``
show the GPUDirect clique that they belong to: all those below one PCIe switch
of the host. NVIDIA's driver in a guest then knows which GPUs can reach each
other directly; without it, it may refuse peer-to-peer traffic in a virtual
machine.

It holds for servers that start on this compute node for the first time; a
server keeps what it was started with. Such servers cannot be suspended.
""",
    ),
]


def register(conf: cfg.ConfigOpts) -> None:
    """Register the group on *conf* (idempotent)."""
    conf.register_group(GROUP)
    conf.register_opts(OPTS, group=GROUP)
