# SPDX-License-Identifier: Apache-2.0
"""Every wire document: its version, its writer and readers, and its place.

The contributor guide ("Wire documents") has the same as a table, and a test compares
them. Each has golden texts in ``tests/data/golden/wire``, in a folder of its name. Documents
of services are declared beside their writers; documents that only commands write, here.
"""

from __future__ import annotations

from typing import Final

from nova_hpc.wire.capture import CAPTURE
from nova_hpc.wire.decision import DECISION
from nova_hpc.wire.device_record import DEVICE_RECORD
from nova_hpc.wire.guest_abi import GUEST_ABI
from nova_hpc.wire.guest_texts import GUEST_DOCUMENT, NCCL_TOPOLOGY
from nova_hpc.wire.ledger import LEDGER
from nova_hpc.wire.partitions import DESIRED_PARTITIONS
from nova_hpc.wire.stats import STATS
from nova_hpc.wire.tags import DEVICE_TAGS
from nova_hpc.wire.unplug import UNPLUG
from nova_hpc_common.wire.cluster_wish import CLUSTER_LABEL, CLUSTER_WISH
from nova_hpc_common.wire.member_verdict import MEMBER_VERDICT
from nova_hpc_common.wire.position import POSITION
from nova_hpc_common.wire.server_devices import SERVER_DEVICES
from nova_hpc_common.wire.version import LONGEST_METADATA, WireDocument

SNAPSHOT: Final = WireDocument(
    name="snapshot",
    lives="a file of the operator's",
    writer="nova_hpc_tools.snapshot.document:dump_cloud_snapshot",
    readers=("nova_hpc_tools.snapshot.document:load_cloud_snapshot",),
    # 4: owners, end times, consents, server groups and leases.
    version=4,
    reads=(3, 4),
    schema="nova-hpc/snapshot",
    cure="take the snapshot again: nova-hpc simulate snapshot FILE",
)
INVENTORY: Final = WireDocument(
    name="inventory",
    lives="the output of nova-hpc inventory",
    writer="nova_hpc_tools.wire.inventory:write_inventory",
    schema="nova-hpc/inventory",
)
FLEET: Final = WireDocument(
    name="fleet report",
    lives="the output of nova-hpc doctor --fleet",
    writer="nova_hpc_tools.inventory.fleet_document:write_node_fleet",
    schema="nova-hpc/fleet",
)
DECLARATION: Final = WireDocument(
    name="declaration",
    lives="[hpc]device_role of nova.conf",
    # The operator writes it.
    writer="",
    readers=("nova_hpc.topology.roles:parse_roles", "nova_hpc.topology.roles:parse_good_roles"),
    absent=1,
)
NODE_DECLARATION: Final = WireDocument(
    name="node declaration",
    lives="/etc/nova-hpc/node.yaml",
    writer="nova_hpc_tools.wire.node_declaration:write_declaration",
    readers=("nova_hpc_tools.wire.node_declaration:read_declaration",),
    schema="nova-hpc/node",
    longest=1 << 20,
)
FINDINGS: Final = WireDocument(
    name="findings",
    lives="the output of nova-hpc doctor",
    writer="nova_hpc_tools.wire.findings:write_findings",
    readers=("nova_hpc_tools.wire.findings:read_findings",),
    schema="nova-hpc/findings",
    longest=1 << 24,
)
FABRIC_MAP: Final = WireDocument(
    name="fabric map",
    lives="a file of the operator's",
    writer="nova_hpc_tools.wire.fabric_map:write_fabric_map",
    readers=("nova_hpc_tools.wire.fabric_map:read_fabric_map",),
    schema="nova-hpc/fabric-map",
    # 10,000 hosts of eight rails need about 8 MiB.
    longest=1 << 28,
    cure="write it again: nova-hpc fabric export --format json",
)
_ACCEPT: Final = "nova_hpc_guest.accept"
ACCEPTANCE: Final = WireDocument(
    name="acceptance",
    lives="the output of nova-hpc-guest accept, and /run/nova-hpc/acceptance.json of the guest",
    # Guests use only the standard library, so it has its own check.
    writer=f"{_ACCEPT}.result:write_acceptance",
    readers=(f"{_ACCEPT}.result:read_acceptance",),
    schema="nova-hpc/acceptance",
    longest=1 << 22,
    cure="measure again: nova-hpc-guest accept",
)
ACCEPTANCE_SAMPLE: Final = WireDocument(
    name="acceptance sample",
    lives="the output of nova-hpc-guest accept --sample",
    writer=f"{_ACCEPT}.sample:write_sample",
    readers=(f"{_ACCEPT}.sample:read_sample",),
    schema="nova-hpc/acceptance-sample",
    longest=1 << 22,
)
ACCEPTANCE_BASELINE: Final = WireDocument(
    name="acceptance baseline",
    lives="a file of the user's",
    writer=f"{_ACCEPT}.baseline:write_baseline",
    readers=(f"{_ACCEPT}.baseline:read_baseline",),
    schema="nova-hpc/acceptance-baseline",
    longest=1 << 22,
    cure="measure again: nova-hpc-guest accept --save-baseline FILE",
)

_GPU: Final = "nova_hpc_guest.gpu.records"
GPU_SHARE: Final = WireDocument(
    name="GPU share",
    lives="metadata['hpc_gpu_share'] of the GPU server",
    # Guests read it, too, with only the standard library.
    writer=f"{_GPU}:write_share",
    readers=(f"{_GPU}:read_share",),
    key="v",
    limit=LONGEST_METADATA,
)
GPU_SLOT: Final = WireDocument(
    name="GPU slot",
    lives="metadata['hpc_gpu_CLIENT'] of the GPU server, one for each client's id",
    writer=f"{_GPU}:write_slot",
    readers=(f"{_GPU}:read_slot",),
    key="v",
    limit=LONGEST_METADATA,
)
GPU_CLIENT: Final = WireDocument(
    name="GPU client",
    lives="metadata['hpc_gpu'] of the client",
    writer=f"{_GPU}:write_client",
    readers=(f"{_GPU}:read_client",),
    key="v",
    limit=LONGEST_METADATA,
)
HOST_LIST: Final = WireDocument(
    name="host list",
    lives="metadata['hpc_hosts'] of each member, and hpc_hosts_2 to _99",
    # Members read it, with only the standard library.
    writer="nova_hpc_guest.host_list:write_host_list",
    readers=("nova_hpc_guest.host_list:read_host_list",),
    key="v",
    limit=99 * (LONGEST_METADATA - 3),
)


ALL: Final = (
    DEVICE_TAGS,
    DEVICE_RECORD,
    STATS,
    DECISION,
    GUEST_ABI,
    UNPLUG,
    GUEST_DOCUMENT,
    NCCL_TOPOLOGY,
    SNAPSHOT,
    LEDGER,
    INVENTORY,
    CAPTURE,
    FLEET,
    DECLARATION,
    NODE_DECLARATION,
    FINDINGS,
    FABRIC_MAP,
    CLUSTER_LABEL,
    CLUSTER_WISH,
    POSITION,
    SERVER_DEVICES,
    DESIRED_PARTITIONS,
    ACCEPTANCE,
    ACCEPTANCE_SAMPLE,
    ACCEPTANCE_BASELINE,
    GPU_SHARE,
    GPU_SLOT,
    GPU_CLIENT,
    HOST_LIST,
    MEMBER_VERDICT,
)
