# SPDX-License-Identifier: Apache-2.0
"""The agent's rounds, with a model of what is around it."""

import itertools
import math

import attrs
import pytest

from nova_hpc.fabric.partitions import agent_round
from nova_hpc.fabric.partitions.backends.base import (
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.first_write import audit_first_write
from nova_hpc.fabric.partitions.members import ACTIVE, DOWN, ERROR
from nova_hpc.fabric.partitions.pass_spacing import PassSpacing
from nova_hpc.fabric.partitions.report_choice import MOST_REPORTED, MemberReports, split_reports
from tests.unit.fabric_partitions.agent_world import KEYS, Bench


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


# -- binding and unbinding ---------------------------------------------------------------


def test_a_member_is_made_read_back_and_reported_in_one_round(bench):
    bench.server.bind(1, 0xA)
    pause = bench.agent.make_round()
    assert bench.manager.tables == {(0xA, 0x101)}
    assert bench.server.status(1) == ACTIVE
    assert bench.time.at - 1000.0 < 0.2
    assert pause <= 5.0
    assert bench.agent.status.ticket == 1
    assert bench.agent.status.foreign_pkeys == (0x11, 0x22)
    assert bench.alarms == []


def test_what_is_unbound_goes_and_its_row_is_reported_gone(bench):
    bench.server.bind(1, 0xA)
    bench.agent.make_round()
    bench.server.unbind(1)
    bench.agent.make_round()
    assert bench.manager.tables == frozenset()
    assert bench.server.rows == {}
    assert bench.server.reports[-1].gone == (1,)


def test_a_row_that_comes_late_is_seen_by_the_next_round(bench):
    bench.manager.delay = 4.0
    bench.server.bind(1, 0xA)
    pause = bench.agent.make_round()
    assert bench.server.status(1) == DOWN
    assert pause < 1.0
    bench.run(4.0)
    assert bench.server.status(1) == ACTIVE
    assert len(bench.manager.writes) == 1


def test_at_rest_it_asks_once_in_the_poll_interval(bench):
    bench.run(7.0)
    calls = bench.server.calls
    bench.run(50.0)
    assert bench.server.calls - calls <= 11


def test_a_wake_ends_the_sleep(bench):
    bench.time.later(2.0, lambda: (bench.server.bind(1, 0xA), bench.time.set()))
    bench.run(2.4)
    assert bench.server.status(1) == ACTIVE


def test_a_port_that_is_not_on_the_fabric_is_not_active_and_then_failed(bench):
    bench.manager.absent = {0xA}
    bench.server.bind(1, 0xA)
    bench.run(20.0)
    assert bench.server.status(1) == DOWN
    bench.run(20.0)
    assert bench.server.status(1) == ERROR
    bench.manager.absent = set()
    bench.run(6.0)
    assert bench.server.status(1) == ACTIVE


def test_what_does_not_come_is_looked_after_less_and_less(bench):
    bench.server.bind(1, 0xA)
    bench.manager.delay = math.inf
    bench.run(600.0)
    assert bench.server.status(1) == ERROR
    looks, calls = bench.agent.looks, bench.server.calls
    bench.run(100.0)
    assert bench.agent.looks - looks <= 22
    assert bench.server.calls - calls <= 22


def test_nova_is_told_again_in_time(bench):
    bench.server.bind(1, 0xA)
    bench.run(300.0)
    repeats = [reports for reports in bench.server.reports if reports.repeat]
    assert len(repeats) == 7
    assert bench.server.status(1) == ACTIVE


# -- many at once ------------------------------------------------------------------------


def test_64_binds_by_16_clients_of_a_slow_neutron_are_few_changes(bench):
    """Each client binds its next port when one is active; Neutron needs a second for a bind.

    Without a pause as long as the last round there are 23.
    """
    bench.server.seconds = 2.0
    waiting, rows, committed = set(), iter(range(64)), [bench.time.at]

    def bind_next():
        row = next(rows, None)
        if row is not None:
            committed.append(max(bench.time.at, committed[-1] + 1.0))
            bench.time.later(committed[-1] - bench.time.at, lambda: commit(row))

    def commit(row):
        bench.server.bind(row, 0x100 + row)
        waiting.add(row)
        bench.time.set()

    def look():
        for row in [row for row in waiting if bench.server.status(row) == ACTIVE]:
            waiting.remove(row)
            bind_next()
        bench.time.later(0.1, look)

    for _ in range(16):
        bind_next()
    look()
    bench.run(150.0)
    assert {bench.server.status(row) for row in range(64)} == {ACTIVE}
    assert len(bench.manager.writes) <= 10


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.4])
def test_64_binds_at_once_are_at_most_8_changes(bench, seconds):
    bench.server.seconds = seconds
    for row in range(64):
        bench.time.later(
            1.0 + row * 0.02,
            lambda row=row: (bench.server.bind(row, 0x100 + row), bench.time.set()),
        )
    bench.run(12.0)
    assert {bench.server.status(row) for row in range(64)} == {ACTIVE}
    assert len(bench.manager.writes) <= 8
    assert bench.manager.writes[0][0] - 1001.0 < 0.1
    assert all(
        len(each.present) + len(each.gone) + len(each.lost) + len(each.failed) + len(each.repeat)
        <= 8
        for each in bench.server.reports
    )


def test_changes_that_follow_one_another_are_spaced_and_a_first_one_never_waits():
    spacing = PassSpacing()
    moments, at = [], 0.0
    for _ in range(8):
        at += spacing.time_left(at)
        moments.append(at)
        spacing.note_change(at)
    assert moments[0] == 0.0
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert gaps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 1.6, 1.6])
    assert spacing.time_left(at + 10.0) == 0.0
    spacing.note_change(at + 10.0)
    assert spacing.time_left(at + 10.0) == pytest.approx(0.1)
    # A round that took long for its reports: Neutron is slow, and more comes with one change.
    spacing.note_end(at + 10.0, at + 13.0)
    assert spacing.time_left(at + 13.0) == pytest.approx(3.0)
    spacing.note_end(at + 10.0, at + 90.0)
    assert spacing.time_left(at + 90.0) == pytest.approx(4.0)


def test_reports_are_cut_into_parts_and_nothing_is_lost():
    kinds = ("present", "gone", "lost", "failed", "repeat")
    reports = MemberReports(
        tuple(range(10)),
        tuple(range(20, 25)),
        ((28, "why"),),
        ((30, "why"), (31, "why")),
        (40,),
    )
    parts = list(split_reports(reports))
    assert [sum(len(getattr(part, kind)) for kind in kinds) for part in parts] == [8, 8, 3]
    assert parts[0].gone == tuple(range(20, 25))
    for kind in kinds:
        assert tuple(entry for part in parts for entry in getattr(part, kind)) == getattr(
            reports, kind
        )
    assert list(split_reports(MemberReports())) == []


# -- what goes wrong ---------------------------------------------------------------------


def test_a_server_that_is_away_ends_nothing_and_is_asked_again(bench):
    bench.server.bind(1, 0xA)
    bench.server.away_until = bench.time.at + 60.0
    bench.run(61.0)
    bench.run(12.0)
    assert bench.server.status(1) == ACTIVE
    assert "the agent's round failed: TimeoutError: no answer in 10 seconds" in bench.new_alarms()
    assert bench.agent.status.faults == ()


def test_a_file_that_is_edited_while_the_server_is_away_is_healed(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.server.away_until = bench.time.at + 1000.0
    moment = bench.time.at + 2.0
    bench.time.later(2.0, lambda: bench.manager._write(frozenset()))
    bench.run(15.0)
    healed = [at for at, entries in bench.manager.writes if entries == {(0xA, 0x101)}][-1]
    # Not only when the server's time is over.
    assert 0 <= healed - moment <= 0.6


def test_a_manager_that_is_away_ends_no_question_to_the_server(bench):
    """The file is edited, and opensm does not run, while Neutron's answer is awaited."""
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.manager.is_running = False
    bench.manager.path.write_text("edited")
    bench.agent._keep_in_force()
    bench.manager.is_running = True
    bench.run(2.0)
    assert bench.manager.file == {(0xA, 0x101)}
    assert bench.server.status(1) == ACTIVE


def test_a_file_that_is_edited_is_healed_within_the_bound(bench):
    bench.server.bind(1, 0xA)
    bench.run(400.0)
    moment = bench.time.at + 1.2
    bench.time.later(1.2, lambda: bench.manager._write(frozenset({(0xB, 0x101)})))
    bench.run(3.0)
    healed = [at for at, entries in bench.manager.writes if entries == {(0xA, 0x101)}][-1]
    assert 0 < healed - moment <= 0.6


def test_a_stale_reading_is_read_again_at_once(bench):
    bench.run(1.0)
    bench.server.bind(1, 0xA)
    bench.server.stale = 3
    moment = bench.time.at
    bench.agent.make_round()
    assert bench.server.status(1) == ACTIVE
    assert bench.time.at - moment < 0.2


def test_an_agent_that_is_always_stale_keeps_trying_and_writes_nothing(bench):
    bench.run(1.0)
    writes = len(bench.manager.writes)
    bench.server.bind(1, 0xA)
    bench.server.stale = 10**6
    bench.run(30.0)
    assert len(bench.manager.writes) == writes
    assert any("readings were stale" in text for text in bench.new_alarms())
    bench.server.stale = 0
    bench.run(6.0)
    assert bench.server.status(1) == ACTIVE


def test_a_manager_that_is_away_keeps_what_is_in_force_and_is_told_when_it_is_back(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.manager.is_running = False
    bench.server.bind(2, 0xB)
    bench.time.set()
    bench.run(5.0)
    assert bench.manager.tables == {(0xA, 0x101)}
    assert (bench.server.status(1), bench.server.status(2)) == (ACTIVE, DOWN)
    assert not any("undone" in text for text in bench.new_alarms())
    assert "the subnet manager: opensm does not run" in bench.agent.status.faults
    bench.manager.is_running = True
    bench.run(1.5)
    assert bench.server.status(2) == ACTIVE
    assert bench.agent.status.faults == ()
    assert ((), ("the subnet manager: opensm does not run",)) in bench.alarms


def test_a_reader_that_died_is_an_alarm_and_is_tried_again(bench):
    bench.server.bind(1, 0xA)
    bench.manager.unreadable = True
    bench.run(3.0)
    assert bench.server.status(1) == DOWN
    assert any("the reader has died" in text for text in bench.new_alarms())
    bench.manager.unreadable = False
    bench.run(6.0)
    assert bench.server.status(1) == ACTIVE


def test_a_change_that_does_harm_is_undone_and_tried_later(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    # With the second member opensm drops the file, and everybody can reach everybody.
    bench.manager.spoils = lambda entries: len(entries) > 1
    bench.server.bind(2, 0xB)
    bench.time.set()
    bench.run(3.0)
    assert bench.manager.tables == {(0xA, 0x101)}
    assert any("the last change did harm and was undone" in text for text in bench.new_alarms())
    assert (bench.server.status(1), bench.server.status(2)) == (ACTIVE, DOWN)
    written = len(bench.manager.writes)
    bench.run(62.0)
    # At growing intervals, and each time undone.
    tries = [entries for _, entries in bench.manager.writes[written:] if len(entries) > 1]
    assert 2 <= len(tries) <= 5
    assert bench.manager.tables == {(0xA, 0x101)}
    assert bench.server.status(1) == ACTIVE
    bench.manager.spoils = None
    bench.run(70.0)
    assert bench.server.status(2) == ACTIVE
    assert bench.agent.status.faults == ()


def test_a_row_that_did_harm_does_not_keep_other_rows_waiting(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.manager.spoils = lambda entries: (0xB, 0x101) in entries
    bench.server.bind(2, 0xB)
    bench.time.set()
    bench.run(3.0)
    # Another project's port comes while the bad row is kept back.
    bench.server.bind(3, 0xC, 0x102)
    bench.time.set()
    bench.run(1.0)
    assert bench.server.status(3) == ACTIVE
    assert bench.server.status(2) == DOWN
    assert (0xB, 0x101) not in bench.manager.file


def test_innocent_rows_of_one_harmful_change_are_served_soon(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.manager.spoils = lambda entries: (0xB4, 0x102) in entries
    for row in range(2, 10):
        bench.server.bind(row, 0xB0 + row, 0x100 + row // 2)
    bench.server.bind(20, 0xB4, 0x102)
    bench.time.set()
    bench.run(120.0)
    innocents = [row for row in range(2, 10) if row != 4]
    assert {bench.server.status(row) for row in (1, *innocents)} == {ACTIVE}
    assert bench.server.status(20) == ERROR


def test_a_row_that_is_undone_after_it_was_active_goes_down(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.manager.spoils = lambda entries: len(entries) > 1
    bench.manager.delay = 1.0
    bench.server.bind(2, 0xB)
    bench.server.rows[2] = attrs.evolve(bench.server.rows[2], port_status=ACTIVE)
    bench.time.set()
    bench.run(4.0)
    assert bench.manager.file == {(0xA, 0x101)}
    assert bench.server.status(2) == DOWN


def test_a_first_change_that_opens_the_fabric_is_undone(bench):
    bench.run(1.0)
    bench.manager.spoils = lambda entries: len(entries) > 0
    bench.server.bind(1, 0xA)
    bench.time.set()
    bench.run(6.0)
    assert bench.manager.tables == frozenset()
    assert bench.server.status(1) == DOWN


def test_settings_that_open_the_fabric_are_refused_and_no_row_is_undone(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    # The administrator's own partitions: another file with the same rows.
    bench.manager.spoils = lambda entries: True
    bench.time.later(1.0, lambda: bench.manager.path.unlink())
    bench.run(4.0)
    assert bench.manager.refusals == 1
    assert bench.manager.file == {(0xA, 0x101)}


# -- one port's fault is that port's fault -------------------------------------------------


@pytest.mark.parametrize("fault", ["hung", "absent", "own table"])
def test_one_bad_port_stops_no_bind_of_others(bench, fault):
    """Row 2 of the attack: one settled member is wrong, and another project binds five ports."""
    bench.server.bind(1, 0xA)
    bench.run(70.0)
    if fault == "own table":
        bench.manager._take = lambda entries: setattr(
            bench.manager, "tables", entries - {(0xA, 0x101)}
        )
        bench.manager._take(bench.manager.tables)
    else:
        getattr(bench.manager, fault).add(0xA)
    writes = len(bench.manager.writes)
    for row in range(2, 7):
        bench.server.bind(row, 0xB0 + row, 0x102)
    bench.time.set()
    bench.run(2.0)
    assert {bench.server.status(row) for row in range(2, 7)} == {ACTIVE}
    assert len(bench.manager.writes) == writes + 1
    bench.run(60.0)
    assert {bench.server.status(row) for row in range(2, 7)} == {ACTIVE}
    assert bench.server.status(1) == ERROR
    assert all((0xB0 + row, 0x102) in bench.manager.file for row in range(2, 7))
    assert not any("undone" in text for text in bench.new_alarms())


def test_a_row_that_stays_wrong_after_an_undo_causes_no_other_undo(bench):
    bench.server.bind(1, 0xA)
    bench.run(70.0)
    real = bench.manager._take
    bench.manager._take = lambda entries: real(entries - {(0xA, 0x101)})
    bench.manager._take(bench.manager.tables)
    # The same project binds more ports: once its change may have been the cause, then never.
    for row in range(2, 6):
        bench.server.bind(row, 0xB0 + row)
        bench.time.set()
        bench.run(2.0)
    bench.run(30.0)
    undone = [text for text in bench.new_alarms() if "did harm and was undone" in text]
    assert len(undone) <= 1
    assert {bench.server.status(row) for row in range(2, 6)} == {ACTIVE}


def test_an_active_port_without_its_key_is_down_within_one_round(bench):
    bench.server.bind(1, 0xA)
    bench.server.bind(2, 0xB, 0x102)
    bench.run(70.0)
    bench.time.later(1.0, lambda: setattr(bench.manager, "tables", frozenset({(0xB, 0x102)})))
    bench.run(1.0 + 5.0 + agent_round.LOOK_BOUND + 0.1)
    assert (bench.server.status(1), bench.server.status(2)) == (DOWN, ACTIVE)
    bench.run(40.0)
    assert bench.server.status(1) == ERROR
    bench.manager.tables = frozenset({(0xA, 0x101), (0xB, 0x102)})
    bench.run(6.0)
    assert bench.server.status(1) == ACTIVE


@pytest.mark.parametrize("fault", ["hung", "absent"])
def test_an_active_port_off_the_fabric_is_an_alarm_and_an_error_after_a_while(bench, fault):
    bench.server.bind(1, 0xA)
    bench.run(70.0)
    getattr(bench.manager, fault).add(0xA)
    bench.run(25.0)
    assert bench.server.status(1) == ACTIVE
    assert bench.new_alarms() == []
    bench.run(12.0)
    assert bench.server.status(1) == ERROR
    assert any("port port-1 of Neutron" in text for text in bench.new_alarms())
    getattr(bench.manager, fault).clear()
    bench.run(6.0)
    assert bench.server.status(1) == ACTIVE
    assert bench.agent.status.faults == ()


def test_a_row_of_a_hung_port_is_not_gone_before_its_switch_was_read(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.manager.hung.add(0xA)
    bench.server.unbind(1)
    bench.run(20.0)
    assert 1 in bench.server.rows
    bench.manager.hung.clear()
    bench.run(6.0)
    assert bench.server.rows == {}


def test_the_status_has_the_guids_of_all_managers(bench):
    assert bench.agent.status.managers is None
    bench.manager.managers = frozenset({0xF, 0xE})
    bench.run(1.0)
    assert bench.agent.status.managers == (0xE, 0xF)
    bench.manager.managers = None
    bench.run(6.0)
    assert bench.agent.status.managers == (0xE, 0xF)


def test_a_change_that_only_takes_its_time_is_not_taken_back(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.manager.delay = 6.0
    bench.server.bind(2, 0xB)
    bench.time.set()
    bench.run(8.0)
    assert not any("undone" in text for text in bench.new_alarms())
    assert bench.server.status(2) == ACTIVE
    assert bench.alarms == []


def test_the_change_of_a_members_own_port_is_no_harm(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.manager.delay = 6.0
    bench.server.unbind(1)
    bench.server.bind(2, 0xA)
    bench.time.set()
    bench.run(10.0)
    assert not any("undone" in text for text in bench.new_alarms())
    assert bench.server.status(2) == ACTIVE


def test_the_first_change_of_a_new_agent_must_not_harm_either(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    # The first member loses its key, and the manager finds nothing wrong with that.
    bench.manager.spoils = lambda entries: len(entries) > 1
    bench.manager.spoiled = frozenset({(0xB, 0x101)})
    bench.server.bind(2, 0xB)
    bench.agent = bench.make_agent()
    bench.run(3.0)
    assert bench.manager.tables == {(0xA, 0x101)}
    assert (bench.server.status(1), bench.server.status(2)) == (ACTIVE, DOWN)


def test_what_others_break_in_the_tables_is_an_alarm_and_nothing_is_taken_back(bench):
    bench.server.bind(1, 0xA)
    bench.run(400.0)
    bench.manager.tables = frozenset()
    bench.run(6.0)
    assert any("a member that was right" in text for text in bench.new_alarms())
    assert not any("undone" in text for text in bench.new_alarms())


def test_a_fault_that_is_said_once_is_an_alarm_although_more_looks_follow(bench):
    bench.manager.faults = ("partitions.conf was changed by others; it was written again",)
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    assert bench.new_alarms() == ["partitions.conf was changed by others; it was written again"]
    assert bench.server.status(1) == ACTIVE
    assert not any("undone" in text for text in bench.new_alarms())


# -- start and end -----------------------------------------------------------------------


def test_an_open_fabric_is_refused_at_the_start(bench):
    bench.manager.config = "sa_key 0x1\n"
    rows = bench.agent.check_start()
    assert {row.name for row in rows} == {"sa_key", "sm_key", "m_key", "m_key_protection_level"}
    assert len(bench.agent.status.faults) == 4
    assert bench.manager.writes == []


def test_a_fabric_without_a_file_that_no_agent_has_managed_is_refused(bench):
    bench.manager.partitions = None
    assert [row.name for row in bench.agent.check_start()] == ["default_partition"]


def test_a_file_that_was_emptied_while_no_agent_ran_is_closed_without_networks(bench):
    """An older copy could have the keys of ports that other projects have by now."""
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.manager.partitions = ""
    bench.agent = bench.make_agent()
    assert bench.agent.check_start() == ()
    assert bench.manager.restores == 1
    assert bench.manager.file == frozenset()
    bench.run(1.0)
    assert bench.manager.tables == {(0xA, 0x101)}


def test_a_file_is_closed_although_the_manager_does_not_run(bench):
    bench.server.bind(1, 0xA)
    bench.run(7.0)
    bench.manager.partitions = ""
    restore = bench.manager.restore

    def fail_at_the_end():
        restore()
        raise SubnetManagerError("opensm does not run")

    bench.manager.restore = fail_at_the_end
    bench.agent = bench.make_agent()
    assert bench.agent.check_start() == ()


class WritesFirst:
    """What a manager has that no agent has written to: a key that a network has as well."""

    def __init__(self, manager):
        self.planned = []
        self.audit_before, manager.audit = manager.audit, self.audit
        manager.plan_first_write = self.planned.append

    def audit(self):
        losses = [] if self.planned else ["port 0x000000000000000a: 0x8101"]
        return (*self.audit_before(), audit_first_write(losses, ()))


def test_keys_of_networks_that_another_agent_serves_are_no_losses(bench):
    first = WritesFirst(bench.manager)
    assert bench.agent.check_start() == ()
    assert len(first.planned) == 1


def test_losses_wait_while_neutron_does_not_answer(bench):
    first = WritesFirst(bench.manager)

    def fail(meanwhile):
        raise TimeoutError("no broker")

    bench.server.read_desired = fail
    (row,) = bench.agent.check_start()
    assert (row.name, first.planned) == ("first_write", [])
    assert bench.manager.writes == []


def test_a_setting_that_is_changed_later_is_an_alarm(bench):
    bench.run(1.0)
    bench.manager.config = f"{KEYS}part_enforce off\n"
    bench.run(70.0)
    assert any(text.startswith("part_enforce (SDN04-04) is not met") for text in bench.new_alarms())
    assert bench.agent.status.faults == tuple(bench.new_alarms())


def test_the_end_closes_the_manager(bench):
    bench.run(1.0)
    assert bench.manager.closed


def test_the_bounds_are_those_that_the_pages_state():
    assert (agent_round.LOOK_BOUND, MOST_REPORTED) == (1.5, 8)
    assert agent_round.WATCH_INTERVAL == 0.5
