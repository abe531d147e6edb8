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
    baseline_differences_of,
    distrust_damaged_baselines,
    excess_errors_of,
)
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.step import DeviceCandidate
from nova_hpc.topology import device as topology_device
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import routing_number_of
from nova_hpc.wire.ledger import Ledger, LedgerDevice


def clock() -> tuple[float, float]:
    """Return seconds of the wall clock, and of a clock that counts from the boot."""
    return time.time(), time.monotonic()


def _notes_of_comparison(path: Path, outcome: LedgerComparison, new: bool) -> tuple[str, ...]:
    """Return notes for operators if the ledger is foreign, new, or older than servers of the node.

    :param new: whether the ledger is new.
    """
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
    """The ledger of one node, and the reader of its PCI devices."""

    root: Path
    ledger: LedgerFile
    #: Reads configuration spaces if this process may not read them completely.
    read_config: Callable[[Sequence[str]], Mapping[str, bytes]] | None = None
    rules: HealthRules = attrs.field(factory=HealthRules)
    #: Seconds of the wall clock, and of a clock that counts from the boot.
    clock: Callable[[], tuple[float, float]] = clock

    def moment(self) -> Moment:
        """Return the present time: wall clock, seconds since boot, and the boot's id."""
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
        """Change entries of devices in the ledger's file under its lock; return the new ledger.

        :param edit: returns address -> changed entry.
        """

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

    @contextlib.contextmanager
    def free_locks(self, addresses: Iterable[str]) -> Iterator[tuple[list[str], dict[str, str]]]:
        """Lock those devices that no other process or thread has locked now.

        :returns: the locked devices; and address -> why another device is not locked.
        """
        locked: list[str] = []
        reasons: dict[str, str] = {}
        with contextlib.ExitStack() as stack:
            for address in addresses:
                try:
                    stack.enter_context(self.ledger.locked(address, 0))
                    locked.append(address)
                except LedgerError:
                    reasons[address] = "it is being checked"
            yield locked, reasons

    # -- the devices ------------------------------------------------------------

    def find(self, address: str, role: str | None) -> DeviceCandidate | None:
        """Read a device now; return None if it is missing.

        :raises nova_hpc.topology.files.FileError: the kernel gives no answer.
        """
        tree = FileTree(self.root)
        if not tree.exists(f"{DEVICES}/{address}"):
            return None
        function = topology_device.read_pci_function(tree, address).function
        parent = function.physical_function
        if parent is None:
            return DeviceCandidate(function, role)
        names = tree.names(f"{DEVICES}/{parent}")
        return DeviceCandidate(
            function, role, sum(1 for name in names if name.startswith("virtfn"))
        )

    def look(self, candidates: Iterable[DeviceCandidate]) -> dict[str, DeviceSnapshot]:
        """Return snapshots by address; call it under the locks, or only for a comparison."""
        wanted = list(candidates)
        tree = FileTree(self.root)
        addresses = [candidate.function.address for candidate in wanted]
        configs = self.read_config(addresses) if self.read_config and addresses else {}
        boot = baseline.boot_of(tree)
        return {
            address: baseline.take_snapshot(
                tree, candidate.function, boot, candidate.vfs, configs.get(address)
            )
            for address, candidate in zip(addresses, wanted, strict=True)
        }

    def identify(
        self, candidates: Iterable[DeviceCandidate], looks: Mapping[str, DeviceSnapshot]
    ) -> dict[str, str]:
        """Return the hardware at each address, as far as the devices report it themselves.

        :param looks: snapshots of *candidates*. A virtual function is identified by its
            physical function, whose serial number is read once.
        """
        identities: dict[str, str] = {}
        parents: dict[str, str | None] = {}
        for candidate in candidates:
            function = candidate.function
            look = looks.get(function.address)
            parent = function.physical_function
            if look is None or look.silent or function.unknown is not None:
                continue
            if parent is None:
                tree = FileTree(self.root)
                identities[function.address] = baseline.hardware_name_of(tree, function, look)
                continue
            if parent not in parents:
                parents[parent] = self._parent(parent)
            if (whose := parents[parent]) is not None and identity.is_hardware_known(whose):
                offset = routing_number_of(function.address) - routing_number_of(parent)
                identities[function.address] = f"{whose}/vf+{offset}"
        return identities

    def _parent(self, address: str) -> str | None:
        try:
            parent = self.find(address, None)
            if parent is None:
                return None
            look = self.look([parent])[address]
            return baseline.hardware_name_of(FileTree(self.root), parent.function, look)
        except FileError:
            return None

    def new_hardware(
        self,
        ledger: Ledger,
        looks: Mapping[str, DeviceSnapshot],
        candidates: Mapping[str, DeviceCandidate],
    ) -> dict[str, str]:
        """Return the hardware of devices whose hardware is not recorded yet."""
        new = [address for address in looks if ledger.device(address).hardware is None]
        recorded = {device.hardware for device in ledger.devices.values()}
        ids = identity.unique_hardware_of(
            self.identify((candidates[address] for address in new), looks)
        )
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
        """Find new faults of PCI devices that a server would get now; change nothing.

        A fault is a difference from the device's baseline, or too many errors. The next update of
        the ledger settles the states.

        :param looks: address -> the device's values, read just now.
        :param candidates: address -> the device with its PCI function; contains all of *looks*.
        :returns: address -> the first reason; devices without a fault are left out.
        """
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
