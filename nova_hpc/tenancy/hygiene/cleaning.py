# SPDX-License-Identifier: Apache-2.0
"""Clean devices side by side, and write what came of it."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.tenancy import health_states as policy
from nova_hpc.tenancy.health_states import CAPPED, Moment
from nova_hpc.tenancy.hygiene import symptoms as judgement
from nova_hpc.tenancy.hygiene.baseline import Snapshot
from nova_hpc.tenancy.hygiene.cleaner import CleanError, Cleaners
from nova_hpc.tenancy.hygiene.records import Records
from nova_hpc.tenancy.hygiene.reset import HeldError, ResetError
from nova_hpc.tenancy.hygiene.snapshots import counted, differences_of, errors_of, idle, seen
from nova_hpc.tenancy.owners import Held
from nova_hpc.tenancy.sign import Sign, Symptom
from nova_hpc.topology.files import FileError
from nova_hpc.wire.ledger import Device, Ledger, State

_MOST_AT_ONCE: Final = 32


@attrs.frozen
class Cleaning:
    """Cleans devices that nobody has; who calls it has their locks."""

    records: Records
    cleaners: Cleaners

    def clean(self, roles: Mapping[str, str | None]) -> tuple[Ledger, dict[str, str]]:
        """Clean devices side by side; those that fail are not offered.

        One that does not look well after its reset keeps its mark: it is cleaned
        again when it is tried again. One that somebody has after all is not touched
        and keeps it, too. Call it below their locks.
        """
        now = self.records.known()
        if not roles:
            return now, {}
        workers = min(len(roles), _MOST_AT_ONCE)
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            results = dict(
                zip(
                    roles,
                    pool.map(lambda each: self._clean_one(each, roles[each], now), roles),
                    strict=True,
                )
            )
        dirty = {each: one.text for each, one in results.items() if isinstance(one, Held)}
        dirty |= {each: one[0].reason for each, one in results.items() if isinstance(one, tuple)}
        moment = self.records.moment()

        def edit(now: Ledger) -> Mapping[str, Device]:
            return {
                each: self._cleaned(now.device(each), result, moment)
                for each, result in results.items()
                if not isinstance(result, Held)
            }

        return self.records.change(edit), dirty

    def _cleaned(
        self, device: Device, result: Snapshot | tuple[Symptom, ...], moment: Moment
    ) -> Device:
        """The entry of a device after it was cleaned, or was not."""
        server, last = device.server, device.server or device.last_server
        if isinstance(result, Snapshot):
            found = policy.step(device, (), moment, self.records.rules)
            found = attrs.evolve(
                seen(found, result, None),
                server=None,
                proof="",
                last_server=last,
                # Of one that nobody is known to have had, what is reserved is an operator's.
                unreported=device.unreported
                or server is not None
                or device.state is not State.OFFERED,
                cleaned=device.cleaned + 1,
            )
            # Errors that are judged are judged at the next look, with those of others.
            judged = errors_of(device, result, moment, self.records.rules)
            return found if judged else counted(found, result, moment)
        found = policy.step(device, result, moment, self.records.rules)
        return attrs.evolve(
            found,
            server=server if found.state is State.SUSPECT else None,
            last_server=last,
            failed=device.failed + 1,
        )

    def _clean_one(
        self, address: str, role: str | None, now: Ledger
    ) -> Snapshot | tuple[Symptom, ...] | Held:
        """The device after it was cleaned, or why it is not clean. Never raises."""
        try:
            before = self.records.looker.find(address, role)
            if before is None:
                return (Symptom(Sign.ABSENT, "it has disappeared"),)
            self.cleaners.of(role).clean(before.function)
            after = self.records.looker.find(address, role)
            if after is None:
                return (Symptom(Sign.ABSENT, "it has disappeared in its reset"),)
            look = self.records.looker.look([after])[address]
            device = now.device(address)
            differences = differences_of(device, look, after.function)
        except HeldError as error:
            return Held(str(error))
        except FileError as error:
            return (Symptom(Sign.ABSENT, str(error)),)
        except (CleanError, ResetError) as error:
            return (Symptom(Sign.FAILED, str(error)),)
        except Exception as error:
            # A cleaner may be anybody's: whatever it did, the device is not known clean.
            text = f"its cleaner failed: {type(error).__name__}: {error}"
            return (Symptom(Sign.FAILED, text),)
        # With its last server gone nothing excuses bus mastering; firmware leaves it on.
        if look.master and idle(after.function) and device.baseline is not None:
            return (Symptom(Sign.FAILED, "bus mastering is still on after its reset"),)
        if judgement.expected(now, address, tuple(differences), self.records.moment()) is not None:
            return look  # the next look records it
        # A narrow link harms nobody, and is judged with those of other devices.
        return tuple(each for each in differences if each.sign not in CAPPED) or look
