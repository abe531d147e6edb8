# SPDX-License-Identifier: Apache-2.0
"""Look at devices: what they are now, beside what the ledger knows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from nova_hpc.tenancy.health import is_vfio
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import Difference, Snapshot
from nova_hpc.tenancy.step import Candidate
from nova_hpc.topology import device as topology_device
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import Tree
from nova_hpc.topology.model import Function
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


def idle(function: Function) -> bool:
    """Whether no driver of the host may be using the function."""
    return function.driver is None or is_vfio(function.driver)


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


def differences_of(device: Device, look: Snapshot, function: Function) -> list[Difference]:
    """What is wrong with a device that nobody has."""
    found = baseline.wrong(look, idle(function))
    known = baseline_of(device)
    return found if known is None else [*found, *baseline.compare(known, look)]
