# SPDX-License-Identifier: Apache-2.0
"""Cleans devices in parallel, and records the results."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.tenancy import health_states
from nova_hpc.tenancy.health_states import CAPPED, HealthRules, Moment
from nova_hpc.tenancy.hygiene import symptoms
from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.hygiene.cleaner import CleanError, RoleCleaners
from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.hygiene.reset import CURE_OF_MASTERING, HeldError, ResetError
from nova_hpc.tenancy.hygiene.snapshots import (
    add_first_baseline,
    baseline_differences_of,
    excess_errors_of,
    is_unused_by_host,
    restart_error_count,
)
from nova_hpc.tenancy.owners import HeldDevice
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.watch.record import load_record
from nova_hpc.topology.files import FileError
from nova_hpc.wire.ledger import DeviceState, Ledger, LedgerDevice
from nova_hpc_common.wire.server_faults import FaultWord

_MOST_AT_ONCE: Final = 32


def clean_devices(
    records: HygieneRecords, cleaners: RoleCleaners, roles: Mapping[str, str | None]
) -> tuple[Ledger, dict[str, str]]:
    """Clean devices in parallel; those that fail are not offered.

    A device that is faulty after its reset keeps its mark: it is cleaned
    again at its next trial. A device that turns out to be in use is not touched
    and keeps its mark, too. Call this under the devices' locks.

    :param roles: address -> role, of devices that no server has.
    :returns: the ledger, and address -> why a device is not clean.
    :raises LedgerError: the ledger cannot be read or written.
    """
    ledger = records.known()
    if not roles:
        return ledger, {}

    def clean(address: str) -> DeviceSnapshot | tuple[Symptom, ...] | HeldDevice:
        return _clean_one(records, cleaners, address, roles[address], ledger)

    with concurrent.futures.ThreadPoolExecutor(min(len(roles), _MOST_AT_ONCE)) as pool:
        results = dict(zip(roles, pool.map(clean, roles), strict=True))
    dirty = {
        address: result.text if isinstance(result, HeldDevice) else result[0].reason
        for address, result in results.items()
        if not isinstance(result, DeviceSnapshot)
    }
    moment = records.moment()

    def edit(ledger: Ledger) -> Mapping[str, LedgerDevice]:
        return {
            address: _entry_after(ledger.device(address), result, moment, records.rules)
            for address, result in results.items()
            if not isinstance(result, HeldDevice)
        }

    return records.change(edit), dirty


def _entry_after(
    device: LedgerDevice,
    result: DeviceSnapshot | tuple[Symptom, ...],
    moment: Moment,
    rules: HealthRules,
) -> LedgerDevice:
    """Return the entry of a device after its cleaning or the failure of it."""
    server, last = device.server, device.server or device.last_server
    if isinstance(result, DeviceSnapshot):
        watched = _find_watched_errors(device)
        entry = health_states.advance_device_state(device, watched, moment, rules)
        entry = attrs.evolve(
            add_first_baseline(entry, result, None),
            server=None,
            proof="",
            last_server=last,
            # If it had no known server, an operator made the reservation.
            unreported=device.unreported
            or server is not None
            or device.state is not DeviceState.OFFERED,
            cleaned=device.cleaned + 1,
            watch=None if watched else device.watch,
        )
        # The next update judges excess errors, together with those of other devices.
        judged = excess_errors_of(device, result, moment, rules)
        return entry if judged else restart_error_count(entry, result, moment)
    entry = health_states.advance_device_state(device, result, moment, rules)
    return attrs.evolve(
        entry,
        server=server if entry.state is DeviceState.SUSPECT else None,
        last_server=last,
        failed=device.failed + 1,
    )


def _find_watched_errors(device: LedgerDevice) -> tuple[Symptom, ...]:
    """Return a symptom if the watch has found errors of a device that its server still has.

    Its reset may have restarted the device's counters, and the port above has counters of its own.
    So the device's present counters need not show these errors.
    """
    watched = load_record(device.watch)
    if watched is None or watched.server != device.server:
        return ()
    if FaultWord.ERRORS not in watched.faults:
        return ()
    reason = f"uncorrected errors were found while server {device.server} had it"
    return (Symptom(HealthSign.ERRORS, reason),)


def _clean_one(
    records: HygieneRecords, cleaners: RoleCleaners, address: str, role: str | None, ledger: Ledger
) -> DeviceSnapshot | tuple[Symptom, ...] | HeldDevice:
    """Return the device after its cleaning, or why it is not clean. Never raises."""
    try:
        before = records.find(address, role)
        if before is None:
            return (Symptom(HealthSign.ABSENT, "it has disappeared"),)
        cleaners.of(role).clean(before.function)
        after = records.find(address, role)
        if after is None:
            return (Symptom(HealthSign.ABSENT, "it has disappeared in its reset"),)
        look = records.look([after])[address]
        device = ledger.device(address)
        differences = baseline_differences_of(device, look, after.function)
    except HeldError as error:
        return HeldDevice(str(error))
    except FileError as error:
        return (Symptom(HealthSign.ABSENT, str(error)),)
    except (CleanError, ResetError) as error:
        return (Symptom(HealthSign.FAILED, str(error)),)
    except Exception as error:
        # A cleaner may be a plug-in: whatever it did, the device is not known to be clean.
        text = f"its cleaner failed: {type(error).__name__}: {error}"
        return (Symptom(HealthSign.FAILED, text),)
    # Bus mastering must be off once the last server is gone; firmware leaves it on.
    if look.master and is_unused_by_host(after.function):
        sign = HealthSign.MASTER if device.server is None else HealthSign.FAILED
        cure = CURE_OF_MASTERING.format(address)
        return (Symptom(sign, f"bus mastering is still on after its reset: {cure}"),)
    if (
        symptoms.explain_expected_change(ledger, address, tuple(differences), records.moment())
        is not None
    ):
        return look  # the next update records it
    # A narrow link is harmless, and is judged together with those of other devices.
    return tuple(symptom for symptom in differences if symptom.sign not in CAPPED) or look
