# SPDX-License-Identifier: Apache-2.0
"""Members of partitions, over a real opensm on a simulated fabric."""

import pytest

from nova_hpc.fabric.partitions.backends.base import (
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.backends.choice import read_capabilities
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import PartitionPolicy
from tests.fabric.bare_fabric import wait_until
from tests.fabric.matrix import Sampler, guid_text
from tests.fabric.opensm.opensm_site import (
    ABSENT,
    DIFFERENT,
    RIGHT,
    A,
    B,
    keys,
    look,
    member,
    settle,
    states,
    wait_for_keys,
)


def test_it_says_what_it_can_keep_apart():
    capabilities = read_capabilities("opensm")
    assert (capabilities.separates_functions, capabilities.limited_members) == (False, True)
    with pytest.raises(SubnetManagerError, match="'none' cannot be loaded"):
        read_capabilities("none")


def test_members_of_a_network_reach_each_other_and_nobody_else(site, view):
    manager = site.backend()
    one, two, three, four, limited, other, stranger, last = site.guids[:8]
    desired = site.desire(
        member(1, one),
        member(2, two),
        member(3, three, B),
        member(4, four, B),
        member(5, limited, A, Membership.LIMITED),
        member(6, other, A, Membership.LIMITED),
        policies={A: PartitionPolicy(rate=3)},
    )
    reading = settle(manager, desired)
    assert set(states(reading).values()) == {RIGHT}
    assert keys(view, one, three, limited, stranger) == [{0x8101}, {0x8102}, {0x0101}, set()]

    def path(source, target):
        return view.path(guid_text(source), guid_text(target))

    for source, target, pkey in [(one, two, 0x8101), (three, four, 0x8102), (limited, one, 0x8101)]:
        assert view.path_in_time(guid_text(source), guid_text(target)) & 0x7FFF == pkey & 0x7FFF
    for each in (one, three, limited, stranger):
        assert view.path_in_time(guid_text(each), view.manager)
    for source, target in [(one, three), (three, one), (limited, other), (one, stranger)]:
        assert path(source, target) is None
    assert path(stranger, last) is None
    # Nothing has changed: nothing is written, nobody is told.
    inode, signals = site.files.partitions.stat().st_ino, manager.signals
    assert manager.enforce(site.desire(*desired.members, policies=desired.policies)) is False
    assert (site.files.partitions.stat().st_ino, manager.signals) == (inode, signals)


def test_a_key_is_gone_before_the_row_is(site, view):
    manager = site.backend()
    one, two = site.guids[:2]
    settle(manager, site.desire(member(1, one), member(2, two)))
    leaving = site.desire(member(1, one), member(2, two, wanted=False))
    assert manager.enforce(leaving) is True
    assert states(look(manager, leaving)) == {1: RIGHT, 2: RIGHT}
    assert keys(view, one, two) == [{0x8101}, set()]


def test_no_own_change_opens_the_fabric_for_a_moment(site):
    manager = site.backend()
    guids = site.guids[:6]
    allowed = {guid_text(guid): {A if at % 2 else B} for at, guid in enumerate(guids)}
    with Sampler(site.fabric, allowed) as sampler:
        for turn in range(12):
            rows = [
                member(at + 10 * turn, guid, A if at % 2 else B)
                for at, guid in enumerate(guids)
                if (turn >> at % 4) & 1
            ]
            settle(manager, site.desire(*rows))
    assert sampler.wrong == []
    assert sampler.rounds > 20


def test_hundreds_of_members_are_one_guid_a_line(site, view):
    manager = site.backend()
    absent = range(0x0002C900_00900000, 0x0002C900_00900000 + 1200)
    rows = [member(at, guid) for at, guid in enumerate((*absent, *site.guids[:3]))]
    reading = settle(manager, site.desire(*rows))
    assert list(states(reading).values()) == [ABSENT] * 1200 + [RIGHT] * 3
    assert keys(view, *site.guids[:4]) == [{0x8101}] * 3 + [set()]
    lines = site.files.partitions.read_text().splitlines()
    assert max(map(len, lines)) < 200


def test_a_long_line_of_the_administrators_is_refused_and_would_have_opened_the_fabric(site, view):
    manager = site.backend()
    desired = site.desire(member(1, site.guids[0]))
    settle(manager, desired)
    long = "long=0x7001 : " + ", ".join(f"{guid:#018x}" for guid in range(1, 500)) + " ;\n"
    site.files.own_partitions.write_text(long)
    text = site.files.partitions.read_text()
    assert manager.enforce(site.desire(*desired.members)) is False
    assert site.files.partitions.read_text() == text
    (fault,) = manager.read_back(desired).faults
    assert f"{site.files.own_partitions}: line 1 has over 4000 bytes" in fault
    # An agent that has just started knows what is in force.
    again = site.backend()
    again.enforce(site.desire(*desired.members))
    assert fault in again.read_back(desired).faults
    assert keys(view, site.guids[0]) == [{0x8101}]
    # The trap is real: by hand it opens the fabric.
    site.files.partitions.write_text(long)
    site.hang_up()
    stranger = guid_text(site.guids[9])
    wait_until(lambda: 0xFFFF in view.tables([stranger])[stranger][0], "the fabric is open")
    site.files.own_partitions.write_text("# none\n")
    assert manager.enforce(site.desire(*desired.members)) is True
    look(manager, desired)
    assert keys(view, site.guids[0], site.guids[9]) == [{0x8101}, set()]


def test_a_bad_file_at_the_first_start_writes_nothing(site):
    site.files.own_partitions.write_text("Default=0x7fff : ALL=full ;\n")
    site.files.partitions.write_text("# by hand\nDefault=0x7fff, ipoib : ALL=limited, SELF=full ;")
    (site.folder / "state" / "own-partitions.last-good.conf").unlink(missing_ok=True)
    text = site.files.partitions.read_text()
    with pytest.raises(SubnetManagerError, match="line 1: ALL in the default partition"):
        site.backend().enforce(site.desire(member(1, site.guids[0])))
    assert site.files.partitions.read_text() == text


def test_own_partitions_stay_and_their_keys_are_nobodys(site, view):
    manager = site.backend()
    storage = site.guids[10]
    own = f"storage=0x0200, ipoib : ALL=limited, {guid_text(storage)}=full, SELF=full ;\n"
    site.files.own_partitions.write_text(own)
    reading = settle(manager, site.desire(member(1, site.guids[0])))
    assert states(reading) == {1: RIGHT}
    assert manager.foreign_pkeys() == {0x200}
    wait_for_keys(view, [site.guids[0], storage], [{0x8101, 0x0200}, {0x8200}])
    assert own in site.files.partitions.read_text()
    # A network with such a P_Key does not get it, and stops nobody.
    desired = site.desire(member(1, site.guids[0]), member(2, site.guids[1], 0x200))
    manager.enforce(desired)
    reading = manager.read_back(desired)
    assert states(reading) == {1: RIGHT, 2: DIFFERENT}
    assert "one of the administrator's own partitions" in reading.members[2].reason
    # It is not lost with its file, nor when that is emptied.
    for lose in (site.files.own_partitions.unlink, site.files.own_partitions.touch):
        lose()
        manager.enforce(site.desire(member(1, site.guids[0])))
        reading = manager.read_back(site.desire(member(1, site.guids[0])))
        assert "partitions of it are in force" in reading.faults[0]
        assert own in site.files.partitions.read_text()
    site.files.own_partitions.write_text("# none any more\n")
    settle(manager, site.desire(member(1, site.guids[0])))
    wait_for_keys(view, [site.guids[0], storage], [{0x8101}, set()])


def test_an_own_partition_with_a_networks_key_is_refused_by_name(site, view):
    manager = site.backend()
    desired = site.desire(member(1, site.guids[0]))
    settle(manager, desired)
    site.files.own_partitions.write_text(f"mine={A:#x} : {guid_text(site.guids[5])}=full ;\n")
    manager.enforce(site.desire(*desired.members))
    assert "P_Key 0x0101 is one that a network has" in manager.read_back(desired).faults[0]
    assert keys(view, site.guids[0], site.guids[5]) == [{0x8101}, set()]


def test_own_partitions_are_tried_on_a_fabric_of_their_own(site, view):
    manager = site.backend()
    desired = site.desire(member(1, site.guids[0]))
    settle(manager, desired)
    # For the reader it is a group; for opensm it is an error.
    site.files.own_partitions.write_text("mine=0x7001, ipoib : mgid=12::1\n SELF=full ;\n")
    manager.enforce(site.desire(*desired.members))
    (fault,) = manager.read_back(desired).faults
    assert "opensm does not take it on a simulated fabric" in fault
    assert "gid is not multicast" in fault
    assert "0x7001" not in site.files.partitions.read_text()


def test_a_port_has_31_networks_and_loses_all_but_one_without_a_stale_key(site, view):
    manager = site.backend()
    guid = site.guids[0]
    rows = [member(row, guid, 0x200 + row) for row in range(32)]
    desired = site.desire(*rows)
    manager.enforce(desired)
    wait_until(
        lambda: set(states(manager.read_back(desired)).values()) != {DIFFERENT}, "31 are right"
    )
    reading = manager.read_back(desired)
    assert [row for row, state in states(reading).items() if state is DIFFERENT] == [31]
    assert "is in 31 partitions already" in reading.members[31].reason
    assert keys(view, guid) == [{0x8200 + row for row in range(31)}]
    shrunk = site.desire(rows[7], *(member(row, guid, 0x200 + row, wanted=False) for row in (1, 2)))
    assert set(states(settle(manager, shrunk)).values()) == {RIGHT}
    assert keys(view, guid) == [{0x8207}]
