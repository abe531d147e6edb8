# SPDX-License-Identifier: Apache-2.0
"""One example of every wire document, and what today's writer makes of it.

Every field of every document has a value. The golden files are what these examples
become; ``python -m tests.unit.wire.examples`` writes them again, which is right only
where a document was meant to change (contributor guide, "Wire documents").
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace, FabricSwitch, Rail
from nova_hpc.fabric.model import FabricLink as FabricLink
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import (
    DesiredPartitions,
    PartitionMember,
    PartitionPolicy,
)
from nova_hpc.guest_tree.guest_document import DocumentCell as GuestCell
from nova_hpc.guest_tree.guest_document import (
    DocumentDevice,
    PortPartition,
    build_guest_entries,
)
from nova_hpc.placement.model import HostNode, WantedCell
from nova_hpc.placement.profile import FlavorShape, Profile
from nova_hpc.placement.segment_shape import SegmentShape
from nova_hpc.topology import nccl
from nova_hpc.topology.peer import PeerReason
from nova_hpc.topology.peer_wish import PeerWish as PeerWish
from nova_hpc.wire import capture, device_record, partitions
from nova_hpc.wire.announcements import Accepted, Maintenance, PlannedDeviceWork
from nova_hpc.wire.decision import Decision
from nova_hpc.wire.guest_abi import Abi, TopologyMode
from nova_hpc.wire.ledger import DeviceState, Ledger, LedgerDevice, PartitionTenancy, Trial
from nova_hpc.wire.reservation import ReservedProvider
from nova_hpc.wire.stats import StatsDocument
from nova_hpc.wire.tags import Tags
from nova_hpc.wire.unplug import Unplug
from nova_hpc_common.level import AffinityPolicy, Level, Location
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish, Nic
from nova_hpc_common.wire.member_verdict import MemberVerdict
from nova_hpc_common.wire.mounts import Mount
from nova_hpc_common.wire.position import Position
from nova_hpc_common.wire.server_devices import ServerDevices
from nova_hpc_guest import terms
from nova_hpc_guest.accept import baseline, result
from nova_hpc_guest.accept import sample as acceptance_sample
from nova_hpc_guest.gpu import records as gpu_records
from nova_hpc_guest.host_list import HEAD, HostList, ListedHost, PublicKeys, write_host_list
from nova_hpc_tools import snapshot
from nova_hpc_tools.inventory import fleet_document, kinds
from nova_hpc_tools.snapshot import Snapshot
from nova_hpc_tools.snapshot import document as snapshot_document
from nova_hpc_tools.wire import fabric_map, findings, inventory, node_declaration
from nova_hpc_tools.wire.node_declaration import (
    Cpus,
    DeclaredLimits,
    NodeDeclaration,
    NodeWishes,
    RoleWish,
)
from nova_hpc_tools.wire.node_declaration import DeclaredDevice as Declared
from nova_hpc_tools.wire.rail_wish import RailWish
from tests.unit.wire.acceptance_examples import (
    ACCEPTED_AT,
    GUEST_FACTS,
    GUEST_RESULT,
    GUEST_SAMPLE,
    REFUSED_RESULT,
    SHORT_SAMPLE,
)
from tests.unit.wire.node_example import ADAPTER, GPU, NODE, PORT, UPSTREAM

FOLDER: Final = Path(__file__).parents[2] / "data/golden/wire"

TAGS: Final = Tags(
    location=Location(
        numa=0, socket=0, root="pci0000:16", switches=("0000:17:00.0", "0000:18:00.0")
    ),
    role="gpu",
    group="0000:19:00.0",
    resource_class="CUSTOM_GPU",
    traits=frozenset({"CUSTOM_NVLINK", "CUSTOM_H100"}),
    nvlink="left:2,all:8",
)
DECISION: Final = Decision(Level.SWITCH, AffinityPolicy.PREFERRED, Level.NUMA, (1, 4))
#: With what is said of single pairs, and of the operator's wish.
DECISION_OF_PAIRS: Final = Decision(
    Level.SWITCH,
    AffinityPolicy.REQUIRED,
    Level.SWITCH,
    (1, 2),
    ((0, 2, PeerReason.ATS), (1, 3, PeerReason.NO_ATS)),
    PeerWish.TRANSLATED,
)
STATS: Final = StatsDocument(
    withheld={"0000:22:10.2": "IOMMU group 17 is not viable", "0000:23:00.0": "quarantined"},
    in_use={"0000:41:00.0": "link is x8, the device can do x16"},
    unusable=("0000:41:00.0",),
    differs={
        "0000:42:00.0": "is gone from the guest of server "
        "11111111-2222-3333-4444-555555555555: hard reboot of server "
        "11111111-2222-3333-4444-555555555555"
    },
    states={"0000:23:00.0": ("quarantined", 1790000000.0)},
    kinds={"0000:22:10.2": "CUSTOM_VF CUSTOM_FAST", "0000:23:00.0": "CUSTOM_GPU"},
    notes=("the quarantine file cannot be read",),
    left_out=3,
)
ABI: Final = Abi(TopologyMode.MIRROR, clique=True)
ABI_WITH_SEGMENT: Final = Abi(TopologyMode.MIRROR, clique=True, segment=SegmentShape(64, 4))
UNPLUG: Final = Unplug(asked=16)
GUEST: Final = build_guest_entries(
    NODE,
    "mirror",
    [GuestCell(4, 1 << 21, 2048, 0), GuestCell(2, 1 << 20, None, 1)],
    [
        DocumentDevice(GPU, ("20", "00.0", "00.0"), "gpu"),
        DocumentDevice(
            PORT,
            ("20", "00.0", "01.0"),
            "vf",
            rail="r-0a11",
            partition=PortPartition("0x0101", 3),
        ),
    ],
    nccl.Processor("x86_64", "GenuineIntel", 6, 143),
    fabric={"block": "b-5a07", "leaf": "l-93c2"},
    wish=PeerWish.TRANSLATED,
)
SERVER: Final = "11111111-2222-3333-4444-555555555555"
SNAPSHOT: Final = Snapshot(
    taken="2026-01-01T00:00:00+00:00",
    nova="34.0.0",
    hosts=(
        snapshot.SnapshotNode(
            host="node1",
            node="node1.example.org",
            zone="nova",
            aggregates={"slow": {}, "fast": {"hpc:leaf": "l1", "note": "\u00fc\n"}},
            out="its nova-compute is down",
            devices=(
                snapshot.SnapshotDevice(
                    provider="p0",
                    address=GPU,
                    free=1,
                    location=Location(0, 0, "pci0000:16", (UPSTREAM,)),
                    aliases=frozenset({"gpu-2330", "gpu"}),
                    role="gpu",
                    unit="0000:19:00.0",
                    resource_class="CUSTOM_GPU",
                    traits=frozenset({"CUSTOM_NVLINK"}),
                ),
                snapshot.SnapshotDevice(
                    provider="p1",
                    address=ADAPTER,
                    free=7,
                    used=(snapshot.FunctionUse(PORT, SERVER),),
                    ports=snapshot.PortAdapter("physnet4", trusted=True),
                ),
            ),
            numa=(HostNode(0, 0, 16, {1048576: 4, 2048: 512}), HostNode(1)),
            nvlink=(frozenset({"p1", "p0"}),),
            unusable=("0000:50:00.0: tag hpc_tags is '9', this release reads '1'",),
            withheld={"0000:60:00.0": "quarantined"},
            withheld_of={"gpu": 1},
            ailing={"0000:1a:00.2": "narrow link"},
        ),
    ),
    flavors=(
        snapshot.Flavor(
            name="pair",
            id="7",
            image="linux",
            extra_specs={"hpc:affinity": "switch", "": "any text\n"},
            wants=(snapshot.FlavorWant("gpu", 2),),
            cells=(WantedCell(0, 4, 1 << 20, 2048), WantedCell(1)),
            numa_policy="required",
            vcpus=4,
            memory_mb=1024,
        ),
        snapshot.Flavor(name="bad", id="8", problem="no such alias"),
    ),
    aliases=(
        snapshot.SnapshotAlias("gpu", "CUSTOM_GPU", frozenset({"CUSTOM_NVLINK", "CUSTOM_H100"})),
        snapshot.SnapshotAlias("broken", problem="it has no ids"),
    ),
    servers=(
        snapshot.Server(
            uuid=SERVER,
            name="ranks",
            host="node1",
            node="node1.example.org",
            flavor="pair",
            extra_specs={"hpc:affinity": "switch"},
            decision=DECISION.dumps(),
            cells=(snapshot.ServerCell(0, 4, 4096, 2048), snapshot.ServerCell(1)),
            project="5e0f0dd2a1c14d9b8a0a7b6c5d4e3f21",
            until="2026-01-02T08:00Z",
            movable="yes",
            immobile="it is paused, and Nova moves servers that are active or stopped",
            live=False,
        ),
    ),
    profile=Profile(
        (
            FlavorShape({"vf": 1, "gpu": 2}, 2, Level.SWITCH, 3, 8, 1 << 20, 2048),
            FlavorShape({"gpu": 1}),
        )
    ),
    problems=("Placement could not be asked",),
    port_roles=("rail:ib*",),
    groups=(
        snapshot.SnapshotGroup(
            "7c7fd52e-7b62-4a84-b3a4-6e2c0e6ad001", "anti-affinity", 2, {SERVER: "node1"}
        ),
    ),
    leases=(snapshot.SnapshotLease("atlas", "2026-01-03T08:00Z", (SERVER,)),),
)

LEDGER: Final = Ledger(
    devices={
        GPU: LedgerDevice(
            hardware="serial:48b02d0300a1b2c3",
            state=DeviceState.QUARANTINED,
            reason="2 new uncorrected fatal errors (AER)",
            trial=Trial("errors", 1790000000.5, 8, 86400.5, "3f6a9c0e-boot"),
            server="d3b5b3ac-54b1-4a6e-a3d5-6b0e6f6c2a10",
            last_server="0a4c0b8e-6b1d-4d39-8d0c-3d1f5a2b7c90",
            counted=82800.25,
            unreported=True,
            replaced=True,
            baseline={"identity": {"vendor_id": "10de"}, "width": 16, "speed": 32.0},
            watch={
                "server": "d3b5b3ac-54b1-4a6e-a3d5-6b0e6f6c2a10",
                "boot": "3f6a9c0e-boot",
                "width": 16,
                "counters": {"fatal": 0, "nonfatal": 3},
                "faults": {"link": {"since": 1790000000.0, "reported": True}},
            },
            report={
                "server": "d3b5b3ac-54b1-4a6e-a3d5-6b0e6f6c2a10",
                "words": {"slow": 1790000000.0},
            },
            cleaned=12,
            failed=1,
        ),
        PORT: LedgerDevice(
            hardware=f"slot:{PORT}",
            state=DeviceState.SUSPECT,
            reason="link is x8, can be x16",
            trial=Trial("link", 1790000000.0, 1, 86400.5, "3f6a9c0e-boot", spared=True),
            proof="17 2026-09-21 13:33:20+00:00",
            adapter={
                "server": "d3b5b3ac-54b1-4a6e-a3d5-6b0e6f6c2a10",
                "index": 0,
                "before": {"mac": "00:00:00:00:00:00", "vlan": [0, 0]},
                "made": {"mac": "0e:5a:00:00:00:01", "vlan": [0, 0]},
            },
        ),
    },
    partitions={3: PartitionTenancy("d3b5b3ac-54b1-4a6e-a3d5-6b0e6f6c2a10", frozenset({GPU}))},
    gpus=frozenset({GPU}),
    absent={
        "serial:48b02d0300ffffff": LedgerDevice(state=DeviceState.QUARANTINED, reason="ticket 4711")
    },
    maintenance=Maintenance(1790000000.0, 1790007200.0, "firmware 1.2", ("10de:2330",)),
    accepted=(Accepted("10de:2330", "its capabilities have changed", "firmware 1.1"),),
    planned=PlannedDeviceWork(
        {GPU: "2026-12-04T08:00Z"},
        {"d3b5b3ac-54b1-4a6e-a3d5-6b0e6f6c2a10": "2026-12-04T08:00Z"},
    ),
    providers={
        GPU: ReservedProvider(
            uuid="5f0d2f5a-8a58-4f0e-8a51-0c1f7f3f1d11",
            resource_class="CUSTOM_GPU",
            total=1,
            ours=1,
            operators=0,
            earlier=0,
            gone=1790000000.5,
        )
    },
    compared=True,
    node="8c1e5b0a-0a4f-4f0e-9b1a-3b7f5a1f2d33",
    written="9f86d081884c7d65",
)
FABRIC: Final = FabricMap(
    places=[
        FabricPlace(
            "node1",
            nvlink_domain="nvl1",
            leaf="leaf1",
            block="block1",
            spine="spine1",
            core="core",
            rails=(Rail("mlx5_0", "leaf1", "4xNDR"), Rail("mlx5_1")),
        ),
        FabricPlace("node2"),
    ],
    switches=[
        FabricSwitch("leaf1", FabricLevel.LEAF, "leaf1", "2c5eab0300b87b40"),
        FabricSwitch("spine1", FabricLevel.SPINE),
    ],
    links=[FabricLink("leaf1", "spine1", 2, 1, "4xNDR")],
    name="hall-a",
    source="ibnetdiscover.out",
)
WISH: Final = ClusterWish(
    name="train",
    members=frozenset({1, 2, 3, 7}),
    flavor="6f5c4a1e-0b2d-4c3e-9f8a-1b2c3d4e5f60",
    image="0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d",
    nics=(
        Nic("11111111-2222-4333-8444-555555555555"),
        Nic("66666666-7777-4888-9999-aaaaaaaaaaaa", "direct"),
    ),
    key="alice",
    zone="hpc",
    security_groups=("default",),
    user_data="0123456789ab",
    mounts=(Mount("[2001:db8::9]:/vol/a", "/data"), Mount("nfs:/", "/opt/apps")),
    volumes="ba9876543210",
    boot_gib=40,
    config_drive=True,
    check=True,
    single=True,
    gpu_share="0f4b3c2a-1111-4222-8333-444455556666",
    hosts=True,
    adopted=True,
    healed=(1764180000, 1764183599),
    generation=3,
)
LABEL_OF: Final = ClusterWish("train", WISH.members, WISH.flavor, image=WISH.image, nics=WISH.nics)
HEADED: Final = {
    "adopted": False,
    "head": "99999999-8888-4777-8666-555555555555",
    "head_image": "1a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d",
}
WISH_WITH_HEAD: Final = attrs.evolve(WISH, **HEADED)
LABEL_WITH_HEAD: Final = attrs.evolve(LABEL_OF, **HEADED, nics=())
VERDICT: Final = MemberVerdict("slow", "quick", 1764180000, ("vcpus-share-core", "pages-small"))
POSITION: Final = Position(
    {"spine": "s-1f", "block": "b-5a07", "leaf": "l-93c2", "nvlink_domain": "n-77e1"},
    rails=("r-0a11", "r-9bd0"),
)
DEVICES: Final = ServerDevices(
    asked=Level.SWITCH,
    policy=AffinityPolicy.PREFERRED,
    reached=Level.NUMA,
    roles={"gpu": 4, "vf": 4},
    groups=((2, {"gpu": 2, "vf": 2}),),
)

DESIRED: Final = DesiredPartitions(
    ticket=7,
    members=(
        PartitionMember(1, "6f1c", 0x0002C90000200001, 0x101, port_status="ACTIVE"),
        PartitionMember(2, "a2d4", 0x0002C90000200011, 0x101, Membership.LIMITED, True, "DOWN"),
        PartitionMember(3, "77b0", 0x0002C90000200021, 0x102, wanted=False),
    ),
    policies={
        0x101: PartitionPolicy(service_level=1, rate=3, mtu=5),
        0x102: PartitionPolicy(2),
    },
)

DECLARED: Final = NodeDeclaration(
    wishes=NodeWishes(
        roles=({"role": "gpu", "vendor_id": "10de", "class": "0302"},),
        role_options={
            "gpu": RoleWish(
                identity="trait",
                resource_class="CUSTOM_H100",
                traits=("CUSTOM_SXM",),
                one_time_use=True,
                physical_network="physnet1",
            )
        },
        rails=RailWish("ibrail{n}", ((ADAPTER,), (PORT, "ib7"))),
        left_out=(Declared(GPU, "serial:48b02dffff000001", "manages the NVSwitches"),),
        offer_in_use=(Declared(address=ADAPTER),),
        whole_pf=(Declared("all"),),
        offer_switches=True,
        nvlink_sets=('{"name": "left", "devices": ["0000:07:00.0", "0000:0a:00.0"]}',),
        alias_names="product",
        cpus=Cpus(2),
        quiet_cpus=True,
        hugepages={"1G": 40},
        vfs={"pf": 8},
        limits=DeclaredLimits(400),
        kept={GPU: {"one_time_use": "true", "traits": "CUSTOM_SXM", "note": None}},
    ),
    hosts=("gpu-*", "node17"),
    nodes={"node17": NodeWishes(left_out=(Declared(hardware="serial:1"),), cpus=Cpus(4))},
)
FOUND: Final = findings.Findings(
    node="gpu7",
    findings=(
        findings.WireFinding(
            check="driver",
            severity="error",
            seen="0000:19:00.0: bound to nvidia, withheld until bound to vfio-pci.",
            why="A device on another driver than vfio-pci is withheld from servers.",
            cure="driverctl set-override 0000:19:00.0 vfio-pci",
            docs="admin/doctor.html#driver",
        ),
    ),
    aliases=('{"name": "gpu", "vendor_id": "10de", "product_id": "2330"}',),
)
REPLACED: Final = frozenset({capture.SERIALS, capture.ADDRESSES, capture.HOST})

FLEET: Final = kinds.compare_nodes(
    {"a": NODE, "b": NODE, "d": attrs.evolve(NODE, problems=("no /proc",))}
)

_KEY_OF_WIREGUARD: Final = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
GPU_SHARE: Final = gpu_records.GpuShare("sim", "pocl", 4, 16384, True)
GPU_SLOT: Final = gpu_records.GpuSlot("10.0.0.7", 16412, 1764000000, 8192, _KEY_OF_WIREGUARD)
GPU_CLIENT: Final = gpu_records.GpuClient(
    *("0f4b3c2a-1111-4222-8333-444455556666", "10.0.0.5", "10.0.0.7", 16412, "pocl"),
    _KEY_OF_WIREGUARD,
)
_PUBLIC: Final = "AAAAC3NzaC1lZDI1NTE5AAAAI"
_PAIRS: Final = [PublicKeys(_PUBLIC + one * 43, _PUBLIC + two * 43) for one, two in ("ab", "cd")]
HOST_LIST: Final = HostList(
    "train",
    (ListedHost(2, "192.0.2.7", _PAIRS[0]), ListedHost(1, "2001:db8::5", _PAIRS[1])),
    slots=32,
)

HOST_LIST_WITH_HEAD: Final = HOST_LIST._replace(head=ListedHost(HEAD, "192.0.2.9", _PAIRS[0]))

#: File of the golden text -> what writes it today.
WRITERS: Final[dict[str, Callable[[], str]]] = {
    "device-tags/v1.json": lambda: json.dumps(TAGS.to_spec(), indent=1) + "\n",
    "device-record/v1.json": lambda: device_record.write_device_record(
        {**TAGS.to_spec(), "address": GPU}
    ),
    "stats/v1.json": STATS.dumps,
    "decision/v1.json": DECISION.dumps,
    "decision/v1-pairs.json": DECISION_OF_PAIRS.dumps,
    "guest-abi/v2.json": ABI.dumps,
    "guest-abi/v3.json": ABI_WITH_SEGMENT.dumps,
    "unplug-mark/v1.json": UNPLUG.dumps,
    "guest-document/v1.json": lambda: GUEST[terms.DOCUMENT].decode("ascii"),
    "nccl-topology/v1.xml": lambda: GUEST[terms.NCCL].decode("ascii"),
    "snapshot/v4.json": lambda: snapshot_document.dump_cloud_snapshot(SNAPSHOT),
    "ledger/v1.json": LEDGER.dumps,
    "inventory/v1.json": lambda: inventory.write_inventory(NODE),
    "capture-manifest/v1.json": lambda: capture.write_capture_note(REPLACED),
    "fleet-report/v1.json": lambda: fleet_document.write_node_fleet(
        FLEET, {"c": "--from c.tar.xz: cut short"}
    ),
    "fabric-map/v1.json": lambda: fabric_map.write_fabric_map(FABRIC),
    # What stands behind the cluster's name.
    "cluster-label/v1.json": lambda: cluster_wish.to_group_name(LABEL_OF, "a77e01fc").partition(
        " "
    )[2],
    "cluster-label/v2.json": lambda: cluster_wish.to_group_name(
        LABEL_WITH_HEAD, "a77e01fc"
    ).partition(" ")[2],
    "cluster-wish/v1.json": lambda: cluster_wish.write_cluster_wish(WISH),
    "cluster-wish/v2.json": lambda: cluster_wish.write_cluster_wish(WISH_WITH_HEAD),
    "position/v1.json": POSITION.dumps,
    "server-devices/v1.json": DEVICES.dumps,
    # As it is written, and the same as JSON, which is YAML, too.
    "node-declaration/v1.yaml": lambda: node_declaration.write_declaration(DECLARED),
    "node-declaration/v1.json": lambda: (
        json.dumps(node_declaration.build_declaration(DECLARED), indent=1) + "\n"
    ),
    "desired-partitions/v1.json": lambda: (
        json.dumps(partitions.write_desired(DESIRED), indent=1) + "\n"
    ),
    "findings/v1.json": lambda: findings.write_findings(FOUND),
    "acceptance/v1.json": lambda: result.write_acceptance(GUEST_RESULT, ACCEPTED_AT),
    "acceptance/v1-refused.json": lambda: result.write_acceptance(REFUSED_RESULT, ACCEPTED_AT),
    "acceptance-sample/v1.json": lambda: acceptance_sample.write_sample(GUEST_SAMPLE) + "\n",
    "acceptance-baseline/v1.json": lambda: baseline.write_baseline(
        baseline.build_key(GUEST_FACTS, {"sysbench": "1.0.20"}), [SHORT_SAMPLE] * 6
    ),
    "gpu-share/v1.json": lambda: gpu_records.write_share(GPU_SHARE),
    "gpu-slot/v1.json": lambda: gpu_records.write_slot(GPU_SLOT),
    "gpu-client/v1.json": lambda: gpu_records.write_client(GPU_CLIENT),
    "host-list/v1.json": lambda: write_host_list(HOST_LIST),
    "host-list/v1-head.json": lambda: write_host_list(HOST_LIST_WITH_HEAD),
    "member-verdict/v1.txt": VERDICT.dumps,
    "declaration/v1.txt": lambda: "".join(f"{entry}\n" for entry in DEFAULT_ROLES),
}


def main() -> None:
    """Write the golden files again."""
    for name, write in WRITERS.items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
