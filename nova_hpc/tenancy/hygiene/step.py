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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import attrs

from nova_hpc.tenancy.health import Finding, Kind
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import Snapshot
from nova_hpc.tenancy.hygiene.cleaner import CleanError, Cleaners
from nova_hpc.tenancy.hygiene.looks import (
    Looker,
    baseline_of,
    differences_of,
    idle,
    seen,
    whole,
)
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile, quarantined
from nova_hpc.tenancy.step import Candidate, RefusedError, Step, Tenant, View, Withheld
from nova_hpc.topology.files import FileError, Tree
from nova_hpc.wire.ledger import SOMEBODY, Device, Ledger, State

_MOST_AT_ONCE: Final = 32


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
        notes: tuple[str, ...] = ()
        try:
            reasons = self.sweep(view.candidates(view.roles), taken, view.ill)
        except LedgerError as error:
            notes = (f"PCI devices are not offered: {error}",)
            reasons = dict.fromkeys(view.roles, str(error))
        return Withheld({each: Finding(Kind.HYGIENE, why) for each, why in reasons.items()}, notes)

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
        return [each.text for each in differences_of(now.device(address), look, device.function)]

    def accept(self, device: Candidate) -> None:
        """Record a device as it is now."""
        address = device.function.address
        with self._locks([address], 1.0):
            self._expect_nobodys(address)
            look = self._looker.look([device])[address]
            for difference in baseline.wrong(look, idle(device.function)):
                raise LedgerError(f"{address}: {difference.text}")
            hardware = self._looker.hardware(device.function, look)
            self._change(
                lambda now: {
                    address: attrs.evolve(
                        now.device(address),
                        baseline=look.dumps(),
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
            refused |= self._judge(now, looks, wanted)
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
        ill: Collection[str] = (),
    ) -> dict[str, str]:
        """Bring everything in order that the last look has left, or not seen.

        :param offered: address -> device, as it was just read.
        :param taken: asks for the devices that servers have now.
        :param ill: those of *offered* that cannot be given anyway: what they
            look like now is no baseline.
        :returns: address -> why it must not be offered.
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
        reasons = self._sweep_marks(now, offered, used, taken)
        held = self._known()
        free = {
            each: found
            for each, found in offered.items()
            if each not in used
            and each not in reasons
            and each not in ill
            and held.why(each, found.function.physical_function) is None
        }
        looks = self._looker.look(free.values())
        now = self._remember(looks, used, offered)
        for each, look in looks.items():
            differences = differences_of(now.device(each), look, free[each].function)
            if any(difference.lasting for difference in differences):
                reasons |= self._look_again(each, free[each], taken)
            elif differences:
                reasons[each] = differences[0].text
        return reasons

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
            return reasons | {each: f"in quarantine: {why}" for each, why in dirty.items()}

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

        def edit(now: Ledger) -> dict[str, Device]:
            found = {}
            for each, look in {**looks, **running}.items():
                device = now.device(each)
                known = baseline_of(device)
                if known is None and device.server is None:
                    if not baseline.wrong(look, idle(offered[each].function)):
                        found[each] = seen(device, look, hardware.get(each))
                elif known is not None:
                    if known.boot != look.boot:
                        known = baseline.counters_of(known, look)
                    found[each] = attrs.evolve(
                        device,
                        baseline=known.dumps(),
                        hardware=device.hardware or hardware.get(each),
                    )
            return found

        return self._change(edit)

    def _look_again(
        self, address: str, candidate: Candidate, taken: Callable[[], frozenset[str]]
    ) -> dict[str, str]:
        """Quarantine a free device that has changed, if it is still free."""
        try:
            with self.ledger.locked(address, 0):
                now = self._known()
                if address in now.marked or address in taken():
                    return {}
                look = self._looker.look([candidate])[address]
                return self._judge(now, {address: look}, {address: candidate})
        except LedgerError as error:
            return {address: str(error)}

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
        return {
            each: self._looker.hardware(candidates[each].function, look)
            for each, look in looks.items()
            if now.device(each).hardware is None
        }

    def _judge(
        self,
        now: Ledger,
        looks: Mapping[str, Snapshot],
        candidates: Mapping[str, Candidate],
    ) -> dict[str, str]:
        """Reasons by address; what is lasting is put in quarantine."""
        reasons: dict[str, str] = {}
        lasting: dict[str, str] = {}
        for each, look in looks.items():
            for found in differences_of(now.device(each), look, candidates[each].function):
                reasons.setdefault(each, found.text)
                if found.lasting:
                    lasting.setdefault(each, found.text)
        self.ledger.quarantine(lasting, anew=False)
        return reasons | lasting

    def _clean(self, roles: Mapping[str, str | None]) -> tuple[Ledger, dict[str, str]]:
        """Clean devices side by side; those that fail go into quarantine.

        Call it below their locks.
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
        dirty = {each: why for each, why in results.items() if isinstance(why, str)}

        def edit(now: Ledger) -> Mapping[str, Device]:
            found, held = {}, quarantined(now, dirty)
            for each, result in results.items():
                device = attrs.evolve(held.device(each), server=None)
                if isinstance(result, Snapshot):
                    device = attrs.evolve(
                        seen(device, result, None), unreported=True, cleaned=device.cleaned + 1
                    )
                else:
                    device = attrs.evolve(device, failed=device.failed + 1)
                found[each] = device
            return found

        return self._change(edit), dirty

    def _clean_one(self, address: str, role: str | None, now: Ledger) -> Snapshot | str:
        """The device after it was cleaned, or why it is not clean. Never raises."""
        try:
            before = self._looker.find(address, role)
            if before is None:
                return "it has disappeared"
            self.cleaners.of(role).clean(before.function)
            after = self._looker.find(address, role)
            if after is None:
                return "it has disappeared in its reset"
            look = self._looker.look([after])[address]
            differences = differences_of(now.device(address), look, after.function)
        except (CleanError, ResetError, FileError) as error:
            return str(error)
        except Exception as error:
            # A cleaner may be anybody's: whatever it did, the device is not known clean.
            return f"its cleaner failed: {type(error).__name__}: {error}"
        # With its last server gone nothing excuses bus mastering; links may rest.
        bad = [each.text for each in differences if each.lasting]
        if look.master and idle(after.function):
            bad.append("bus mastering is still on after its reset")
        return "; ".join(bad) if bad else look
