# SPDX-License-Identifier: Apache-2.0
"""The states of a device: against a brute-force model, and against what a fleet needs."""

from __future__ import annotations

import itertools
import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy import health_states
from nova_hpc.tenancy.health_states import (
    AT_ONCE,
    CAPPED,
    GRAVE,
    HealthRules,
    ModelEvent,
    Moment,
    advance_device_state,
    find_model_events,
    is_trial_due,
    replace_by_model_events,
    settle_device_states,
)
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.wire.ledger import DeviceState, LedgerDevice, Trial

RULES = HealthRules()
SOFT = sorted(set(HealthSign) - AT_ONCE, key=lambda sign: sign.value)


def symptom(sign: HealthSign) -> tuple[Symptom, ...]:
    return (Symptom(sign, f"it is {sign.value}"),)


def at(up: float, wall: float = 0.0, boot: str | None = "boot") -> Moment:
    return Moment(wall, up, boot)


histories = st.lists(
    st.tuples(
        st.sampled_from([None, None, *HealthSign]),
        st.floats(1.0, 5000.0),
        # Somebody sets the clock of the day.
        st.floats(-1e9, 1e9),
    ),
    max_size=60,
)
rules = st.builds(
    HealthRules,
    suspect_retry=st.floats(0, 500),
    suspect_retry_most=st.floats(0, 5000),
    suspect_tries=st.integers(2, 9),
    suspect_forgive=st.floats(0, 10000),
)


class Model:
    """The rules once more, as a person would write them down, with no shared code."""

    def __init__(self, rules: HealthRules) -> None:
        self.rules = rules
        self.state, self.tries, self.last = "offered", 0, None

    def wait(self) -> float:
        pause = self.rules.suspect_retry
        if self.tries < 2:
            return 0
        for _ in range(self.tries - 2):
            pause = min(pause * 2, 1e12)
        return min(pause, max(self.rules.suspect_retry, self.rules.suspect_retry_most))

    def look(self, sign: HealthSign | None, up: float) -> str:
        if self.state == "quarantined":
            return self.state
        if sign is HealthSign.FAILED:
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
    model, device, up = Model(these), LedgerDevice(), 1000.0
    for sign, pause, wall in history:
        up += pause
        device = advance_device_state(device, symptom(sign) if sign else (), at(up, wall), these)
        said = model.look(sign, up)
        # Floating point alone may part them, at the very edge of a forgiven try.
        assert device.state.value == said


@given(histories, rules, st.floats(1, 120))
def test_a_device_that_is_well_comes_back_within_one_retry(history, these, update):
    """Whatever it did before, and whatever the clock of the day says."""
    device, up = LedgerDevice(), 0.0
    for sign, pause, wall in history:
        up += pause
        device = advance_device_state(device, symptom(sign) if sign else (), at(up, wall), these)
    if device.state is DeviceState.QUARANTINED:
        return
    ended = up
    most = max(these.suspect_retry, these.suspect_retry_most)
    for number in itertools.count(1):
        if device.state is DeviceState.OFFERED:
            break
        assert up - ended < most + update
        up += update
        device = advance_device_state(device, (), at(up, 1e9 - number * 1e6), these)


@given(histories, rules)
def test_it_never_flaps_faster_than_it_waits(history, these):
    device, up, began = LedgerDevice(), 0.0, 0.0
    for sign, pause, wall in history:
        up += pause
        before = device
        device = advance_device_state(device, symptom(sign) if sign else (), at(up, wall), these)
        if before.state is DeviceState.OFFERED and device.state is DeviceState.SUSPECT:
            began = up
        if before.state is DeviceState.SUSPECT and device.state is DeviceState.OFFERED:
            assert sign is None
            assert before.trial is not None
            assert up - began >= these.wait(1)
            assert up - before.trial.tried >= these.wait(before.trial.tries)


@given(histories, rules)
def test_quarantine_only_by_rule(history, these):
    device, up, ill = LedgerDevice(), 0.0, 0
    for sign, pause, wall in history:
        up += pause
        before = device
        device = advance_device_state(device, symptom(sign) if sign else (), at(up, wall), these)
        ill += sign is not None
        if before.state is not DeviceState.QUARANTINED and device.state is DeviceState.QUARANTINED:
            assert sign in AT_ONCE or sign in GRAVE
            assert sign in AT_ONCE or ill >= these.suspect_tries
        if before.state is DeviceState.QUARANTINED:
            assert device == before  # only an operator


@pytest.mark.parametrize("sign", SOFT)
def test_a_symptom_that_lasts(sign):
    device, up = LedgerDevice(), 0.0
    for _ in range(500):
        device = advance_device_state(device, symptom(sign), at(up), RULES)
        assert device.state is not DeviceState.OFFERED
        up += 60
    assert device.state is (DeviceState.QUARANTINED if sign in GRAVE else DeviceState.SUSPECT)
    assert device.reason == f"it is {sign.value}"


@pytest.mark.parametrize("jump", [-1e9, -3600.0, -1.0, 0.0, 1.0, 3600.0, 1e9])
def test_the_time_of_day_decides_nothing(jump):
    device = advance_device_state(LedgerDevice(), symptom(HealthSign.ERRORS), at(100, 5e8), RULES)
    device = advance_device_state(device, symptom(HealthSign.ERRORS), at(160, 5e8 + jump), RULES)
    assert advance_device_state(device, (), at(219, 5e8 + jump), RULES).state is DeviceState.SUSPECT
    assert advance_device_state(device, (), at(220, 5e8 + jump), RULES).state is DeviceState.OFFERED


@pytest.mark.parametrize(
    "moment", [at(10.0), at(500.0, boot="other"), at(500.0, boot=None)], ids=str
)
def test_after_a_boot_it_is_tried_at_once(moment):
    trial = Trial("errors", 0.0, 7, 400.0, "boot")
    assert is_trial_due(trial, moment, RULES)
    device = LedgerDevice(state=DeviceState.SUSPECT, reason="x", trial=trial)
    assert advance_device_state(device, (), moment, RULES).state is DeviceState.OFFERED


def test_a_suspect_device_of_a_release_without_tries_is_tried_at_once():
    device = LedgerDevice(state=DeviceState.SUSPECT, reason="link is x8, can be x16")
    assert advance_device_state(device, (), at(5.0), RULES).state is DeviceState.OFFERED
    again = advance_device_state(device, symptom(HealthSign.LINK), at(5.0), RULES)
    assert (again.state, again.trial.tries) == (DeviceState.SUSPECT, 1)


def test_since_is_when_the_state_began():
    device = advance_device_state(LedgerDevice(), symptom(HealthSign.SILENT), at(0, 1000.0), RULES)
    device = advance_device_state(device, symptom(HealthSign.SILENT), at(60, 1060.0), RULES)
    assert device.trial.since == 1000.0
    device = advance_device_state(device, (), at(900, 1900.0), RULES)
    assert device.trial.since == 1900.0


# -- the cap ------------------------------------------------------------------------


def node(count: int) -> dict[str, str]:
    return {f"gpu{number:02}": "gpu" for number in range(count)}


@given(
    st.integers(1, 20),
    st.floats(0, 1),
    st.lists(st.dictionaries(st.integers(0, 19), st.sampled_from(list(HealthSign)), max_size=20)),
)
def test_suspicion_alone_withholds_no_more_than_its_share(count, share, looks):
    these = attrs.evolve(RULES, suspect_share=share)
    roles, known, up = node(count), {}, 0.0
    for ill in looks:
        up += 60
        found = {
            each: symptom(ill[number]) if number in ill else () for number, each in enumerate(roles)
        }
        settled = settle_device_states(known, found, roles, at(up), these)
        known |= settled.entries
        doubted = [
            each
            for each in roles
            if health_states.is_withheld_by_suspicion(known.get(each, LedgerDevice()))
        ]
        assert len(doubted) <= max(1, math.floor(share * count))
        for number, each in enumerate(roles):
            if number in ill and ill[number] not in CAPPED:
                # What is not suspicion alone is never let through.
                assert known[each].state is not DeviceState.OFFERED
            elif number in ill and known[each].state is DeviceState.OFFERED:
                assert known[each].trial.spared
                assert settled.alarms


def test_what_is_not_suspicion_alone_is_not_let_through():
    roles = node(8)
    found = {each: (*symptom(HealthSign.LINK), *symptom(HealthSign.ABSENT)) for each in roles}
    settled = settle_device_states({}, found, roles, at(0), RULES)
    assert {one.state for one in settled.entries.values()} == {DeviceState.SUSPECT}
    assert len(settled.entries) == 8


def test_an_alarm_says_what_to_look_at():
    roles = node(8)
    found = {each: symptom(HealthSign.ERRORS) for each in roles}
    settled = settle_device_states({}, found, roles, at(0), RULES)
    withheld = [each for each, one in settled.entries.items() if one.state is DeviceState.SUSPECT]
    assert withheld == ["gpu00", "gpu01"]
    (alarm,) = settled.alarms
    assert "2 of the 8 devices of role gpu ([hpc]suspect_share), so 6 more stay" in alarm
    assert "gpu02" in alarm
    # No further step: those that are withheld are not quarantined either.
    known = {**settled.entries}
    for number in range(1, 100):
        settled = settle_device_states(known, found, roles, at(number * 900.0), RULES)
        known |= settled.entries
    assert {one.state for one in known.values()} == {DeviceState.SUSPECT, DeviceState.OFFERED}
    # When it is over, nothing is left of it.
    settled = settle_device_states(known, dict.fromkeys(roles, ()), roles, at(1e6), RULES)
    known |= settled.entries
    assert {one.state for one in known.values()} == {DeviceState.OFFERED}
    assert not any(one.trial.spared for one in known.values())
    assert settled.alarms == ()


# -- events ---------------------------------------------------------------------------


def test_the_same_change_at_many_is_one_event():
    models = {f"gpu{number}": "10de:2330" for number in range(16)} | {"vf": "15b3:101e"}
    changes = {each: "10@60 gone" for each in models if each != "gpu3"} | {"gpu3": "other"}
    (event,) = find_model_events(changes, models, RULES)
    assert (event.model, event.change, len(event.addresses)) == ("10de:2330", "10@60 gone", 15)
    assert event.looked_at == 16
    found = {each: symptom(HealthSign.CHANGED) for each in models}
    after = replace_by_model_events(found, [event])
    assert {each for each, one in after.items() if one[0].sign is HealthSign.CHANGED} == {
        "gpu3",
        "vf",
    }
    assert {one[0].reason for each, one in after.items() if one[0].sign is HealthSign.MODEL} == {
        event.text
    }
    assert "nova-hpc device accept --model 10de:2330" in event.text


def test_half_of_a_model_is_many_and_one_is_not():
    models = {f"gpu{number}": "m" for number in range(8)}
    assert find_model_events({f"gpu{number}": "x" for number in range(3)}, models, RULES) == []
    assert len(find_model_events({f"gpu{number}": "x" for number in range(4)}, models, RULES)) == 1
    assert find_model_events({"gpu0": "x"}, {"gpu0": "m"}, RULES) == []
    assert find_model_events({"gpu0": "x", "gpu1": "x"}, {}, RULES) == []


def test_no_device_of_an_event_is_quarantined_for_it():
    event = ModelEvent("m", "x", ("gpu0", "gpu1"), 2)
    found = replace_by_model_events(
        {each: symptom(HealthSign.CHANGED) for each in event.addresses}, [event]
    )
    known: dict[str, LedgerDevice] = {}
    for number in range(200):
        known |= settle_device_states(
            known, found, dict.fromkeys(found, "gpu"), at(number * 900.0), RULES
        ).entries
    assert {one.state for one in known.values()} == {DeviceState.SUSPECT}
