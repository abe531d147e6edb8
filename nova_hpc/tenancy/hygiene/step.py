# SPDX-License-Identifier: Apache-2.0
"""Clean devices: the step that resets them and compares them with their baseline.

The rules, which hold whenever the service is killed:

* a device is marked with its server, on the disk, before the server starts;
* the mark goes only when the device was cleaned and looks as its baseline, or
  is in quarantine, which is written at the same time;
* a device with a mark is given to nobody else before that;
* a device is cleaned only when Nova, libvirt and the kernel agree that nobody has it
  (:mod:`nova_hpc.tenancy.owners`); while they do not, it keeps its mark, or gets one.

Every change is made below the device's own lock, which other processes (the
operator's command) respect, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import attrs

from nova_hpc.tenancy.health_states import Rules
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene import symptoms as judgement
from nova_hpc.tenancy.hygiene.cleaner import Cleaners
from nova_hpc.tenancy.hygiene.cleaning import Cleaning
from nova_hpc.tenancy.hygiene.records import Records, clock
from nova_hpc.tenancy.hygiene.snapshots import differences_of, errors_of, idle, seen, whole
from nova_hpc.tenancy.hygiene.update import Swept, Update
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.owners import Owners
from nova_hpc.tenancy.service_vm import stage
from nova_hpc.tenancy.sign import Sign, Symptom
from nova_hpc.tenancy.step import Candidate, RefusedError, Step, Tenant, View, Withheld
from nova_hpc.wire.announcements import Accepted
from nova_hpc.wire.ledger import SOMEBODY, Ledger, State


@attrs.frozen
class Hygiene(Step):
    """Keeps the devices of one node clean."""

    name: ClassVar[str] = "hygiene"

    root: Path
    ledger: LedgerFile
    cleaners: Cleaners
    #: Seconds after which a reset is given up.
    timeout: float
    #: Reads configuration spaces where this process may not read all of them.
    read_config: Callable[[Sequence[str]], Mapping[str, bytes]] | None = None
    rules: Rules = attrs.field(factory=Rules)
    #: Seconds of the clock of the day, and of one that counts from the boot.
    clock: Callable[[], tuple[float, float]] = clock

    @property
    def records(self) -> Records:
        """What is known of the devices."""
        return Records(self.root, self.ledger, self.read_config, self.rules, self.clock)

    @property
    def cleaning(self) -> Cleaning:
        """Cleans devices that nobody has."""
        return Cleaning(self.records, self.cleaners)

    @property
    def _update(self) -> Update:
        return Update(self.records, self.cleaning)

    # -- the protocol -----------------------------------------------------------

    def before_start(self, tenant: Tenant, view: View) -> tuple[str, ...]:
        """Check devices before a server gets them, and remember that it has."""
        wanted = view.candidates(tenant.devices)
        try:
            refused = self.give(tenant.server, wanted, tenant.owners)
        except LedgerError as error:
            raise RefusedError(
                "The node cannot keep records of its PCI devices.",
                [f"No PCI device can be given: {error}"],
            ) from error
        if refused:
            raise RefusedError(
                f"Of the {len(wanted)} PCI devices that were claimed for the server, "
                f"{len(refused)} did not pass the check before it starts.",
                [
                    f"PCI device {each} must not be given to the server: {why}"
                    for each, why in refused.items()
                ],
            )
        return ()

    def before_restart(self, tenant: Tenant, view: View) -> tuple[str, ...]:
        """Remember the devices of a server that was made before this was in use."""
        try:
            self.keep(tenant.server, tenant.devices)
        except LedgerError as error:
            # It has them already, so there is nothing to refuse.
            return (f"It is not recorded who has PCI devices: {error}",)
        return ()

    def after_end(self, server: str, look: Callable[[], View], owners: Owners) -> tuple[str, ...]:
        """Clean what a server had."""
        try:
            mine = owners.rows().of(server)
        except Exception as error:  # Nova does not answer
            self.ledger.distrust()
            text = f"Nova does not say which PCI devices the server had: {error}"
            return (text, *self._after_end(server, look, owners, frozenset()))
        return self._after_end(server, look, owners, mine)

    def _after_end(
        self, server: str, look: Callable[[], View], owners: Owners, mine: frozenset[str]
    ) -> tuple[str, ...]:
        try:
            if not mine and not self.has_given(server):
                return ()
            dirty = self.take_back(server, look().roles, owners, mine)
            known = self.ledger.read().quarantined
        except LedgerError as error:
            # Nova frees them now: its records have to tell that they had a server.
            self.ledger.distrust()
            return (f"PCI devices are not clean yet: {error}",)
        return tuple(
            f"PCI device {each} is {'in quarantine' if each in known else 'not clean yet'}: {why}"
            for each, why in dirty.items()
        )

    def withhold(self, view: View, owners: Owners) -> Withheld:
        """Clean and check free devices."""
        try:
            known = self.records.known()
            # What is no longer there is in no list of what is offered.
            gone = {
                each: Symptom(Sign.ABSENT, "the device is not there")
                for each, found in known.devices.items()
                if found.baseline is not None and view.node.function(each) is None
            }
            offered, ill = view.candidates(view.roles), {**gone, **view.ill}
            swept = self._update.look(offered, owners, ill, view.roles)
        except LedgerError as error:
            note = f"PCI devices are not offered: {error}"
            swept = Swept(dict.fromkeys(view.roles, str(error)), (note,), (note,))
        findings = {each: Symptom(Sign.UNREADY, why) for each, why in swept.reasons.items()}
        return Withheld(findings, swept.notes, swept.alarms)

    def unreported(self) -> frozenset[str]:
        """See :meth:`Step.unreported`."""
        devices = self.ledger.known().devices
        return frozenset(each for each, found in devices.items() if found.unreported)

    def report(self, addresses: Collection[str]) -> None:
        """See :meth:`Step.report`."""
        mine = frozenset(addresses)
        if mine:
            self.records.change(
                lambda now: {
                    each: attrs.evolve(now.device(each), unreported=False)
                    for each in mine & now.devices.keys()
                }
            )

    def check(self, device: Candidate) -> list[str]:
        """How a device differs from its baseline; nothing of one that a server has."""
        now = whole(self.ledger.read())
        if now.lost:
            return [now.problems[0]]
        address = device.function.address
        if now.device(address).server is not None:
            return []  # a server may do with it what it likes
        look = self.records.looker.look([device])[address]
        entry = now.device(address)
        found = differences_of(entry, look, device.function)
        found += errors_of(entry, look, self.records.moment(), self.rules)
        return [each.reason for each in found]

    def changes(self, devices: Iterable[Candidate]) -> dict[str, str]:
        """How devices differ from their baselines in what an operator can accept.

        :returns: address -> the differences; of a device that a server may have only
            where it was found changed when it was cleaned.
        """
        now = whole(self.ledger.read())
        wanted = {
            each.function.address: each
            for each in devices
            if (found := now.device(each.function.address)).server is None
            or found.state is not State.OFFERED
        }
        looks = self.records.looker.look(wanted.values())
        differences = {
            each: differences_of(now.device(each), look, wanted[each].function)
            for each, look in looks.items()
        }
        return {
            each: "; ".join(one.reason for one in found if one.sign in judgement.EXPECTED)
            for each, found in differences.items()
            if any(one.sign in judgement.EXPECTED for one in found)
        }

    def accept(self, device: Candidate, owners: Owners, reason: str = "") -> str:
        """Record a device as it is now; the same change at others of its model is right, too."""
        address = device.function.address
        with self.records.locks([address], 1.0):
            entry = self.records.known().device(address)
            found_changed = judgement.is_change(entry)
            self._expect_nobodys(address, owners, found_changed)
            look = self.records.looker.look([device])[address]
            change = judgement.change_of(tuple(differences_of(entry, look, device.function)))
            model = judgement.model_of(entry)
            accepted = None
            if change and model is not None and reason:
                accepted = Accepted(model, change, reason)
            for wrong in baseline.wrong(look, idle(device.function)):
                if not (found_changed and wrong.sign is Sign.MASTER):
                    raise LedgerError(f"{address}: {wrong.reason}")
            ids = self.records.looker.identify([device], {address: look})
            hardware = ids.get(address, f"slot:{address}")
            moment = self.records.moment()

            def edit(now: Ledger) -> Ledger:
                now = whole(now)
                entry = judgement.accepted(now.device(address), look, moment)
                now = now.put({address: attrs.evolve(entry, hardware=hardware)})
                if accepted is None or accepted in now.accepted:
                    return now
                return attrs.evolve(now, accepted=(*now.accepted, accepted))

            entry = self.ledger.change(edit).device(address)
        if entry.server is not None:
            return "recorded as it is now; it is cleaned and offered at the next update"
        return "recorded as it is now"

    def release(self, device: Candidate, owners: Owners) -> str | None:
        """Clean and check a device, and end its quarantine if it is well."""
        address = device.function.address
        with self.records.locks([address], self.timeout + 10):
            self._expect_nobodys(address, owners)
            _, dirty = self.cleaning.clean({address: device.role})
            if dirty:
                return dirty[address]
            self.ledger.release(address)
            return None

    def describe(self, address: str) -> Mapping[str, str]:
        """Who has had a device, its baseline, and how far its stage is."""
        found = whole(self.ledger.read()).device(address)
        known = json.dumps(found.baseline, sort_keys=True) if found.baseline else ""
        return {
            "Server": found.server or "",
            "Last server": found.last_server or "",
            "Hardware": found.hardware or "",
            "Baseline": known,
            "Stage": stage.describe(stage.loads(found.stage)),
        }

    def _expect_nobodys(self, address: str, owners: Owners, marked: bool = False) -> None:
        """Only what Nova, libvirt and the kernel know nobody to have is touched.

        :param marked: it may have the mark of a server that is gone.
        :raises LedgerError: somebody has it, or nobody knows.
        """
        server = self.records.known().device(address).server
        if server is not None and not marked:
            raise LedgerError(
                f"{address} is with server {server}, or has not been cleaned since: nova-compute "
                "does that when the server is gone, at the latest at its next periodic update"
            )
        if address in owners.records() and not marked:
            raise LedgerError(f"a server has {address}, by Nova's records")
        for held in owners.held([address]).values():
            raise LedgerError(f"{address} is not touched: {held.text}")

    # -- a server starts --------------------------------------------------------

    def give(self, server: str, wanted: Mapping[str, Candidate], owners: Owners) -> dict[str, str]:
        """Check devices, and mark them with the server that gets them.

        A device that still has the mark of another server is cleaned first, and so is one of
        which nobody knows whether it is clean.

        :param server: its UUID.
        :param wanted: address -> device, as it was just read.
        :param owners: asks who has devices; by Nova's records the server has them already.
        :returns: address -> why it must not be given; {}: all are marked.
        :raises LedgerError: nothing can be remembered, so nothing may be given.
        """
        with self.records.locks(wanted, self.timeout + 10):
            now, _ = self.records.compared(owners)
            refused = {
                each: f"in quarantine: {why}"
                for each, found in wanted.items()
                if (why := now.why(each, found.function.physical_function)) is not None
            }
            for each in wanted.keys() - refused.keys():
                if now.device(each).state is State.SUSPECT:
                    refused[each] = f"suspect: {now.device(each).reason}"
            held = owners.held(wanted.keys() - refused.keys(), server)
            refused |= {each: one.text for each, one in held.items()}
            left = {
                each
                for each in wanted
                if each not in refused
                and now.device(each).server != server
                and now.device(each).owes
            }
            now, dirty = self.cleaning.clean({each: wanted[each].role for each in left})
            refused |= dirty
            looks = self.records.looker.look(
                wanted[each] for each in wanted if each not in left | set(refused)
            )
            refused |= self.records.wrong(now, looks, wanted)
            if not refused:
                hardware = self.records.new_hardware(now, looks, wanted)
                self.records.change(
                    lambda now: {
                        each: attrs.evolve(
                            seen(now.device(each), looks.get(each), hardware.get(each)),
                            server=server,
                            unreported=False,
                        )
                        for each in wanted
                    }
                )
            return refused

    def keep(self, server: str, addresses: Iterable[str]) -> None:
        """Mark devices that a server has had before, without touching them.

        :raises LedgerError: nothing can be remembered.
        """
        mine = frozenset(addresses)
        self.records.change(
            lambda now: {
                each: attrs.evolve(now.device(each), server=server)
                for each in mine
                if now.device(each).server in (None, SOMEBODY)
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
        owners: Owners,
        recorded: Collection[str] = (),
    ) -> dict[str, str]:
        """Clean every device that has the mark of a server, all at once.

        :param roles: address -> role, as far as they are known.
        :param owners: asks who has devices; by Nova's records the server may have them still.
        :param recorded: the devices that it had by Nova's records: a ledger that was lost or
            put back has no mark of them.
        :returns: address -> why it is not clean: it is not well, or somebody has it, and
            it keeps its mark until a look from time to time finds it free.
        :raises LedgerError: nothing can be remembered; the marks are still there.
        """
        if recorded:
            self.keep(server, recorded)
        mine = [each for each, who in self.records.known().marked.items() if who == server]
        with self.records.locks(mine, self.timeout + 10):
            now = self.records.known().marked
            still = [each for each in mine if now.get(each) == server]
            held = owners.held(still)
            free = {each: roles.get(each) for each in still if each not in held}
            return {each: one.text for each, one in held.items()} | self.cleaning.clean(free)[1]

    # -- from time to time --------------------------------------------------------

    def sweep(
        self,
        offered: Mapping[str, Candidate],
        owners: Owners,
        ill: Mapping[str, Symptom] | None = None,
        roles: Mapping[str, str | None] | None = None,
    ) -> dict[str, str]:
        """As :meth:`look`, and only address -> why a device must not be offered."""
        return dict(self._update.look(offered, owners, ill or {}, roles).reasons)
