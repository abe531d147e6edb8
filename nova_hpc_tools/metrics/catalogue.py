# SPDX-License-Identifier: Apache-2.0
"""All metrics: name, labels and meaning. Data only.

The page :doc:`/admin/monitoring` lists them from here; the rules and the dashboard below ``etc``
may use no other.
"""

from __future__ import annotations

import enum
from typing import Final

import attrs


class MetricScope(enum.Enum):
    """The subject of a metric: this node, the cloud, or a fabric. Each has a command of its own."""

    NODE = "node"
    CLOUD = "cloud"
    FABRIC = "fabric"


@attrs.frozen
class MetricKind:
    """One kind of metric: its name, help text and labels."""

    scope: MetricScope
    word: str
    #: One sentence, for the page and for readers of a scrape's text.
    text: str
    labels: tuple[str, ...] = ()
    #: It only grows, unless a new ledger starts.
    counter: bool = False
    #: The option that is required for it.
    option: str = ""

    @property
    def name(self) -> str:
        """The name of the metric in Prometheus."""
        end = "_total" if self.counter else ""
        return f"nova_hpc_{self.scope.value}_{self.word}{end}"


_NODE, _CLOUD, _FABRIC = MetricScope.NODE, MetricScope.CLOUD, MetricScope.FABRIC


def _make_up_kind(scope: MetricScope, what: str) -> MetricKind:
    return MetricKind(
        scope,
        "up",
        f"1: the last reading of {what} is whole, and the other metrics are of it. 0: it failed or "
        "is too old, and no other metric is given but the time of the last one that was whole",
    )


def _make_success_kind(scope: MetricScope, what: str) -> MetricKind:
    return MetricKind(
        scope,
        "last_success_timestamp_seconds",
        f"Unix time of the last whole reading of {what}",
    )


UP: Final = {
    _NODE: _make_up_kind(_NODE, "the node"),
    _CLOUD: _make_up_kind(_CLOUD, "the cloud"),
    _FABRIC: _make_up_kind(_FABRIC, "the subnet manager"),
}
LAST_SUCCESS: Final = {
    _NODE: _make_success_kind(_NODE, "the node"),
    _CLOUD: _make_success_kind(_CLOUD, "the cloud"),
    _FABRIC: _make_success_kind(_FABRIC, "the subnet manager"),
}

# --- a node --------------------------------------------------------------------------------

LEDGER_USABLE: Final = MetricKind(
    _NODE,
    "ledger_usable",
    "1: the ledger is readable and nova-compute has compared it with Nova's records. 0: which "
    "devices servers have is unknown, so devices, sets, tries and cleanings are not given",
)
NODE_DEVICES: Final = MetricKind(
    _NODE,
    "devices",
    "Devices of the node by role and state, as in nova-hpc device list",
    ("role", "state"),
)
NODE_SIGNS: Final = MetricKind(
    _NODE,
    "troubled_devices",
    "Suspect and quarantined devices by the sign of their trouble",
    ("sign",),
)
NODE_TRIES: Final = MetricKind(
    _NODE,
    "device_tries",
    "How often the devices that are suspect now were tried again and found ill, all together",
)
NODE_CLEANINGS: Final = MetricKind(
    _NODE,
    "cleanings",
    "How often devices were reset and checked after a server, by result: clean, or failed",
    ("result",),
    counter=True,
)
NODE_ABSENT: Final = MetricKind(
    _NODE,
    "absent_devices",
    "Hardware that was in the node and is not found, as in nova-hpc device list --absent",
)
NODE_DIFFERING: Final = MetricKind(
    _NODE,
    "differing_devices",
    "Devices whose presence in the guest differs from the record of the server",
)
NODE_FAULTS: Final = MetricKind(
    _NODE,
    "server_faults",
    "Faults of devices that servers have, by the word that the owner's tag has",
    ("fault",),
)
NODE_LARGEST: Final = MetricKind(
    _NODE,
    "largest_set",
    "Largest set of free devices of a role that one server could get at a level of hpc:affinity",
    ("role", "level"),
)
NODE_PEERS: Final = MetricKind(
    _NODE,
    "peer_pairs",
    "GPUs with an adapter below the same switch, by the path of their traffic: it stays below "
    "the switch, goes through the root complex, or is unknown (only root can read it)",
    ("path",),
)
NODE_NVLINK: Final = MetricKind(
    _NODE, "nvlink_partitions", "NVLink partitions that servers have, by the ledger"
)
NODE_MAINTENANCE: Final = MetricKind(
    _NODE, "maintenance", "1: a time in which devices may change is announced and not over"
)
NODE_PROBLEMS: Final = MetricKind(
    _NODE, "problems", "Number of errors while the node and its ledger were read"
)
NODE_GPU: Final = MetricKind(
    _NODE,
    "gpu_info",
    "1 for each GPU whose UUID is known, to join metrics of DCGM; server: who has it",
    ("UUID", "pci_bus_id", "role", "state", "server"),
    option="--gpu-uuids or --gpu-uuid-file",
)

# --- a cloud -------------------------------------------------------------------------------

CLOUD_TAKEN: Final = MetricKind(
    _CLOUD,
    "snapshot_timestamp_seconds",
    "Unix time of the reading behind the other metrics; a snapshot file may be old",
)
CLOUD_HOSTS: Final = MetricKind(
    _CLOUD,
    "hosts",
    "Compute nodes that get servers with hpc: keys (in), and those that do not (out)",
    ("service",),
)
CLOUD_DEVICES: Final = MetricKind(
    _CLOUD,
    "devices",
    "Devices that the nodes offer, by role, by state (free, in use), and by whether the node gets "
    "servers (in, out)",
    ("role", "state", "service"),
)
CLOUD_WITHHELD: Final = MetricKind(
    _CLOUD,
    "withheld_devices",
    "Devices that nodes withhold, as in nova-hpc device list --all-nodes; not from a file",
    ("state",),
)
CLOUD_UNLISTED: Final = MetricKind(
    _CLOUD,
    "unlisted_devices",
    "Withheld or faulty devices that did not fit into their nodes' reports",
)
CLOUD_AILING: Final = MetricKind(
    _CLOUD, "ailing_devices", "Devices with a fault that a server has; not from a file"
)
CLOUD_UNUSABLE: Final = MetricKind(
    _CLOUD, "unusable_devices", "Devices that are reported and that the scheduler cannot use"
)
CLOUD_LARGEST: Final = MetricKind(
    _CLOUD,
    "largest_set",
    "Largest set of free devices of a role on any host in service, by level of hpc:affinity",
    ("role", "level"),
)
CLOUD_SETS: Final = MetricKind(
    _CLOUD,
    "hosts_with_set",
    "Hosts in service that still give one server a set of so many devices of a role, by level",
    ("role", "level", "size"),
)
CLOUD_PROBLEMS: Final = MetricKind(
    _CLOUD,
    "problems",
    "Faults of the cloud as a whole, as in the warnings of nova-hpc explain and nova-hpc capacity",
)
FLAVOR_UP: Final = MetricKind(
    _CLOUD,
    "flavor_up",
    "1: the flavor's numbers are given. 0: it is not there, or no server of it can be created",
    ("flavor",),
    option="--flavor",
)
FLAVOR_FIT: Final = MetricKind(
    _CLOUD,
    "servers_fit",
    "Servers of the flavor that still fit, as in nova-hpc capacity",
    ("flavor",),
    option="--flavor",
)
FLAVOR_STRANDED: Final = MetricKind(
    _CLOUD,
    "stranded_devices",
    "Free devices of a role, on hosts in service, that are left when no more servers of the "
    "flavor fit",
    ("flavor", "role"),
    option="--flavor",
)
FLAVOR_REFUSALS: Final = MetricKind(
    _CLOUD,
    "refusing_hosts",
    "Hosts that would refuse a server of the flavor now, by the wish that they do not meet; out: "
    "they get no servers",
    ("flavor", "reason"),
    option="--flavor",
)
FLAVOR_LARGEST: Final = MetricKind(
    _CLOUD,
    "largest_cluster",
    "Members of the largest cluster of the flavor that fits in one domain of a level of hpc:fabric",
    ("flavor", "level"),
    option="--flavor",
)
FLAVOR_CLUSTERS: Final = MetricKind(
    _CLOUD,
    "clusters_fit",
    "Whole clusters of so many members that still fit beside each other, each in one domain of a "
    "level",
    ("flavor", "members", "level"),
    option="--members",
)

# --- a fabric ------------------------------------------------------------------------------

FABRIC_CHECKS: Final = MetricKind(
    _FABRIC,
    "checks",
    "Rows of nova-hpc fabric check by name, requirement and state; needed: the agent refuses to "
    "work while it is not met",
    ("name", "requirement", "needed", "state"),
)
FABRIC_PARTITIONS: Final = MetricKind(
    _FABRIC, "partitions", "Networks in the file of partitions, if the subnet manager reads one"
)
FABRIC_MEMBERS: Final = MetricKind(
    _FABRIC, "members", "Members of all networks in the file of partitions"
)
FABRIC_ALIVE: Final = MetricKind(
    _FABRIC,
    "agent_alive",
    "1: Neutron takes the agent of this fabric on a host for alive",
    ("host",),
    option="--os-cloud",
)
FABRIC_HEARTBEAT: Final = MetricKind(
    _FABRIC,
    "agent_heartbeat_timestamp_seconds",
    "Unix time at which Neutron has heard last of the agent of this fabric on a host",
    ("host",),
    option="--os-cloud",
)

#: In the order in which they are given.
ALL: Final[tuple[MetricKind, ...]] = (
    UP[_NODE],
    LAST_SUCCESS[_NODE],
    LEDGER_USABLE,
    NODE_DEVICES,
    NODE_SIGNS,
    NODE_TRIES,
    NODE_CLEANINGS,
    NODE_ABSENT,
    NODE_DIFFERING,
    NODE_FAULTS,
    NODE_LARGEST,
    NODE_PEERS,
    NODE_NVLINK,
    NODE_MAINTENANCE,
    NODE_PROBLEMS,
    NODE_GPU,
    UP[_CLOUD],
    LAST_SUCCESS[_CLOUD],
    CLOUD_TAKEN,
    CLOUD_HOSTS,
    CLOUD_DEVICES,
    CLOUD_WITHHELD,
    CLOUD_UNLISTED,
    CLOUD_AILING,
    CLOUD_UNUSABLE,
    CLOUD_LARGEST,
    CLOUD_SETS,
    CLOUD_PROBLEMS,
    FLAVOR_UP,
    FLAVOR_FIT,
    FLAVOR_STRANDED,
    FLAVOR_REFUSALS,
    FLAVOR_LARGEST,
    FLAVOR_CLUSTERS,
    UP[_FABRIC],
    LAST_SUCCESS[_FABRIC],
    FABRIC_CHECKS,
    FABRIC_PARTITIONS,
    FABRIC_MEMBERS,
    FABRIC_ALIVE,
    FABRIC_HEARTBEAT,
)
