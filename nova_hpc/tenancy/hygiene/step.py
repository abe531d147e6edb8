# SPDX-License-Identifier: Apache-2.0
"""The step that cleans devices: it resets them and compares them with their baseline.

These rules hold whenever the service is killed:

* a device is marked with its server, on the disk, before the server starts;
* the mark is removed only when the device was cleaned and matches its baseline, or
  is in quarantine, which is written at the same time;
* no other server gets a device with a mark before that;
* a device is cleaned only if Nova, libvirt and the kernel agree that it is free
  (:mod:`nova_hpc.tenancy.owners`); otherwise it keeps its mark, or gets one.

Every change is made under the device's own lock, which other processes (the
operator's command) respect, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar, Final

import attrs

from nova_hpc.tenancy import health_states, identity
from nova_hpc.tenancy.hygiene import cleaning
from nova_hpc.tenancy.hygiene.cleaner import RoleCleaners
from nova_hpc.tenancy.hygiene.hardware_moves import find_replaced, word_replaced_devices
from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.hygiene.snapshots import add_first_baseline
from nova_hpc.tenancy.hygiene.update import update_devices
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.step import (
    DeviceCandidate,
    DeviceTenant,
    NodeView,
    RefusedError,
    TenancyStep,
    WithheldDevices,
)
from nova_hpc.wire.ledger import SOMEBODY, DeviceState, Ledger, LedgerDevice

_CURE_OF_REPLACED: Final = (
    "run nova-hpc device release {address} if it is in quarantine, and start the server again"
)


@attrs.frozen
class HygieneStep(TenancyStep):
    """Tenancy step that keeps the devices of one node clean between servers."""

    name: ClassVar[str] = "hygiene"

    records: HygieneRecords
    cleaners: RoleCleaners
    #: Seconds after which a reset counts as failed.
    timeout: float

    # -- the protocol -----------------------------------------------------------

    def before_start(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Check devices before a server gets them, and note in the ledger that it has them.

        :raises RefusedError: a device failed the check, or the ledger cannot be changed.
        """
        wanted = view.candidates(tenant.devices)
        try:
            refused = self.give(tenant.server, wanted, tenant.owners)
        except LedgerError as error:
            raise RefusedError.without_records(error) from error
        if refused:
            what = "did not pass the check before it starts"
            raise RefusedError.of_devices(len(wanted), refused, what)
        return ()

    def before_restart(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Clean hardware that replaced the server's own; keep the other devices unchanged."""
        notes: tuple[str, ...] = ()
        try:
            replaced, notes = find_replaced(self.records, tenant, view)
            if replaced:
                self._give_replaced(tenant, view, replaced)
            self.keep(tenant.server, frozenset(tenant.devices) - replaced)
        except LedgerError as error:
            # The server already has them, so there is nothing to refuse.
            return (*notes, f"It is not recorded who has PCI devices: {error}")
        return notes

    def _give_replaced(
        self, tenant: DeviceTenant, view: NodeView, replaced: frozenset[str]
    ) -> None:
        """Give a server hardware that is new to it, at places that it holds.

        :raises RefusedError: some of it is not clean.
        """
        wanted = view.candidates(replaced)
        refused = dict.fromkeys(replaced - wanted.keys(), "it is not there")
        try:
            refused |= self.give(tenant.server, wanted, tenant.owners)
        except LedgerError as error:
            raise RefusedError.without_records(error) from error
        if refused:
            raise word_replaced_devices(len(tenant.devices), refused, _CURE_OF_REPLACED)

    def after_end(
        self, server: str, look: Callable[[], NodeView], owners: DeviceOwners
    ) -> tuple[str, ...]:
        """Clean the devices that a server had; return notes for the log."""
        try:
            recorded = owners.rows().of(server)
        except Exception as error:  # Nova does not answer
            self.records.ledger.distrust()
            text = f"Nova does not say which PCI devices the server had: {error}"
            return (text, *self._after_end(server, look, owners, frozenset()))
        return self._after_end(server, look, owners, recorded)

    def _after_end(
        self,
        server: str,
        look: Callable[[], NodeView],
        owners: DeviceOwners,
        recorded: frozenset[str],
    ) -> tuple[str, ...]:
        """Clean the devices that a server had by the ledger's marks or by Nova's records."""
        try:
            if not recorded and not self.has_given(server):
                return ()
            dirty = self.take_back(server, look().roles, owners, recorded)
            quarantined = self.records.ledger.read().quarantined
        except LedgerError as error:
            # Nova frees them now: only its records will show that they had a server.
            self.records.ledger.distrust()
            return (f"PCI devices are not clean yet: {error}",)
        return tuple(
            f"PCI device {address} is "
            f"{'in quarantine' if address in quarantined else 'not clean yet'}: {reason}"
            for address, reason in dirty.items()
        )

    def withhold(self, view: NodeView, owners: DeviceOwners) -> WithheldDevices:
        """Clean and check the node's free devices; return those not to offer, with reasons."""
        try:
            ledger = self.records.known()
            # Missing devices are not in the list of offered ones.
            gone = {
                address: Symptom(HealthSign.ABSENT, "the device is not there")
                for address, device in ledger.devices.items()
                if device.baseline is not None and view.node.function(address) is None
            }
            offered, ill = view.candidates(view.roles), {**gone, **view.ill}
            return update_devices(self.records, self.cleaners, offered, owners, ill, view.roles)
        except LedgerError as error:
            note = f"PCI devices are not offered: {error}"
            unready = Symptom(HealthSign.UNREADY, str(error))
            return WithheldDevices(dict.fromkeys(view.roles, unready), (note,), (note,))

    def unreported(self) -> frozenset[str]:
        """Return addresses of clean devices that are not yet reported to Placement as free.

        See :meth:`TenancyStep.unreported`.
        """
        devices = self.records.ledger.known().devices
        # A server holds the place of a replaced device: Placement has nothing to give.
        return frozenset(
            address
            for address, device in devices.items()
            if device.unreported and not device.replaced
        )

    def report(self, addresses: Collection[str]) -> None:
        """Record in the ledger that Placement has the report of these devices.

        See :meth:`TenancyStep.report`.
        """
        reported = frozenset(addresses)
        if reported:
            self.records.change(
                lambda ledger: {
                    address: attrs.evolve(ledger.device(address), unreported=False)
                    for address in reported & ledger.devices.keys()
                }
            )

    # -- a server starts --------------------------------------------------------

    def give(
        self, server: str, wanted: Mapping[str, DeviceCandidate], owners: DeviceOwners
    ) -> dict[str, str]:
        """Check devices, and mark them with the server that gets them.

        These devices are cleaned first: a device with the mark of another server, a device
        that may be unclean, and hardware that replaced the server's own.

        :param server: its UUID.
        :param wanted: address -> device, from a fresh reading.
        :param owners: finds the users of devices; Nova's records already list the server.
        :returns: address -> why it must not be given; {} if all are marked.
        :raises LedgerError: the ledger cannot be written, so no device may be given.
        """
        with self.records.locks(wanted, self.timeout + 10):
            ledger, _ = self.records.compared(owners)
            refused = {
                address: f"in quarantine: {reason}"
                for address, candidate in wanted.items()
                if (reason := ledger.why(address, candidate.function.physical_function)) is not None
            }
            for address in wanted.keys() - refused.keys():
                if ledger.device(address).state is DeviceState.SUSPECT and not (
                    # No update tries it again, because the server holds the place.
                    ledger.device(address).replaced and self._is_trial_due(ledger.device(address))
                ):
                    refused[address] = f"suspect: {ledger.device(address).reason}"
            held = owners.held(wanted.keys() - refused.keys(), server)
            refused |= {address: holding.text for address, holding in held.items()}
            left = {
                address
                for address in wanted
                if address not in refused
                and (ledger.device(address).server != server or ledger.device(address).replaced)
                and ledger.device(address).owes
            }
            ledger, dirty = cleaning.clean_devices(
                self.records, self.cleaners, {address: wanted[address].role for address in left}
            )
            refused |= dirty
            looks = self.records.look(
                wanted[address] for address in wanted if address not in left | set(refused)
            )
            refused |= self.records.wrong(ledger, looks, wanted)
            if not refused:
                hardware = self.records.new_hardware(ledger, looks, wanted)
                lost = self._lost_numbers(ledger, wanted)
                self.records.change(
                    lambda ledger: {
                        address: attrs.evolve(
                            entry := add_first_baseline(
                                ledger.device(address), looks.get(address), hardware.get(address)
                            ),
                            hardware=lost.get(address, entry.hardware),
                            server=server,
                            unreported=False,
                            replaced=False,
                        )
                        for address in wanted
                    }
                )
            return refused

    def _is_trial_due(self, device: LedgerDevice) -> bool:
        return health_states.is_trial_due(device.trial, self.records.moment(), self.records.rules)

    def _lost_numbers(
        self, ledger: Ledger, wanted: Mapping[str, DeviceCandidate]
    ) -> dict[str, str]:
        """Return address -> slot, for each cleaned device without its former serial number.

        Otherwise it would count as replaced again at each update.
        """
        asked = [
            address
            for address in wanted
            if ledger.device(address).replaced
            and identity.is_hardware_known(ledger.device(address).hardware)
        ]
        looks = self.records.look(wanted[address] for address in asked)
        reported = self.records.identify((wanted[address] for address in asked), looks)
        return {
            address: hardware
            for address, hardware in reported.items()
            if not identity.is_hardware_known(hardware)
        }

    def keep(self, server: str, addresses: Iterable[str]) -> None:
        """Mark devices that a server has had before, without touching them.

        :raises LedgerError: the ledger cannot be written.
        """
        kept = frozenset(addresses)
        self.records.change(
            lambda ledger: {
                address: attrs.evolve(ledger.device(address), server=server)
                for address in kept
                if ledger.device(address).server in (None, SOMEBODY)
            }
        )

    def has_given(self, server: str) -> bool:
        """Whether any device has the mark of a server.

        :raises LedgerError: the file is lost.
        """
        return server in self.records.known().marked.values()

    # -- a server is gone -------------------------------------------------------

    def take_back(
        self,
        server: str,
        roles: Mapping[str, str | None],
        owners: DeviceOwners,
        recorded: Collection[str] = (),
    ) -> dict[str, str]:
        """Clean every device with the mark of a server, all at once.

        :param roles: address -> role, as far as known.
        :param owners: finds the users of devices; Nova's records may still list the server.
        :param recorded: its devices in Nova's records: a ledger that was lost or
            restored lacks their marks.
        :returns: address -> why it is not clean: it is faulty, or in use. It
            keeps its mark until a periodic check finds it free.
        :raises LedgerError: the ledger cannot be written; the marks are still there.
        """
        if recorded:
            self.keep(server, recorded)
        marked = [address for address, who in self.records.known().marked.items() if who == server]
        with self.records.locks(marked, self.timeout + 10):
            current_marks = self.records.known().marked
            still = [address for address in marked if current_marks.get(address) == server]
            held = owners.held(still)
            free = {address: roles.get(address) for address in still if address not in held}
            return {
                address: holding.text for address, holding in held.items()
            } | cleaning.clean_devices(self.records, self.cleaners, free)[1]
