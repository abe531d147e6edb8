# SPDX-License-Identifier: Apache-2.0
"""The periodic look at a node's devices: it brings in order what the last one has left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

import attrs

from nova_hpc.tenancy import comparison, identity
from nova_hpc.tenancy import health_states as policy
from nova_hpc.tenancy.hygiene import baseline, disagreement
from nova_hpc.tenancy.hygiene import symptoms as judgement
from nova_hpc.tenancy.hygiene.baseline import Snapshot
from nova_hpc.tenancy.hygiene.cleaning import Cleaning
from nova_hpc.tenancy.hygiene.records import Records
from nova_hpc.tenancy.hygiene.snapshots import baseline_of, counted, idle, seen, whole
from nova_hpc.tenancy.hygiene.symptoms import Judgement
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.owners import Owners, Rows
from nova_hpc.tenancy.sign import Symptom
from nova_hpc.tenancy.step import Candidate
from nova_hpc.topology.files import Tree
from nova_hpc.wire.ledger import SOMEBODY, Device, Ledger, State


@attrs.frozen
class Swept:
    """What a look from time to time comes to."""

    #: Address -> why a free device must not be offered.
    reasons: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


@attrs.frozen
class Update:
    """Looks at all devices of a node."""

    records: Records
    cleaning: Cleaning

    def look(
        self,
        offered: Mapping[str, Candidate],
        owners: Owners,
        ill: Mapping[str, Symptom],
        roles: Mapping[str, str | None] | None = None,
    ) -> Swept:
        """Bring everything in order that the last look has left, or not seen.

        :param offered: address -> device, as it was just read.
        :param owners: asks who has devices now.
        :param ill: those that cannot be given anyway, as the node looks now: what
            they look like is no baseline.
        :param roles: of everything that the node offers; None: of *offered*.
        :raises LedgerError: nothing is known, or can be remembered.
        """
        self.records.ledger.expect_room()
        # Before it is known which devices are clean: whoever gets one meanwhile changes it.
        rows = owners.rows()
        # Who gives a device to a server tells Nova first, and writes the mark
        # then: so a mark that is seen before Nova is asked and is not in the
        # answer has outlived its server.
        now, compared = self.records.compared(owners)
        used = owners.records()
        if any(now.device(each).server is None for each in used & offered.keys()):
            now = self.records.change(
                lambda now: {
                    each: attrs.evolve(now.device(each), server=SOMEBODY)
                    for each in used & offered.keys()
                    if now.device(each).server is None
                }
            )
        well = {each: found for each, found in offered.items() if each not in ill}
        looks = self.records.looker.look(well[each] for each in well if each not in used)
        now, notes = self._follow(now, well, looks, used)
        before = now
        found = disagreement.find(self.records, now, offered, used, owners)
        reasons = found.reasons

        def taken() -> frozenset[str]:
            return owners.records() | found.held.keys()

        # Whoever has them, they are as if a server had them.
        used |= found.held.keys()
        busy = used | found.waiting.keys()
        # Also those that suspicion alone concerns: it may not withhold all of them.
        fit = {each for each in offered if each in well or ill[each].sign in policy.CAPPED}
        owing = {each for each in fit if _unproved(now, offered[each], busy)}
        reasons |= self._clean_owing({*now.marked} - busy | owing, offered, taken)
        clean = self.records.known()
        staged = clean.staged
        free = {
            each
            for each in {*well, *ill} - used
            if each not in reasons
            and each not in staged  # its stage says what becomes of it
            and (entry := clean.device(each)).state is not State.QUARANTINED
            and (entry.server is None or each in ill)
        }
        cleaned = [each for each in free & looks.keys() if before.device(each).owes]
        looks = {each: looks[each] for each in free & looks.keys()}
        looks |= self.records.looker.look(well[each] for each in cleaned)
        now = self._remember(looks, used, offered)
        roles = roles or {each: found.role for each, found in offered.items()}
        judged = judgement.judge(
            now,
            looks,
            offered,
            {each: ill[each] for each in free & ill.keys()},
            roles,
            self.records.moment(),
            self.records.rules,
        )
        lost = self._settle(now, judged, taken)
        reasons |= {each: why for each, why in judged.reasons.items() if each not in lost}
        for each in ill:
            reasons.pop(each, None)  # why it is ill stands elsewhere
        self._prove(offered.keys() - used, rows)
        return Swept(reasons, (*compared, *notes, *judged.notes), (*compared, *judged.alarms))

    def _prove(self, addresses: Collection[str], rows: Rows) -> None:
        """Write down which records Nova has of the devices that are clean."""
        self.records.ledger.change(lambda now: comparison.proved(now, addresses, rows))

    def _settle(
        self, seen: Ledger, found: Judgement, taken: Callable[[], frozenset[str]]
    ) -> frozenset[str]:
        """Write what a look comes to.

        :param seen: the ledger that was judged.
        :returns: devices that somebody got, or changed, meanwhile: the next look
            judges them.
        """
        if not found.entries:
            return frozenset()
        gone = taken()
        lost: set[str] = set()

        def edit(now: Ledger) -> Mapping[str, Device]:
            lost.clear()
            lost.update(
                each
                for each in found.entries
                if each in gone or now.device(each) != seen.device(each)
            )
            return {each: one for each, one in found.entries.items() if each not in lost}

        self.records.change(edit)
        return frozenset(lost)

    def _follow(
        self,
        now: Ledger,
        offered: Mapping[str, Candidate],
        looks: Mapping[str, Snapshot],
        used: frozenset[str],
    ) -> tuple[Ledger, tuple[str, ...]]:
        """Let entries follow their hardware to other addresses."""
        boot = baseline.boot_of(Tree(self.records.root))
        doubtful = [
            each
            for each, found in offered.items()
            if _doubtful(now.device(each), found, looks.get(each), boot)
        ]
        if not doubtful:
            return now, ()
        running = self.records.looker.look(offered[each] for each in doubtful if each in used)
        seen = self._identify(offered, {**looks, **running}, doubtful)
        unsure = offered.keys() - seen.keys()
        if identity.follow(now, seen, unsure).ledger == now:
            return now, ()
        # One reading may lie, and much depends on it.
        again = self.records.looker.look(offered[each] for each in seen)
        sure = self._identify(offered, again, doubtful)
        seen = {each: hardware for each, hardware in seen.items() if sure.get(each) == hardware}
        unsure = offered.keys() - seen.keys()
        moved = identity.follow(now, seen, unsure)
        self.records.ledger.change(lambda now: identity.follow(whole(now), seen, unsure).ledger)
        return self.records.known(), moved.notes

    def _identify(
        self,
        offered: Mapping[str, Candidate],
        looks: Mapping[str, Snapshot],
        doubtful: Collection[str],
    ) -> dict[str, str]:
        """What devices say they are: those that are asked, and those that say so anyway."""
        wanted = [
            found
            for each, found in offered.items()
            if each in looks and (each in doubtful or _says(found, looks[each]))
        ]
        return self.records.looker.identify(wanted, looks)

    def _clean_owing(
        self,
        left: Collection[str],
        offered: Mapping[str, Candidate],
        taken: Callable[[], frozenset[str]],
    ) -> dict[str, str]:
        """Clean what servers have left, and what nobody knows to be clean."""
        reasons: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            mine = []
            for each in sorted(left):
                try:
                    stack.enter_context(self.records.ledger.locked(each, 0))
                    mine.append(each)
                except LedgerError:
                    reasons[each] = "it is being checked"
            if not mine:
                return reasons
            now, gone = self.records.known(), taken()
            mine = [each for each in mine if now.device(each).owes and each not in gone]
            moment = self.records.moment()
            for each in [*mine]:
                found = now.device(each)
                tried = policy.due(found.trial, moment, self.records.rules)
                if found.state is State.SUSPECT and not tried:
                    reasons[each] = found.reason
                    mine.remove(each)
            # An operator will have it cleaned before it is released.
            kept = {each for each in mine if now.device(each).state is State.QUARANTINED}
            if kept:
                self.records.change(
                    lambda now: {e: attrs.evolve(now.device(e), server=None) for e in kept}
                )
            roles = {
                each: offered[each].role if each in offered else None
                for each in mine
                if each not in kept
            }
            _, dirty = self.cleaning.clean(roles)
            return reasons | dirty

    def _remember(
        self, looks: Mapping[str, Snapshot], used: frozenset[str], offered: Mapping[str, Candidate]
    ) -> Ledger:
        """Record what was not seen before, and the counters of a new boot."""
        now = self.records.known()
        boot = baseline.boot_of(Tree(self.records.root))
        old = [
            each
            for each in used & offered.keys()
            if (known := baseline_of(now.device(each))) is not None and known.boot != boot
        ]
        running = self.records.looker.look(offered[each] for each in old)
        hardware = self.records.new_hardware(now, looks, offered)
        moment = self.records.moment()

        def edit(now: Ledger) -> dict[str, Device]:
            found = {}
            for each, look in {**looks, **running}.items():
                device = now.device(each)
                known = baseline_of(device)
                if known is None and device.server is None:
                    if not baseline.wrong(look, idle(offered[each].function)):
                        device = seen(device, look, hardware.get(each))
                        found[each] = attrs.evolve(device, counted=moment.up)
                elif known is not None:
                    if known.boot != look.boot:
                        device = counted(device, look, moment)
                    found[each] = attrs.evolve(
                        device, hardware=device.hardware or hardware.get(each)
                    )
            return found

        return self.records.change(edit)


def _unproved(now: Ledger, candidate: Candidate, busy: Collection[str]) -> bool:
    """Whether a device that nobody has is to be cleaned because nobody knows who had it."""
    function = candidate.function
    device = now.device(function.address)
    if device.server is not None or device.proof is not None or function.address in busy:
        return False
    if device.state is State.QUARANTINED or function.address in now.staged:
        return False  # an operator, or its stage, has the next word
    # Its virtual functions would be reset with it, under their servers. It is cleaned when
    # they are gone, before it is given at the latest.
    return not any(each in busy for each in function.virtual_functions)


def _says(candidate: Candidate, look: Snapshot) -> bool:
    """Whether a device's serial number stands in what is read of it anyway."""
    return look.serial is not None and candidate.function.physical_function is None


def _doubtful(
    device: Device, candidate: Candidate, look: Snapshot | None, boot: str | None
) -> bool:
    """Whether to ask a device which hardware it is.

    What stands in its configuration space is read anyway; the vital product data is
    slow, and boards change only while the machine is down or the device is away.
    """
    if look is not None and _says(candidate, look):
        return device.hardware != baseline.serial_of(candidate.function, look)
    known = baseline_of(device)
    return (
        known is None
        or known.boot != boot
        or device.hardware is None
        or device.state is not State.OFFERED
    )
