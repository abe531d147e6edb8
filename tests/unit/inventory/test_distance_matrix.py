# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc inventory --matrix``: distances of GPUs and adapters, for people and programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from nova_hpc.topology import sysfs
from nova_hpc.topology.model import BridgeKind, Node, PciFunction, RdmaDevice
from nova_hpc_tools.inventory.distance_matrix import (
    build_distance_matrix,
    dump_matrix_document,
    format_matrix_lines,
)
from nova_hpc_tools.main import main
from tests.nodes.catalogue import NODES

TWO_SOCKET = """\
      GPU0  GPU1  NIC0  NIC1  NIC2  CPU affinity  NUMA affinity
GPU0  X     NODE  PHB   SYS   SYS   0-15,32-47    0
GPU1  NODE  X     NODE  SYS   SYS   0-15,32-47    0
NIC0  PHB   NODE  X     SYS   SYS   0-15,32-47    0
NIC1  SYS   SYS   SYS   X     PIX   16-31,48-63   1
NIC2  SYS   SYS   SYS   PIX   X     16-31,48-63   1

GPU0  0000:17:00.0  10de:20b7
GPU1  0000:31:00.0  10de:20b7
NIC0  0000:18:00.0  8086:1521  eno1
NIC1  0000:b1:00.0  15b3:101b  mlx5_0 enp177s0f0
NIC2  0000:b1:00.1  15b3:101b  mlx5_1 enp177s0f1

X     the device itself
PIX   at most one PCIe switch between them
PHB   one PCIe host bridge (root complex)
NODE  host bridges of one NUMA node
SYS   the link between NUMA nodes, within a socket or between two
"""


def gpu(address: str, **more: object) -> PciFunction:
    """A GPU below a switch of its NUMA node."""
    fields: dict[str, object] = {
        "class_code": "030200",
        "numa_node": 0,
        "root": "pci0000:17",
        "path": ("0000:17:00.0", "0000:18:00.0"),
        "switches": ("0000:18:00.0",),
    } | more
    return PciFunction(address, "10de", "2330", **fields)  # type: ignore[arg-type]


def cells(node: Node, **options: bool) -> dict[tuple[str, str], str]:
    """Labels of two devices -> what stands between them."""
    matrix = build_distance_matrix(node, **options)
    labels = [device.label for device in matrix.devices]
    return {
        (first, second): cell
        for first, row in zip(labels, matrix.rows, strict=True)
        for second, cell in zip(labels, row, strict=True)
    }


def test_a_plain_server(
    synthetic: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inventory", "--root", str(synthetic("two-socket")), "--matrix"]) == 0
    assert capsys.readouterr().out == TWO_SOCKET


def test_the_document_says_the_same(
    synthetic: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inventory", "--root", str(synthetic("hgx-h100")), "--matrix", "-f", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["version"]) == ("nova-hpc/matrix", 1)
    labels = [device["label"] for device in found["devices"]]
    assert labels == [f"{word}{number}" for word in ("GPU", "NIC") for number in range(8)]
    row = dict(zip(labels, found["distances"][0], strict=True))
    assert [row[label] for label in ("GPU0", "GPU1", "GPU2", "GPU4")] == [
        "X", "PIX", "NODE", "SYS",
    ]  # fmt: skip
    assert (row["NIC1"], row["NIC2"], row["NIC7"]) == ("PIX", "NODE", "SYS")
    assert not any(map(any, found["redirected"]))
    assert found["devices"][8]["kernel_names"] == ["mlx5_0", "ibp24s0"]
    assert found["devices"][15]["cpus"] == "48-95,144-191"


def test_lists_have_a_column_for_each_device(
    synthetic: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(synthetic("gh200"))
    assert main(["inventory", "--root", root, "--matrix", "-f", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].replace('"', "") == (
        "Device,Address,GPU0,GPU1,NIC0,NIC1,CPU affinity,NUMA affinity"
    )
    assert lines[1].replace('"', "") == "GPU0,0009:01:00.0,X,SYS,NODE,SYS,0-71,0"


@pytest.mark.parametrize("name", sorted(NODES))
def test_the_way_back_is_as_long(synthetic: Callable[[str], Path], name: str) -> None:
    node = sysfs.read_sysfs_node(synthetic(name))
    found = cells(node)
    assert all(found[second, first] == cell for (first, second), cell in found.items())
    assert all((cell == "X") == (first == second) for (first, second), cell in found.items())


def test_an_unknown_place_is_no_distance() -> None:
    lost = gpu("0000:30:00.0", numa_node=None, root=None, switches=(), path=())
    other = gpu("0000:40:00.0", numa_node=1, root="pci0000:40")
    homeless = gpu("0000:50:00.0", numa_node=None, root="pci0000:50")
    node = Node("x", functions=(gpu("0000:20:00.0"), lost, other, homeless))
    found = cells(node)
    assert found["GPU0", "GPU1"] == found["GPU0", "GPU3"] == found["GPU1", "GPU3"] == "?"
    assert found["GPU0", "GPU2"] == "SYS"
    document = json.loads(dump_matrix_document(node, build_distance_matrix(node)))
    assert document["distances"][0] == ["X", None, "SYS", None]
    assert any(line.startswith("?") for line in format_matrix_lines(build_distance_matrix(node)))


def test_a_switch_that_redirects_is_marked() -> None:
    def port(address: str, kind: BridgeKind, acs: int = 0) -> PciFunction:
        return PciFunction(address, "104c", "8232", class_code="060400", bridge=kind,
                           acs_control=acs)  # fmt: skip

    ports = ("0000:19:00.0", "0000:19:01.0")
    node = Node(
        "x",
        functions=(
            port("0000:17:00.0", BridgeKind.ROOT_PORT),
            port("0000:18:00.0", BridgeKind.UPSTREAM),
            *(port(address, BridgeKind.DOWNSTREAM, 0x0C) for address in ports),
            *(
                gpu(f"0000:2{number}:00.0", path=("0000:17:00.0", "0000:18:00.0", address))
                for number, address in enumerate(ports)
            ),
        ),
    )
    assert cells(node)["GPU0", "GPU1"] == "PIX^"
    assert any(line.startswith("^") for line in format_matrix_lines(build_distance_matrix(node)))
    document = json.loads(dump_matrix_document(node, build_distance_matrix(node)))
    assert document["distances"][0][1] == "PIX"
    assert document["redirected"][0] == [False, True]


def test_the_display_of_a_management_controller_is_no_gpu() -> None:
    old = PciFunction("0000:03:00.0", "1a03", "1150", class_code="060400", bridge=BridgeKind.PCI)
    node = Node(
        "x",
        functions=(old, gpu("0000:04:00.0", class_code="030000", path=("0000:03:00.0",))),
    )
    assert list(format_matrix_lines(build_distance_matrix(node))) == ["no GPU and no adapter"]


def test_virtual_functions_on_demand() -> None:
    own = gpu("0000:20:00.0", class_code="020700", virtual_functions=("0000:20:00.1",))
    vf = gpu("0000:20:00.1", class_code="020700", physical_function="0000:20:00.0")
    node = Node("x", functions=(own, vf))
    assert set(cells(node)) == {("NIC0", "NIC0")}
    assert cells(node, everything=True)["NIC0", "NIC1"] == "PIX"


def test_names_from_the_node_are_shown_inert(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("x", functions=(attrs.evolve(gpu("0000:20:00.0"), model="\x1b[2J"),))
    evil = attrs.evolve(node.functions[0], rdma=(RdmaDevice("\u202emlx"),))
    monkeypatch.setattr(
        "nova_hpc_tools.inventory.command._read_inventory_node",
        lambda _: attrs.evolve(node, functions=(evil,)),
    )
    assert main(["inventory", "--matrix"]) == 0
    assert r"\u001b[2J  \u202emlx" in capsys.readouterr().out


def test_a_matrix_is_no_device_spec(
    synthetic: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(synthetic("bare"))
    assert main(["inventory", "--root", root, "--matrix", "--show", "nccl"]) == 2
    assert "--matrix and --show nccl exclude each other" in capsys.readouterr().err
