# SPDX-License-Identifier: Apache-2.0
"""Two looks in a row tell a fault, four end it, and a restart or an unknown value does neither."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from hypothesis import example, given
from hypothesis import strategies as st

from nova_hpc.tenancy.watch import rules
from nova_hpc.tenancy.watch.look import DRIVER, FATAL, NONFATAL, PARENT_FATAL, DeviceLook
from nova_hpc.tenancy.watch.rules import ServerCondition, WatchedDevice
from nova_hpc.tenancy.watch.trail import CounterTrail
from nova_hpc_common.wire.server_faults import FaultWord
from tests.unit.tenancy.watch.oracle import Moment, judge_history

SERVER = "11111111-1111-1111-1111-111111111111"
WELL = DeviceLook(
    present=True,
    silent=False,
    ids="de1030231020",
    firmware="28.39.1002",
    width=16,
    speed=32.0,
    counters={FATAL: 0, NONFATAL: 3},
    ports={"mlx5_0/1": True},
)
#: A look with each fault -> the word.
FAULTS = {
    FaultWord.GONE: DeviceLook(present=False),
    FaultWord.ERRORS: attrs.evolve(WELL, counters={FATAL: 1, NONFATAL: 3}),
    FaultWord.LINK: attrs.evolve(WELL, width=8),
    FaultWord.PORT: attrs.evolve(WELL, ports={"mlx5_0/1": False}),
    FaultWord.FIRMWARE: attrs.evolve(WELL, firmware="28.40.1000"),
}
SILENT = DeviceLook(present=True, silent=True)

Step = tuple[float, ServerCondition, DeviceLook]


def run(
    steps: Iterable[Step], device: WatchedDevice | None = None
) -> list[tuple[set[FaultWord], set[FaultWord]]]:
    """What each look tells: found and cleared."""
    device = device or WatchedDevice(SERVER)
    answers = []
    for moment, standing, look in steps:
        step = rules.judge_look(device, look, standing, moment)
        device = step.device
        answers.append((set(step.found), set(step.cleared)))
    return answers


def every(seconds: float, *looks: DeviceLook | tuple[ServerCondition, DeviceLook]) -> list[Step]:
    steps = []
    for number, entry in enumerate(looks):
        standing, look = entry if isinstance(entry, tuple) else (ServerCondition.SETTLED, entry)
        steps.append((number * seconds, standing, look))
    return steps


def told(
    *looks: DeviceLook | tuple[ServerCondition, DeviceLook], seconds: float = 25.0
) -> list[str]:
    """Number of the look and its change, as ``3+link``."""
    return [
        f"{number}{sign}{word.value}"
        for number, changes in enumerate(run(every(seconds, *looks)))
        for sign, words in zip("+-", changes, strict=True)
        for word in sorted(words, key=list(FaultWord).index)
    ]


def test_each_fault_is_told_once_and_over_once() -> None:
    for word, faulty in FAULTS.items():
        looks = [WELL, WELL, faulty, faulty, faulty, faulty]
        expected = [f"3+{word.value}"]
        if word is not FaultWord.ERRORS:
            looks += [WELL] * 6
            expected.append(f"9-{word.value}")
        assert told(*looks) == expected, word
    assert told(WELL, WELL, SILENT, SILENT) == ["3+gone"]


def test_one_look_tells_nothing_and_a_fault_that_comes_and_goes_is_told_once() -> None:
    for faulty in FAULTS.values():
        assert told(*[WELL, WELL, faulty] * 8) == []
    flapping = [FAULTS[FaultWord.LINK]] * 2 + [WELL] * 3
    assert told(WELL, WELL, *flapping * 10, *[WELL] * 3) == ["3+link", "52-link"]


def test_looks_soon_after_each_other_confirm_only_an_absence() -> None:
    assert told(WELL, WELL, *[SILENT] * 10, seconds=2.0) == []
    assert told(WELL, WELL, *[SILENT] * 11, seconds=2.0) == ["12+gone"]
    assert told(WELL, WELL, *[SILENT] * 9, WELL, *[SILENT] * 9, seconds=2.0) == []
    gone = FAULTS[FaultWord.GONE]
    assert told(WELL, WELL, gone, gone, seconds=2.0) == ["3+gone"]
    assert told(WELL, WELL, gone, gone, gone, seconds=1.0) == ["4+gone"]
    # It is not over sooner for that.
    back = [WELL] * 24
    assert told(WELL, WELL, gone, gone, *back, seconds=2.0) == ["3+gone", "27-gone"]


def test_nova_s_tasks_begin_the_confirmation_again() -> None:
    link = FAULTS[FaultWord.LINK]
    for standing in (ServerCondition.BUSY, ServerCondition.RESTART):
        assert told(WELL, WELL, link, (standing, link), link, link) == ["5+link"]
        assert told(WELL, WELL, *[(standing, link)] * 9, WELL) == []
    for change in ({"asleep": True}, {"resetting": True}):
        assert told(WELL, WELL, link, attrs.evolve(link, **change), link, link) == ["5+link"]
    # And an end is confirmed again, too.
    busy = (ServerCondition.BUSY, WELL)
    looks = [WELL, WELL, link, link, WELL, WELL, WELL, busy, WELL, WELL, WELL, WELL]
    assert told(*looks) == ["3+link", "11-link"]


def test_a_server_that_left_is_told_nothing_more() -> None:
    link = FAULTS[FaultWord.LINK]
    away = (ServerCondition.AWAY, link)
    assert told(WELL, WELL, link, link, away, away) == ["3+link", "4-link"]
    # Its device is compared with what it shows from then on.
    assert told(WELL, WELL, away, link, link, link) == []


def test_a_guest_that_starts_again_has_new_errors_and_firmware_but_the_same_link() -> None:
    restart = (ServerCondition.RESTART, SILENT)
    fatal, firmware = FAULTS[FaultWord.ERRORS], FAULTS[FaultWord.FIRMWARE]
    for word, faulty in ((FaultWord.ERRORS, fatal), (FaultWord.FIRMWARE, firmware)):
        looks = [WELL, WELL, faulty, faulty, restart, *[faulty] * 7]
        (found, cleared) = told(*looks)
        assert (found, cleared[-len(word.value) - 1 :]) == (f"3+{word.value}", f"-{word.value}")
    link = FAULTS[FaultWord.LINK]
    assert told(WELL, WELL, link, link, restart, *[link] * 9) == ["3+link"]
    # Errors of a reset are no fault.
    assert told(WELL, WELL, (ServerCondition.RESTART, fatal), fatal, fatal, fatal) == []


def test_two_comparisons_of_guests_are_believed_at_once() -> None:
    left = attrs.evolve(WELL, left_guest=True)
    assert told(WELL, left, left) == ["1+gone"]
    assert told(WELL, (ServerCondition.BUSY, left), left) == ["2+gone"]


def test_only_a_port_that_was_active_can_be_down() -> None:
    down, unknown = FAULTS[FaultWord.PORT], attrs.evolve(WELL, ports={})
    assert told(*[down] * 9) == []
    assert told(down, down, WELL, down, down, down) == []  # one look is no proof of it, either
    assert told(WELL, WELL, *[unknown] * 9) == []
    assert told(WELL, WELL, down, unknown, down) == []


def test_a_misread_best_value_is_not_kept() -> None:
    wide = attrs.evolve(WELL, width=32)
    assert told(WELL, wide, WELL, WELL, WELL) == []
    assert told(attrs.evolve(WELL, ids="00"), *[WELL] * 9) == []


def test_nonfatal_errors_are_tolerated_as_between_two_servers() -> None:
    def looks(*counts: int) -> list[DeviceLook]:
        return [attrs.evolve(WELL, counters={NONFATAL: count}) for count in counts]

    assert told(*looks(3, 3, *[4] * 9)) == []
    assert told(*looks(3, 3, 4, *[5] * 9)) == ["4+errors"]
    # One that goes back was a misreading.
    assert told(*looks(3, 3, 9, 3, 9, 3, 9, 3)) == []
    # One each hour is tolerated; they are not added up.
    hours = [(3700.0 * number, 3 + number) for number in range(20)]
    steps = [
        (start + second, ServerCondition.SETTLED, looks(count)[0])
        for start, count in hours
        for second in (0.0, 15.0, 30.0)
    ]
    assert all(answer == (set(), set()) for answer in run(steps))


def test_errors_are_over_an_hour_after_the_last() -> None:
    fatal = FAULTS[FaultWord.ERRORS]
    steps = every(15.0, WELL, WELL, *[fatal] * 260)
    changes = [(step[0], answer) for step, answer in zip(steps, run(steps), strict=True)]
    (found,) = (moment for moment, (new, _) in changes if new)
    (over,) = (moment for moment, (_, old) in changes if old)
    assert found == 60.0
    assert over == 30.0 + 3600.0 + 45.0


def test_a_counter_that_falls_begins_again_after_two_looks() -> None:
    def trail(*values: int) -> CounterTrail:
        result = CounterTrail.begun(0.0, values[0])
        for number, value in enumerate(values[1:]):
            result = result.then(15.0 * (number + 1), value)
        return result

    assert trail(5, 0, 5).growth(5) == 0
    assert trail(5, 0, 0, 1).growth(1) == 1
    assert trail(5, 0, 2, 2).growth(2) == 0
    assert trail(5, 6, 5, 5).growth(6) == 1


_TIMES = st.sampled_from([2.0, 8.0, 15.0, 15.0, 15.0, 15.0, 47.0, 2000.0])
_STANDINGS = st.sampled_from([ServerCondition.SETTLED] * 9 + list(ServerCondition))
_GROWTH = st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, 2])
_WIDTHS = st.sampled_from([None, 8, 16, 16, 16, 16, 16])


@st.composite
def histories(draw: st.DrawFn) -> list[Moment]:
    """Looks at one device; the faults of a moment often last for some looks."""
    history: list[Moment] = []
    time, counters = 0.0, {FATAL: 0, NONFATAL: 0, PARENT_FATAL: 4, DRIVER: 0}
    look = WELL
    for _ in range(draw(st.integers(1, 24))):
        time += draw(_TIMES)
        if draw(st.booleans()):
            width = draw(_WIDTHS)
            look = DeviceLook(
                present=draw(st.sampled_from([True] * 8 + [False, None])),
                silent=draw(st.sampled_from([False] * 8 + [True, None])),
                asleep=draw(st.sampled_from([False] * 9 + [True])),
                left_guest=draw(st.sampled_from([False] * 19 + [True])),
                ids=draw(st.sampled_from(["a", "a", "a", "b", None])),
                width=width,
                speed=draw(st.sampled_from([None, 16.0, 32.0, 32.0])),
                ports=draw(st.sampled_from([{}, {"p/1": True}, {"p/1": True}, {"p/1": False}])),
            )
            counters = {name: value + draw(_GROWTH) for name, value in counters.items()}
        shown = {name for name in counters if draw(st.integers(0, 9))}
        look = attrs.evolve(look, counters={name: counters[name] for name in sorted(shown)})
        history.append(Moment(time, draw(_STANDINGS), look))
    return history


@given(st.lists(histories(), min_size=1, max_size=3))
@example([[Moment(15.0 * n, ServerCondition.SETTLED, WELL if n < 2 else SILENT) for n in range(4)]])
def test_the_rules_are_the_brute_force_s(node: list[list[Moment]]) -> None:
    """Every device of a node, at every look."""
    for history in node:
        steps = [(moment.time, moment.standing, moment.look) for moment in history]
        assert run(steps) == judge_history(history)


@given(histories())
def test_a_state_that_is_still_does_not_change(history: list[Moment]) -> None:
    """The watch skips a look like the last one if the state is still."""
    device = WatchedDevice(SERVER)
    for moment in history:
        device = rules.judge_look(device, moment.look, moment.standing, moment.time).device
        again = rules.judge_look(
            device, moment.look, ServerCondition.SETTLED, moment.time + 15
        ).device
        if again == device and device.still:
            later = rules.judge_look(
                again, moment.look, ServerCondition.SETTLED, moment.time + 9999
            )
            assert (later.device, later.found, later.cleared) == (device, frozenset(), frozenset())
