"""Devices between two servers: marked before, cleaned and checked after.

The rules, which hold whenever the service is killed:

* a device is marked with its server, on the disk, before the server starts;
* the mark goes only when the device was cleaned and looks as its baseline, or
  is in quarantine, which is written first;
* a device with a mark is given to nobody else before that.

Every step is taken below the device's own lock, which other processes (the
operator's command) respect, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping

import attrs

from nova_hpc.tenancy import locked_file, quarantine
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import Snapshot
from nova_hpc.tenancy.hygiene.bench import Bench, Candidate, idle, unmarked
from nova_hpc.tenancy.hygiene.state import SOMEBODY, Record, State
from nova_hpc.tenancy.locked_file import StateError
from nova_hpc.topology.files import Tree


@attrs.frozen
class Keeper:
    """Keeps the devices of one node clean."""

    bench: Bench

    # -- a server starts ------------------------------------------------------

    def give(self, server: str, wanted: Mapping[str, Candidate]) -> dict[str, str]:
        """Check devices, and mark them with the server that gets them.

        A device that still has the mark of another server is cleaned first.

        :param server: its UUID.
        :param wanted: address -> device, as it was just read.
        :returns: address -> why it must not be given; {}: all are marked.
        :raises StateError: nothing can be remembered, so nothing may be given.
        """
        with self.bench.locks(wanted, self.bench.timeout + 10):
            held, state = quarantine.read(self.bench.quarantine_file), self.bench.state()
            refused = self.bench.quarantined(wanted, held)
            left = {
                each
                for each in wanted
                if each not in refused and state.record(each).server not in (None, server)
            }
            state, dirty = self.bench.clean({each: wanted[each].role for each in left})
            refused |= dirty
            looks = self.bench.look(
                wanted[each] for each in wanted if each not in left | set(refused)
            )
            refused |= self.bench.judge(state, looks, {each: wanted[each] for each in looks})
            if not refused:
                self.bench.change(
                    lambda records: {
                        each: Record(
                            records.get(each, Record()).baseline or looks.get(each), server
                        )
                        for each in wanted
                    }
                )
            return refused

    def keep(self, server: str, addresses: Iterable[str]) -> None:
        """Mark devices that a server has had before, without touching them.

        :raises StateError: nothing can be remembered.
        """
        mine = frozenset(addresses)
        self.bench.change(
            lambda records: {
                each: attrs.evolve(records.get(each, Record()), server=server)
                for each in mine
                if records.get(each, Record()).server in (None, SOMEBODY)
            }
        )

    def has_given(self, server: str) -> bool:
        """Whether any device has the mark of a server.

        :raises StateError: the file is lost.
        """
        return server in self.bench.state().marked.values()

    # -- a server is gone -------------------------------------------------------

    def take_back(self, server: str, roles: Mapping[str, str | None]) -> dict[str, str]:
        """Clean every device that has the mark of a server, all at once.

        :param roles: address -> role, as far as they are known.
        :returns: address -> why it is in quarantine now.
        :raises StateError: nothing can be remembered; the marks are still there.
        """
        marked = self.bench.state().marked
        mine = [each for each, who in marked.items() if who == server]
        with self.bench.locks(mine, self.bench.timeout + 10):
            now = self.bench.state().marked
            still = {each: roles.get(each) for each in mine if now.get(each) == server}
            return self.bench.clean(still)[1]

    def owed(self) -> frozenset[str]:
        """Devices found clean after a server of which Placement has yet to hear.

        :raises StateError: the file is lost.
        """
        return frozenset(e for e, record in self.bench.state().records.items() if record.owed)

    def settle(self, addresses: Iterable[str]) -> None:
        """Placement has heard of them.

        :raises StateError: nothing can be remembered.
        """
        mine = frozenset(addresses)
        if mine:
            self.bench.change(
                lambda records: {
                    each: attrs.evolve(records[each], owed=False) for each in mine & records.keys()
                }
            )

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
        :raises StateError: nothing is known, or can be remembered.
        """
        # Who gives a device to a server tells Nova first, and writes the mark
        # then: so a mark that is seen before Nova is asked and is not in the
        # answer has outlived its server.
        state = self.bench.state()
        used = taken()
        for each in used & offered.keys():
            if state.record(each).server is None:
                state = self._somebody(used & offered.keys())
                break
        reasons = self._sweep_marks(state, offered, used, taken)
        held = quarantine.read(self.bench.quarantine_file)
        free = {
            each: found
            for each, found in offered.items()
            if each not in used
            and each not in reasons
            and each not in ill
            and held.why(each, found.function.physical_function) is None
        }
        looks = self.bench.look(free.values())
        state = self._remember(looks, used, offered)
        for each, look in looks.items():
            differences = self.bench.differences(state.record(each), look, free[each].function)
            if any(difference.lasting for difference in differences):
                reasons |= self._look_again(each, free[each], taken)
            elif differences:
                reasons[each] = differences[0].text
        return reasons

    def _somebody(self, addresses: Iterable[str]) -> State:
        """Mark devices that servers have and nobody has marked."""
        return self.bench.change(
            lambda records: {
                each: attrs.evolve(records.get(each, Record()), server=SOMEBODY)
                for each in addresses
                if records.get(each, Record()).server is None
            }
        )

    def _sweep_marks(
        self,
        state: State,
        offered: Mapping[str, Candidate],
        used: frozenset[str],
        taken: Callable[[], frozenset[str]],
    ) -> dict[str, str]:
        left = {each for each in state.marked if each not in used}
        reasons: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            mine = []
            for each in sorted(left):
                try:
                    stack.enter_context(locked_file.device_locked(self.bench.state_file, each, 0))
                    mine.append(each)
                except StateError:
                    reasons[each] = "it is being checked"
            if not mine:
                return reasons
            now, gone, held = (
                self.bench.state(),
                taken(),
                quarantine.read(self.bench.quarantine_file),
            )
            mine = [each for each in mine if each in now.marked and each not in gone]
            # An operator will have it cleaned before it is released.
            kept = {each for each in mine if held.why(each) is not None}
            if kept:
                self.bench.change(lambda records: {e: unmarked(records[e]) for e in kept})
            roles = {
                each: offered[each].role if each in offered else None
                for each in mine
                if each not in kept
            }
            _, dirty = self.bench.clean(roles)
            return reasons | {each: f"in quarantine: {why}" for each, why in dirty.items()}

    def _remember(
        self, looks: Mapping[str, Snapshot], used: frozenset[str], offered: Mapping[str, Candidate]
    ) -> State:
        """Record what was not seen before, and the counters of a new boot."""
        state = self.bench.state()
        boot = baseline.boot_of(Tree(self.bench.root))
        old = [
            each
            for each in used & offered.keys()
            if (known := state.record(each).baseline) is not None and known.boot != boot
        ]
        running = self.bench.look(offered[each] for each in old)

        def edit(records: Mapping[str, Record]) -> dict[str, Record]:
            found = {}
            for each, look in {**looks, **running}.items():
                record = records.get(each, Record())
                if record.baseline is None and record.server is None:
                    if not baseline.wrong(look, idle(offered[each].function)):
                        found[each] = attrs.evolve(record, baseline=look)
                elif record.baseline is not None and record.baseline.boot != look.boot:
                    known = baseline.counters_of(record.baseline, look)
                    found[each] = attrs.evolve(record, baseline=known)
            return found

        return self.bench.change(edit)

    def _look_again(
        self, address: str, candidate: Candidate, taken: Callable[[], frozenset[str]]
    ) -> dict[str, str]:
        """Quarantine a free device that has changed, if it is still free."""
        try:
            with locked_file.device_locked(self.bench.state_file, address, 0):
                state = self.bench.state()
                if address in state.marked or address in taken():
                    return {}
                look = self.bench.look([candidate])[address]
                return self.bench.judge(state, {address: look}, {address: candidate})
        except StateError as error:
            return {address: str(error)}
