# SPDX-License-Identifier: Apache-2.0
"""What Neutron is told of a row, over time."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric.partitions.backends.base import MemberReading, MemberState, ReadBack
from nova_hpc.fabric.partitions.members import ACTIVE, DOWN, ERROR, DesiredPartitions
from nova_hpc.fabric.partitions.members import PartitionMember as Member
from nova_hpc.fabric.partitions.report_choice import (
    REPEATS,
    MemberReports,
    ReportOptions,
    choose_reports,
    count_repeats,
    list_overdue_alarms,
    update_histories,
)

RIGHT = MemberReading(MemberState.AS_DESIRED)
WRONG = MemberReading(MemberState.DIFFERENT, "a stale key")
ABSENT = MemberReading(MemberState.NOT_ON_FABRIC, "not on the fabric")
SILENT = MemberReading(MemberState.UNKNOWN, "no answer")
LOST = MemberReading(MemberState.DIFFERENT, "no key", kept=False)
SEEN = MemberReading(MemberState.AS_DESIRED, kept=True)
OPTIONS = ReportOptions(member_timeout=30.0)
ABSENT_TOO = attrs.evolve(OPTIONS, activate_absent_ports=True)
ROW = Member(1, "port", 0xA, 0x101, port_status=DOWN)


class Rounds:
    """An agent's rounds with one row."""

    def __init__(self, options=OPTIONS):
        self.options = options
        self.histories = {}

    def report(self, moment, entry, status=DOWN, wanted=True):
        """What is said after a look at *moment*."""
        row = attrs.evolve(ROW, port_status=status, wanted=wanted)
        desired = DesiredPartitions(1, (row,))
        reading = ReadBack({} if entry is None else {1: entry})
        self.histories = update_histories(self.histories, desired, reading, self.options, moment)
        reports = choose_reports(desired, reading, self.histories, self.options, moment)
        self.histories = count_repeats(self.histories, reports)
        return reports

    def alarms(self, moment, entry, status, wanted=True):
        """The sentences on its port after a look at *moment*."""
        self.report(moment, entry, status, wanted)
        row = attrs.evolve(ROW, port_status=status, wanted=wanted)
        desired = DesiredPartitions(1, (row,))
        reading = ReadBack({1: entry})
        return list_overdue_alarms(desired, reading, self.histories, self.options, moment)


@pytest.mark.parametrize("status", [DOWN, ERROR])
def test_a_member_is_present_until_its_status_is_right(status) -> None:
    rounds = Rounds()
    assert rounds.report(0.0, RIGHT, status) == MemberReports(present=(1,))
    assert rounds.report(0.1, RIGHT, status) == MemberReports(present=(1,))
    assert rounds.report(0.2, RIGHT, ACTIVE).is_empty()


def test_a_member_fails_once_after_the_operators_time() -> None:
    rounds = Rounds()
    assert rounds.report(0.0, WRONG).is_empty()
    assert rounds.report(29.9, WRONG).is_empty()
    failed = MemberReports(failed=((1, "a stale key (after 30 seconds)"),))
    assert rounds.report(30.0, WRONG) == failed
    # The report was lost.
    assert rounds.report(31.0, WRONG) == failed
    assert rounds.report(32.0, WRONG, ERROR).is_empty()
    assert rounds.report(33.0, RIGHT, ERROR) == MemberReports(present=(1,))


def test_the_time_counts_from_when_it_went_wrong() -> None:
    rounds = Rounds()
    assert rounds.report(0.0, RIGHT, ACTIVE).is_empty()
    assert rounds.report(1000.0, WRONG, ACTIVE).is_empty()
    assert rounds.report(1001.0, RIGHT, ACTIVE).is_empty()
    assert rounds.report(1020.0, WRONG, ACTIVE).is_empty()
    assert rounds.report(1049.0, WRONG, ACTIVE).is_empty()
    assert rounds.report(1050.0, WRONG, ACTIVE).failed


def test_a_port_that_is_not_there_fails_or_is_active_as_the_operator_says() -> None:
    rounds = Rounds()
    assert rounds.report(0.0, ABSENT).is_empty()
    ((row, reason),) = rounds.report(30.0, ABSENT).failed
    assert row == 1
    assert "activate_absent_ports" in reason
    assert Rounds(ABSENT_TOO).report(0.0, ABSENT) == MemberReports(present=(1,))


@pytest.mark.parametrize("options", [OPTIONS, ABSENT_TOO])
@pytest.mark.parametrize("entry", [ABSENT, SILENT])
def test_a_port_that_leaves_the_fabric_fails_after_the_operators_time(entry, options) -> None:
    rounds = Rounds(options)
    rounds.report(0.0, SEEN, ACTIVE)
    assert rounds.report(1.0, entry, ACTIVE).is_empty()
    assert rounds.alarms(30.0, entry, ACTIVE) == ()
    ((row, reason),) = rounds.report(31.0, entry, ACTIVE).failed
    assert (row, entry.reason in reason) == (1, True)
    (alarm,) = rounds.alarms(31.0, entry, ERROR)
    assert alarm == f"port port of Neutron: {entry.reason}, for over 30 seconds"
    assert rounds.report(32.0, SEEN, ERROR).present == (1,)
    assert rounds.alarms(32.0, SEEN, ERROR) == ()


@pytest.mark.parametrize("entry", [WRONG, SILENT])
def test_a_key_that_does_not_leave_is_an_alarm_after_the_operators_time(entry) -> None:
    """Before: the row of a deleted port was never gone, and nothing told of it."""
    rounds = Rounds()
    rounds.report(0.0, SEEN, ACTIVE)
    assert rounds.alarms(100.0, entry, None, wanted=False) == ()
    assert rounds.alarms(129.0, entry, None, wanted=False) == ()
    (alarm,) = rounds.alarms(130.0, entry, None, wanted=False)
    assert alarm == (
        "port port of Neutron is no member of P_Key 0x0101 any more, and its physical port may "
        f"still have the key: {entry.reason}, for over 30 seconds"
    )
    assert rounds.alarms(131.0, RIGHT, None, wanted=False) == ()
    assert rounds.alarms(200.0, ABSENT, None, wanted=False) == ()


def test_an_active_port_without_its_key_is_lost_at_once_and_fails_later() -> None:
    rounds = Rounds()
    rounds.report(0.0, SEEN, ACTIVE)
    assert rounds.report(1.0, LOST, ACTIVE) == MemberReports(lost=((1, "no key"),))
    assert rounds.report(2.0, LOST, DOWN).is_empty()
    assert rounds.report(31.0, LOST, DOWN).failed == ((1, "no key (after 30 seconds)"),)
    # A key beside its own: it still is a member, until the time is over.
    extra = MemberReading(MemberState.DIFFERENT, "a stale key", kept=True)
    rounds = Rounds()
    assert rounds.report(0.0, extra, ACTIVE).is_empty()
    assert rounds.report(30.0, extra, ACTIVE).failed


def test_what_was_not_read_is_not_wrong_where_it_was_right() -> None:
    rounds = Rounds()
    rounds.report(0.0, RIGHT, ACTIVE)
    rounds.report(1.0, None, ACTIVE)
    assert rounds.report(1000.0, None, ACTIVE).is_empty()
    rounds = Rounds()
    rounds.report(0.0, None)
    assert rounds.report(30.0, None).failed == (
        (1, "its P_Key table could not be read (after 30 seconds)"),
    )


@pytest.mark.parametrize(
    ("entry", "gone"), [(RIGHT, (1,)), (ABSENT, (1,)), (WRONG, ()), (SILENT, ()), (None, ())]
)
def test_a_row_is_gone_when_its_key_is(entry, gone) -> None:
    rounds = Rounds()
    for status in (None, DOWN, ACTIVE, ERROR):
        assert rounds.report(100.0, entry, status, wanted=False) == MemberReports(gone=gone)


def test_nothing_is_said_of_a_port_that_is_gone() -> None:
    assert Rounds().report(0.0, RIGHT, None).is_empty()
    rounds = Rounds()
    rounds.report(0.0, WRONG, None)
    assert rounds.report(1000.0, WRONG, None).is_empty()


def test_nova_is_told_again_a_bounded_number_of_times() -> None:
    rounds = Rounds()
    assert rounds.report(0.0, RIGHT).present
    moments = [
        step / 10
        for step in range(1, 6000)
        if rounds.report(100.0 + step / 10, RIGHT, ACTIVE).repeat
    ]
    assert [round(moment - 0.1, 1) for moment in moments] == list(REPEATS)
    # The port is bound once more.
    assert rounds.report(800.0, RIGHT).present
    assert rounds.report(801.0, RIGHT, ACTIVE).is_empty()
    assert rounds.report(802.0, RIGHT, ACTIVE).repeat


def test_ports_that_were_active_when_the_agent_started_are_not_repeated() -> None:
    rounds = Rounds()
    assert all(rounds.report(float(moment), RIGHT, ACTIVE).is_empty() for moment in range(500))


def test_rows_that_are_gone_are_forgotten() -> None:
    rounds = Rounds()
    rounds.report(0.0, WRONG)
    assert update_histories(rounds.histories, DesiredPartitions(2), ReadBack({}), OPTIONS, 1) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from((RIGHT, WRONG, ABSENT, None)),
            st.sampled_from((ACTIVE, DOWN, ERROR, None)),
            st.booleans(),
            st.floats(0.0, 60.0),
        ),
        max_size=30,
    ),
    st.booleans(),
)
def test_no_wrong_member_is_ever_present_and_none_is_said_twice(steps, absent) -> None:
    rounds = Rounds(ABSENT_TOO if absent else OPTIONS)
    moment = 0.0
    for entry, status, wanted, pause in steps:
        moment += pause
        reports = rounds.report(moment, entry, status, wanted)
        rows = (*reports.present, *reports.gone, *reports.repeat, *dict(reports.failed))
        assert len(rows) <= 1
        if reports.present or reports.repeat:
            assert wanted
            assert entry is RIGHT or (entry is ABSENT and (absent or status == ACTIVE))
        if reports.gone:
            assert not wanted
            assert entry in (RIGHT, ABSENT)
        if reports.failed:
            assert wanted
            assert entry is not RIGHT
