# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc-guest pkey``, and the key of a network in ``check``: the table's index decides."""

from __future__ import annotations

import json
import subprocess

import pytest
from attrs import evolve

from nova_hpc.from_nova.port_partitions import read_port_partitions
from nova_hpc.guest_tree.guest_document import PortPartition
from nova_hpc.topology.model import Node, NumaNode, PciFunction
from tests.unit.guest.servers import CELLS, HOME, MEMORY, fw_cfg_of, run
from tests.unit.guest.worlds import ADAPTER, boot, domain_of
from virt_driver_patches.domain import fwcfg
from virt_driver_patches.domain.guest_domain import GuestDomainXml

FIRST, SECOND = "0000:98:00.0", "0000:a8:00.0"
DEFAULT, STORAGE, LIMITED_STORAGE, RED, BLUE = "0x7fff", "0x8001", "0x0001", "0x8101", "0x8102"


def put_port(guest, address, device, table, ports=1, gid="a088"):
    """An RDMA device on InfiniBand, with the first entries of its table of P_Keys."""
    folder = guest.folders[address].relative_to(guest.root) / "infiniband" / device
    for port in range(1, ports + 1):
        guest.file(f"{folder}/ports/{port}/link_layer", "InfiniBand\n")
        guest.file(f"{folder}/ports/{port}/gids/0", f"fe80:0000:0000:0000:{gid}:c203:00aa:0001\n")
        for index, entry in enumerate([*table, "0x0000", "0x0000"]):
            guest.file(f"{folder}/ports/{port}/pkeys/{index}", f"{entry}\n")


@pytest.fixture
def member(tmp_path):
    """A member with two ports; *partitions* is what the cloud tells of them."""

    def start(partitions):
        functions = tuple(
            evolve(
                PciFunction(address, **ADAPTER, numa_node=0, root="pci0000:97"),
                path=(bridge,),
                switches=(bridge,),
            )
            for address, bridge in ((FIRST, "0000:97:00.0"), (SECOND, "0000:97:01.0"))
        )
        node = Node("x", numa_nodes=(NumaNode(0), NumaNode(1)), functions=functions)
        domain = GuestDomainXml(domain_of(node, [FIRST, SECOND], HOME, True))
        fwcfg.tell_guest_devices(domain, node, "mirror", CELLS, {}, partitions=partitions)
        return boot(tmp_path, domain.text(), node, MEMORY)

    return start


def test_the_index_is_that_of_the_table_and_not_one(member):
    """The storage's partition comes first, so the network is at 2: the page said 1."""
    key = PortPartition("0x0101", 3)
    guest = member({FIRST: key, SECOND: key})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, STORAGE, RED])
    put_port(guest, SECOND, "mlx5_1", [DEFAULT, STORAGE, RED], gid="a089")
    status, out, err = run(guest, "pkey")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "mlx5_0 port 1 (device 0): P_Key 0x0101 at index 2, full member, service level 3, "
        "GID index 0",
        "mlx5_1 port 1 (device 1): P_Key 0x0101 at index 2, full member, service level 3, "
        "GID index 0",
        "",
        "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1",
        "NCCL_IB_PKEY=2",
        "UCX_IB_PKEY=0x101",
        "OMPI_MCA_btl_openib_pkey=0x101",
        "NCCL_IB_SL=3",
        "UCX_IB_SL=3",
        "OMPI_MCA_btl_openib_ib_service_level=3",
    ]


def test_a_shell_evaluates_the_environment(member):
    guest = member({FIRST: PortPartition("0x0101")})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, RED])
    status, out, _ = run(guest, "pkey", "--format", "env")
    assert status == 0
    words = ["sh", "-c", f'{out}\necho "$NCCL_IB_PKEY $UCX_IB_PKEY $NCCL_IB_HCA ${{NCCL_IB_SL-}}"']
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert shown == "1 0x101 =mlx5_0:1 \n"


def test_rails_have_one_index_and_several_keys(member):
    guest = member({FIRST: PortPartition("0x0101", 1), SECOND: PortPartition("0x0102", 2)})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, RED])
    put_port(guest, SECOND, "mlx5_1", [DEFAULT, BLUE], gid="a089")
    status, out, _ = run(guest, "pkey", "--format", "json")
    data = json.loads(out)
    assert status == 0
    assert [(port["pkey"], port["index"]) for port in data["ports"]] == [
        ("0x0101", 1),
        ("0x0102", 1),
    ]
    assert data["environment"] == {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "NCCL_IB_PKEY": "1"}
    assert any("UCX takes one P_Key" in note for note in data["notes"])
    assert any("several (mlx5_0:1 1, mlx5_1:1 2)" in note for note in data["notes"])


def test_different_indices_are_not_one_for_nccl(member):
    key = PortPartition("0x0101")
    guest = member({FIRST: key, SECOND: key})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, RED])
    put_port(guest, SECOND, "mlx5_1", [DEFAULT, STORAGE, RED], gid="a089")
    status, out, _ = run(guest, "pkey", "--format", "env")
    assert status == 0
    assert "export NCCL_IB_PKEY" not in out
    assert "# NCCL_IB_PKEY is not set: NCCL takes one index for all ports" in out
    assert "export UCX_IB_PKEY=0x101" in out


def test_a_key_that_is_missing_is_wrong_and_only_of_its_port(member):
    key = PortPartition("0x0101")
    guest = member({FIRST: key, SECOND: key})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, BLUE])
    put_port(guest, SECOND, "mlx5_1", [DEFAULT, RED], gid="a089")
    status, out, _ = run(guest, "pkey")
    assert status == 1
    assert (
        "mlx5_0 port 1 (device 0): WRONG: P_Key 0x0101 is not in the port's table (0x7fff at index "
        "0, 0x8102 at index 1)" in out
    )
    # The good port alone is in the environment.
    assert "NCCL_IB_HCA==mlx5_1:1" in out
    status, out, _ = run(guest, "check")
    assert status == 1
    assert (
        "WRONG pkey: device 0 (15b3:101e): mlx5_0:1: P_Key 0x0101 is not in the port's table" in out
    )
    assert "note pkey: device 1 (15b3:101e): mlx5_1:1: P_Key 0x0101 at index 1, full member" in out
    assert run(guest, "check", "--skip", "pkey")[0] == 0


def test_check_is_as_promised_with_the_key(member):
    guest = member({FIRST: PortPartition("0x0101"), SECOND: PortPartition("0x0102")})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, "0x0101"])
    status, out, _ = run(guest, "check")
    assert status == 0
    assert "mlx5_0:1: P_Key 0x0101 at index 1, limited member" in out
    assert "device 1 (15b3:101e): P_Key unknown: no InfiniBand port of it is there" in out
    assert "As promised: 2 devices" in out
    assert run(guest, "check", "--quiet")[1] == ""


def test_a_full_entry_beside_a_limited_one_counts(member):
    guest = member({FIRST: PortPartition("0x0101")})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, "0x0101", RED])
    assert "at index 2, full member" in run(guest, "pkey")[1]


@pytest.mark.parametrize("told", [False, True])
def test_without_the_clouds_word_one_key_is_it(member, told):
    """Of an older cloud, and of a machine without a document."""
    guest = member({})
    if not told:
        fw_cfg_of(guest).unlink()
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, RED])
    status, out, _ = run(guest, "pkey")
    assert status == 0
    assert "P_Key 0x0101 at index 1, full member" in out


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ([DEFAULT, STORAGE, RED], "several: 0x8001 at index 1, 0x8101 at index 2"),
        ([DEFAULT, LIMITED_STORAGE, RED], "several: 0x0001 at index 1, 0x8101 at index 2"),
        ([DEFAULT], "the default partition only"),
        (["0xffff"], "the default partition only"),
    ],
)
def test_without_the_clouds_word_nothing_is_guessed(member, table, text):
    guest = member({})
    put_port(guest, FIRST, "mlx5_0", table)
    status, out, _ = run(guest, "pkey")
    assert status == 2
    assert (
        f"P_Key unknown: the cloud does not tell the network's P_Key, and the port's {'table'}"
        in out
    )
    assert text in out
    assert "IB_PKEY=" not in out
    status, out, _ = run(guest, "pkey", "--format", "env")
    assert (status, "export" in out) == (2, False)
    status, out, _ = run(guest, "check")
    assert (status, "note pkey" in out) == (0, True)


@pytest.mark.parametrize("entry", ["rubbish", "0x81010", "", "-1"])
def test_a_table_that_makes_no_sense_is_unknown(member, entry):
    guest = member({FIRST: PortPartition("0x0101")})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, entry])
    status, out, _ = run(guest, "pkey")
    assert status == 2
    assert "the port's table of P_Keys cannot be read" in out
    assert run(guest, "check")[0] == 0


def test_planes_and_ethernet_are_no_ports(member):
    guest = member({FIRST: PortPartition("0x0101")})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, RED])
    put_port(guest, FIRST, "smi1", [DEFAULT], ports=4)
    put_port(guest, SECOND, "mlx5_1", [DEFAULT, BLUE], gid="a089")
    layer = guest.folders[SECOND] / "infiniband/mlx5_1/ports/1/link_layer"
    layer.write_text("Ethernet\n")
    data = json.loads(run(guest, "pkey", "--format", "json")[1])
    assert [(port["device"], port["port"]) for port in data["ports"]] == [("mlx5_0", 1)]


def test_a_machine_without_a_port_is_named(guest):
    status, out, err = run(guest, "pkey")
    assert (status, out) == (2, "")
    assert "this machine has no InfiniBand port" in err


@pytest.mark.parametrize(
    ("pkey", "level"),
    [("0x7fff", 1), ("0x0000", 1), ("0x8101", 1), ("257", 1), ("", 1)],
)
def test_nonsense_of_a_binding_is_not_told(member, pkey, level):
    guest = member({FIRST: PortPartition(pkey, level)})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, RED])
    data = json.loads(run(guest, "pkey", "--format", "json")[1])
    assert data["ports"][0]["service_level"] is None


def vif(**details):
    return {"profile": {"pci_slot": FIRST}, "details": details}


def test_what_nova_knows_of_a_port():
    """``describe_binding`` of our driver in Neutron writes it; Nova keeps it in its VIF."""
    details = {"port_filter": False, "pkey": "0x0101", "guid": "0x0002c90000200001"}
    assert read_port_partitions([vif(**details)]) == {FIRST: PortPartition("0x0101")}
    assert read_port_partitions([vif(**details, service_level=3)]) == {
        FIRST: PortPartition("0x0101", 3)
    }
    for level in (16, -1, True, "3", None):
        (partition,) = read_port_partitions([vif(**details, service_level=level)]).values()
        assert partition.service_level is None
    nothing = [
        {},
        {"profile": None, "details": None},
        {"profile": {"pci_slot": 7}, "details": details},
        {"profile": {"pci_slot": "x"}, "details": details},
        vif(pkey=None),
        vif(pkey="0x8101"),
        vif(pkey=257),
        vif(),
    ]
    assert read_port_partitions(nothing) == {}
