# SPDX-License-Identifier: Apache-2.0
"""What is known of a node's devices and when it was looked at: ledger, looks, time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from nova_hpc.tenancy import comparison, identity
from nova_hpc.tenancy.comparison import Comparison
from nova_hpc.tenancy.health_states import CAPPED, Moment, Rules, shown
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import Snapshot
from nova_hpc.tenancy.hygiene.snapshots import Looker, differences_of, errors_of, whole
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.owners import Owners
from nova_hpc.tenancy.step import Candidate
from nova_hpc.topology.files import Tree
from nova_hpc.wire.ledger import Device, Ledger


def clock() -> tuple[float, float]:
    """Seconds of the clock of the day, and of one that counts from the boot."""
    return time.time(), time.monotonic()


def _notes(path: Path, found: Comparison, new: bool) -> tuple[str, ...]:
    """What operators are told of a ledger that was compared."""
    if found.foreign:
        return (
            f"the ledger {path} is that of another node and was put by: every device of this "
            "node is cleaned before anybody gets it",
        )
    if new:
        return (
            f"the ledger {path} is new: nobody knows who has had the devices of this node, and "
            "each is cleaned before anybody gets it",
        )
    if found.doubted:
        return (
            f"since the ledger {path} was written, servers may have had "
            f"{shown(found.doubted)}: cleaned before anybody gets them",
        )
    return ()


@attrs.frozen
class Records:
    """The ledger of one node, and how its devices are read."""

    root: Path
    ledger: LedgerFile
    #: Reads configuration spaces where this process may not read all of them.
    read_config: Callable[[Sequence[str]], Mapping[str, bytes]] | None = None
    rules: Rules = attrs.field(factory=Rules)
    #: Seconds of the clock of the day, and of one that counts from the boot.
    clock: Callable[[], tuple[float, float]] = clock

    @property
    def looker(self) -> Looker:
        """What reads the devices."""
        return Looker(self.root, self.read_config)

    def moment(self) -> Moment:
        """Now."""
        wall, up = self.clock()
        return Moment(wall, up, baseline.boot_of(Tree(self.root)))

    def known(self) -> Ledger:
        """What the ledger says.

        :raises nova_hpc.tenancy.ledger.LedgerError: the file is lost.
        """
        return whole(self.ledger.known())

    def change(self, edit: Callable[[Ledger], Mapping[str, Device]]) -> Ledger:
        """Change entries of devices; *edit* returns those that are different."""

        def change(now: Ledger) -> Ledger:
            now = whole(now)
            return now.put(edit(now))

        return self.ledger.change(change)

    def compared(self, owners: Owners) -> tuple[Ledger, tuple[str, ...]]:
        """What the ledger says, once Nova's records bear it out.

        :returns: the ledger, and notes where that was not so before.
        :raises nova_hpc.tenancy.ledger.LedgerError: the file is lost, or what comes of the
            comparison cannot be written; nothing may be given then.
        """
        now = self.known()
        if now.compared:
            return now, ()
        rows = owners.rows()
        found: list[Comparison] = []
        new = not self.ledger.path.exists()
        if comparison.compare(now, rows).foreign:
            self.ledger.put_by("another-node")

        def edit(now: Ledger) -> Ledger:
            found[:] = [comparison.compare(whole(now), rows)]
            return found[0].ledger

        now = self.ledger.change(edit)
        return now, _notes(self.ledger.path, found[0], new)

    @contextlib.contextmanager
    def locks(self, addresses: Iterable[str], patience: float) -> Iterator[None]:
        """Keep everybody else from the devices.

        :param patience: seconds to wait for each.
        :raises LedgerError: somebody else has one for longer.
        """
        with contextlib.ExitStack() as stack:
            # In one order, so that nobody waits for each other.
            for each in sorted(addresses):
                stack.enter_context(self.ledger.locked(each, patience))
            yield

    def identify(
        self,
        addresses: Iterable[str],
        offered: Mapping[str, Candidate],
        looks: Mapping[str, Snapshot],
    ) -> dict[str, str]:
        """What devices say they are."""
        return self.looker.identify((offered[each] for each in addresses), looks)

    def new_hardware(
        self, now: Ledger, looks: Mapping[str, Snapshot], candidates: Mapping[str, Candidate]
    ) -> dict[str, str]:
        """Which hardware they are, of devices of which that is not recorded."""
        new = [each for each in looks if now.device(each).hardware is None]
        known = {found.hardware for found in now.devices.values()}
        ids = identity.unique(self.identify(new, candidates, looks))
        # Another has said the same before: it tells nothing.
        return {
            each: ids[each] if each in ids and ids[each] not in known else f"slot:{each}"
            for each in new
        }

    def wrong(
        self,
        now: Ledger,
        looks: Mapping[str, Snapshot],
        candidates: Mapping[str, Candidate],
    ) -> dict[str, str]:
        """Why devices must not be given at this moment; the next update settles their states."""
        moment = self.moment()
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
                reasons[each] = found[0].reason
        return reasons
