# SPDX-License-Identifier: Apache-2.0
"""nova-compute with this project's driver on Nova's fake libvirt, in a real cloud.

``python -m tests.lab.tempest.compute NAME FOLDER``, in an environment with Nova's own tests:
everything but libvirt is the real service, which talks to the cloud's
RabbitMQ, Keystone, Placement, Glance and Neutron. *FOLDER* holds ``nova.conf``; the node's
sysfs and what the driver remembers are written there, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")

import fixtures as fixtures_lib
from nova.cmd import compute as command
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import base, driver_fixtures, fixtures
from virt_driver_patches import privileged

#: What flavors of the lab's cloud ask for (lab/nova_hpc_lab/config.py, ALIASES).
GPU, PF, VF = ("1234", "1111"), ("8086", "10c9"), ("8086", "10ca")
#: Sixteen GPUs and sixteen functions below four switches, on two NUMA nodes of 32 CPUs each.
SHAPE = fixtures.Shape(
    tuple(fixtures.Switch(gpus=4, pfs=1, vfs=4, numa=index // 2) for index in range(4)),
    cores=16,
    memory_kib=64 * 1024 * 1024,
    pages=((4, 8 * 1024 * 1024), (2048, 16 * 1024)),
)
DEDICATED = "4-63"
#: What the cloud says, and what this node is; both in its folder.
FILES = ("nova.conf", "node.conf")


def as_in_the_lab() -> None:
    """Give the devices of the tests' shapes the identities that the lab's cloud knows."""
    fixtures.GPU_VENDOR, fixtures.GPU_PRODUCT = GPU
    fixtures.NIC_VENDOR, fixtures.PF_PRODUCT = PF
    fixtures.VF_PRODUCT = VF[1]
    driver_fixtures._IDS |= {
        "gpu": (*GPU, "0x030200"),
        "pf": (*PF, "0x020000"),
        "vf": (*VF, "0x020000"),
    }


class Sysfs(driver_fixtures.FakeSysfs):
    """One that stays where it is."""

    def __init__(self, root: Path) -> None:
        super().__init__(SHAPE)
        self.root = root

    def _setUp(self) -> None:
        self.devices = self.root / "sys/bus/pci/devices"
        if self.devices.exists():
            return
        self.devices.mkdir(parents=True)
        self._cpus()
        for function in SHAPE.functions():
            self._add(function)


class Connection(fakelibvirt.Connection):
    """One whose guests run on when their domains are defined anew, as libvirt's do."""

    def defineXML(self, xml: str) -> Any:
        """Define a domain, which may be that of a running guest."""
        domain = super().defineXML(xml)
        for number, other in self._running_vms.items():
            if other.UUIDString() == domain.UUIDString():
                domain._state, domain._id = other._state, other._id
                self._running_vms[number] = domain
        return domain


def replaced(name: str) -> Any:
    """What is not there: a hypervisor (as in Nova's own functional tests)."""
    connection = Connection(
        "qemu:///system",
        version=fakelibvirt.FAKE_LIBVIRT_VERSION,
        hv_version=fakelibvirt.FAKE_QEMU_VERSION,
        host_info=SHAPE.host_info(),
        pci_info=SHAPE.pci_info(),
        hostname=name,
    )
    driver = "nova.virt.libvirt.LibvirtDriver"
    patch = fixtures_lib.MockPatch
    # In this process, as whoever runs it.
    yield nova_fixtures.PrivsepFixture()
    yield fixtures_lib.MockPatchObject(privileged.default, "client_mode", False)
    yield nova_fixtures.CGroupsFixture()
    yield nova_fixtures.LibvirtFixture()
    yield nova_fixtures.OSBrickFixture()
    yield patch(
        f"{driver}._get_local_gb_info", return_value={"total": 4096, "used": 0, "free": 4096}
    )
    cpus = set(range(SHAPE.nodes * SHAPE.cores * SHAPE.threads))
    yield patch("nova.virt.libvirt.host.Host.get_online_cpus", return_value=cpus)
    yield patch("nova.virt.libvirt.host.Host.get_connection", return_value=connection)
    yield patch("nova.virt.libvirt.vif.LibvirtGenericVIFDriver.plug")
    yield patch("nova.virt.libvirt.vif.LibvirtGenericVIFDriver.unplug")
    yield fixtures.DomainRecorder()
    yield fixtures.HonestDomains()
    yield fixtures.Moves()
    yield fixtures_lib.MonkeyPatch("nova.pci.utils.is_physical_function", lambda *_: True)
    yield fixtures_lib.MonkeyPatch("nova.pci.utils.get_function_by_ifname", lambda _: (None, False))


def main(name: str, folder: Path) -> None:
    """Be the service until somebody ends it."""
    as_in_the_lab()
    base.put_shim_in_place()
    root = folder / "root"
    entries = SHAPE.device_spec(classes=False)
    # Who it is, also after a restart (nova/virt/node.py).
    (folder / "state" / "compute_id").write_text(str(uuid.uuid5(uuid.NAMESPACE_DNS, name)))
    (folder / FILES[1]).write_text(
        "[pci]\n"
        + "".join(f"device_spec = {json.dumps(each)}\n" for each in entries)
        + f"[compute]\ncpu_dedicated_set = {DEDICATED}\ncpu_shared_set = 0-3\n"
        + f"[hpc]\nsysfs_root = {root}\nledger_file = {folder / 'ledger'}\n"
    )
    sys.argv = ["nova-compute", *(f"--config-file={folder / each}" for each in FILES)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(Sysfs(root))
        for each in replaced(name):
            stack.enter_context(each)
        command.main()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
