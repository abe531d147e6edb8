# SPDX-License-Identifier: Apache-2.0
"""Clean devices: the step that resets them and compares them with their baseline.

The rules, which hold whenever the service is killed:

* a device is marked with its server, on the disk, before the server starts;
* the mark goes only when the device was cleaned and looks as its baseline, or
  is in quarantine, which is written at the same time;
* a device with a mark is given to nobody else before that.

Every change is made below the device's own lock, which other processes (the
operator's command) respect, too.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import attrs

from nova_hpc.tenancy import identity, policy
from nova_hpc.tenancy.health import Finding, Kind
from nova_hpc.tenancy.hygiene import baseline, judgement
from nova_hpc.tenancy.hygiene.baseline import Snapshot
from nova_hpc.tenancy.hygiene.cleaner import CleanError, Cleaners
from nova_hpc.tenancy.hygiene.judgement import Judgement
from nova_hpc.tenancy.hygiene.looks import (
    Looker,
    baseline_of,
    counted,
    differences_of,
    errors_of,
    idle,
    seen,
    whole,
)
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.policy import CAPPED, Moment, Rules, Sign, Symptom
from nova_hpc.tenancy.step import Candidate, RefusedError, Step, Tenant, View, Withheld
from nova_hpc.topology.files import FileError, Tree
from nova_hpc.wire.ledger import SOMEBODY, Device, Ledger, State

_MOST_AT_ONCE: Final = 32


def _clock() -> tuple[float, float]:
    return time.time(), time.monotonic()


@attrs.frozen
class Swept:
    """What a look from time to time comes to."""

    #: Address -> why a free device must not be offered.
    reasons: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


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
    clock: Callable[[], tuple[float, float]] = _clock

    @property
    def _looker(self) -> Looker:
        return Looker(self.root, self.read_config)

    # -- the protocol -----------------------------------------------------------

    def before_start(self, tenant: Tenant, view: View) -> tuple[str, ...]:
        """Check devices before a server gets them, and remember that it has."""
        wanted = view.candidates(tenant.devices)
        try:
            refused = self.give(tenant.server, wanted)
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

    def after_end(self, server: str, look: Callable[[], View]) -> tuple[str, ...]:
        """Clean what a server had."""
        try:
            if not self.has_given(server):
                return ()
            dirty = self.take_back(server, look().roles)
        except LedgerError as error:
            return (f"PCI devices are not clean yet: {error}",)
        return tuple(f"PCI device {each} is in quarantine: {why}" for each, why in dirty.items())

    def withhold(self, view: View, taken: Callable[[], frozenset[str]]) -> Withheld:
        """Clean and check free devices."""
        try:
            known = self._known()
            # What is no longer there is in no list of what is offered.
            gone = {
                each: Finding(Kind.PRESENT, "the device is not there")
                for each, found in known.devices.items()
                if found.baseline is not None and view.node.function(each) is None
            }
            swept = self.look(view.candidates(view.roles), taken, {**gone, **view.ill}, view.roles)
        except LedgerError as error:
            note = f"PCI devices are not offered: {error}"
            swept = Swept(dict.fromkeys(view.roles, str(error)), (note,))
        findings = {each: Finding(Kind.HYGIENE, why) for each, why in swept.reasons.items()}
        return Withheld(findings, swept.notes, swept.alarms)

    def unreported(self) -> frozenset[str]:
        """See :meth:`Step.unreported`."""
        devices = self.ledger.known().devices
        return frozenset(each for each, found in devices.items() if found.unreported)

    def report(self, addresses: Collection[str]) -> None:
        """See :meth:`Step.report`."""
        mine = frozenset(addresses)
        if mine:
            self._change(
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
        look = self._looker.look([device])[address]
        entry = now.device(address)
        found = differences_of(entry, look, device.function)
        found += errors_of(entry, look, self._moment(), self.rules)
        return [each.text for each in found]

    def accept(self, device: Candidate) -> None:
        """Record a device as it is now."""
        address = device.function.address
        with self._locks([address], 1.0):
            self._expect_nobodys(address)
            look = self._looker.look([device])[address]
            for difference in baseline.wrong(look, idle(device.function)):
                raise LedgerError(f"{address}: {difference.text}")
            ids = self._looker.identify([device], {address: look})
            hardware = ids.get(address, f"slot:{address}")
            moment = self._moment()
            self._change(
                lambda now: {
                    address: attrs.evolve(
                        judgement.renewed(now.device(address), look, moment),
                        hardware=hardware,
                        unreported=False,
                    )
                }
            )

    def release(self, device: Candidate) -> str | None:
        """Clean and check a device, and end its quarantine if it is well."""
        address = device.function.address
        with self._locks([address], self.timeout + 10):
            self._expect_nobodys(address)
            _, dirty = self._clean({address: device.role})
            if dirty:
                return dirty[address]
            self.ledger.release(address)
            return None

    def describe(self, address: str) -> Mapping[str, str]:
        """Who has had a device, and its baseline."""
        found = whole(self.ledger.read()).device(address)
        known = json.dumps(found.baseline, sort_keys=True) if found.baseline else ""
        return {"Server": found.server or "", "Baseline": known}

    def _expect_nobodys(self, address: str) -> None:
        server = self._known().device(address).server
        if server is not None:
            raise LedgerError(
                f"{address} is with server {server}, or has not been cleaned since: nova-compute "
                "does that when the server is gone, at the latest at its next periodic update"
            )

    # -- a server starts --------------------------------------------------------

    def give(self, server: str, wanted: Mapping[str, Candidate]) -> dict[str, str]:
        """Check devices, and mark them with the server that gets them.

        A device that still has the mark of another server is cleaned first.

        :param server: its UUID.
        :param wanted: address -> device, as it was just read.
        :returns: address -> why it must not be given; {}: all are marked.
        :raises LedgerError: nothing can be remembered, so nothing may be given.
        """
        with self._locks(wanted, self.timeout + 10):
            now = self._known()
            refused = {
                each: f"in quarantine: {why}"
                for each, found in wanted.items()
                if (why := now.why(each, found.function.physical_function)) is not None
            }
            for each in wanted.keys() - refused.keys():
                if now.device(each).state is State.SUSPECT:
                    refused[each] = f"suspect: {now.device(each).reason}"
            left = {
                each
                for each in wanted
                if each not in refused and now.device(each).server not in (None, server)
            }
            now, dirty = self._clean({each: wanted[each].role for each in left})
            refused |= dirty
            looks = self._looker.look(
                wanted[each] for each in wanted if each not in left | set(refused)
            )
            refused |= self._wrong(now, looks, wanted)
            if not refused:
                hardware = self._new_hardware(now, looks, wanted)
                self._change(
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
        self._change(
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
        return server in self._known().marked.values()

    # -- a server is gone -------------------------------------------------------

    def take_back(self, server: str, roles: Mapping[str, str | None]) -> dict[str, str]:
        """Clean every device that has the mark of a server, all at once.

        :param roles: address -> role, as far as they are known.
        :returns: address -> why it is in quarantine now.
        :raises LedgerError: nothing can be remembered; the marks are still there.
        """
        mine = [each for each, who in self._known().marked.items() if who == server]
        with self._locks(mine, self.timeout + 10):
            now = self._known().marked
            still = {each: roles.get(each) for each in mine if now.get(each) == server}
            return self._clean(still)[1]

    # -- from time to time --------------------------------------------------------

    def sweep(
        self,
        offered: Mapping[str, Candidate],
        taken: Callable[[], frozenset[str]],
        ill: Mapping[str, Finding] | None = None,
        roles: Mapping[str, str | None] | None = None,
    ) -> dict[str, str]:
        """As :meth:`look`, and only address -> why a device must not be offered."""
        return dict(self.look(offered, taken, ill or {}, roles).reasons)

    def look(
        self,
        offered: Mapping[str, Candidate],
        taken: Callable[[], frozenset[str]],
        ill: Mapping[str, Finding],
        roles: Mapping[str, str | None] | None = None,
    ) -> Swept:
        """Bring everything in order that the last look has left, or not seen.

        :param offered: address -> device, as it was just read.
        :param taken: asks for the devices that servers have now.
        :param ill: those that cannot be given anyway, as the node looks now: what
            they look like is no baseline.
        :param roles: of everything that the node offers; None: of *offered*.
        :raises LedgerError: nothing is known, or can be remembered.
        """
        # Who gives a device to a server tells Nova first, and writes the mark
        # then: so a mark that is seen before Nova is asked and is not in the
        # answer has outlived its server.
        now = self._known()
        used = taken()
        if any(now.device(each).server is None for each in used & offered.keys()):
            now = self._change(
                lambda now: {
                    each: attrs.evolve(now.device(each), server=SOMEBODY)
                    for each in used & offered.keys()
                    if now.device(each).server is None
                }
            )
        well = {each: found for each, found in offered.items() if each not in ill}
        looks = self._looker.look(well[each] for each in well if each not in used)
        now, notes = self._follow(now, well, looks, used)
        before = now
        reasons = self._sweep_marks(now, offered, used, taken)
        held = self._known()
        free = {
            each
            for each in {*well, *ill} - used
            if each not in reasons
            and (found := held.device(each)).state is not State.QUARANTINED
            and (found.server is None or each in ill)
        }
        cleaned = [each for each in free & looks.keys() if before.device(each).server]
        looks = {each: looks[each] for each in free & looks.keys()}
        looks |= self._looker.look(well[each] for each in cleaned)
        now = self._remember(looks, used, offered)
        roles = roles or {each: found.role for each, found in offered.items()}
        judged = judgement.judge(
            now,
            looks,
            offered,
            {each: ill[each] for each in free & ill.keys()},
            roles,
            self._moment(),
            self.rules,
        )
        lost = self._settle(now, judged, taken)
        reasons |= {each: why for each, why in judged.reasons.items() if each not in lost}
        for each in ill:
            reasons.pop(each, None)  # why it is ill stands elsewhere
        return Swept(reasons, (*notes, *judged.notes), judged.alarms)

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

        self._change(edit)
        return frozenset(lost)

    def _follow(
        self,
        now: Ledger,
        offered: Mapping[str, Candidate],
        looks: Mapping[str, Snapshot],
        used: frozenset[str],
    ) -> tuple[Ledger, tuple[str, ...]]:
        """Let entries follow their hardware to other addresses."""
        boot = baseline.boot_of(Tree(self.root))
        doubtful = [each for each in offered if _doubtful(now.device(each), looks.get(each), boot)]
        if not doubtful:
            return now, ()
        running = self._looker.look(offered[each] for each in doubtful if each in used)
        ids = self._identify(doubtful, offered, {**looks, **running})
        if identity.follow(now, ids).ledger == now:
            return now, ()
        # One reading may lie, and much depends on it.
        again = self._looker.look(offered[each] for each in doubtful)
        sure = self._identify(doubtful, offered, again)
        ids = {each: hardware for each, hardware in ids.items() if sure.get(each) == hardware}
        moved = identity.follow(now, ids)
        self.ledger.change(lambda now: identity.follow(whole(now), ids).ledger)
        return self._known(), moved.notes

    def _identify(
        self,
        addresses: Iterable[str],
        offered: Mapping[str, Candidate],
        looks: Mapping[str, Snapshot],
    ) -> dict[str, str]:
        found = self._looker.identify((offered[each] for each in addresses), looks)
        return identity.unique(found)

    def _sweep_marks(
        self,
        before: Ledger,
        offered: Mapping[str, Candidate],
        used: frozenset[str],
        taken: Callable[[], frozenset[str]],
    ) -> dict[str, str]:
        left = {each for each in before.marked if each not in used}
        reasons: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            mine = []
            for each in sorted(left):
                try:
                    stack.enter_context(self.ledger.locked(each, 0))
                    mine.append(each)
                except LedgerError:
                    reasons[each] = "it is being checked"
            if not mine:
                return reasons
            now, gone = self._known(), taken()
            mine = [each for each in mine if each in now.marked and each not in gone]
            moment = self._moment()
            for each in [*mine]:
                found = now.device(each)
                if found.state is State.SUSPECT and not policy.due(found.trial, moment, self.rules):
                    reasons[each] = found.reason
                    mine.remove(each)
            # An operator will have it cleaned before it is released.
            kept = {each for each in mine if now.device(each).state is State.QUARANTINED}
            if kept:
                self._change(
                    lambda now: {e: attrs.evolve(now.device(e), server=None) for e in kept}
                )
            roles = {
                each: offered[each].role if each in offered else None
                for each in mine
                if each not in kept
            }
            _, dirty = self._clean(roles)
            return reasons | dirty

    def _remember(
        self, looks: Mapping[str, Snapshot], used: frozenset[str], offered: Mapping[str, Candidate]
    ) -> Ledger:
        """Record what was not seen before, and the counters of a new boot."""
        now = self._known()
        boot = baseline.boot_of(Tree(self.root))
        old = [
            each
            for each in used & offered.keys()
            if (known := baseline_of(now.device(each))) is not None and known.boot != boot
        ]
        running = self._looker.look(offered[each] for each in old)
        hardware = self._new_hardware(now, looks, offered)
        moment = self._moment()

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

        return self._change(edit)

    # -- one device ---------------------------------------------------------------

    @contextlib.contextmanager
    def _locks(self, addresses: Iterable[str], patience: float) -> Iterator[None]:
        """Keep everybody else from the devices.

        :param patience: seconds to wait for each.
        :raises LedgerError: somebody else has one for longer.
        """
        with contextlib.ExitStack() as stack:
            # In one order, so that nobody waits for each other.
            for each in sorted(addresses):
                stack.enter_context(self.ledger.locked(each, patience))
            yield

    def _moment(self) -> Moment:
        wall, up = self.clock()
        return Moment(wall, up, baseline.boot_of(Tree(self.root)))

    def _known(self) -> Ledger:
        return whole(self.ledger.known())

    def _change(self, edit: Callable[[Ledger], Mapping[str, Device]]) -> Ledger:
        """Change entries of devices; *edit* returns those that are different."""

        def change(now: Ledger) -> Ledger:
            now = whole(now)
            return now.put(edit(now))

        return self.ledger.change(change)

    def _new_hardware(
        self, now: Ledger, looks: Mapping[str, Snapshot], candidates: Mapping[str, Candidate]
    ) -> dict[str, str]:
        """Which hardware they are, of devices of which that is not recorded."""
        new = [each for each in looks if now.device(each).hardware is None]
        ids = self._identify(new, candidates, looks)
        return {each: ids.get(each, f"slot:{each}") for each in new}

    def _wrong(
        self,
        now: Ledger,
        looks: Mapping[str, Snapshot],
        candidates: Mapping[str, Candidate],
    ) -> dict[str, str]:
        """Why devices must not be given at this moment; the next update settles their states."""
        moment = self._moment()
        reasons: dict[str, str] = {}
        for each, look in looks.items():
            device = now.device(each)
            found = [
                *differences_of(device, look, candidates[each].function),
                *errors_of(device, look, moment, self.rules),
            ]
            if device.trial is not None and device.trial.spared:
                found = [one for one in found if one.sign not in CAPPED]
            if found:
                reasons[each] = found[0].text
        return reasons

    def _clean(self, roles: Mapping[str, str | None]) -> tuple[Ledger, dict[str, str]]:
        """Clean devices side by side; those that fail are not offered.

        One that does not look well after its reset keeps its mark: it is cleaned
        again when it is tried again. Call it below their locks.
        """
        now = self._known()
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
        dirty = {each: found[0].text for each, found in results.items() if isinstance(found, tuple)}
        moment = self._moment()

        def edit(now: Ledger) -> Mapping[str, Device]:
            return {
                each: self._cleaned(now.device(each), result, moment)
                for each, result in results.items()
            }

        return self._change(edit), dirty

    def _cleaned(
        self, device: Device, result: Snapshot | tuple[Symptom, ...], moment: Moment
    ) -> Device:
        """The entry of a device after it was cleaned, or was not."""
        server, last = device.server, device.server or device.last_server
        if isinstance(result, Snapshot):
            found = policy.step(device, (), moment, self.rules)
            found = attrs.evolve(
                seen(found, result, None),
                server=None,
                last_server=last,
                unreported=True,
                cleaned=device.cleaned + 1,
            )
            # Errors that are judged are judged at the next look, with those of others.
            judged = errors_of(device, result, moment, self.rules)
            return found if judged else counted(found, result, moment)
        found = policy.step(device, result, moment, self.rules)
        return attrs.evolve(
            found,
            server=server if found.state is State.SUSPECT else None,
            last_server=last,
            failed=device.failed + 1,
        )

    def _clean_one(
        self, address: str, role: str | None, now: Ledger
    ) -> Snapshot | tuple[Symptom, ...]:
        """The device after it was cleaned, or why it is not clean. Never raises."""
        try:
            before = self._looker.find(address, role)
            if before is None:
                return (Symptom(Sign.ABSENT, "it has disappeared"),)
            self.cleaners.of(role).clean(before.function)
            after = self._looker.find(address, role)
            if after is None:
                return (Symptom(Sign.ABSENT, "it has disappeared in its reset"),)
            look = self._looker.look([after])[address]
            device = now.device(address)
            differences = differences_of(device, look, after.function)
        except FileError as error:
            return (Symptom(Sign.ABSENT, str(error)),)
        except (CleanError, ResetError) as error:
            return (Symptom(Sign.FAILED, str(error)),)
        except Exception as error:
            # A cleaner may be anybody's: whatever it did, the device is not known clean.
            text = f"its cleaner failed: {type(error).__name__}: {error}"
            return (Symptom(Sign.FAILED, text),)
        # With its last server gone nothing excuses bus mastering.
        if look.master and idle(after.function):
            return (Symptom(Sign.FAILED, "bus mastering is still on after its reset"),)
        if judgement.expected(now, address, tuple(differences), self._moment()) is not None:
            return look  # the next look records it
        # A narrow link harms nobody, and is judged with those of other devices.
        return tuple(each for each in differences if each.sign not in CAPPED) or look


def _doubtful(device: Device, look: Snapshot | None, boot: str | None) -> bool:
    """Whether to ask a device which hardware it is.

    What stands in its configuration space is read anyway; the vital product data is
    slow, and boards change only while the machine is down or the device is away.
    """
    if look is not None and look.serial is not None:
        return device.hardware != f"serial:{look.serial}"
    known = baseline_of(device)
    return (
        known is None
        or known.boot != boot
        or device.hardware is None
        or device.state is not State.OFFERED
    )
