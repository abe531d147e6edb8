# SPDX-License-Identifier: Apache-2.0
"""Virtual functions around a server: set, kept, put back, whatever is killed."""

import uuid
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_hpc.tenancy import ledger
from nova_hpc.tenancy.adapters import netlink
from nova_hpc.tenancy.adapters.plan import AddressPrefix, adapter_records_of
from nova_hpc.tenancy.adapters.step import KEEP, OFF, OWN, AdapterStep
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile, copy_of
from nova_hpc.topology import sysfs
from tests.unit.tenancy import cards
from tests.unit.tenancy.kernel import InfinibandKernel, Kernel

PF, VFS = "0000:5e:00.0", [f"0000:5e:00.{number}" for number in range(1, 5)]
ONE, TWO = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))
NONE = (cards.NO_GUID, cards.NO_GUID, "Down")
SET = "52:54:00:00:00:01"


@attrs.define
class World:
    """One node with an adapter of four functions."""

    root: Path
    kernel: Kernel
    mode: str = KEEP

    @property
    def step(self):
        return AdapterStep(self.root, self.file, AddressPrefix(b"\x0e"), self.mode)

    @property
    def file(self):
        return LedgerFile(self.root / "ledger")

    @property
    def node(self):
        return sysfs.read_sysfs_node(self.root)

    def give(self, server, *numbers, ports=()):
        found = self.step.give(
            server, self.node, [VFS[each] for each in numbers], [VFS[each] for each in ports]
        )
        return dict(found.refused)

    def keep(self, server, *numbers):
        return dict(self.step.keep(server, self.node, [VFS[each] for each in numbers]).refused)

    def take_back(self, server):
        return self.step.take_back(server, lambda: self.node)

    def rest(self, server):
        return self.step.rest(server, lambda: self.node)

    def sweep(self, *taken):
        return self.step.sweep(self.node, lambda: frozenset(VFS[each] for each in taken))

    def guids(self, number):
        return cards.sriov(self.root, PF, number)

    def mac(self, number):
        return self.kernel.functions[number]["IFLA_VF_MAC"]["mac"]

    @property
    def records(self):
        return adapter_records_of(self.file.known())


def world(root: Path, monkeypatch, kind, mode=KEEP) -> World:
    cards.add(root, PF, VFS)
    kind(root, PF)
    kernel = Kernel(4)
    monkeypatch.setattr(netlink, "_open_netlink", kernel)
    return World(root, kernel, mode)


@pytest.fixture
def ib(tmp_path, monkeypatch):
    return world(tmp_path, monkeypatch, cards.infiniband)


@pytest.fixture
def ethernet(tmp_path, monkeypatch):
    return world(tmp_path, monkeypatch, cards.ethernet)


# -- InfiniBand ------------------------------------------------------------------------


def test_the_life_of_guids(ib):
    assert ib.give(ONE, 0, 1) == {}
    assert ib.give(TWO, 2) == {}
    mine = [ib.guids(0), ib.guids(1)]
    every = [guid for number in range(3) for guid in ib.guids(number)[:2]]
    assert len(set(every)) == 6
    assert all(guid.startswith("0e:") for guid in every)
    assert {each[2] for each in mine} == {"Follow"}
    assert ib.guids(3) == NONE
    # Restarts, and the restart of the host, which makes functions anew.
    for _ in range(2):
        assert ib.keep(ONE, 0, 1) == {}
        assert [ib.guids(0), ib.guids(1)] == mine
        for name in ("node", "port"):
            (ib.root / f"sys/bus/pci/devices/{PF}/sriov/0/{name}").write_text(cards.NO_GUID)
    assert ib.keep(TWO, 0) == {}  # it has another one
    assert ib.keep(ONE, 0, 1) == {}
    assert [ib.guids(0), ib.guids(1)] == mine
    assert ib.sweep(0, 1, 2) == {}
    assert ib.take_back(ONE) == {}
    assert [ib.guids(0), ib.guids(1)] == [NONE, NONE]
    assert list(ib.records) == [VFS[2]]
    # The port is given again with other functions: the same server, the same GUIDs.
    assert ib.give(ONE, 3) == {}
    assert ib.guids(3) == mine[0]


def test_a_move_leaves_no_guid_in_the_fabric_twice(ib):
    ib.give(ONE, 0)
    mine = ib.guids(0)
    assert ib.rest(ONE) == {}
    assert ib.guids(0) == NONE
    # Resized on the same host: the new function has what the old one had.
    assert ib.give(ONE, 2) == {}
    assert ib.guids(2) == mine
    # Reverted.
    assert ib.rest(ONE) == {}
    assert (ib.guids(0), ib.guids(2)) == (NONE, NONE)
    assert ib.keep(ONE, 0) == {}
    assert ib.guids(0) == mine
    assert ib.sweep(0) == {}
    assert list(ib.records) == [VFS[0]]
    assert ib.guids(0) == mine


def test_a_guid_that_an_operator_has_set_stays(ib):
    folder = ib.root / f"sys/bus/pci/devices/{PF}/sriov/0"
    theirs = "00:11:22:33:44:55:66:77"
    for name in ("node", "port"):
        (folder / name).write_text(f"{theirs}\n")
    assert ib.give(ONE, 0) == {}
    assert ib.guids(0) == (theirs, theirs, "Follow")
    assert ib.take_back(ONE) == {}
    assert ib.guids(0) == (theirs, theirs, "Down")
    ib.mode = OWN
    assert ib.give(ONE, 0) == {}
    assert ib.guids(0)[0].startswith("0e:")
    assert ib.take_back(ONE) == {}
    assert ib.guids(0) == (theirs, theirs, "Down")


def test_an_address_of_this_cloud_is_nobody_elses_to_keep(ib):
    """The state file was removed, and the function still has what a server had."""
    ib.give(ONE, 0)
    stale = ib.guids(0)
    for file in (ib.file.path, copy_of(ib.file.path)):
        file.unlink()
    assert ib.give(TWO, 0) == {}
    assert not set(ib.guids(0)[:2]) & set(stale[:2])
    assert ib.take_back(TWO) == {}
    assert ib.guids(0)[:2] == NONE[:2]


def test_a_failure_leaves_nothing_half_set(ib):
    port = ib.root / f"sys/bus/pci/devices/{PF}/sriov/1/port"
    port.unlink()
    found = ib.give(ONE, 0, 1)
    assert found.keys() == {VFS[0], VFS[1]}
    assert "there is no" in found[VFS[0]]
    assert ib.guids(0) == NONE
    port.write_text(f"{cards.NO_GUID}\n")
    # What nobody could look at then is put back now.
    assert ib.sweep() == {}
    assert (ib.records, ib.guids(1)) == ({}, NONE)


@pytest.mark.parametrize("step", range(6))
def test_killed_between_set_and_start(ib, monkeypatch, step):
    """At every write to the files of the driver."""
    from nova_hpc.tenancy.adapters.mlx5 import Mlx5Backend

    write, left = Mlx5Backend.write, [step]

    class Killed(BaseException):
        pass

    def dying(self, function, each):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        write(self, function, each)

    with monkeypatch.context() as patch:
        patch.setattr(Mlx5Backend, "write", dying)
        with pytest.raises(Killed):
            ib.give(ONE, 0, 1)
    assert ib.sweep() == {}
    assert (ib.guids(0), ib.guids(1), ib.records) == (NONE, NONE, {})
    # Or it is given to another server before that.
    left[0] = step
    with monkeypatch.context() as patch:
        patch.setattr(Mlx5Backend, "write", dying)
        with pytest.raises(Killed):
            ib.give(ONE, 0, 1)
    assert ib.give(TWO, 1, 0) == {}
    assert ib.take_back(TWO) == {}
    assert (ib.guids(0), ib.guids(1), ib.records) == (NONE, NONE, {})


def test_what_cannot_be_put_back_is_said_and_tried_again(ib):
    ib.give(ONE, 0)
    folder = ib.root / f"sys/bus/pci/devices/{PF}/sriov/0"
    mine = (folder / "port").read_text()
    (folder / "port").unlink()
    assert "cannot be read" in ib.take_back(ONE)[VFS[0]]
    assert "cannot be read" in ib.sweep()[VFS[0]]
    assert "cannot be read" in ib.give(TWO, 0)[VFS[0]]
    (folder / "port").write_text(mine)
    assert ib.sweep() == {}
    assert (ib.guids(0), ib.records) == (NONE, {})


def test_an_adapter_without_its_driver(ib):
    ib.give(ONE, 0)
    cards.bind(ib.root, PF, None)
    assert "is bound to no driver" in ib.keep(ONE, 0)[VFS[0]]
    assert "is bound to no driver" in ib.sweep()[VFS[0]]
    # A function that nobody has set works as without this.
    assert ib.give(TWO, 1) == {}
    ib.mode = OWN
    assert "is bound to no driver" in ib.give(TWO, 1)[VFS[1]]


def test_the_life_of_guids_with_the_kernels_own_driver(tmp_path, monkeypatch):
    ib = world(tmp_path, monkeypatch, cards.inbox_infiniband)
    ib.kernel = InfinibandKernel(4)
    monkeypatch.setattr(netlink, "_open_netlink", ib.kernel)
    new = {"node_guid": 0, "port_guid": 0, "link_state": 2}
    assert ib.give(ONE, 0, 3) == {}
    given = [dict(ib.kernel.functions[each]) for each in (0, 3)]
    guids = {each[name] for each in given for name in ("node_guid", "port_guid")}
    assert len(guids) == 4
    assert all(each >> 56 == 0x0E for each in guids)
    assert [each["link_state"] for each in given] == [0, 0]
    assert ib.kernel.functions[1:3] == [new, new]
    # What the ledger has is what was set, so a restart of the host makes it again.
    ib.kernel.functions[0] = dict(new)
    assert ib.keep(ONE, 0, 3) == {}
    assert [ib.kernel.functions[each] for each in (0, 3)] == given
    assert ib.take_back(ONE) == {}
    assert ib.kernel.functions == [new] * 4
    assert ib.records == {}


# -- Ethernet ------------------------------------------------------------------------------


def test_the_life_of_a_mac(ethernet):
    ethernet.kernel.functions[0]["IFLA_VF_TRUST"]["trust"] = 1
    ethernet.kernel.functions[0]["IFLA_VF_SPOOFCHK"]["spoofchk"] = 0
    ethernet.kernel.functions[0]["IFLA_VF_VLAN"]["vlan"] = 7
    ethernet.kernel.functions[1]["IFLA_VF_MAC"]["mac"] = SET
    before = [dict(each) for each in ethernet.kernel.functions]
    assert ethernet.give(ONE, 0, 1) == {}
    first = ethernet.mac(0)
    assert first.startswith("0e:")
    assert ethernet.mac(1) == SET
    assert ethernet.kernel.functions[0]["IFLA_VF_TRUST"]["trust"] == 0
    assert ethernet.kernel.functions[0]["IFLA_VF_SPOOFCHK"]["spoofchk"] == 1
    assert ethernet.kernel.functions[0]["IFLA_VF_VLAN"]["vlan"] == 7
    assert {number for number, _ in ethernet.kernel.writes} == {0}
    ethernet.kernel.functions[0]["IFLA_VF_MAC"]["mac"] = "00:00:00:00:00:00"
    assert ethernet.keep(ONE, 0, 1) == {}
    assert ethernet.mac(0) == first
    assert ethernet.take_back(ONE) == {}
    assert ethernet.kernel.functions == before
    assert ethernet.mac(1) == SET


def test_ports_are_their_owners(ethernet):
    ethernet.kernel.functions[0]["IFLA_VF_TRUST"]["trust"] = 1
    assert ethernet.give(ONE, ports=[0, 1]) == {}
    assert (ethernet.kernel.writes, ethernet.records) == ([], {})
    ethernet.mode = OWN
    assert ethernet.give(ONE, ports=[0, 1]) == {}
    assert ethernet.kernel.writes == [(0, "IFLA_VF_TRUST")]
    assert ethernet.mac(0) == "00:00:00:00:00:00"
    # A function that still has the MAC of another server gets rid of it first.
    ethernet.take_back(ONE)
    ethernet.mode = KEEP
    ethernet.give(ONE, 2)
    assert ethernet.give(TWO, ports=[2]) == {}
    assert ethernet.mac(2) == "00:00:00:00:00:00"


def test_switched_off(ethernet):
    ethernet.mode = OFF
    assert ethernet.give(ONE, 0, ports=[1]) == {}
    assert (ethernet.kernel.writes, ethernet.records) == ([], {})
    ethernet.mode = KEEP
    ethernet.give(ONE, 0)
    ethernet.mode = OFF
    mac = ethernet.mac(0)
    assert ethernet.give(ONE, 0) == {}
    assert ethernet.keep(ONE, 0) == {}
    assert ethernet.mac(0) == mac
    # What was set before is still put back.
    assert ethernet.give(TWO, 0) == {}
    assert ethernet.mac(0) == "00:00:00:00:00:00"
    assert ethernet.sweep() == {}
    assert ethernet.records == {}


def test_a_driver_that_knows_little(tmp_path, monkeypatch):
    found = world(tmp_path, monkeypatch, cards.ethernet)
    found.kernel = Kernel(4, unknown=("IFLA_VF_SPOOFCHK",))
    monkeypatch.setattr(netlink, "_open_netlink", found.kernel)
    outcome = found.step.give(ONE, found.node, VFS[:1])
    assert outcome.refused == {}
    assert outcome.notes == {VFS[0]: "its driver does not know: spoof_check"}
    found.take_back(ONE)
    found.mode = OWN
    assert "spoof_check" in found.give(ONE, 0)[VFS[0]]
    assert found.mac(0) == "00:00:00:00:00:00"
    found.kernel.functions.clear()
    assert "tells nothing about it" in found.give(ONE, 0)[VFS[0]]
    found.mode = KEEP
    assert found.give(ONE, 1) == {}


def test_no_connection(ethernet, monkeypatch):
    def broken():
        raise RuntimeError("no loop")

    monkeypatch.setattr(netlink, "_open_netlink", broken)
    assert "rtnetlink cannot be used" in ethernet.give(ONE, 0)[VFS[0]]


# -- the state file --------------------------------------------------------------------------


def test_a_lost_file_gives_nothing(ib):
    ib.give(ONE, 0)
    file = ib.file.path
    good = file.read_text()
    copy_of(file).unlink()
    for text in (
        "{",
        good.replace('"v": 1', '"v": 2'),
        good.replace('"made"', '"make"'),
        good.replace("Follow", "x").replace('"auto"', '"sideways"'),
        good.replace('"index": 0', '"index": "0"'),
        good.replace('"node_guid": "0e', '"node_guid": "zz'),
    ):
        assert text != good
        file.write_text(text)
        for work in (
            lambda: ib.give(TWO, 1),
            lambda: ib.keep(ONE, 0),
            lambda: ib.take_back(ONE),
            lambda: ib.sweep(),
        ):
            with pytest.raises(LedgerError, match=r"repair or remove it"):
                work()
    file.write_text(good)
    assert ib.take_back(ONE) == {}
    assert ib.guids(0) == NONE


def test_a_full_disk_sets_nothing(ib, monkeypatch):
    def full(path, body):
        raise LedgerError("no space left on device")

    monkeypatch.setattr(ledger, "_save_with_copy", full)
    with pytest.raises(LedgerError):
        ib.give(ONE, 0)
    assert ib.guids(0) == NONE


def test_a_function_that_has_disappeared_keeps_its_record(ib):
    ib.give(ONE, 0)
    link = ib.root / "sys/bus/pci/devices" / VFS[0]
    target = link.readlink()
    link.unlink()
    assert ib.take_back(ONE) == {}
    assert list(ib.records) == [VFS[0]]
    link.symlink_to(target)
    assert ib.sweep() == {}
    assert (ib.guids(0), ib.records) == (NONE, {})


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["give", "keep", "rest", "take_back", "sweep", "wipe"]),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    max_size=14,
)


@settings(max_examples=max(10, settings().max_examples // 5))
@given(EVENTS)
def test_two_servers_never_share_a_guid(tmp_path_factory, events):
    """Any order of what Nova may do, and of restarts of the host in between."""
    root = tmp_path_factory.mktemp("world")
    cards.add(root, PF, VFS)
    cards.infiniband(root, PF)
    found = World(root, Kernel())
    names = [str(uuid.UUID(int=number)) for number in range(3)]
    owner: dict[int, str] = {}
    known: dict[str, tuple[str, ...]] = {}
    for event, who, number in events:
        server = names[who]
        if event == "give" and number not in owner and server not in owner.values():
            assert found.give(server, number) == {}
            owner[number] = server
            # Stable for the server's life, wherever it is.
            assert known.setdefault(server, found.guids(number)) == found.guids(number)
        elif event == "keep" and owner.get(number) == server:
            assert found.keep(server, number) == {}
            assert found.guids(number) == known[server]
        elif event == "rest":
            assert found.rest(server) == {}
        elif event == "take_back":
            assert found.take_back(server) == {}
            owner = {each: name for each, name in owner.items() if name != server}
        elif event == "sweep":
            owner = {each: name for each, name in owner.items() if each != number}  # a crash
            assert found.sweep(*owner) == {}
        elif event == "wipe":
            for name in ("node", "port"):
                (root / f"sys/bus/pci/devices/{PF}/sriov/{number}/{name}").write_text(
                    f"{cards.NO_GUID}\n"
                )
        shown = [found.guids(each)[:2] for each in range(4)]
        given_ = [guid for pair in shown for guid in pair if guid != cards.NO_GUID]
        assert len(given_) == len(set(given_))
    for server in names:
        assert found.take_back(server) == {}
    assert found.sweep() == {}
    assert found.records == {}
    assert {found.guids(each)[:2] for each in range(4)} == {(cards.NO_GUID, cards.NO_GUID)}
