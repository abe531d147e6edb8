# SPDX-License-Identifier: Apache-2.0
"""The node of the examples: an adapter with a virtual function and a GPU below one switch."""

from __future__ import annotations

from typing import Final

from nova_hpc.topology.model import (
    Bar,
    BridgeKind,
    HugePages,
    IommuGroup,
    Node,
    NumaNode,
    PcieLink,
    PciFunction,
    RdmaDevice,
    RdmaPort,
)

GPU: Final = "0000:19:00.0"
ADAPTER: Final = "0000:1a:00.0"
PORT: Final = "0000:1a:00.2"
UPSTREAM: Final = "0000:17:00.0"
_LINK: Final = PcieLink(speed=32.0, width=8, max_speed=32.0, max_width=16, bandwidth=31.508)


def _function(address: str, *path: str, **more: object) -> PciFunction:
    values: dict[str, object] = {
        "vendor_id": "1b36",
        "product_id": "000c",
        "class_code": "060400",
        "revision": "01",
        "numa_node": 0,
        "local_numa_nodes": frozenset({0}),
        "socket": 0,
        "root": "pci0000:16",
        "path": path,
        "switches": tuple(each for each in path if each == UPSTREAM),
        "link": _LINK,
        "reset_methods": ("flr", "bus"),
    } | more
    return PciFunction(address, **values)  # type: ignore[arg-type]


_ABOVE: Final = ("0000:16:01.0", UPSTREAM)
NODE: Final = Node(
    source="example",
    hostname="node1",
    hugepages=(HugePages(2048, 1024, 1000),),
    numa_nodes=(
        NumaNode(
            0,
            socket=0,
            cpus=frozenset({0, 1, 2, 3}),
            smt_siblings=(frozenset({0, 2}), frozenset({1, 3})),
            memory_kib=1 << 22,
            hugepages=(HugePages(2048, 512, None),),
        ),
        NumaNode(1, memory_kib=1 << 20, memory_of=GPU),
    ),
    functions=(
        _function("0000:16:01.0", bridge=BridgeKind.ROOT_PORT, acs_control=0x1D, acs_isolates=True),
        _function(UPSTREAM, _ABOVE[0], bridge=BridgeKind.UPSTREAM, acs_control=0),
        _function("0000:18:00.0", *_ABOVE, bridge=BridgeKind.DOWNSTREAM, acs_control=0x1D),
        _function("0000:18:01.0", *_ABOVE, bridge=BridgeKind.DOWNSTREAM, acs_control=0x1D),
        _function(
            GPU,
            *_ABOVE,
            "0000:18:00.0",
            vendor_id="10de",
            product_id="2330",
            class_code="030200",
            subsystem_vendor_id="10de",
            subsystem_id="16c1",
            driver="vfio-pci",
            iommu_group=17,
            ats=False,
            ats_enabled=False,
            acs_on_path=True,
            bars=(Bar(1, 1 << 37, prefetchable=True, wide=True), Bar(5, 128, io=True)),
            model="H100",
        ),
        _function(
            ADAPTER,
            *_ABOVE,
            "0000:18:01.0",
            vendor_id="15b3",
            product_id="1021",
            class_code="020700",
            driver="mlx5_core",
            total_vfs=8,
            virtual_functions=(PORT,),
            rdma=(
                RdmaDevice(
                    "mlx5_0",
                    "0002:c903:0041:2d20",
                    (RdmaPort(1, "0002:c903:0041:2d21", "InfiniBand", "ACTIVE", "400 Gb/sec"),),
                ),
            ),
            os_devices=("net ib0",),
        ),
        _function(
            PORT,
            *_ABOVE,
            "0000:18:01.0",
            vendor_id="15b3",
            product_id="101e",
            class_code="020700",
            physical_function=ADAPTER,
            reset_methods=(),
            link=None,
            unknown="its config space cannot be read",
        ),
    ),
    inactive=(_function("0000:16:02.0", bridge=BridgeKind.ROOT_PORT, link=None),),
    iommu_groups=(IommuGroup(17, (GPU,)),),
    problems=("numa_node of 0000:16:03.0 is 'x'",),
)
