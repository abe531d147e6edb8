# SPDX-License-Identifier: Apache-2.0
"""Virtual functions are set before a server starts, and put back after it.

The InfiniBand adapter is the recorded contract of NVIDIA's own driver in a
directory; it has not been tried on real hardware. Behind rtnetlink only the
socket is not real.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nova_hpc.tenancy.adapters.plan import AdapterRecord, adapter_records_of
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.driver_fixtures import FakeSysfs
from tests.unit.tenancy import cards
from tests.unit.tenancy.kernel import Kernel

SHAPE = fixtures.Shape((fixtures.Switch(gpus=0, pfs=1),))
PF = "0000:40:00.0"
VFS = [f"0000:40:00.{number}" for number in range(1, 5)]
NONE = (cards.NO_GUID, cards.NO_GUID, "Down")


class AdaptersTest(DriverTest):
    def card(self, name: str, kind=cards.infiniband, **options) -> None:
        def before(tree: FakeSysfs) -> None:
            kind(tree.root, PF)

        self.host(name, SHAPE, before=before, **options)

    def root(self, name: str) -> Path:
        return self.sysfs[name].root

    def guids(self, name: str, number: int) -> tuple[str, ...]:
        return cards.sriov(self.root(name), PF, number)

    def given(self, name: str) -> list[tuple[str, ...]]:
        """Of every function that has been given GUIDs."""
        return [found for each in range(4) if (found := self.guids(name, each)) != NONE]

    def records(self, name: str) -> dict[str, AdapterRecord]:
        return adapter_records_of(self.ledger(name))

    def vfs(self, count: int):
        return self.make_flavor({"pci_passthrough:alias": f"vf:{count}"})

    def test_the_life_of_a_server(self) -> None:
        self.card("alpha")
        server = self.boot(self.vfs(2))
        other = self.boot(self.vfs(1))
        mine = {
            each.address: self.guids("alpha", VFS.index(each.address))
            for each in self.devices_of(server)
        }
        every = [guid for found in self.given("alpha") for guid in found[:2]]
        self.assertEqual(6, len(set(every)))
        self.assertTrue(all(guid.startswith("0e:") for guid in every), every)

        def unchanged() -> None:
            for address, found in mine.items():
                self.assertEqual(found, self.guids("alpha", VFS.index(address)))

        self._reboot_server(server, hard=True)
        unchanged()
        self._stop_server(server)
        # The node was booted again, and the functions made anew.
        for address in mine:
            folder = self.sysfs["alpha"].devices / PF / f"sriov/{VFS.index(address)}"
            (folder / "node").write_text(f"{cards.NO_GUID}\n")
            (folder / "policy").write_text("Down\n")
        self._start_server(server)
        unchanged()
        self._rebuild_server(server, "155d900f-4e14-4e4c-a73d-069cbf4541e6")
        self.update("alpha")
        unchanged()
        # A service that was killed before a server was known to anybody.
        driver = self.computes["alpha"].driver
        killed = "00000000-0000-4000-8000-000000000001"
        (free,) = set(VFS) - set(self.records("alpha"))
        driver.hpc_node.tenancy.step("adapters").give(
            killed, driver.hpc_node.source.read().node, [free]
        )
        self.assertEqual(4, len(self.given("alpha")))
        self.computes["alpha"] = self.restart_compute_service("alpha", keep_hypervisor_state=True)
        self.update("alpha")
        self.assertEqual(3, len(self.given("alpha")))
        self.assertNotIn(free, self.records("alpha"))
        unchanged()
        self._delete_server(server)
        self.assertEqual(1, len(self.given("alpha")))
        self.assertEqual([other["id"]], [each.server for each in self.records("alpha").values()])
        self.assertEqual({}, self.ledger("alpha").quarantined)
        self._delete_server(other)
        self.assertEqual(([], {}), (self.given("alpha"), self.records("alpha")))

    def test_a_move(self) -> None:
        # Copying disks needs a real host; Nova's own tests do the same.
        self.useFixture(fixtures.Moves())
        self.card("alpha")
        # Both hosts are one process with one configuration here.
        alpha = self.computes["alpha"].driver.hpc_node.tenancy.step("adapters")
        self.card("beta")
        beta = self.computes["beta"].driver.hpc_node.tenancy.step("adapters")
        self.assertNotEqual(alpha, beta)
        server = self.boot(self.vfs(1), host="alpha")
        (mine,) = self.given("alpha")
        server = self._migrate_server(server)
        # The same GUIDs, and only where the server is.
        self.assertEqual(([], [mine]), (self.given("alpha"), self.given("beta")))
        self._revert_resize(server)
        self.assertEqual(([mine], []), (self.given("alpha"), self.given("beta")))
        self.update("beta")
        self.assertEqual({}, self.records("beta"))
        server = self._migrate_server(server)
        self._confirm_resize(server)
        self.update("alpha")
        self.assertEqual(([], [mine]), (self.given("alpha"), self.given("beta")))
        self.assertEqual({}, self.records("alpha"))

    def test_a_failure_refuses_the_start(self) -> None:
        self.card("alpha")
        port = self.sysfs["alpha"].devices / PF / "sriov/3/port"
        port.unlink()
        flavor = self.make_flavor({"pci_passthrough:alias": "vf:4", "hpc:affinity": "host"})
        server = self.boot(flavor, state="ERROR")
        text = next(each for each in self.fault_messages(server) if "virtual functions" in each)
        self.assertIn("of the 4 virtual functions", text)
        self.assert_no_secrets(text)
        self.assertNotIn("0e:", text)
        self.assertTrue(self.log_lines(rf"{VFS[3]} could not be set for the server: "))
        for number in range(3):
            self.assertEqual(NONE, self.guids("alpha", number))
        port.write_text(f"{cards.NO_GUID}\n")
        self._delete_server(server)
        self.update("alpha")
        self.assertEqual({}, self.records("alpha"))
        # What cannot be taken back after a server goes to nobody else.
        server = self.boot(self.vfs(1))
        (mine,) = (each.address for each in self.devices_of(server))
        folder = self.sysfs["alpha"].devices / PF / f"sriov/{VFS.index(mine)}"
        text = (folder / "port").read_text()
        (folder / "port").unlink()
        self._delete_server(server)
        held = self.ledger("alpha").quarantined
        self.assertIn("its addresses could not be taken from it", held[mine])
        self.update("alpha")
        self.assertNotIn(mine, self.tracked("alpha"))
        (folder / "port").write_text(text)
        self.update("alpha")
        # Taken back as soon as that is possible, and released by the operator.
        self.assertEqual(([], {}), (self.given("alpha"), self.records("alpha")))
        self.assertNotIn(mine, self.tracked("alpha"))
        self.ledger_file("alpha").release(mine)
        self.update("alpha")
        self.assertIn(mine, self.tracked("alpha"))

    def test_ethernet(self) -> None:
        kernel = Kernel(4)
        self.useFixture(
            fixtures.fixtures.MockPatch("nova_hpc.tenancy.adapters.netlink._open_netlink", kernel)
        )
        kernel.functions[0]["IFLA_VF_MAC"]["mac"] = "52:54:00:00:00:01"
        for each in kernel.functions:
            each["IFLA_VF_TRUST"]["trust"] = 1
        before = [dict(each) for each in kernel.functions]
        self.card("alpha", cards.ethernet)
        server = self.boot(self.vfs(4))
        macs = [each["IFLA_VF_MAC"]["mac"] for each in kernel.functions]
        self.assertEqual("52:54:00:00:00:01", macs[0])
        self.assertEqual(4, len(set(macs)))
        self.assertTrue(all(mac.startswith("0e:") for mac in macs[1:]), macs)
        self.assertEqual({0}, {each["IFLA_VF_TRUST"]["trust"] for each in kernel.functions})
        self._reboot_server(server, hard=True)
        self.assertEqual(macs, [each["IFLA_VF_MAC"]["mac"] for each in kernel.functions])
        self._delete_server(server)
        self.assertEqual(before, kernel.functions)

    def test_an_adapter_that_nothing_can_set_works_as_before(self) -> None:
        self.card("alpha", lambda root, pf: None)
        for _ in range(2):
            self._delete_server(self.boot(self.vfs(4)))
        self.assertEqual({}, self.records("alpha"))
        lines = self.log_lines(r"The virtual function \S+ is left as it is: .*does not say whether")
        self.assertEqual(4, len(lines), lines)


# In a process of its own: the daemon is a fork of it.
SCRIPT = """\
import os, sys
from pathlib import Path
from oslo_privsep import priv_context
import nova.conf
from nova_hpc import conf as hpc_conf
from nova_hpc.tenancy.adapters.plan import AddressPrefix
from nova_hpc.tenancy.adapters.settings import AdapterError, AdapterFunction
from nova_hpc.tenancy.adapters.settings import AdapterSetting, PortLayer
from nova_hpc.topology import sysfs
from nova_hpc.tenancy.adapters.step import AdapterStep
from nova_hpc.tenancy.ledger import LedgerFile
from virt_driver_patches import privileged

root = Path(sys.argv[1])
CONF = nova.conf.CONF
hpc_conf.register_all_options(CONF)
CONF([], project="nova")
CONF.set_override("sysfs_root", str(root), group="hpc")
privileged.default.start(priv_context.Method.FORK)
privileged.expect_same_settings(CONF)
file = LedgerFile(root / "ledger")
write = privileged.write_setting_by_helper
step = AdapterStep(root, file, AddressPrefix(bytes([14])), write=write)
node = sysfs.read_sysfs_node(root)
print(step.give("one", node, [sys.argv[2]]).refused)
print((root / sys.argv[3]).read_text(), end="")
print(step.take_back("one", lambda: node))
print((root / sys.argv[3]).read_text(), end="")
# What the service says of the function is not believed: only the address is asked for.
lies = AdapterFunction(sys.argv[2], 7, PortLayer.ETHERNET, "x", net="lo", rdma="../../../../etc")
write(root, lies, AdapterSetting("port_guid", 0x0E00000000000001))
print((root / sys.argv[3]).read_text(), end="")
# A real socket of the kernel, for the loopback.
import shutil
shutil.rmtree(root / sys.argv[3].rpartition("/sriov/")[0] / "sriov")
shutil.rmtree(root / sys.argv[3].rpartition("/sriov/")[0] / "infiniband")
(root / sys.argv[3].rpartition("/sriov/")[0] / "class").write_text("0x020000\\n")
(root / sys.argv[3].rpartition("/sriov/")[0] / "net/lo").mkdir(parents=True)
lies = AdapterFunction(sys.argv[2], 7, PortLayer.INFINIBAND, "x")
for name, value in (
    ("vlan", (5, 0)), ("mac", "0e:00:00:00:00:01"), ("mac", "01:00:00:00:00:01"),
    ("vlan", (4096, 0)), ("rate", (0, 1 << 32)), ("trust", 1), ("driver", "x"), ("mac", "x\\n"),
):
    try:
        privileged.write_setting_by_helper(root, lies, AdapterSetting(name, value))
    except AdapterError as error:
        print(error)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start the daemon by itself")
def test_a_service_that_is_not_root(tmp_path: Path) -> None:
    """Through a real daemon of oslo.privsep, and a real socket for the loopback."""
    cards.add(tmp_path, PF, VFS)
    cards.infiniband(tmp_path, PF)
    port = f"sys/bus/pci/devices/{PF}/sriov/1/port"
    argv = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path), VFS[1], port]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    first, given, second, gone, set_by_lies, *refused = done.stdout.splitlines()
    assert (first, second, gone) == ("{}", "{}", cards.NO_GUID)
    assert given.startswith("0e:")
    assert set_by_lies == "0e:00:00:00:00:00:00:01"
    assert len(refused) == 8
    assert all(VFS[1] in each and "of lo: " in each for each in refused[:2]), refused
    assert all(" is no value of the setting " in each for each in refused[2:]), refused


REFUSED = """\
import os, sys
import nova.conf
from nova import exception
from nova_hpc import conf as hpc_conf
from virt_driver_patches.driver.reading import ReadingSource
from virt_driver_patches.driver.tenancy import steps_of

CONF = nova.conf.CONF
hpc_conf.register_all_options(CONF)
CONF([], project="nova")
CONF.set_override("sysfs_root", sys.argv[1], group="hpc")
CONF.set_override("clean_devices", False, group="hpc")
entry = '{"vendor_id": "15b3", "product_id": "101e", "hpc_v": "1", "hpc_role": "vf"}'
# As with nova-rootwrap that knows no filter for the helper.
CONF.set_override("helper_command", "false", group="nova_hpc_privileged")
os.geteuid = lambda: 1000
for spec in ([], [entry]):
    CONF.set_override("device_spec", spec, group="pci")
    try:
        print(list(steps_of(CONF, ReadingSource.from_config(CONF)))[-1].mode)
    except exception.InvalidConfiguration as error:
        print(error)
CONF.set_override("address_prefix", "01", group="hpc")
try:
    list(steps_of(CONF, ReadingSource.from_config(CONF)))
except exception.InvalidConfiguration as error:
    print(error)
"""


def test_a_service_that_may_not_is_refused(tmp_path: Path) -> None:
    """Where there is anything to set."""
    cards.add(tmp_path, PF, VFS)
    argv = [sys.executable, "-W", "ignore", "-c", REFUSED, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    nothing, refused, prefix = done.stdout.splitlines()
    assert nothing == "keep"
    assert "copy etc/rootwrap.d/nova-hpc.filters" in refused
    assert "[hpc]set_adapters = off" in refused
    assert prefix.startswith("[hpc]address_prefix: '01' does not begin local addresses")
