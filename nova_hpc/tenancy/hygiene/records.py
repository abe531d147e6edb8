# SPDX-License-Identifier: Apache-2.0
"""A node's records of its devices: ledger, snapshots, and their times."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs

from nova_hpc.tenancy import comparison, identity
from nova_hpc.tenancy.comparison import LedgerComparison
from nova_hpc.tenancy.health_states import CAPPED, HealthRules, Moment, shorten_address_list
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.hygiene.snapshots import (
    SnapshotReader,
    baseline_differences_of,
    distrust_damaged_baselines,
    excess_errors_of,
)
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.step import DeviceCandidate
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileTree
from nova_hpc.wire.ledger import Ledger, LedgerDevice


def clock() -> tuple[float, float]:
    """Return seconds of the wall clock, and of a clock that counts from the boot."""
    return time.time(), time.monotonic()


def _notes_of_comparison(path: Path, outcome: LedgerComparison, new: bool) -> tuple[str, ...]:
    """Return notes for operators about a comparison of the ledger."""
    if outcome.foreign:
        return (
            f"the ledger {path} is that of another node and was put by: every device of this "
            "node is cleaned before anybody gets it",
        )
    if new:
        return (
            f"the ledger {path} is new: it does not say who has had the devices of this node, and "
            "each is cleaned before anybody gets it",
        )
    if outcome.doubted:
        return (
            f"since the ledger {path} was written, servers may have had "
            f"{shorten_address_list(outcome.doubted)}: cleaned before anybody gets them",
        )
    return ()


@attrs.frozen
class HygieneRecords:
    """The ledger of one node, and the reader of its devices."""

    root: Path
    ledger: LedgerFile
    #: Reads configuration spaces if this process may not read them completely.
    read_config: Callable[[Sequence[str]], Mapping[str, bytes]] | None = None
    rules: HealthRules = attrs.field(factory=HealthRules)
    #: Seconds of the wall clock, and of a clock that counts from the boot.
    clock: Callable[[], tuple[float, float]] = clock

    @property
    def looker(self) -> SnapshotReader:
        """The reader of the devices."""
        return SnapshotReader(self.root, self.read_config)

    def moment(self) -> Moment:
        """Return the present moment."""
        wall, up = self.clock()
        return Moment(wall, up, baseline.boot_of(FileTree(self.root)))

    def read_stay(self, address: str) -> str:
        """Return the id of a device's stay in its slot: this boot, and the inode in sysfs.

        The kernel creates a new entry with another inode when a device appears. "" if it is absent.
        """
        try:
            inode = Path(f"{str(self.root).rstrip('/')}{DEVICES}/{address}").stat().st_ino
        except OSError:
            return ""
        return f"{baseline.boot_of(FileTree(self.root))} {inode}"

    def known(self) -> Ledger:
        """Return the stored ledger.

        :raises nova_hpc.tenancy.ledger.LedgerError: the file is lost.
        """
        return distrust_damaged_baselines(self.ledger.known())

    def change(self, edit: Callable[[Ledger], Mapping[str, LedgerDevice]]) -> Ledger:
        """Change entries of devices; *edit* returns the changed ones."""

        def change(ledger: Ledger) -> Ledger:
            ledger = distrust_damaged_baselines(ledger)
            return ledger.put(edit(ledger))

        return self.ledger.change(change)

    def compared(self, owners: DeviceOwners) -> tuple[Ledger, tuple[str, ...]]:
        """Return the ledger, after Nova's records have confirmed it.

        :returns: the ledger, and notes if it was not yet compared.
        :raises nova_hpc.tenancy.ledger.LedgerError: the file is lost, or the result
            cannot be written; no device may be given then.
        """
        ledger = self.known()
        if ledger.compared:
            return ledger, ()
        rows = owners.rows()
        outcomes: list[LedgerComparison] = []
        new = not self.ledger.path.exists()
        if comparison.confirm_ledger_by_rows(ledger, rows).foreign:
            self.ledger.put_by("another-node")

        def edit(ledger: Ledger) -> Ledger:
            outcomes[:] = [
                comparison.confirm_ledger_by_rows(distrust_damaged_baselines(ledger), rows)
            ]
            return outcomes[0].ledger

        ledger = self.ledger.change(edit)
        return ledger, _notes_of_comparison(self.ledger.path, outcomes[0], new)

    @contextlib.contextmanager
    def locks(self, addresses: Iterable[str], patience: float) -> Iterator[None]:
        """Lock the devices against all others.

        :param patience: seconds to wait for each lock.
        :raises LedgerError: another process or thread holds a lock for longer.
        """
        with contextlib.ExitStack() as stack:
            # A fixed order prevents deadlocks.
            for address in sorted(addresses):
                stack.enter_context(self.ledger.locked(address, patience))
            yield

    def identify(
        self,
        addresses: Iterable[str],
        offered: Mapping[str, DeviceCandidate],
        looks: Mapping[str, DeviceSnapshot],
    ) -> dict[str, str]:
        """Return the identity that each device reports."""
        return self.looker.identify((offered[address] for address in addresses), looks)

    def new_hardware(
        self,
        ledger: Ledger,
        looks: Mapping[str, DeviceSnapshot],
        candidates: Mapping[str, DeviceCandidate],
    ) -> dict[str, str]:
        """Return the hardware of devices whose hardware is not recorded yet."""
        new = [address for address in looks if ledger.device(address).hardware is None]
        recorded = {device.hardware for device in ledger.devices.values()}
        ids = identity.unique_hardware_of(self.identify(new, candidates, looks))
        # An identity that another device has reported before does not identify this one.
        return {
            address: ids[address]
            if address in ids and ids[address] not in recorded
            else f"slot:{address}"
            for address in new
        }

    def wrong(
        self,
        ledger: Ledger,
        looks: Mapping[str, DeviceSnapshot],
        candidates: Mapping[str, DeviceCandidate],
    ) -> dict[str, str]:
        """Return reasons not to give devices now; the next update settles their states."""
        moment = self.moment()
        reasons: dict[str, str] = {}
        for address, look in looks.items():
            device = ledger.device(address)
            symptoms = [
                *baseline_differences_of(device, look, candidates[address].function),
                *excess_errors_of(device, look, moment, self.rules),
            ]
            if device.trial is not None and device.trial.spared:
                symptoms = [symptom for symptom in symptoms if symptom.sign not in CAPPED]
            if symptoms:
                reasons[address] = symptoms[0].reason
        return reasons
