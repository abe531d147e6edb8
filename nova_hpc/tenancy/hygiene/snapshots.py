# SPDX-License-Identifier: Apache-2.0
"""Takes snapshots of devices, and compares them with the ledger's entries."""

from __future__ import annotations

from typing import Final

import attrs

from nova_hpc.tenancy.health_states import HealthRules, Moment
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.topology.model import PciFunction
from nova_hpc.topology.vfio import Vfio
from nova_hpc.wire.ledger import SOMEBODY, Ledger, LedgerDevice


def is_unused_by_host(function: PciFunction) -> bool:
    """Whether no driver of the host may be using the function."""
    return function.driver is None or (function.on_vfio and function.vfio is not Vfio.VENDOR)


def baseline_of(device: LedgerDevice) -> DeviceSnapshot | None:
    """Return the baseline of a device; None if it is missing or damaged."""
    return None if device.baseline is None else baseline.load_snapshot(device.baseline)


def distrust_damaged_baselines(ledger: Ledger) -> Ledger:
    """Mark each device with a damaged baseline as used by an unknown server, so that it is cleaned.

    :returns: the changed ledger.
    """
    return ledger.put(
        {
            address: attrs.evolve(device, baseline=None, server=SOMEBODY)
            for address, device in ledger.devices.items()
            if device.baseline is not None and baseline.load_snapshot(device.baseline) is None
        }
    )


def add_first_baseline(
    device: LedgerDevice, look: DeviceSnapshot | None, hardware: str | None
) -> LedgerDevice:
    """Return an entry with its first baseline and hardware, if it had none."""
    return attrs.evolve(
        device,
        baseline=device.baseline if look is None or device.baseline else look.dumps(),
        hardware=device.hardware or hardware,
    )


def restart_error_count(device: LedgerDevice, look: DeviceSnapshot, moment: Moment) -> LedgerDevice:
    """Return the ledger's entry of a device with its count of errors starting now."""
    recorded = baseline_of(device)
    if recorded is None:
        return device
    recorded = baseline.renew_error_counters(recorded, look)
    return attrs.evolve(device, baseline=recorded.dumps(), counted=moment.up)


def baseline_differences_of(
    device: LedgerDevice, look: DeviceSnapshot, function: PciFunction
) -> list[Symptom]:
    """Return the symptoms of a free device, without errors; the worst first."""
    faults = baseline.find_inherent_faults(look, is_unused_by_host(function))
    recorded = baseline_of(device)
    if recorded is None:
        return faults
    return sorted([*faults, *baseline.compare_snapshots(recorded, look)], key=_severity_of_symptom)


def excess_errors_of(
    device: LedgerDevice, look: DeviceSnapshot, moment: Moment, rules: HealthRules
) -> list[Symptom]:
    """Return a symptom if there are more uncorrected errors than tolerated since the last count."""
    recorded = baseline_of(device)
    if recorded is None:
        return []
    new_errors = baseline.count_errors_since(recorded, look)
    since = 0.0 if device.counted is None else max(0.0, moment.up - device.counted)
    if sum(new_errors.values()) <= rules.tolerated(since):
        return []
    parts = [f"{count} new uncorrected {kind} errors (AER)" for kind, count in new_errors.items()]
    who = device.server or device.last_server
    by = f"; the last server that had it is {who}" if who else ""
    return [Symptom(HealthSign.ERRORS, f"{' and '.join(parts)}{by}")]


_ORDER: Final = {sign: number for number, sign in enumerate(HealthSign)}


def _severity_of_symptom(symptom: Symptom) -> int:
    return _ORDER[symptom.sign]
