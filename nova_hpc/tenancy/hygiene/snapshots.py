# SPDX-License-Identifier: Apache-2.0
"""Look at devices: what they are now, beside what the ledger knows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy.health_states import Moment, Rules
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import Snapshot
from nova_hpc.tenancy.identity import is_known
from nova_hpc.tenancy.sign import Sign, Symptom
from nova_hpc.tenancy.step import Candidate
from nova_hpc.topology import device as topology_device
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, Tree
from nova_hpc.topology.model import Function, address_key
from nova_hpc.topology.vfio import Vfio
from nova_hpc.wire.ledger import SOMEBODY, Device, Ledger


@attrs.frozen
class Looker:
    """Reads devices of one node."""

    root: Path
    #: Reads configuration spaces where this process may not read all of them.
    read_config: Callable[[Sequence[str]], Mapping[str, bytes]] | None = None

    def find(self, address: str, role: str | None) -> Candidate | None:
        """A device as it is now; None: it is not there.

        :raises nova_hpc.topology.files.FileError: nobody can tell.
        """
        tree = Tree(self.root)
        if not tree.exists(f"{DEVICES}/{address}"):
            return None
        function = topology_device.read(tree, address).function
        parent = function.physical_function
        if parent is None:
            return Candidate(function, role)
        names = tree.names(f"{DEVICES}/{parent}")
        return Candidate(function, role, sum(1 for name in names if name.startswith("virtfn")))

    def look(self, candidates: Iterable[Candidate]) -> dict[str, Snapshot]:
        """Snapshots by address; call it below the locks or only to compare."""
        wanted = list(candidates)
        tree = Tree(self.root)
        addresses = [each.function.address for each in wanted]
        configs = self.read_config(addresses) if self.read_config and addresses else {}
        boot = baseline.boot_of(tree)
        return {
            each.function.address: baseline.take(
                tree, each.function, boot, each.vfs, configs.get(each.function.address)
            )
            for each in wanted
        }

    def hardware(self, function: Function, look: Snapshot) -> str:
        """See :func:`nova_hpc.tenancy.hygiene.baseline.hardware`."""
        return baseline.hardware(Tree(self.root), function, look)

    def identify(
        self, candidates: Iterable[Candidate], looks: Mapping[str, Snapshot]
    ) -> Identities:
        """Which hardware is at each address, as far as the devices say so themselves.

        :param looks: at *candidates*; a virtual function is known by its physical
            function, which is asked for its serial number once.
        """
        found: dict[str, str] = {}
        parents: dict[str, str | None] = {}
        for each in candidates:
            function = each.function
            look = looks.get(function.address)
            parent = function.physical_function
            if look is None or look.silent or function.unknown is not None:
                continue
            if parent is None:
                found[function.address] = self.hardware(function, look)
                continue
            if parent not in parents:
                parents[parent] = self._parent(parent)
            if (whose := parents[parent]) is not None and is_known(whose):
                offset = _route(function.address) - _route(parent)
                found[function.address] = f"{whose}/vf+{offset}"
        return found

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


def _route(address: str) -> int:
    """Bus, device and function as one number: a virtual function is so far from its own."""
    _, bus, device, number = address_key(address)
    return bus << 8 | device << 3 | number


def idle(function: Function) -> bool:
    """Whether no driver of the host may be using the function."""
    return function.driver is None or (function.on_vfio and function.vfio is not Vfio.VENDOR)


def baseline_of(device: Device) -> Snapshot | None:
    """What a device looked like when it was well; None: that is not recorded, or damaged."""
    return None if device.baseline is None else baseline.loads(device.baseline)


def whole(ledger: Ledger) -> Ledger:
    """The ledger in which a device with a damaged baseline is one that somebody has had."""
    return ledger.put(
        {
            each: attrs.evolve(found, baseline=None, server=SOMEBODY)
            for each, found in ledger.devices.items()
            if found.baseline is not None and baseline.loads(found.baseline) is None
        }
    )


def seen(device: Device, look: Snapshot | None, hardware: str | None) -> Device:
    """An entry with a baseline, and which hardware it is, if it had none."""
    return attrs.evolve(
        device,
        baseline=device.baseline if look is None or device.baseline else look.dumps(),
        hardware=device.hardware or hardware,
    )


def counted(device: Device, look: Snapshot, now: Moment) -> Device:
    """An entry from whose moment on errors are counted anew."""
    known = baseline_of(device)
    if known is None:
        return device
    known = baseline.counters_of(known, look)
    return attrs.evolve(device, baseline=known.dumps(), counted=now.up)


def differences_of(device: Device, look: Snapshot, function: Function) -> list[Symptom]:
    """What is wrong with a device that nobody has, but for errors; the worst first."""
    found = baseline.wrong(look, idle(function))
    known = baseline_of(device)
    if known is None:
        return found
    return sorted([*found, *baseline.compare(known, look)], key=_severity)


def errors_of(device: Device, look: Snapshot, now: Moment, rules: Rules) -> list[Symptom]:
    """More uncorrected errors than are tolerated since they were counted last."""
    known = baseline_of(device)
    if known is None:
        return []
    found = baseline.errors_since(known, look)
    since = 0.0 if device.counted is None else max(0.0, now.up - device.counted)
    if sum(found.values()) <= rules.tolerated(since):
        return []
    parts = [f"{count} new uncorrected {kind} errors (AER)" for kind, count in found.items()]
    who = device.server or device.last_server
    by = f"; the last server that had it is {who}" if who else ""
    return [Symptom(Sign.ERRORS, f"{' and '.join(parts)}{by}")]


_ORDER: Final = {each: number for number, each in enumerate(Sign)}


def _severity(symptom: Symptom) -> int:
    return _ORDER[symptom.sign]
