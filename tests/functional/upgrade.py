# SPDX-License-Identifier: Apache-2.0
"""The node whose upgrade is tested: what it has, and what its servers ask for.

Two switches, with two GPUs and an InfiniBand adapter of one virtual function on
the first and three GPUs and such an adapter on the second. Two GPUs are in
quarantine, so that only one set of devices is left for each server: whoever
makes the world again gives them the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lxml import etree

from tests.fabric_manager import FabricManager, library
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.driver_fixtures import FakeSysfs
from tests.unit.tenancy import cards

#: What an earlier code has left.
DATA = Path(__file__).parents[1] / "data/upgrade"

SHAPE = fixtures.Shape(
    (fixtures.Switch(gpus=2, pfs=1, vfs=1), fixtures.Switch(gpus=3, pfs=1, vfs=1))
)
GPUS = {1: "0000:40:00.0", 2: "0000:40:01.0", 3: "0000:41:00.0", 4: "0000:41:01.0"}
SETS = {1: "left:2", 3: "left:2", 2: "right:2", 4: "right:2"}
PFS = ("0000:40:02.0", "0000:41:03.0")
VFS = ("0000:40:02.1", "0000:41:03.1")
HELD = {GPUS[4]: "ticket 4711: thermal", "0000:41:02.0": "the kernel knows no way to reset it"}
#: A server that nova-compute was killed with before anybody knew it.
KILLED = "00000000-0000-4000-8000-00000000dead"

FLAVORS = {
    "pair": {
        "pci_passthrough:alias": "gpu:2",
        "hpc:affinity": "numa",
        "hpc:nvlink": "required",
        "hpc:guest_topology": "mirror",
    },
    "near": {
        "pci_passthrough:alias": "gpu:1,vf:1",
        "hpc:affinity": "switch",
        "hpc:guest_topology": "mirror",
    },
}


class UpgradeBase(DriverTest):
    """The node and its two servers."""

    manager: FabricManager

    def start(self) -> None:
        self.flags(hw_machine_type=["x86_64=q35"], group="libvirt")
        entries = SHAPE.device_spec()
        for entry in entries:
            tag = {GPUS[number]: text for number, text in SETS.items()}.get(entry["address"])
            if tag is not None:
                entry["hpc_nvlink"] = tag
        folder = Path(self.useFixture(fixtures.fixtures.TempDir()).path)
        self.manager = FabricManager(folder, dict.fromkeys(GPUS, "-"))
        self.flags(
            nvlink_backend="fabric-manager",
            nvlink_address=str(self.manager.path),
            nvlink_library=library(),
            nvlink_gpus={str(number): address for number, address in GPUS.items()},
            group="hpc",
        )

        def before(tree: FakeSysfs) -> None:
            for number, address in enumerate(PFS):
                cards.infiniband(tree.root, address, f"mlx5_{number}")
            for number, function in enumerate(SHAPE.functions()):
                path = tree.devices / function.address / "aer_dev_fatal"
                path.write_text(f"Undefined 0\nTOTAL_ERR_FATAL {number}\n")

        self.host("alpha", SHAPE, entries, before=before)
        for address, reason in HELD.items():
            self.quarantine("alpha", address, reason)
        self.update("alpha")

    def servers(self) -> dict[str, dict]:
        return {name: self.boot(self.make_flavor(specs)) for name, specs in FLAVORS.items()}

    def facts(self, server: Mapping[str, Any]) -> dict[str, Any]:
        """What a server must keep."""
        metadata = self.instance(server).system_metadata
        return {
            "id": server["id"],
            "devices": [each.address for each in self.devices_of(server)],
            "metadata": {key: metadata[key] for key in sorted(metadata) if key.startswith("hpc_")},
            "guest": self.guest(server),
        }

    def guest(self, server: Mapping[str, Any]) -> list[str]:
        """Every PCI function of the guest: what it is, where it sits, what is behind it."""
        found = []
        for each in self.domain_of(server).findall("devices/*"):
            place = each.find("address[@type='pci']")
            source = each.find("source/address")
            if place is not None or each.tag == "controller":
                words = [each.tag, *(each.get(key, "") for key in ("model", "index"))]
                words += [_text(place), _text(source)]
                found.append(" ".join(words))
        return found

    def guids(self) -> dict[str, tuple[str, ...]]:
        """Of both virtual functions."""
        root = self.sysfs["alpha"].root
        return {vf: cards.sriov(root, pf) for vf, pf in zip(VFS, PFS, strict=True)}


def _text(element: etree._Element | None) -> str:
    if element is None:
        return "-"
    return json.dumps(dict(sorted(element.attrib.items())), separators=(",", ":"))
