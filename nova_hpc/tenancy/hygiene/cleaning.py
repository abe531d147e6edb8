# SPDX-License-Identifier: Apache-2.0
"""Clean devices side by side, and write what came of it."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.tenancy import health_states
from nova_hpc.tenancy.health_states import CAPPED, Moment
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
from nova_hpc.topology.files import FileError
from nova_hpc.wire.ledger import DeviceState, Ledger, LedgerDevice

_MOST_AT_ONCE: Final = 32


@attrs.frozen
class DeviceCleaning:
    """Cleans devices that nobody has; who calls it has their locks."""

    records: HygieneRecords
    cleaners: RoleCleaners

    def clean(self, roles: Mapping[str, str | None]) -> tuple[Ledger, dict[str, str]]:
        """Clean devices side by side; those that fail are not offered.

        One that does not look well after its reset keeps its mark: it is cleaned
        again when it is tried again. One that somebody has after all is not touched
        and keeps it, too. Call it below their locks.
        """
        ledger = self.records.known()
        if not roles:
            return ledger, {}
        workers = min(len(roles), _MOST_AT_ONCE)
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            results = dict(
                zip(
                    roles,
                    pool.map(
                        lambda address: self._clean_one(address, roles[address], ledger), roles
                    ),
                    strict=True,
                )
            )
        dirty = {
            address: result.text
            for address, result in results.items()
            if isinstance(result, HeldDevice)
        }
        dirty |= {
            address: result[0].reason
            for address, result in results.items()
            if isinstance(result, tuple)
        }
        moment = self.records.moment()

        def edit(ledger: Ledger) -> Mapping[str, LedgerDevice]:
            return {
                address: self._cleaned(ledger.device(address), result, moment)
                for address, result in results.items()
                if not isinstance(result, HeldDevice)
            }

        return self.records.change(edit), dirty

    def _cleaned(
        self, device: LedgerDevice, result: DeviceSnapshot | tuple[Symptom, ...], moment: Moment
    ) -> LedgerDevice:
        """The entry of a device after it was cleaned, or was not."""
        server, last = device.server, device.server or device.last_server
        if isinstance(result, DeviceSnapshot):
            entry = health_states.advance_device_state(device, (), moment, self.records.rules)
            entry = attrs.evolve(
                add_first_baseline(entry, result, None),
                server=None,
                proof="",
                last_server=last,
                # Of one that nobody is known to have had, what is reserved is an operator's.
                unreported=device.unreported
                or server is not None
                or device.state is not DeviceState.OFFERED,
                cleaned=device.cleaned + 1,
            )
            # Errors that are judged are judged at the next look, with those of others.
            judged = excess_errors_of(device, result, moment, self.records.rules)
            return entry if judged else restart_error_count(entry, result, moment)
        entry = health_states.advance_device_state(device, result, moment, self.records.rules)
        return attrs.evolve(
            entry,
            server=server if entry.state is DeviceState.SUSPECT else None,
            last_server=last,
            failed=device.failed + 1,
        )

    def _clean_one(
        self, address: str, role: str | None, ledger: Ledger
    ) -> DeviceSnapshot | tuple[Symptom, ...] | HeldDevice:
        """The device after it was cleaned, or why it is not clean. Never raises."""
        try:
            before = self.records.looker.find(address, role)
            if before is None:
                return (Symptom(HealthSign.ABSENT, "it has disappeared"),)
            self.cleaners.of(role).clean(before.function)
            after = self.records.looker.find(address, role)
            if after is None:
                return (Symptom(HealthSign.ABSENT, "it has disappeared in its reset"),)
            look = self.records.looker.look([after])[address]
            device = ledger.device(address)
            differences = baseline_differences_of(device, look, after.function)
        except HeldError as error:
            return HeldDevice(str(error))
        except FileError as error:
            return (Symptom(HealthSign.ABSENT, str(error)),)
        except (CleanError, ResetError) as error:
            return (Symptom(HealthSign.FAILED, str(error)),)
        except Exception as error:
            # A cleaner may be anybody's: whatever it did, the device is not known clean.
            text = f"its cleaner failed: {type(error).__name__}: {error}"
            return (Symptom(HealthSign.FAILED, text),)
        # Bus mastering must be off once the last server is gone; firmware leaves it on.
        if look.master and is_unused_by_host(after.function):
            sign = HealthSign.MASTER if device.server is None else HealthSign.FAILED
            cure = CURE_OF_MASTERING.format(address)
            return (Symptom(sign, f"bus mastering is still on after its reset: {cure}"),)
        if (
            symptoms.explain_expected_change(
                ledger, address, tuple(differences), self.records.moment()
            )
            is not None
        ):
            return look  # the next look records it
        # A narrow link harms nobody, and is judged with those of other devices.
        return tuple(symptom for symptom in differences if symptom.sign not in CAPPED) or look
