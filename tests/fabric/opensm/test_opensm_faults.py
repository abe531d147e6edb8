# SPDX-License-Identifier: Apache-2.0
"""Files, opensm, agents and cables that fail, over a real opensm on a simulated fabric."""

import time

import pytest

from nova_hpc.fabric.partitions.backends.base import (
    StaleReadingError,
    SubnetManagerError,
)
from tests.fabric.bare_fabric import wait_until
from tests.fabric.matrix import guid_text
from tests.fabric.opensm.opensm_site import (
    ABSENT,
    DIFFERENT,
    RIGHT,
    B,
    keys,
    look,
    member,
    settle,
    states,
)


@pytest.mark.parametrize("text", ["", None, "# nothing\n"])
def test_a_file_that_is_emptied_opens_the_fabric_and_is_healed(site, view, text):
    manager = site.backend()
    guid, stranger = site.guids[0], guid_text(site.guids[9])
    desired = site.desire(member(1, guid))
    settle(manager, desired)
    if text is None:
        site.files.partitions.unlink()
    else:
        site.files.partitions.write_text(text)
    site.hang_up()
    wait_until(lambda: 0xFFFF in view.tables([stranger])[stranger][0], "the fabric is open")
    reading = manager.read_back(desired)
    assert states(reading) == {1: DIFFERENT}
    time.sleep(0.6)
    assert any("the fabric is open" in fault for fault in manager.read_back(desired).faults)
    begun = time.monotonic()
    assert manager.enforce(site.desire(*desired.members)) is True
    assert any("it was written again" in fault for fault in manager.read_back(desired).faults)
    look(manager, desired)
    assert time.monotonic() - begun < 3.0
    assert keys(view, guid, site.guids[9]) == [{0x8101}, set()]


def test_a_stranger_written_in_by_hand_is_seen_and_goes(site, view):
    manager = site.backend()
    guid, stranger = site.guids[0], site.guids[9]
    desired = site.desire(member(1, guid))
    settle(manager, desired)
    line = f" {guid_text(guid)}=full;"
    text = site.files.partitions.read_text()
    assert line in text
    site.files.partitions.write_text(text.replace(line, f" {guid_text(stranger)}=full,\n{line}"))
    site.hang_up()
    wait_until(lambda: keys(view, stranger) == [{0x8101}], "the stranger is in")
    time.sleep(0.6)
    reading = manager.read_back(desired)
    assert f"port {guid_text(stranger)} has the P_Key 0x0101, too" in reading.members[1].reason
    assert manager.enforce(site.desire(*desired.members)) is True
    look(manager, desired)
    assert keys(view, guid, stranger) == [{0x8101}, set()]


def test_opensm_that_starts_with_an_old_file_is_put_right(site, view):
    manager = site.backend()
    one, two = site.guids[:2]
    settle(manager, site.desire(member(1, one)))
    old = site.files.partitions.read_text()
    settle(manager, site.desire(member(2, two)))
    site.fabric.stop("opensm")
    site.files.partitions.write_text(old)
    site.fabric.start("opensm")
    wait_until(lambda: keys(view, one, two) == [{0x8101}, set()], "the old file is in force")
    desired = site.desire(member(1, one, wanted=False), member(2, two))
    assert states(manager.read_back(desired)) == {1: DIFFERENT, 2: DIFFERENT}
    assert manager.enforce(desired) is True
    look(manager, desired)
    assert keys(view, one, two) == [set(), {0x8101}]


def test_an_agent_that_wakes_late_puts_nothing_back(site, view):
    old, new = site.backend(), site.backend()
    one, two = site.guids[:2]
    settle(old, site.desire(member(1, one)))
    late = site.desire(member(1, one), member(2, two))
    settle(new, site.desire(member(1, one)))
    # The reading in between has changed nothing, and is later all the same.
    text = site.files.partitions.read_text()
    with pytest.raises(StaleReadingError, match="another agent is at work"):
        old.enforce(late)
    old.restore()
    assert site.files.partitions.read_text() == text
    # It reads again, and goes on.
    settle(old, site.desire(member(1, one), member(2, two)))
    # What the other one wrote was not written by hand.
    desired = site.desire(member(1, one), member(2, two, wanted=False))
    new.enforce(desired)
    assert look(new, desired).faults == ()
    assert keys(view, one, two) == [{0x8101}, set()]


def test_opensm_that_is_dead_gets_the_file_when_it_starts(site, view):
    manager = site.backend()
    one, two = site.guids[:2]
    settle(manager, site.desire(member(1, one)))
    site.fabric.kill("opensm")
    desired = site.desire(member(1, one, wanted=False), member(2, two))
    for _ in range(2):
        with pytest.raises(SubnetManagerError, match="opensm does not run"):
            manager.enforce(desired)
        assert states(manager.read_back(desired)) == {1: DIFFERENT, 2: DIFFERENT}
    site.fabric.start("opensm")
    assert manager.enforce(desired) is True
    look(manager, desired)
    assert keys(view, one, two) == [set(), {0x8101}]
    assert manager.enforce(site.desire(*desired.members)) is False


def test_opensm_that_does_nothing_makes_no_member_right(site, view):
    manager = site.backend()
    one, two = site.guids[:2]
    absent = 0x0002C900_00900000
    settle(manager, site.desire(member(1, one)))
    desired = site.desire(member(1, one, wanted=False), member(2, two), member(3, absent))
    with site.fabric.frozen("opensm"):
        assert manager.enforce(desired) is True
        time.sleep(0.5)
        reading = manager.read_back(desired)
        assert {row: states(reading)[row] for row in (1, 2)} == {1: DIFFERENT, 2: DIFFERENT}
        assert "has to be 0x7fff 0x8101" in reading.members[2].reason
        assert keys(view, one, two) == [{0x8101}, set()]
    assert states(look(manager, desired)) == {1: RIGHT, 2: RIGHT, 3: ABSENT}


def test_a_port_that_comes_late_has_its_key_from_the_file_in_force(site, view):
    manager = site.backend()
    port = site.fabric.net.ports[20]
    site.fabric.tell_simulator(f'Unlink "{port.name}"')
    try:
        desired = site.desire(member(1, port.guid))
        manager.enforce(desired)
        wait_until(lambda: states(manager.read_back(desired)) == {1: ABSENT}, "it is absent", 40)
        # Not without the file.
        text = site.files.partitions.read_text()
        site.files.partitions.write_text(text.replace("=full;", "=limited;"))
        assert "is not as it was written" in manager.read_back(desired).members[1].reason
        site.files.partitions.write_text(text)
    finally:
        site.fabric.tell_simulator(f'ReLink "{port.name}"')
    wait_until(lambda: states(manager.read_back(desired)) == {1: RIGHT}, "it is right", 20)
    view.look_again()
    assert keys(view, port.guid) == [{0x8101}]


def test_a_cable_that_is_moved_is_not_judged_by_where_it_was(site, view):
    manager = site.backend()
    port = site.fabric.net.ports[30]
    desired = site.desire(member(1, port.guid))
    settle(manager, desired)
    # The last place of the last leaf is free; the table of the old one stays as it was.
    last = f"leaf{site.fabric.net.leaf_count() - 1}"
    site.fabric.tell_simulator(f'Unlink "{port.name}"', f'Link "{port.name}"[1] "{last}"[38]')
    try:
        time.sleep(1.1)
        assert states(manager.read_back(desired)) != {1: RIGHT}
        wait_until(lambda: states(manager.read_back(desired)) == {1: RIGHT}, "it is right", 40)
        view.look_again()
        assert keys(view, port.guid) == [{0x8101}]
        assert view.topology[guid_text(port.guid)][2] == 38
    finally:
        leaf, place = divmod(1 + 30, site.fabric.net.on_a_leaf)
        site.fabric.tell_simulator(
            f'Unlink "{port.name}"', f'Link "{port.name}"[1] "leaf{leaf}"[{place + 3}]'
        )


def test_a_switch_that_dies_in_a_change_leaves_no_key_behind(site, view):
    manager = site.backend()
    near, other, far = site.guids[0], site.guids[1], site.guids[50]
    assert view.topology[guid_text(near)][1] != view.topology[guid_text(far)][1]
    settle(manager, site.desire(member(1, near), member(2, far)))
    site.fabric.tell_simulator('Unlink "leaf1"')
    try:
        desired = site.desire(member(1, near), member(2, far, wanted=False), member(3, other, B))
        manager.enforce(desired)
        # What hangs on the dead switch is never right: it is gone when the fabric says so.
        seen = set()

        def has_settled():
            read = states(manager.read_back(desired))
            seen.add(read[2])
            return read == {1: RIGHT, 2: ABSENT, 3: RIGHT}

        wait_until(has_settled, "the others are right", 40)
        assert RIGHT not in seen
    finally:
        site.fabric.tell_simulator('ReLink "leaf1"')
    wait_until(lambda: states(manager.read_back(desired))[2] is RIGHT, "it is without the key", 40)
    view.look_again()
    assert keys(view, near, other, far) == [{0x8101}, {0x8102}, set()]
