# SPDX-License-Identifier: Apache-2.0
"""Groups ``[hpc_partitions]`` of Neutron's server and ``[hpc_fabric_agent]`` of the agent."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

SERVER_GROUP: Final = cfg.OptGroup(
    "hpc_partitions",
    title="InfiniBand partitions (nova-hpc)",
    help="Options of the mechanism driver ``hpc_partitions`` in Neutron's server.",
)
SERVER_OPTS: Final[list[cfg.Opt]] = [
    cfg.DictOpt(
        "physical_networks",
        default={},
        help="""
Physical networks that are InfiniBand, each with the name of the fabric that it is on, e.g.
``ibrail0:main,ibrail1:main``. A fabric is the InfiniBand network of one subnet manager and its
standbys; P_Keys are unique in it.
""",
    ),
    cfg.StrOpt(
        "subnet_manager",
        default="opensm",
        help="""
The subnet manager of the fabrics: a name of the entry points ``nova_hpc.subnet_managers``. The
separation of networks depends on it: with ``opensm``, functions of one physical port cannot be in
two networks.
""",
    ),
    cfg.StrOpt(
        "port_inventory",
        default="/etc/neutron/hpc-ports.yaml",
        help="""
File with all physical ports of the hosts: host, PCI address, port GUID, and the PCI addresses of
its virtual functions. ``nova-hpc fabric ports`` writes it.
""",
    ),
    cfg.ListOpt(
        "reserved_pkeys",
        default=["0x0001"],
        help="""
P_Keys that no network may have, beside those that the administrator's own partitions have at the
subnet manager, which the agent reports.
""",
    ),
    cfg.ListOpt(
        "limited_pkeys",
        default=[],
        help="""
P_Keys of networks in which ports of other projects than the network's own are limited members: they
reach the ports of that project and not each other. A change holds for bound ports, too, after a
restart of ``neutron-rpc-server``. Projects limit their own by the tag ``hpc-limited`` on a port or
a network.
""",
    ),
    cfg.StrOpt(
        "direct_vif_type",
        default="hostdev_physical",
        choices=[
            ("hostdev_physical", "The compute needs nothing more."),
            ("ib_hostdev", "Nova calls ``ebrctl`` on the compute, which sets the function's GUID."),
        ],
        help="How ports of the type *direct* are bound.",
    ),
    cfg.FloatOpt(
        "bind_wait",
        default=5.0,
        min=0.0,
        max=60.0,
        help="""
Seconds for which a request that binds a port is held until the membership is read back. Nova does
not hear an event that comes before it waits for one; a port that is active when the answer comes
needs no event.
""",
    ),
    cfg.IntOpt(
        "bind_waiters",
        min=0,
        help="""
Requests that are held for ``bind_wait`` at once, of all processes of Neutron's API that share
``[oslo_concurrency]lock_path``. The default is half of the API's threads, or 4 without uWSGI. A
request beyond that is answered at once, and Nova waits for the event.
""",
    ),
    cfg.FloatOpt(
        "member_timeout",
        default=30.0,
        min=1.0,
        help="""
Seconds after which a port whose membership is not read back becomes ``ERROR``, so that Nova ends
the build at once. Leave it below Nova's ``vif_plugging_timeout``.
""",
    ),
    cfg.BoolOpt(
        "activate_absent_ports",
        default=False,
        help="""
Whether a port whose GUID is not on the fabric yet may become ``ACTIVE`` once the subnet manager has
its membership in force. Needed for functions whose link comes up with the guest.
""",
    ),
    cfg.DictOpt(
        "service_levels",
        default={},
        help="""
Service levels of networks by P_Key, e.g. ``0x0101:1,0x0102:2``. The subnet manager needs ``qos
TRUE`` and a virtual lane for each level. Programs that query no path (NCCL, UCX, MPI) take the
level from their environment, which ``nova-hpc-guest pkey`` prints.
""",
    ),
    cfg.DictOpt(
        "rates",
        default={},
        help="Static rates of networks by P_Key, as the InfiniBand specification counts them.",
    ),
    cfg.DictOpt(
        "mtus",
        default={},
        help="""
MTUs of networks by P_Key in bytes: 256, 512, 1024, 2048 or 4096. An example is ``0x0101:4096``.
IPoIB has at most this MTU. opensm takes 2048 bytes for a network without one.
""",
    ),
]

AGENT_GROUP: Final = cfg.OptGroup(
    "hpc_fabric_agent",
    title="The agent beside the subnet manager (nova-hpc)",
    help="Options of ``nova-hpc-fabric-agent``.",
)
AGENT_OPTS: Final[list[cfg.Opt]] = [
    cfg.StrOpt("fabric", help="Name of the fabric that this subnet manager manages."),
    cfg.StrOpt(
        "subnet_manager",
        default="opensm",
        help="A name of the entry points ``nova_hpc.subnet_managers``.",
    ),
    cfg.StrOpt(
        "opensm_config",
        default="/etc/opensm/opensm.conf",
        help="The subnet manager's own file of options.",
    ),
    cfg.StrOpt(
        "opensm_pid_file",
        default="/run/opensm.pid",
        help="The file with the process number of the subnet manager, which gets SIGHUP.",
    ),
    cfg.StrOpt(
        "opensm_log",
        default="/var/log/opensm.log",
        help="The subnet manager's log, which reports a file that it did not take.",
    ),
    cfg.StrOpt(
        "partitions_file",
        default="/etc/opensm/partitions.conf",
        help="The file of partitions that the agent writes, whole.",
    ),
    cfg.StrOpt(
        "own_partitions_file",
        default="/etc/opensm/partitions.own.conf",
        help="The administrator's own partitions, which the agent copies and never changes.",
    ),
    cfg.StrOpt(
        "state_path",
        default="/var/lib/nova-hpc-fabric",
        help="Folder of the agent: the last own partitions that were in force without harm.",
    ),
    cfg.FloatOpt(
        "poll_interval",
        default=5.0,
        min=0.2,
        help="Seconds after which the agent looks again although nothing has woken it.",
    ),
    cfg.BoolOpt(
        "trial",
        default=True,
        help="""
Whether a change of the administrator's own partitions is tried on a simulated fabric first, where
``ibsim`` is installed.
""",
    ),
    cfg.StrOpt(
        "simulated_host",
        help="""
Only with a simulated fabric (ibsim): the name of the simulated node from which tables are read.
""",
    ),
    cfg.StrOpt("ufm_url", help="Where the REST API of UFM Enterprise is, e.g. ``https://ufm``."),
    cfg.StrOpt("ufm_user", help="User of UFM."),
    cfg.StrOpt("ufm_password", secret=True, help="Password of that user."),
    cfg.StrOpt("ufm_ca_file", help="Certificates of those who may have signed UFM's."),
]


def register_server_options(conf: cfg.ConfigOpts) -> None:
    """Register the options of Neutron's server (idempotent)."""
    _register_group(conf, SERVER_GROUP, SERVER_OPTS)


def register_agent_options(conf: cfg.ConfigOpts) -> None:
    """Register the options of the agent (idempotent)."""
    _register_group(conf, AGENT_GROUP, AGENT_OPTS)


def _register_group(conf: cfg.ConfigOpts, group: cfg.OptGroup, options: list[cfg.Opt]) -> None:
    # A group keeps the values of its options, so one group in two registries would mix them.
    conf.register_group(cfg.OptGroup(group.name, group.title, group.help))
    conf.register_opts(options, group=group.name)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return groups and options of partitions, for the entry point ``oslo.config.opts``."""
    return [(SERVER_GROUP.name, list(SERVER_OPTS)), (AGENT_GROUP.name, list(AGENT_OPTS))]
