# SPDX-License-Identifier: Apache-2.0
"""The rows that are kept back for a change that did harm, and those that are not."""

from nova_hpc.fabric.partitions.backends.base import MemberReading, MemberState, ReadBack
from nova_hpc.fabric.partitions.harmful_changes import (
    ChangeWatch,
    compare_desired,
    find_lost_rows,
)
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember

RIGHT = MemberReading(MemberState.AS_DESIRED, kept=True)
LOST = MemberReading(MemberState.DIFFERENT, "its own table lacks the key", kept=False)
DOWN = MemberReading(MemberState.NOT_ON_FABRIC, "link down", kept=None)
RED, BLUE = 0x102, 0x103
#: Row 2 was right. One change adds row 3 of the same network, and row 4 of another project.
BEFORE = DesiredPartitions(1, (PartitionMember(2, "red-2", 0xB, RED),))
AFTER = DesiredPartitions(
    2,
    (
        *BEFORE.members,
        PartitionMember(3, "red-3", 0xC, RED),
        PartitionMember(4, "blue-4", 0xD, BLUE),
    ),
)


def watch_change():
    watch = ChangeWatch()
    watch.note_change(compare_desired(BEFORE, AFTER, 0.0, was_open=False))
    return watch


def undone_rows(watch, reading, moment, settled=frozenset({2, 4})):
    return watch.choose_undone(find_lost_rows(AFTER, reading, settled), reading, moment)


def test_rows_that_share_nothing_with_a_harmed_row_stay():
    """Row 3 never comes up, so the change stays on probation; row 4 is right since long."""
    watch = watch_change()
    good = ReadBack({2: RIGHT, 3: DOWN, 4: RIGHT})
    for moment in (1.0, 10.0, 25.0):
        assert undone_rows(watch, good, moment) is None
        watch.take_reading(AFTER, AFTER, good, moment)
    assert undone_rows(watch, ReadBack({2: LOST, 3: DOWN, 4: RIGHT}), 30.0) == {3}


def test_a_harmed_row_that_shares_a_guid_counts():
    shared = PartitionMember(5, "blue-5", 0xB, BLUE)
    after = DesiredPartitions(2, (*BEFORE.members, shared, PartitionMember(4, "b", 0xD, BLUE)))
    watch = ChangeWatch()
    watch.note_change(compare_desired(BEFORE, after, 0.0, was_open=False))
    bad = ReadBack({2: LOST, 5: DOWN, 4: RIGHT})
    assert watch.choose_undone(find_lost_rows(after, bad, {2}), bad, 1.0) == {5}


def test_an_open_fabric_is_put_down_to_all_rows():
    bad = ReadBack({2: RIGHT, 3: DOWN, 4: RIGHT}, opened="2 ports are full members")
    assert undone_rows(watch_change(), bad, 1.0) == {3, 4}
