# SPDX-License-Identifier: Apache-2.0
"""A day of a node has no false alarm, and each real fault is told within a minute, once."""

from __future__ import annotations

import random

import pytest

from nova_hpc.tenancy.watch import rules
from nova_hpc.tenancy.watch.rules import WatchedDevice
from nova_hpc_common.wire.server_faults import FaultWord
from tests.unit.tenancy.watch import day

SERVER = "11111111-1111-1111-1111-111111111111"
#: The kinds of harmless events that every seed has to have met.
HARMLESS = {"guest reset", "nova reboot", "snapshot", "retrained", "asleep", "unreadable"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_day(seed: int) -> None:
    """At least 5,600 looks at each of eight devices, with 200 harmless events of each."""
    jitter = random.Random(seed)
    for device in day.devices(seed):
        assert {span.kind for span in device.spans} >= HARMLESS
        watched, changes = WatchedDevice(SERVER), []
        met, moment, looks = set(), 0.0, 0
        while moment < day.DAY:
            moment += day.QUICK if watched.suspected else day.INTERVAL
            moment += jitter.uniform(0.0, 0.4)
            looks += 1
            standing, look = device.look(moment)
            met |= {span.kind for span in device.spans if span.holds(moment)}
            step = rules.judge_look(watched, look, standing, moment)
            watched = step.device
            changes += [(moment, "+", word) for word in step.found]
            changes += [(moment, "-", word) for word in step.cleared]
        assert met >= HARMLESS
        assert looks > 5600
        real = device.injected
        told = [(sign, word) for _, sign, word in changes]
        assert told == [("+", real.word), ("-", real.word)], (real, changes)
        assert real.begin < changes[0][0] <= real.begin + 60.0
        # The harmless events begin the confirmation of an end again.
        if real.word in (FaultWord.ERRORS, FaultWord.FIRMWARE):
            restarts = [
                span.end for span in device.spans
                if span.kind == "nova reboot" and span.begin > real.begin
            ]  # fmt: skip
            hour = [real.begin + 3600.0] if real.word is FaultWord.ERRORS else []
            assert min([*restarts, *hour]) < changes[1][0] <= min([*hour, day.DAY]) + 900.0
        else:
            assert real.end < changes[1][0] <= real.end + 900.0
