# SPDX-License-Identifier: Apache-2.0
"""The port over which accept measures: an ACTIVE one, with the key and the GID of its network."""

from __future__ import annotations

import subprocess

import pytest

from nova_hpc.guest_tree.guest_document import PortPartition
from nova_hpc_guest import document
from nova_hpc_guest.accept.measuring import LocalMachine, MeasuringOptions
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.rdma_ports import (
    RdmaPath,
    expand_rdma_words,
    read_rdma_path,
    read_rdma_ports,
    read_rdma_rates,
)
from nova_hpc_guest.files import Root
from tests.unit.guest import test_pkeys
from tests.unit.guest.test_pkeys import BLUE, DEFAULT, FIRST, RED, SECOND, STORAGE, put_port

member = test_pkeys.member
FOLDER = "sys/class/infiniband"
IPV4, GLOBAL = "0000:0000:0000:0000:0000:ffff:c000:0205", "2001:0db8:0000:0000:0000:0000:0000:0005"
LOCAL, EMPTY = "fe80:0000:0000:0000:0a00:27ff:fe00:0001", "0000:0000:0000:0000:0000:0000:0000:0000"


def put_state(guest, device, state="4: ACTIVE", rate="400 Gb/sec (4X NDR)", layer="InfiniBand"):
    """A port as all tools see it."""
    place = f"{FOLDER}/{device}/ports/1"
    for name, text in (("state", state), ("rate", rate), ("link_layer", layer)):
        guest.file(f"{place}/{name}", f"{text}\n")


def put_gids(guest, device, *gids):
    for index, (gid, kind) in enumerate(gids):
        guest.file(f"{FOLDER}/{device}/ports/1/gids/{index}", f"{gid}\n")
        guest.file(f"{FOLDER}/{device}/ports/1/gid_attrs/types/{index}", f"{kind}\n")


def path_of(guest):
    root = Root(str(guest.root))
    _, promise = document.read_guest_document(root)
    return read_rdma_path(root, promise)


def test_the_key_of_the_network_is_taken_and_not_the_first_entry(member) -> None:
    guest = member({FIRST: PortPartition("0x0101", None), SECOND: PortPartition("0x0101", None)})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, STORAGE, RED])
    put_port(guest, SECOND, "mlx5_1", [DEFAULT, STORAGE, RED], gid="a089")
    for device in ("mlx5_0", "mlx5_1"):
        put_state(guest, device)
    assert path_of(guest) == RdmaPath(("-d", "mlx5_0", "-i", "1", "--pkey_index=2"))
    root = Root(str(guest.root))
    _, promise = document.read_guest_document(root)
    words = expand_rdma_words(PROBE_OF["nccl_pair"].words, root, promise)
    at = words.index("NCCL_IB_PKEY")
    assert words[at - 1] == "-x"
    assert words.index("all_reduce_perf") > at
    # What the user has set counts.
    machine = LocalMachine(root, MeasuringOptions(), promise, {"NCCL_IB_PKEY": "5", "PATH": "/bin"})
    for settings in ({}, {"nccl": "default"}):
        environment = machine._choose_environment(settings)
        assert environment["NCCL_IB_PKEY"] == ("2" if settings else "5")
        assert environment["UCX_IB_PKEY"] == "0x101"


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED"])
def test_a_port_that_is_not_active_does_not_stop_the_next(member, state) -> None:
    guest = member({FIRST: PortPartition("0x0101", None), SECOND: PortPartition("0x0102", None)})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, RED])
    put_port(guest, SECOND, "mlx5_1", [DEFAULT, STORAGE, BLUE], gid="a089")
    put_state(guest, "mlx5_0", state, "10 Gb/sec (4X SDR)")
    put_state(guest, "mlx5_1")
    assert path_of(guest) == RdmaPath(("-d", "mlx5_1", "-i", "1", "--pkey_index=2"))
    ports = read_rdma_ports(Root(str(guest.root)))
    assert read_rdma_rates(ports) == {"mlx5_1": 400.0}
    put_state(guest, "mlx5_1", state)
    word = state.partition(" ")[2]
    assert path_of(guest) == f"mlx5_0:1 is {word}; mlx5_1:1 is {word}"


def test_an_index_is_never_guessed(member) -> None:
    guest = member({FIRST: PortPartition("0x0103", None)})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, RED])
    put_state(guest, "mlx5_0")
    assert "mlx5_0:1: P_Key 0x0103 is not in the port's table" in str(path_of(guest))


def test_a_table_that_cannot_be_read_is_unknown_and_not_the_first_entry(member) -> None:
    guest = member({FIRST: PortPartition("0x0101", None)})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, "nonsense"])
    put_state(guest, "mlx5_0")
    told = str(path_of(guest))
    assert told == "mlx5_0:1: P_Key unknown: the port's table of P_Keys cannot be read"


def test_without_the_clouds_word_one_of_several_is_not_chosen(member) -> None:
    guest = member({})
    put_port(guest, FIRST, "mlx5_0", [DEFAULT, RED, BLUE])
    put_state(guest, "mlx5_0")
    assert "P_Key unknown: the cloud does not tell" in str(path_of(guest))
    # The default partition alone is the network.
    table = guest.folders[FIRST].relative_to(guest.root) / "infiniband/mlx5_0/ports/1/pkeys"
    for index in (1, 2):
        guest.file(f"{table}/{index}", "0x0000\n")
    assert path_of(guest) == RdmaPath(("-d", "mlx5_0", "-i", "1"))


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        (((LOCAL, "IB/RoCE v1"), (LOCAL, "RoCE v2"), (IPV4, "IB/RoCE v1"), (IPV4, "RoCE v2")), 3),
        (((LOCAL, "IB/RoCE v1"), (LOCAL, "RoCE v2"), (GLOBAL, "RoCE v2")), 2),
        (((LOCAL, "IB/RoCE v1"), (LOCAL, "RoCE v2")), 1),
        (((LOCAL, "IB/RoCE v1"), (EMPTY, "RoCE v2"), ("nonsense", "RoCE v2")), None),
    ],
)
def test_the_gid_of_roce_v2_that_leads_farthest(member, gids, index) -> None:
    guest = member({})
    put_state(guest, "mlx5_0", layer="Ethernet")
    put_gids(guest, "mlx5_0", *gids)
    wanted = () if index is None else ("-x", str(index))
    assert path_of(guest) == RdmaPath(("-d", "mlx5_0", "-i", "1", *wanted))


def test_a_machine_without_an_adapter(member) -> None:
    assert path_of(member({})) == "no RDMA device"


@pytest.mark.slow
def test_perftest_knows_these_words() -> None:
    """The program that decides: its help has each of our options."""
    try:
        said = subprocess.run(
            ["ib_write_bw", "--help"], capture_output=True, text=True, check=False
        ).stdout
    except FileNotFoundError:
        pytest.skip("no perftest")
    for word in (
        "-d,",
        "-i,",
        "-x,",
        "--pkey_index=",
        "-F,",
        "--report_gbits",
        "-p,",
        "-s,",
        "-n,",
    ):
        assert word in said
