# SPDX-License-Identifier: Apache-2.0
"""Takes snapshots of devices, and compares them with the ledger's entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy.health_states import HealthRules, Moment
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.identity import is_hardware_known
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.step import DeviceCandidate
from nova_hpc.topology import device as topology_device
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import PciFunction, routing_number_of
from nova_hpc.topology.vfio import Vfio
from nova_hpc.wire.ledger import SOMEBODY, Ledger, LedgerDevice


@attrs.frozen
class SnapshotReader:
    """Reads devices of one node."""

    root: Path
    #: Reads configuration spaces if this process may not read them completely.
    read_config: Callable[[Sequence[str]], Mapping[str, bytes]] | None = None

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
            candidate.function.address: baseline.take_snapshot(
                tree,
                candidate.function,
                boot,
                candidate.vfs,
                configs.get(candidate.function.address),
            )
            for candidate in wanted
        }

    def hardware(self, function: PciFunction, look: DeviceSnapshot) -> str:
        """See :func:`nova_hpc.tenancy.hygiene.baseline.hardware_name_of`."""
        return baseline.hardware_name_of(FileTree(self.root), function, look)

    def identify(
        self, candidates: Iterable[DeviceCandidate], looks: Mapping[str, DeviceSnapshot]
    ) -> Identities:
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
                identities[function.address] = self.hardware(function, look)
                continue
            if parent not in parents:
                parents[parent] = self._parent(parent)
            if (whose := parents[parent]) is not None and is_hardware_known(whose):
                offset = routing_number_of(function.address) - routing_number_of(parent)
                identities[function.address] = f"{whose}/vf+{offset}"
        return identities

    def _parent(self, address: str) -> str | None:
        try:
            parent = self.find(address, None)
            if parent is None:
                return None
            return self.hardware(parent.function, self.look([parent])[address])
        except FileError:
            return None


#: Address -> hardware.
Identities = dict[str, str]


def is_unused_by_host(function: PciFunction) -> bool:
    """Whether no driver of the host may be using the function."""
    return function.driver is None or (function.on_vfio and function.vfio is not Vfio.VENDOR)


def baseline_of(device: LedgerDevice) -> DeviceSnapshot | None:
    """Return the baseline of a device; None if it is missing or damaged."""
    return None if device.baseline is None else baseline.load_snapshot(device.baseline)


def distrust_damaged_baselines(ledger: Ledger) -> Ledger:
    """Return the ledger with a mark on each device that has a damaged baseline."""
    return ledger.put(
        {
            address: attrs.evolve(device, baseline=None, server=SOMEBODY)
            for address, device in ledger.devices.items()
            if device.baseline is not None and baseline.load_snapshot(device.baseline) is None
        }
    )


def add_first_baseline(
    device: LedgerDevice, look: DeviceSnapshot | None, hardware: str | None
) -> LedgerDevice:
    """Return an entry with its first baseline and hardware, if it had none."""
    return attrs.evolve(
        device,
        baseline=device.baseline if look is None or device.baseline else look.dumps(),
        hardware=device.hardware or hardware,
    )


def restart_error_count(device: LedgerDevice, look: DeviceSnapshot, moment: Moment) -> LedgerDevice:
    """Return an entry whose count of errors starts now."""
    recorded = baseline_of(device)
    if recorded is None:
        return device
    recorded = baseline.renew_error_counters(recorded, look)
    return attrs.evolve(device, baseline=recorded.dumps(), counted=moment.up)


def baseline_differences_of(
    device: LedgerDevice, look: DeviceSnapshot, function: PciFunction
) -> list[Symptom]:
    """Return the symptoms of a free device, without errors; the worst first."""
    faults = baseline.find_inherent_faults(look, is_unused_by_host(function))
    recorded = baseline_of(device)
    if recorded is None:
        return faults
    return sorted([*faults, *baseline.compare_snapshots(recorded, look)], key=_severity_of_symptom)


def excess_errors_of(
    device: LedgerDevice, look: DeviceSnapshot, moment: Moment, rules: HealthRules
) -> list[Symptom]:
    """Return a symptom if there are more uncorrected errors than tolerated since the last count."""
    recorded = baseline_of(device)
    if recorded is None:
        return []
    new_errors = baseline.count_errors_since(recorded, look)
    since = 0.0 if device.counted is None else max(0.0, moment.up - device.counted)
    if sum(new_errors.values()) <= rules.tolerated(since):
        return []
    parts = [f"{count} new uncorrected {kind} errors (AER)" for kind, count in new_errors.items()]
    who = device.server or device.last_server
    by = f"; the last server that had it is {who}" if who else ""
    return [Symptom(HealthSign.ERRORS, f"{' and '.join(parts)}{by}")]


_ORDER: Final = {sign: number for number, sign in enumerate(HealthSign)}


def _severity_of_symptom(symptom: Symptom) -> int:
    return _ORDER[symptom.sign]
