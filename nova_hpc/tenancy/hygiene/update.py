# SPDX-License-Identifier: Apache-2.0
"""The periodic check of a node's devices: it completes the work that the last one has left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Final

import attrs

from nova_hpc.tenancy import comparison, health_states
from nova_hpc.tenancy.hygiene import baseline, disagreement, symptoms
from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.hygiene.cleaning import DeviceCleaning
from nova_hpc.tenancy.hygiene.hardware_moves import HardwareMoves
from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.hygiene.snapshots import (
    add_first_baseline,
    baseline_of,
    is_unused_by_host,
    restart_error_count,
)
from nova_hpc.tenancy.hygiene.symptoms import DeviceJudgement
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.owners import DeviceOwners, NovaDeviceRows
from nova_hpc.tenancy.sign import Symptom
from nova_hpc.tenancy.step import DeviceCandidate
from nova_hpc.topology.files import FileTree
from nova_hpc.wire.ledger import SOMEBODY, DeviceState, Ledger, LedgerDevice

_MENDED: Final = (
    "PCI device {} had bus mastering on although no server has it: switched off, and reset"
)


@attrs.frozen
class HygieneSweep:
    """The result of a periodic check."""

    #: Address -> why a free device must not be offered.
    reasons: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


@attrs.frozen
class HygieneUpdate:
    """Checks all devices of a node."""

    records: HygieneRecords
    cleaning: DeviceCleaning

    def look(
        self,
        offered: Mapping[str, DeviceCandidate],
        owners: DeviceOwners,
        ill: Mapping[str, Symptom],
        roles: Mapping[str, str | None] | None = None,
    ) -> HygieneSweep:
        """Complete the work that the last check has left or missed.

        The phases: compare the ledger with Nova's records, and move entries with their hardware.
        Find devices that are in use without a server in Nova. Clean the devices that need it.
        Judge the free ones. Record proofs for the clean ones.

        :param offered: address -> device, from a fresh reading.
        :param owners: finds the users of devices.
        :param ill: devices that cannot be given in this reading: their
            snapshots must not become baselines.
        :param roles: roles of all devices that the node offers; None for those of *offered*.
        :raises LedgerError: the ledger cannot be read or written.
        """
        self.records.ledger.expect_room()
        # Read before cleaning: a claim in between changes the row.
        rows = owners.rows()
        # A claim is recorded in Nova first, and then as a mark in the ledger. So a mark that
        # is read before Nova's records, and whose device is missing in them, belongs to a
        # server that has ended.
        ledger, compared = self.records.compared(owners)
        used = owners.records()
        ledger = self._mark_places(ledger, used, offered)
        well = {address: candidate for address, candidate in offered.items() if address not in ill}
        looks = self.records.looker.look(well[address] for address in well if address not in used)
        ledger, notes = HardwareMoves(self.records).follow(ledger, well, looks, used)
        before = ledger
        disagreements = disagreement.find_disagreements(self.records, ledger, offered, used, owners)
        reasons = disagreements.reasons

        def taken() -> frozenset[str]:
            return owners.records() | disagreements.held.keys()

        # Treat devices with any other user like devices of servers.
        used |= disagreements.held.keys()
        busy = used | disagreements.waiting.keys()
        # Include devices with only a suspicion: a suspicion may not withhold all devices.
        fit = {
            address
            for address in offered
            if address in well or ill[address].sign in health_states.CAPPED
        }
        capped = [offered[address] for address in fit - well.keys() - busy]
        # Firmware leaves bus mastering on; even a clean device is then cleaned again.
        mastering = {
            address
            for address, look in (looks | self.records.looker.look(capped)).items()
            if look.master and is_unused_by_host(offered[address].function)
        }
        owing = {
            address
            for address in fit
            if _needs_cleaning(ledger, offered[address], busy, address in mastering)
        }
        mastering &= owing
        left = {*ledger.marked} - busy | owing
        reasons |= self._clean_owing(left, mastering, offered, taken)
        clean = self.records.known()
        staged = clean.staged
        free = {
            address
            for address in {*well, *ill} - used
            if address not in reasons
            and address not in staged  # its stage decides
            and (entry := clean.device(address)).state is not DeviceState.QUARANTINED
            and (entry.server is None or address in ill)
        }
        cleaned = [
            address
            for address in free & looks.keys()
            if address in mastering or before.device(address).owes
        ]
        looks = {address: looks[address] for address in free & looks.keys()}
        looks |= self.records.looker.look(well[address] for address in cleaned)
        ledger = self._remember(looks, used, offered)
        roles = roles or {address: candidate.role for address, candidate in offered.items()}
        judged = symptoms.judge_free_devices(
            ledger,
            looks,
            offered,
            {address: ill[address] for address in free & ill.keys()},
            roles,
            self.records.moment(),
            self.records.rules,
        )
        lost = self._settle(ledger, judged, taken)
        reasons |= {
            address: reason for address, reason in judged.reasons.items() if address not in lost
        }
        for address in ill:
            reasons.pop(address, None)  # its fault is reported elsewhere
        self._prove(offered.keys() - used, rows)
        mended = [_MENDED.format(address) for address in cleaned if address in mastering]
        return HygieneSweep(
            reasons, (*compared, *notes, *mended, *judged.notes), (*compared, *judged.alarms)
        )

    def _mark_places(
        self, ledger: Ledger, used: frozenset[str], offered: Collection[str]
    ) -> Ledger:
        """Mark devices that servers have by Nova's records, and clear marks of former places."""

        def edit(ledger: Ledger) -> dict[str, LedgerDevice]:
            marked = {
                address: attrs.evolve(device, server=SOMEBODY)
                for address in used.intersection(offered)
                # A cleaned replacement stays without a mark: the server has not got it yet.
                if (device := ledger.device(address)).server is None and not device.replaced
            }
            return marked | {
                address: attrs.evolve(device, replaced=False)
                for address, device in ledger.devices.items()
                if device.replaced and address not in used
            }

        return self.records.change(edit) if edit(ledger) else ledger

    def _prove(self, addresses: Collection[str], rows: NovaDeviceRows) -> None:
        """Record Nova's present records of the clean devices."""
        self.records.ledger.change(
            lambda ledger: comparison.add_row_proofs(ledger, addresses, rows)
        )

    def _settle(
        self, seen: Ledger, judged: DeviceJudgement, taken: Callable[[], frozenset[str]]
    ) -> frozenset[str]:
        """Write the result of a check.

        :param seen: the ledger that was judged.
        :returns: devices that were claimed or changed since then: the next check
            judges them.
        """
        if not judged.entries:
            return frozenset()
        gone = taken()
        lost: set[str] = set()

        def edit(ledger: Ledger) -> Mapping[str, LedgerDevice]:
            lost.clear()
            lost.update(
                address
                for address in judged.entries
                if address in gone or ledger.device(address) != seen.device(address)
            )
            return {
                address: device for address, device in judged.entries.items() if address not in lost
            }

        self.records.change(edit)
        return frozenset(lost)

    def _clean_owing(
        self,
        left: Collection[str],
        mastering: Collection[str],
        offered: Mapping[str, DeviceCandidate],
        taken: Callable[[], frozenset[str]],
    ) -> dict[str, str]:
        """Clean devices that servers have left, that may be unclean, or that are *mastering*."""
        reasons: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            locked = []
            for address in sorted(left):
                try:
                    stack.enter_context(self.records.ledger.locked(address, 0))
                    locked.append(address)
                except LedgerError:
                    reasons[address] = "it is being checked"
            if not locked:
                return reasons
            ledger, gone = self.records.known(), taken()
            locked = [
                address
                for address in locked
                if (ledger.device(address).owes or address in mastering) and address not in gone
            ]
            moment = self.records.moment()
            for address in [*locked]:
                device = ledger.device(address)
                tried = health_states.is_trial_due(device.trial, moment, self.records.rules)
                if device.state is DeviceState.SUSPECT and not tried:
                    reasons[address] = device.reason
                    locked.remove(address)
            # Clean it later: an operator has to release it first.
            kept = {
                address
                for address in locked
                if ledger.device(address).state is DeviceState.QUARANTINED
            }
            if kept:
                self.records.change(
                    lambda current: {e: attrs.evolve(current.device(e), server=None) for e in kept}
                )
            roles = {
                address: offered[address].role if address in offered else None
                for address in locked
                if address not in kept
            }
            _, dirty = self.cleaning.clean(roles)
            return reasons | dirty

    def _remember(
        self,
        looks: Mapping[str, DeviceSnapshot],
        used: frozenset[str],
        offered: Mapping[str, DeviceCandidate],
    ) -> Ledger:
        """Record devices without a record, and the counters of a new boot."""
        ledger = self.records.known()
        boot = baseline.boot_of(FileTree(self.records.root))
        old = [
            address
            for address in used & offered.keys()
            if (recorded := baseline_of(ledger.device(address))) is not None
            and recorded.boot != boot
        ]
        running = self.records.looker.look(offered[address] for address in old)
        hardware = self.records.new_hardware(ledger, looks, offered)
        moment = self.records.moment()

        def edit(current: Ledger) -> dict[str, LedgerDevice]:
            changed = {}
            for address, look in {**looks, **running}.items():
                device = current.device(address)
                recorded = baseline_of(device)
                if recorded is None and device.server is None:
                    if not baseline.find_inherent_faults(
                        look, is_unused_by_host(offered[address].function)
                    ):
                        device = add_first_baseline(device, look, hardware.get(address))
                        changed[address] = attrs.evolve(device, counted=moment.up)
                elif recorded is not None:
                    if recorded.boot != look.boot:
                        device = restart_error_count(device, look, moment)
                    changed[address] = attrs.evolve(
                        device, hardware=device.hardware or hardware.get(address)
                    )
            return changed

        return self.records.change(edit)


def _needs_cleaning(
    ledger: Ledger, candidate: DeviceCandidate, busy: Collection[str], masters: bool
) -> bool:
    """Whether to clean a device without a mark: its last owner is unknown, or it *masters*."""
    function = candidate.function
    device = ledger.device(function.address)
    clean = device.proof is not None and not masters
    if device.server is not None or clean or function.address in busy:
        return False
    if device.state is DeviceState.QUARANTINED or function.address in ledger.staged:
        return False  # an operator, or its stage, decides
    # Its reset would also reset its virtual functions, which servers have. It is cleaned when
    # they are free, and always before it is given.
    return not any(address in busy for address in function.virtual_functions)
