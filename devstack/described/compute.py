# SPDX-License-Identifier: Apache-2.0
"""nova-compute with this project's driver, for a host that is described and not there.

Nova's real libvirt driver code (and this project's on top) runs over Nova's own fake libvirt;
the PCI devices and the sysfs behind them are written from a Shape of the project's tests. No
guest runs: a server that is ACTIVE here has a domain that nothing executes.

    compute.py HOST FOLDER tree                 write FOLDER, nothing else
    compute.py HOST FOLDER compute OPTION...    run nova-compute with these options

What it proves: the plug-in's phases, API, scheduler, conductor, Placement and the driver's code as
processes of a real devstack. What it does not: libvirt's and QEMU's answer to a device.
"""

from __future__ import annotations

import os
import sys

HOST, FOLDER, MODE, *OPTIONS = sys.argv[1:]
if MODE == "compute":
    # Before all else: the tests of Nova would patch with eventlet otherwise.
    os.environ["OS_NOVA_DISABLE_EVENTLET_PATCHING"] = "1"
    from nova import monkey_patch

    monkey_patch.patch(backend="threading")

import io  # noqa: E402
import pathlib  # noqa: E402
import shutil  # noqa: E402
import socket  # noqa: E402
from typing import Any  # noqa: E402

import fixtures  # noqa: E402

# The checkout, which has the tests.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.functional import driver_fixtures  # noqa: E402
from tests.functional.fixtures import HonestDomains, Shape, Switch  # noqa: E402

#: Two sockets, on each two switches with two GPUs and an adapter of four functions: a class of
#: tempest has four GPUs while those of the class before are still being cleaned.
SHAPE = Shape(
    tuple(Switch(gpus=2, pfs=1, vfs=4, numa=numa) for numa in (0, 0, 1, 1)),
    cores=8,
    pages=((4, 1 << 21), (2048, 4096)),
)


class _FixedFolder(fixtures.Fixture):
    """A folder in the place of a temporary one."""

    def _setUp(self) -> None:
        self.path = FOLDER
        shutil.rmtree(FOLDER, ignore_errors=True)
        pathlib.Path(FOLDER).mkdir(parents=True)


def write_tree(keep: fixtures.Fixture) -> None:
    """Write the tree of the host."""
    with fixtures.MonkeyPatch("fixtures.TempDir", _FixedFolder):
        keep.useFixture(driver_fixtures.FakeSysfs(SHAPE))


def run_compute(keep: fixtures.Fixture) -> int:
    """Run the service until it is stopped; its exit status."""
    from nova.cmd import compute
    from nova.network import neutron
    from nova.tests import fixtures as nova_fixtures
    from nova.tests.fixtures import libvirt as fakelibvirt
    from nova.virt.libvirt import utils as libvirt_utils
    from oslo_concurrency import processutils

    use = keep.useFixture
    patch = fixtures.MonkeyPatch
    info, host = SHAPE.pci_info(), SHAPE.host_info()
    use(nova_fixtures.LibvirtImageBackendFixture())
    use(nova_fixtures.CGroupsFixture())
    fake = use(nova_fixtures.LibvirtFixture())
    use(nova_fixtures.OSBrickFixture())
    use(HonestDomains())
    fake.update_sriov_mac_address_mapping(info.get_pci_address_mac_mapping())
    driver = "nova.virt.libvirt.driver"

    def create_disk(
        self: object, context: object, instance: Any, *more: object, **options: object
    ) -> tuple[bool, bool]:
        """An empty disk: what starts a server again, or resizes it, looks at the file."""
        path = pathlib.Path(libvirt_utils.get_instance_path(instance))
        path.mkdir(parents=True, exist_ok=True)
        processutils.execute("qemu-img", "create", "-f", "qcow2", str(path / "disk"), "1M")
        return False, False

    use(patch(f"{driver}.LibvirtDriver._create_image", create_disk))
    space = {"total": 512, "used": 4, "free": 508}
    use(patch(f"{driver}.LibvirtDriver._get_local_gb_info", lambda *a, **k: space))
    use(patch(f"{driver}.libvirt_utils.is_valid_hostname", lambda name: True))
    use(patch(f"{driver}.libvirt_utils.file_open", lambda *a, **k: io.BytesIO(b"")))
    use(patch("nova.privsep.utils.supports_direct_io", lambda path: True))
    use(patch("nova.virt.libvirt.host.Host.get_online_cpus", lambda self: set(range(host.cpus))))
    use(patch("nova.pci.utils.is_physical_function", lambda *address: True))
    use(patch("nova.pci.utils.get_function_by_ifname", lambda name: (None, False)))
    connection = fakelibvirt.Connection(
        "qemu:///system",
        version=fakelibvirt.FAKE_LIBVIRT_VERSION,
        hv_version=fakelibvirt.FAKE_QEMU_VERSION,
        host_info=host,
        pci_info=info,
        hostname=HOST,
    )
    use(patch("nova.virt.libvirt.host.Host.get_connection", lambda self: connection))
    # Networks are this machine's matter, which has the agent: nothing is plugged here.
    update_port = neutron.API._update_port

    def bind_here(self: neutron.API, client: Any, instance: Any, port: str, body: Any) -> Any:
        if "binding:host_id" in body["port"]:
            body["port"]["binding:host_id"] = socket.gethostname()
        return update_port(self, client, instance, port, body)

    use(patch("nova.network.neutron.API._update_port", bind_here))
    move_port = neutron.API._update_port_binding_for_instance

    def move_here(
        self: neutron.API, context: Any, instance: Any, host: str, *more: Any, **options: Any
    ) -> Any:
        return move_port(self, context, instance, socket.gethostname(), *more, **options)

    use(patch("nova.network.neutron.API._update_port_binding_for_instance", move_here))
    use(patch("os_vif.plug", lambda *a, **k: None))
    use(patch("os_vif.unplug", lambda *a, **k: None))
    sys.argv = ["nova-compute", *OPTIONS]
    return compute.main()


with fixtures.Fixture() as keep:
    # The driver trusts a tree that root alone may write: root runs "tree", stack "compute".
    sys.exit(run_compute(keep) if MODE == "compute" else write_tree(keep))
