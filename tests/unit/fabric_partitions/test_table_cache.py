# SPDX-License-Identifier: Apache-2.0
"""How little is read, and that nothing is missed."""

import itertools

import pytest

from nova_hpc.fabric.partitions import table_cache
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions
from nova_hpc.fabric.partitions.partition_file import PartitionLayout
from nova_hpc.fabric.partitions.port_tables import (
    EndPort,
    FabricPorts,
    PortTables,
    TableExpectations,
)
from nova_hpc.fabric.partitions.table_cache import TableCache

MEMBERS = frozenset(range(1, 5))
NOBODY = frozenset()


class Fabric:
    """A fabric of some ports that counts what is asked."""

    def __init__(self, ports=8):
        self.ports = {
            guid: EndPort(guid, "ca", guid, 1, (99, guid)) for guid in range(1, ports + 1)
        }
        self.keys = {guid: {0x7FFF} for guid in self.ports}
        self.hung = set()
        self.coming_up = set()
        self.walks = 0
        self.reads = []

    def read_ports(self):
        self.walks += 1
        return FabricPorts(dict(self.ports))

    def read_tables(self, ports, silent=frozenset()):
        self.reads.append([port.guid for port in ports if port.guid not in silent])
        read = {}
        for port in ports:
            keys = self.keys.get(port.guid)
            side = None if keys is None else frozenset(keys)
            own = None if port.guid in silent | self.hung else side
            read[port.guid] = PortTables(own, side, port.guid in self.coming_up)
        return read


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when a test says so."""
    times = [1000.0]
    monkeypatch.setattr(table_cache.time, "monotonic", lambda: times[0])

    def pass_time(seconds):
        times[0] += seconds

    return pass_time


class Looks:
    """Looks at a fabric, as a subnet manager's backend does."""

    def __init__(self, fabric, interval=5.0):
        self.cache = TableCache(fabric, interval)
        self.fabric = fabric

    def look(self, partitions, guids=MEMBERS, leaving=NOBODY):
        """The tables of members, and the strangers' sentences."""
        self.fabric.reads.clear()
        ports = self.cache.refresh_ports(frozenset(guids))
        expectations = TableExpectations(PartitionLayout(partitions), OwnPartitions(), ports)
        tables, strangers = self.cache.read(expectations, frozenset(guids), leaving)
        return tables, strangers.sentences

    def asked(self):
        """GUIDs that were read in the last look."""
        return sorted(itertools.chain.from_iterable(self.fabric.reads))


ONE = {0x101: dict.fromkeys(MEMBERS, Membership.FULL)}


def _join(fabric, guids=MEMBERS):
    for guid in guids:
        fabric.keys[guid] = {0x7FFF, 0x8101}


def test_what_is_right_is_read_again_after_a_second_and_what_is_wrong_at_once(clock) -> None:
    fabric = Fabric()
    looks = Looks(fabric)
    # The network's P_Key is new: all ports are looked at.
    looks.look(ONE)
    assert looks.asked() == list(range(1, 9))
    _join(fabric, (1, 2, 3))
    looks.look(ONE)
    assert looks.asked() == [1, 2, 3, 4]
    clock(0.1)
    looks.look(ONE)
    assert looks.asked() == [4]
    _join(fabric)
    tables, _ = looks.look(ONE)
    assert looks.asked() == [4]
    assert tables[4].own == {0x7FFF, 0x8101}
    looks.look(ONE)
    assert looks.asked() == []
    clock(0.95)
    looks.look(ONE)
    assert looks.asked() == [1, 2, 3]
    assert fabric.walks == 1


def test_a_link_that_is_coming_up_is_read_again_at_once(clock) -> None:
    """Its tables are right already, and only the state of the link tells that no data passes."""
    fabric = Fabric()
    looks = Looks(fabric)
    _join(fabric)
    fabric.coming_up = {2}
    looks.look(ONE)
    clock(0.1)
    tables, _ = looks.look(ONE)
    assert looks.asked() == [2]
    assert tables[2].is_coming_up
    fabric.coming_up = set()
    looks.look(ONE)
    looks.look(ONE)
    assert looks.asked() == []


def test_after_a_change_all_members_are_read(clock) -> None:
    fabric = Fabric()
    looks = Looks(fabric)
    _join(fabric)
    looks.look(ONE)
    looks.look(ONE)
    assert looks.asked() == []
    looks.cache.distrust()
    looks.look(ONE)
    assert looks.asked() == [1, 2, 3, 4]


def test_strangers_are_looked_for_once_in_an_interval_and_until_they_are_gone(clock) -> None:
    fabric = Fabric()
    looks = Looks(fabric)
    _join(fabric)
    assert looks.look(ONE)[1] == ()
    fabric.keys[7] = {0xFFFF}
    clock(4.9)
    assert looks.look(ONE)[1] == ()
    clock(0.2)
    assert "the fabric is open" in looks.look(ONE)[1][0]
    # What was seen is said until it is read again.
    assert "the fabric is open" in looks.look(ONE)[1][0]
    assert looks.asked() == []
    fabric.keys[7] = {0x7FFF}
    clock(0.21)
    assert looks.look(ONE)[1] == ()
    assert looks.asked() == list(range(1, 9))


def test_a_new_network_has_all_ports_looked_at(clock) -> None:
    fabric = Fabric()
    looks = Looks(fabric)
    looks.look({})
    fabric.keys[8] = {0x7FFF, 0x8101}
    _join(fabric)
    clock(0.1)
    assert "0x0000000000000008" in looks.look(ONE)[1][0]
    # It is one that leaves.
    clock(0.21)
    assert looks.look(ONE, leaving=frozenset({(8, 0x101)}))[1] == ()


def test_ports_are_found_anew_when_one_is_missing_or_silent_or_after_a_while(clock) -> None:
    fabric = Fabric()
    looks = Looks(fabric)
    del fabric.ports[4]
    tables, _ = looks.look(ONE)
    assert 4 not in tables
    looks.look(ONE)
    assert fabric.walks == 1
    clock(0.51)
    looks.look(ONE)
    assert fabric.walks == 2
    fabric.ports[4] = EndPort(4, "ca", 4, 1, (99, 4))
    clock(0.51)
    assert 4 in looks.look(ONE)[0]
    assert fabric.walks == 3
    clock(0.51)
    looks.look(ONE)
    assert fabric.walks == 3
    fabric.keys[2] = None
    clock(1.0)
    assert looks.look(ONE)[0][2] == PortTables(None, None)
    looks.look(ONE)
    assert fabric.walks == 4
    fabric.keys[2] = {0x7FFF, 0x8101}
    clock(30.0)
    looks.look(ONE)
    assert fabric.walks == 5


def test_a_port_that_is_gone_has_no_table_and_is_no_stranger(clock) -> None:
    fabric = Fabric()
    looks = Looks(fabric)
    fabric.keys[7] = {0xFFFF}
    assert looks.look(ONE)[1] != ()
    del fabric.ports[7]
    clock(31.0)
    assert looks.look(ONE)[1] == ()


def test_a_walk_that_takes_long_is_rare(clock) -> None:
    fabric = Fabric()
    looks = Looks(fabric)
    walk = fabric.read_ports

    def walk_slowly():
        clock(2.0)
        return walk()

    fabric.read_ports = walk_slowly
    del fabric.ports[4]
    looks.look(ONE)
    for _ in range(19):
        clock(1.0)
        looks.look(ONE)
    assert fabric.walks == 1
    clock(1.0)
    looks.look(ONE)
    assert fabric.walks == 2


def test_of_many_that_are_to_change_a_few_are_read_until_one_has(clock) -> None:
    fabric = Fabric(200)
    looks = Looks(fabric)
    many = frozenset(range(1, 101))
    partitions = {0x101: dict.fromkeys(many, Membership.FULL)}
    looks.look({}, many)
    looks.cache.distrust()
    clock(0.1)
    # A network is new: all are to be looked at, and will be.
    tables, _ = looks.look(partitions, many)
    assert looks.asked() == list(range(1, 17))
    assert all(tables[guid].own == {0x7FFF} for guid in many)
    clock(0.1)
    looks.look(partitions, many)
    assert looks.asked() == list(range(1, 17))
    # Not for ever: what was right is trusted for a second.
    clock(0.85)
    looks.look(partitions, many)
    assert looks.asked() == list(range(1, 201))
    clock(0.1)
    looks.look(partitions, many)
    assert looks.asked() == list(range(1, 17))
    _join(fabric, many)
    clock(0.1)
    tables, _ = looks.look(partitions, many)
    assert looks.asked() == list(many)
    assert all(tables[guid].own == {0x7FFF, 0x8101} for guid in many)
