# SPDX-License-Identifier: Apache-2.0
"""Every wire document: its version, who writes and reads it, and where it lies.

The contributor guide ("Wire documents") has the same as a table, and a test compares
them. Each has golden texts in ``tests/data/golden/wire``, in a folder of its name.
"""

from __future__ import annotations

from typing import Final

from nova_hpc.wire.version import WireDocument

#: Longest value of instance system metadata, in characters (nova/db/main/models.py,
#: InstanceSystemMetadata.value, all releases); what is longer fails the server's save.
_METADATA: Final = 255

DEVICE_TAGS: Final = WireDocument(
    name="device tags",
    lives="[pci]device_spec, and Nova's PCI pools",
    writer="nova_hpc.wire.tags:Tags.to_spec",
    readers=("nova_hpc.wire.tags:parse_tags",),
    key="hpc_tags",
)
DEVICE_RECORD: Final = WireDocument(
    name="device record",
    lives="pci_devices.extra_info['hpc'] of Nova's database",
    writer="nova_hpc.wire.device_record:write_device_record",
    readers=("nova_hpc.wire.device_record:read_device_record",),
    # Its keys are device tags, which have a version of their own.
    absent=1,
    limit=4096,
)
STATS: Final = WireDocument(
    name="statistics document",
    lives="stats['hpc'] of Nova's compute node",
    writer="nova_hpc.wire.stats:StatsDocument.dumps",
    readers=("nova_hpc.wire.stats:read_stats_or_none",),
    key="v",
    limit=16 * 1024 - 1,
    # The column has 64 KiB for all statistics (ComputeNode.stats, a TEXT of MySQL).
    longest=64 * 1024,
)
DECISION: Final = WireDocument(
    name="decision",
    lives="system_metadata['hpc_decision'] of the server",
    writer="nova_hpc.wire.decision:Decision.dumps",
    readers=("nova_hpc.wire.decision:read_decision",),
    key="v",
    limit=_METADATA,
)
GUEST_ABI: Final = WireDocument(
    name="guest ABI",
    lives="system_metadata['hpc_guest_abi'] of the server",
    writer="nova_hpc.wire.guest_abi:Abi.dumps",
    readers=("nova_hpc.wire.guest_abi:read_guest_abi",),
    # 2: a flat guest has room for the memory of its devices.
    version=2,
    reads=(1, 2),
    key="v",
    limit=_METADATA,
)
UNPLUG: Final = WireDocument(
    name="unplug mark",
    lives="system_metadata['hpc_unplug'] of the server",
    writer="nova_hpc.wire.unplug:Unplug.dumps",
    readers=("nova_hpc.wire.unplug:read_unplug",),
    key="v",
    limit=_METADATA,
)
GUEST_DOCUMENT: Final = WireDocument(
    name="guest document",
    lives="opt/org.nova-hpc/guest.json of the guest's firmware",
    writer="nova_hpc.guest_tree.guest_document:build_guest_entries",
    # Standard library alone, and older or newer than the cloud: it has its own check.
    readers=("nova_hpc.guest.document:parse_guest_document",),
    schema="nova-hpc/guest",
)
NCCL_TOPOLOGY: Final = WireDocument(
    name="NCCL topology",
    lives="opt/org.nova-hpc/nccl-topology.xml of the guest's firmware",
    writer="nova_hpc.topology.nccl:write_nccl_file",
    # And NCCL (version 1) or RCCL (2), each of which refuses the other's.
    readers=("nova_hpc.guest.install:fill_in_addresses",),
)
SNAPSHOT: Final = WireDocument(
    name="snapshot",
    lives="a file of the operator's",
    writer="nova_hpc_tools.snapshot.document:dump_cloud_snapshot",
    readers=("nova_hpc_tools.snapshot.document:load_cloud_snapshot",),
    # 3: how many of the devices that a node withholds would serve each alias.
    version=3,
    reads=(2, 3),
    schema="nova-hpc/snapshot",
    cure="take the snapshot again: nova-hpc simulate snapshot FILE",
)
LEDGER: Final = WireDocument(
    name="ledger",
    lives="[hpc]ledger_file of the node, and a copy beside it",
    writer="nova_hpc.wire.ledger:Ledger.dumps",
    readers=("nova_hpc.wire.ledger:read_ledger",),
    key="v",
    # A thousand devices need about 1 MiB.
    longest=1 << 24,
)
INVENTORY: Final = WireDocument(
    name="inventory",
    lives="the output of nova-hpc inventory",
    writer="nova_hpc.wire.inventory:write_inventory",
    schema="nova-hpc/inventory",
)
CAPTURE: Final = WireDocument(
    name="capture manifest",
    lives="nova-hpc-capture.json in an archive of nova-hpc inventory --save",
    writer="nova_hpc.wire.capture:write_capture_note",
    readers=("nova_hpc.wire.capture:read_capture_note",),
    schema="nova-hpc/capture",
    longest=1 << 12,
    cure="save the node again: nova-hpc inventory --save FILE",
)
FLEET: Final = WireDocument(
    name="fleet report",
    lives="the output of nova-hpc inventory fleet",
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
    writer="nova_hpc.wire.node_declaration:write_declaration",
    readers=("nova_hpc.wire.node_declaration:read_declaration",),
    schema="nova-hpc/node",
    longest=1 << 20,
)
FINDINGS: Final = WireDocument(
    name="findings",
    lives="the output of nova-hpc doctor",
    writer="nova_hpc.wire.findings:write_findings",
    readers=("nova_hpc.wire.findings:read_findings",),
    schema="nova-hpc/findings",
    longest=1 << 24,
)
UNDO: Final = WireDocument(
    name="undo record",
    lives="nova-hpc-undo.json beside the include files",
    writer="nova_hpc.wire.undo:write_undo",
    readers=("nova_hpc.wire.undo:read_undo",),
    schema="nova-hpc/undo",
    longest=1 << 26,
)
FABRIC_MAP: Final = WireDocument(
    name="fabric map",
    lives="a file of the operator's",
    writer="nova_hpc.wire.fabric_map:write_fabric_map",
    readers=("nova_hpc.wire.fabric_map:read_fabric_map",),
    schema="nova-hpc/fabric-map",
    # 10,000 hosts of eight rails need about 8 MiB.
    longest=1 << 28,
    cure="write it again: nova-hpc fabric export --format json",
)
CLUSTER_LABEL: Final = WireDocument(
    name="cluster label",
    lives="name of the cluster's server group",
    writer="nova_hpc.wire.cluster_wish:to_group_name",
    readers=("nova_hpc.wire.cluster_wish:from_group_name",),
    key="v",
    limit=_METADATA,
)
CLUSTER_WISH: Final = WireDocument(
    name="cluster wish",
    lives="metadata['hpc_cluster'] of each member, and hpc_cluster_2 to _9",
    writer="nova_hpc.wire.cluster_wish:write_cluster_wish",
    readers=("nova_hpc.wire.cluster_wish:read_cluster_wish",),
    key="v",
    limit=9 * (_METADATA - 2),
)
POSITION: Final = WireDocument(
    name="position",
    lives="metadata['hpc_position'] of the server",
    writer="nova_hpc.wire.position:Position.dumps",
    readers=("nova_hpc.wire.position:read_position",),
    key="v",
    limit=_METADATA,
)

SERVER_DEVICES: Final = WireDocument(
    name="server devices",
    lives="metadata['hpc_devices'] of the server",
    writer="nova_hpc.wire.server_devices:ServerDevices.dumps",
    readers=("nova_hpc.wire.server_devices:read_server_devices",),
    key="v",
    limit=_METADATA,
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
    UNDO,
    FINDINGS,
    FABRIC_MAP,
    CLUSTER_LABEL,
    CLUSTER_WISH,
    POSITION,
    SERVER_DEVICES,
)
