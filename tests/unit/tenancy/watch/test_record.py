# SPDX-License-Identifier: Apache-2.0
"""What the ledger keeps of a watch, over a restart of the service and of the host."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.watch import record, rules
from nova_hpc.tenancy.watch.look import FATAL, NONFATAL
from nova_hpc.tenancy.watch.record import RecordedFault, WatchRecord
from nova_hpc.tenancy.watch.rules import DeviceBest, ServerCondition, WatchedDevice
from nova_hpc_common.wire.server_faults import FaultWord
from tests.unit.tenancy.watch.test_rules import FAULTS, SERVER, WELL

BOOT = "5f0c0f6e-8b1c-4b64-9f3e-0d1c1d1c1d1c"
FULL = WatchRecord(
    SERVER,
    BOOT,
    DeviceBest(16, 32.0, "de10", "28.39.1002", frozenset({"mlx5_0/1", "mlx5_0/2"})),
    {FATAL: 0, NONFATAL: 3},
    {
        FaultWord.LINK: RecordedFault(1767225600.0, reported=True),
        FaultWord.GONE: RecordedFault(5.0),
    },
)


def test_there_and_back() -> None:
    for entry in (FULL, WatchRecord(SERVER)):
        assert record.load_record(json.loads(json.dumps(entry.dumps()))) == entry
    assert record.load_record(None) is None


def test_faults_for_operators() -> None:
    assert FULL.text(lambda moment: f"<{moment:.0f}>") == (
        "fault gone since <5>, not reported to its owner yet; fault link since <1767225600>"
    )
    assert WatchRecord(SERVER).text(str) == ""


def test_a_word_of_a_later_release_is_left_out() -> None:
    body = FULL.dumps()
    body["faults"]["melted"] = {"since": 1.0}
    body["faults"]["slow"] = {"since": 1.0}  # no node finds it
    assert record.load_record(body) == FULL


_OTHERS = st.one_of(st.text(), st.booleans(), st.lists(st.none()), st.just({"": ""}))


@given(st.sampled_from(sorted(FULL.dumps())), _OTHERS)
def test_a_damaged_record_never_raises(key: str, value: Any) -> None:
    entry = record.load_record({**FULL.dumps(), key: value})
    assert entry is None or isinstance(entry, WatchRecord)
    if entry is not None:
        record.watched_device_of(entry, BOOT, 0.0)


def _advance(device: WatchedDevice, *looks: Any, start: float = 0.0) -> tuple[Any, list[str]]:
    changes = []
    for number, look in enumerate(looks):
        step = rules.judge_look(device, look, ServerCondition.SETTLED, start + 25.0 * number)
        device = step.device
        changes += [f"+{word.value}" for word in step.found]
        changes += [f"-{word.value}" for word in step.cleared]
    return device, changes


def _after_restart(device: WatchedDevice, boot: str = BOOT) -> WatchedDevice:
    """What another run of the service begins with, an hour of the clock earlier."""
    faults = {word: RecordedFault(1.0, True) for word in device.reported}
    entry = record.load_record(record.record_of(device, BOOT, faults).dumps())
    assert entry is not None
    return record.watched_device_of(entry, boot, -3600.0)


def test_a_restart_of_the_service() -> None:
    for word, faulty in FAULTS.items():
        device, changes = _advance(WatchedDevice(SERVER), WELL, WELL, faulty, faulty)
        assert changes == [f"+{word.value}"]
        # Told by the run before, and cleared by this one.
        again, changes = _advance(_after_restart(device), *[faulty] * 3, start=-3600.0)
        assert changes == []
        if word is not FaultWord.ERRORS:
            _, changes = _advance(again, *[WELL] * 4, start=-3000.0)
            assert changes == [f"-{word.value}"]
        # It began while the service was down.
        device, _ = _advance(WatchedDevice(SERVER), WELL, WELL)
        _, changes = _advance(_after_restart(device), *[faulty] * 3, start=-3600.0)
        assert changes == [f"+{word.value}"]


def test_a_restart_of_the_host() -> None:
    """Its counters and its guests begin again; its links and ports have to be as before."""
    device, _ = _advance(WatchedDevice(SERVER), WELL, WELL)
    for word, faulty in FAULTS.items():
        _, changes = _advance(_after_restart(device, "other"), *[faulty] * 3, start=-3600.0)
        stays = word in (FaultWord.ERRORS, FaultWord.FIRMWARE)
        assert changes == ([] if stays else [f"+{word.value}"])
