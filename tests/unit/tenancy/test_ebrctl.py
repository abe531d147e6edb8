# SPDX-License-Identifier: Apache-2.0
"""What Nova calls to plug an InfiniBand port, on a synthetic sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from nova_hpc.fabric.partitions.keys import derive_guid
from nova_hpc.tenancy.adapters import ebrctl, netlink
from nova_hpc.tenancy.adapters.settings import AdapterError
from tests.unit.tenancy import cards
from tests.unit.tenancy.kernel import InfinibandKernel, Kernel

PF, VFS = "0000:5e:00.0", [f"0000:5e:00.{number}" for number in range(1, 5)]
MAC, OTHER = "fa:16:3e:0a:0b:0c", "fa:16:3e:0d:0e:0f"
GUID = "fa:16:3e:00:00:0a:0b:0c"
NONE = (cards.NO_GUID, cards.NO_GUID, "Down")
SERVER = "5c0e58a1-7f6b-4be9-9d0e-0b7f3f9f2d11"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    cards.add(tmp_path, PF, VFS)
    cards.infiniband(tmp_path, PF)
    return tmp_path


def plug(root: Path, mac: str = MAC, address: str = VFS[1]) -> int:
    return ebrctl.main(["add-port", mac, SERVER, "ibrail0", "ib_hostdev", address], root)


def unplug(root: Path, mac: str = MAC) -> int:
    return ebrctl.main(["del-port", "ibrail0", mac], root)


def test_the_guid_is_what_networking_mlnx_makes_of_a_mac() -> None:
    assert derive_guid("FA:16:3e:0a:0b:0c") == 0xFA163E00000A0B0C


@pytest.mark.parametrize("mac", ["", "fa:16:3e", "fa163e0a0b0c", "00:00:00:00:00:00", "x" * 17, 7])
def test_no_guid_is_made_of_what_is_no_mac(mac: str) -> None:
    with pytest.raises(ValueError, match="no MAC address of six bytes"):
        derive_guid(mac)


def test_a_port_comes_and_goes(root: Path) -> None:
    assert plug(root) == 0
    assert cards.sriov(root, PF, 1) == (GUID, GUID, "Follow")
    assert [cards.sriov(root, PF, number) for number in (0, 2, 3)] == [NONE] * 3

    assert unplug(root) == 0
    assert cards.sriov(root, PF, 1) == NONE


def test_both_may_be_repeated(root: Path) -> None:
    assert unplug(root) == 0
    assert [plug(root), plug(root)] == [0, 0]
    assert cards.sriov(root, PF, 1) == (GUID, GUID, "Follow")
    assert [unplug(root), unplug(root)] == [0, 0]
    assert cards.sriov(root, PF, 1) == NONE


def test_another_port_stays(root: Path) -> None:
    plug(root)
    plug(root, OTHER, VFS[2])

    assert unplug(root) == 0

    assert cards.sriov(root, PF, 2)[1] == "fa:16:3e:00:00:0d:0e:0f"


def test_a_guid_is_on_one_function_alone(root: Path) -> None:
    """A server that comes back on another function of the host."""
    plug(root, address=VFS[0])

    assert plug(root, address=VFS[3]) == 0

    assert cards.sriov(root, PF, 0) == NONE
    assert cards.sriov(root, PF, 3) == (GUID, GUID, "Follow")


def test_what_an_owner_before_had_is_not_put_back(root: Path) -> None:
    plug(root, OTHER)
    plug(root)

    unplug(root)

    assert cards.sriov(root, PF, 1) == NONE


def test_the_kernels_own_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards.add(tmp_path, PF, VFS)
    cards.inbox_infiniband(tmp_path, PF)
    kernel = InfinibandKernel(4)
    monkeypatch.setattr(netlink, "_open_netlink", kernel)
    guid = 0xFA163E00000A0B0C

    assert plug(tmp_path) == 0
    assert kernel.functions[1] == {"node_guid": guid, "port_guid": guid, "link_state": 0}
    assert unplug(tmp_path) == 0
    assert kernel.functions[1] == {"node_guid": 0, "port_guid": 0, "link_state": 2}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add-port", "x", SERVER, "ib", "ib_hostdev", VFS[1]], "no MAC address of six bytes"),
        (["add-port", MAC, SERVER, "ib", "hw_veb", VFS[1]], "invalid choice: 'hw_veb'"),
        (["add-port", MAC, SERVER, "ib", "ib_hostdev", "../etc"], "argument address"),
        (["add-port", MAC, SERVER, "ib", "ib_hostdev"], "required: address"),
        (["del-port", "ib", "\x1b[2J"], "no MAC address of six bytes"),
        (["get-tables"], "invalid choice"),
        ([], "required: command"),
    ],
)
def test_bad_input_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as end:
        ebrctl.main(arguments, root)

    assert end.value.code == 2
    said = capsys.readouterr().err
    assert words in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (PF, "is no virtual function"),
        ("0000:ff:00.0", "is no virtual function"),
    ],
)
def test_a_function_that_cannot_be_set_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], address: str, words: str
) -> None:
    assert plug(root, address=address) == 1

    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("ebrctl add-port: port fa:16:3e:0a:0b:0c, GUID 0xfa163e00000a0b0c: ")
    assert said.count("\n") == 1


def test_an_ethernet_function_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cards.add(tmp_path, PF, VFS)
    cards.ethernet(tmp_path, PF)
    monkeypatch.setattr(netlink, "_open_netlink", Kernel(4))

    assert plug(tmp_path) == 1

    assert "is a function of an Ethernet port" in capsys.readouterr().err


def test_a_guid_that_does_not_stick_is_an_error(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plug(root)
    folder = root / "sys/bus/pci/devices" / PF / "sriov/1"
    (folder / "port").unlink()
    (folder / "port").symlink_to("/dev/null")

    assert unplug(root) == 1

    assert "ebrctl del-port: port fa:16:3e:0a:0b:0c" in capsys.readouterr().err


def test_an_adapter_that_cannot_be_read_is_not_one_without_the_guid(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plug(root)
    (root / "sys/bus/pci/devices" / PF / "sriov/3/port").write_bytes(b"\xff\xfe\n")

    assert unplug(root) == 1

    assert "nobody knows whether another function has it" in capsys.readouterr().err
    assert cards.sriov(root, PF, 1) == NONE


def test_a_host_without_infiniband(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()

    assert unplug(tmp_path) == 0
    with pytest.raises(AdapterError, match="is no virtual function"):
        ebrctl.add_port(tmp_path, MAC, VFS[0])
