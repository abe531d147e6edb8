# SPDX-License-Identifier: Apache-2.0
"""The states of a device: against a brute-force model, and against what a fleet needs."""

from __future__ import annotations

import itertools
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy import health_states as policy
from nova_hpc.tenancy.health_states import (
    AT_ONCE,
    CAPPED,
    GRAVE,
    Event,
    Moment,
    Rules,
    as_event,
    due,
    events,
    settle,
    step,
)
from nova_hpc.tenancy.sign import Sign, Symptom
from nova_hpc.wire.ledger import Device, State, Trial

RULES = Rules()
SOFT = sorted(set(Sign) - AT_ONCE, key=lambda sign: sign.value)


def symptom(sign: Sign) -> tuple[Symptom, ...]:
    return (Symptom(sign, f"it is {sign.value}"),)


def at(up: float, wall: float = 0.0, boot: str | None = "boot") -> Moment:
    return Moment(wall, up, boot)


histories = st.lists(
    st.tuples(
        st.sampled_from([None, None, *Sign]),
        st.floats(1.0, 5000.0),
        # Somebody sets the clock of the day.
        st.floats(-1e9, 1e9),
    ),
    max_size=60,
)
rules = st.builds(
    Rules,
    suspect_retry=st.floats(0, 500),
    suspect_retry_most=st.floats(0, 5000),
    suspect_tries=st.integers(2, 9),
    suspect_forgive=st.floats(0, 10000),
)


class Model:
    """The rules once more, as a person would write them down, with no shared code."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state, self.tries, self.last = "offered", 0, None

    def wait(self) -> float:
        pause = self.rules.suspect_retry
        if self.tries < 2:
            return 0
        for _ in range(self.tries - 2):
            pause = min(pause * 2, 1e12)
        return min(pause, max(self.rules.suspect_retry, self.rules.suspect_retry_most))

    def look(self, sign: Sign | None, up: float) -> str:
        if self.state == "quarantined":
            return self.state
        if sign is Sign.FAILED:
            self.state = "quarantined"
        elif self.state == "offered" and sign is not None:
            if self.last is not None and self.rules.suspect_forgive > 0:
                well = up - self.last
                while well >= self.rules.suspect_forgive and self.tries:
                    well -= self.rules.suspect_forgive
                    self.tries -= 1
            elif self.rules.suspect_forgive <= 0:
                self.tries = 0
            self.state, self.tries, self.last = "suspect", self.tries + 1, up
        elif self.state == "suspect" and up - self.last >= self.wait():
            self.last = up
            if sign is None:
                self.state = "offered"
            else:
                self.tries += 1
                if sign.value in ("silent", "lost", "changed", "errors", "master"):
                    self.state = (
                        "quarantined" if self.tries >= self.rules.suspect_tries else "suspect"
                    )
        return self.state


@given(histories, rules)
def test_it_does_what_the_model_does(history, these):
    model, device, up = Model(these), Device(), 1000.0
    for sign, pause, wall in history:
        up += pause
        device = step(device, symptom(sign) if sign else (), at(up, wall), these)
        said = model.look(sign, up)
        # Floating point alone may part them, at the very edge of a forgiven try.
        assert device.state.value == said


@given(histories, rules, st.floats(1, 120))
def test_a_device_that_is_well_comes_back_within_one_retry(history, these, update):
    """Whatever it did before, and whatever the clock of the day says."""
    device, up = Device(), 0.0
    for sign, pause, wall in history:
        up += pause
        device = step(device, symptom(sign) if sign else (), at(up, wall), these)
    if device.state is State.QUARANTINED:
        return
    ended = up
    most = max(these.suspect_retry, these.suspect_retry_most)
    for number in itertools.count(1):
        if device.state is State.OFFERED:
            break
        assert up - ended < most + update
        up += update
        device = step(device, (), at(up, 1e9 - number * 1e6), these)


@given(histories, rules)
def test_it_never_flaps_faster_than_it_waits(history, these):
    device, up, began = Device(), 0.0, 0.0
    for sign, pause, wall in history:
        up += pause
        before = device
        device = step(device, symptom(sign) if sign else (), at(up, wall), these)
        if before.state is State.OFFERED and device.state is State.SUSPECT:
            began = up
        if before.state is State.SUSPECT and device.state is State.OFFERED:
            assert sign is None
            assert before.trial is not None
            assert up - began >= these.wait(1)
            assert up - before.trial.tried >= these.wait(before.trial.tries)


@given(histories, rules)
def test_quarantine_only_by_rule(history, these):
    device, up, ill = Device(), 0.0, 0
    for sign, pause, wall in history:
        up += pause
        before = device
        device = step(device, symptom(sign) if sign else (), at(up, wall), these)
        ill += sign is not None
        if before.state is not State.QUARANTINED and device.state is State.QUARANTINED:
            assert sign in AT_ONCE or sign in GRAVE
            assert sign in AT_ONCE or ill >= these.suspect_tries
        if before.state is State.QUARANTINED:
            assert device == before  # only an operator


@pytest.mark.parametrize("sign", SOFT)
def test_a_symptom_that_lasts(sign):
    device, up = Device(), 0.0
    for _ in range(500):
        device = step(device, symptom(sign), at(up), RULES)
        assert device.state is not State.OFFERED
        up += 60
    assert device.state is (State.QUARANTINED if sign in GRAVE else State.SUSPECT)
    assert device.reason == f"it is {sign.value}"


@pytest.mark.parametrize("jump", [-1e9, -3600.0, -1.0, 0.0, 1.0, 3600.0, 1e9])
def test_the_time_of_day_decides_nothing(jump):
    device = step(Device(), symptom(Sign.ERRORS), at(100, 5e8), RULES)
    device = step(device, symptom(Sign.ERRORS), at(160, 5e8 + jump), RULES)
    assert step(device, (), at(219, 5e8 + jump), RULES).state is State.SUSPECT
    assert step(device, (), at(220, 5e8 + jump), RULES).state is State.OFFERED


@pytest.mark.parametrize(
    "moment", [at(10.0), at(500.0, boot="other"), at(500.0, boot=None)], ids=str
)
def test_after_a_boot_it_is_tried_at_once(moment):
    trial = Trial("errors", 0.0, 7, 400.0, "boot")
    assert due(trial, moment, RULES)
    device = Device(state=State.SUSPECT, reason="x", trial=trial)
    assert step(device, (), moment, RULES).state is State.OFFERED


def test_a_suspect_device_of_a_release_without_tries_is_tried_at_once():
    device = Device(state=State.SUSPECT, reason="link is x8, can be x16")
    assert step(device, (), at(5.0), RULES).state is State.OFFERED
    again = step(device, symptom(Sign.LINK), at(5.0), RULES)
    assert (again.state, again.trial.tries) == (State.SUSPECT, 1)


def test_since_is_when_the_state_began():
    device = step(Device(), symptom(Sign.SILENT), at(0, 1000.0), RULES)
    device = step(device, symptom(Sign.SILENT), at(60, 1060.0), RULES)
    assert device.trial.since == 1000.0
    device = step(device, (), at(900, 1900.0), RULES)
    assert device.trial.since == 1900.0


# -- the cap ------------------------------------------------------------------------


def node(count: int) -> dict[str, str]:
    return {f"gpu{number:02}": "gpu" for number in range(count)}


@given(
    st.integers(1, 20),
    st.floats(0, 1),
    st.lists(st.dictionaries(st.integers(0, 19), st.sampled_from(list(Sign)), max_size=20)),
)
def test_suspicion_alone_withholds_no_more_than_its_share(count, share, looks):
    these = attrs.evolve(RULES, suspect_share=share)
    roles, known, up = node(count), {}, 0.0
    for ill in looks:
        up += 60
        found = {
            each: symptom(ill[number]) if number in ill else () for number, each in enumerate(roles)
        }
        settled = settle(known, found, roles, at(up), these)
        known |= settled.entries
        doubted = [each for each in roles if policy.doubted(known.get(each, Device()))]
        assert len(doubted) <= max(1, math.floor(share * count))
        for number, each in enumerate(roles):
            if number in ill and ill[number] not in CAPPED:
                # What is not suspicion alone is never let through.
                assert known[each].state is not State.OFFERED
            elif number in ill and known[each].state is State.OFFERED:
                assert known[each].trial.spared
                assert settled.alarms


def test_what_is_not_suspicion_alone_is_not_let_through():
    roles = node(8)
    found = {each: (*symptom(Sign.LINK), *symptom(Sign.ABSENT)) for each in roles}
    settled = settle({}, found, roles, at(0), RULES)
    assert {one.state for one in settled.entries.values()} == {State.SUSPECT}
    assert len(settled.entries) == 8


def test_an_alarm_says_what_to_look_at():
    roles = node(8)
    found = {each: symptom(Sign.ERRORS) for each in roles}
    settled = settle({}, found, roles, at(0), RULES)
    withheld = [each for each, one in settled.entries.items() if one.state is State.SUSPECT]
    assert withheld == ["gpu00", "gpu01"]
    (alarm,) = settled.alarms
    assert "2 of the 8 devices of role gpu ([hpc]suspect_share), so 6 more stay" in alarm
    assert "gpu02" in alarm
    # No further step: those that are withheld are not quarantined either.
    known = {**settled.entries}
    for number in range(1, 100):
        settled = settle(known, found, roles, at(number * 900.0), RULES)
        known |= settled.entries
    assert {one.state for one in known.values()} == {State.SUSPECT, State.OFFERED}
    # When it is over, nothing is left of it.
    settled = settle(known, dict.fromkeys(roles, ()), roles, at(1e6), RULES)
    known |= settled.entries
    assert {one.state for one in known.values()} == {State.OFFERED}
    assert not any(one.trial.spared for one in known.values())
    assert settled.alarms == ()


# -- events ---------------------------------------------------------------------------


def test_the_same_change_at_many_is_one_event():
    models = {f"gpu{number}": "10de:2330" for number in range(16)} | {"vf": "15b3:101e"}
    changes = {each: "10@60 gone" for each in models if each != "gpu3"} | {"gpu3": "other"}
    (event,) = events(changes, models, RULES)
    assert (event.model, event.change, len(event.addresses)) == ("10de:2330", "10@60 gone", 15)
    assert event.looked_at == 16
    found = {each: symptom(Sign.CHANGED) for each in models}
    after = as_event(found, [event])
    assert {each for each, one in after.items() if one[0].sign is Sign.CHANGED} == {"gpu3", "vf"}
    assert {one[0].reason for each, one in after.items() if one[0].sign is Sign.MODEL} == {
        event.text
    }
    assert "nova-hpc device accept --model 10de:2330" in event.text


def test_half_of_a_model_is_many_and_one_is_not():
    models = {f"gpu{number}": "m" for number in range(8)}
    assert events({f"gpu{number}": "x" for number in range(3)}, models, RULES) == []
    assert len(events({f"gpu{number}": "x" for number in range(4)}, models, RULES)) == 1
    assert events({"gpu0": "x"}, {"gpu0": "m"}, RULES) == []
    assert events({"gpu0": "x", "gpu1": "x"}, {}, RULES) == []


def test_no_device_of_an_event_is_quarantined_for_it():
    event = Event("m", "x", ("gpu0", "gpu1"), 2)
    found = as_event({each: symptom(Sign.CHANGED) for each in event.addresses}, [event])
    known: dict[str, Device] = {}
    for number in range(200):
        known |= settle(
            known, found, dict.fromkeys(found, "gpu"), at(number * 900.0), RULES
        ).entries
    assert {one.state for one in known.values()} == {State.SUSPECT}
