# SPDX-License-Identifier: Apache-2.0
"""Devices that must not be given are lost to Nova's tracker and reserved in Placement."""

from __future__ import annotations

from unittest import mock

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.virt.libvirt import driver as libvirt_driver
from oslo_serialization import jsonutils

from nova_hpc.tenancy.ledger import copy_of
from nova_hpc.wire import stats
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from virt_driver_patches.driver import contract
from virt_driver_patches.driver.withholder import list_used_devices

GPU = {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"}
STOCK = {"pci_passthrough:alias": "gpu:1"}
PF, VFS = "0000:40:01.0", [f"0000:40:01.{function}" for function in (1, 2, 3, 4)]
FIRST, SECOND = "0000:40:00.0", "0000:40:01.0"


class WithholdTest(DriverTest):
    def test_a_switch_without_acs(self) -> None:
        """The VFs share the IOMMU group of their PF, which its host driver has."""
        shape = fixtures.Shape((fixtures.Switch(gpus=1, pfs=1),))

        def join(tree) -> None:
            for address in [PF, *VFS]:
                tree.regroup(address, 17)

        self.host("alpha", shape, before=join)
        self.assertEqual({FIRST: 1}, self.in_placement("alpha"))
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))
        reason = f"IOMMU group 17 is not viable: {PF} (mlx5_core) is in it"
        self.assertEqual(dict.fromkeys(VFS, reason), self.stats_of("alpha").withheld)
        self.assertTrue(self.log_lines(rf"{VFS[0]} is not offered: IOMMU group 17"))
        # For every flavor, and for a forced host, too.
        for az in (None, "nova:alpha"):
            server = self.boot(
                self.make_flavor({"pci_passthrough:alias": "vf:1"}),
                state="ERROR",
                **({"az": az} if az else {}),
            )
            self._delete_server(server)

    def test_one_function_of_many(self) -> None:
        """A VF that must not be given takes one from what its provider gives."""
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=1, pfs=1),)))
        self.assertEqual({FIRST: 1, PF: 4}, self.in_placement("alpha"))
        self.sysfs["alpha"].bind(VFS[2], "mlx5_core")
        self.update("alpha")
        # Its provider keeps its total; one is reserved.
        self.assertEqual({FIRST: 1, PF: 4}, self.in_placement("alpha"))
        self.assertEqual({FIRST: 0, PF: 1}, self.reserved_in_placement("alpha"))
        self.assertEqual([VFS[2]], list(self.stats_of("alpha").withheld))
        self.sysfs["alpha"].bind(VFS[2], "vfio-pci")
        self.update("alpha")
        self.assertEqual({FIRST: 1, PF: 4}, self.in_placement("alpha"))
        self.assertEqual({FIRST: 0, PF: 0}, self.reserved_in_placement("alpha"))
        self.assertEqual(stats.StatsDocument(), self.stats_of("alpha"))
        self.assertEqual(1, len(self.log_lines(rf"{VFS[2]} is not offered")))
        self.assertEqual(1, len(self.log_lines(rf"{VFS[2]} is well again")))

    def _without_tags(self, shape: fixtures.Shape) -> list[dict[str, str]]:
        """GPUs with tags, and another's entry of the virtual functions beside them."""
        mine = [each for each in shape.device_spec() if each["hpc_role"] != "vf"]
        plain = shape.device_spec(tags=False)
        return mine + [each for each in plain if each["product_id"] == fixtures.VF_PRODUCT]

    def _vgpus(self, tree) -> None:
        """The adapter's driver has its virtual functions, too, and offers them by VFIO."""
        for address in VFS:
            tree.bind(address, "mlx5_core")
            tree.offer_by_vfio(address)

    def test_functions_that_their_vendors_driver_gives(self) -> None:
        """An entry of another, ``managed: no``, as for vGPUs without mediated devices.

        Before: all withheld ("bound to driver mlx5_core and not to vfio-pci"), so that a
        stock flavor found no host and a running server could not be hard rebooted.
        """
        shape = fixtures.Shape((fixtures.Switch(gpus=1, pfs=1),))
        entries = self._without_tags(shape)
        self.host("alpha", shape, entries, before=self._vgpus)
        self.assertEqual({}, self.stats_of("alpha").withheld)
        self.assertEqual({FIRST, *VFS}, set(self.tracked("alpha")))
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "vf:1"}))
        self._reboot_server(server, hard=True)
        (mine,) = [device.address for device in self.devices_of(server)]
        self._delete_server(server)
        self.update("alpha")
        # Nobody resets it below the driver that works.
        self.assertEqual({}, self.stats_of("alpha").withheld)
        self.assertEqual("", (self.sysfs["alpha"].devices / mine / "reset").read_text().strip())

    def test_what_another_offers_is_judged_by_what_harms_the_host(self) -> None:
        """The kernel says nothing of VFIO: libvirt decides, as it always has."""
        shape = fixtures.Shape((fixtures.Switch(gpus=1, pfs=1),))
        entries = self._without_tags(shape)

        def bind(tree) -> None:
            for address in VFS:
                tree.bind(address, "mlx5_core")
            tree.regroup(VFS[0], 77)
            tree.regroup(PF, 77)

        self.host("alpha", shape, entries, before=bind)
        reason = f"IOMMU group 77 is not viable: {PF} (mlx5_core) is in it"
        self.assertEqual({VFS[0]: reason}, self.stats_of("alpha").withheld)

    def test_a_disk_is_never_offered_without_a_proven_erase(self) -> None:
        """Whatever its entry says; before: given with a reset, which erases nothing."""
        for number, tagged in enumerate((True, False)):
            name = f"disk{number}"
            shape = fixtures.Shape((fixtures.Switch(gpus=2),))
            entries = shape.device_spec()
            if not tagged:
                # Beside the other's; without any tag on a node this project does nothing.
                entries[0] = {key: entries[0][key] for key in entries[0] if "hpc_" not in key}
                self.assertEqual(FIRST, entries[0]["address"])

            def make_disk(tree) -> None:
                (tree.devices / FIRST / "class").write_text("0x010802")

            self.host(name, shape, entries, before=make_disk)
            self.assertEqual({SECOND: "available"}, self.tracked(name))
            self.assertEqual([FIRST], list(self.stats_of(name).withheld))
            who = "of the role gpu" if tagged else "without a role"
            said = self.stats_of(name).withheld[FIRST]
            self.assertIn(f"no cleaner {who} proves", said)
            # Not for a flavor without hpc: keys either.
            flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2"})
            self.boot(flavor, state="ERROR", az=f"nova:{name}")

    def test_a_device_in_use_is_never_dropped(self) -> None:
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=2),)))
        server = self.boot(self.make_flavor(GPU))
        (mine,) = (device.address for device in self.devices_of(server))
        (other,) = {FIRST, SECOND} - {mine}
        for address in (mine, other):
            self.quarantine("alpha", address, "overheats")
        for _ in range(2):
            self.update("alpha")
            self.assertEqual({mine: "allocated"}, self.tracked("alpha"))
            self.assertEqual({mine: 1, other: 1}, self.in_placement("alpha"))
            self.assertEqual({mine: 0, other: 1}, self.reserved_in_placement("alpha"))
            document = self.stats_of("alpha")
            self.assertEqual({other: "in quarantine: overheats"}, document.withheld)
            self.assertEqual({mine: "in quarantine: overheats"}, document.in_use)
        self.assertFalse(self.log_lines("Unable to remove device"))
        # It restarts with the device that it has, and stopped it still has it.
        self._stop_server(server)
        self.update("alpha")
        self.assertEqual({mine: "allocated"}, self.tracked("alpha"))
        self._start_server(server)
        self._delete_server(server)
        self.update("alpha")
        self.assertEqual({}, self.tracked("alpha"))
        self.assertEqual({mine: 1, other: 1}, self.reserved_in_placement("alpha"))

    def test_a_device_that_is_only_claimed_is_in_use(self) -> None:
        """An update between the claim and the start must not take it away."""
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=1),)))
        self.boot(self.make_flavor(GPU))
        context = nova_context.get_admin_context()
        node = objects.ComputeNode.get_by_host_and_nodename(context, "alpha", "alpha")
        (record,) = objects.PciDeviceList.get_by_compute_node(context, node.id)
        record.status = objects.fields.PciDeviceStatus.CLAIMED
        record.save()
        self.assertEqual({FIRST}, list_used_devices("alpha", "alpha"))

    def test_the_reading_is_fresh(self) -> None:
        """Nova 34 reads PCI devices once in the life of the service."""
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=2),)))
        host = self.computes["alpha"].driver._host
        plain = host.list_all_devices
        with mock.patch.object(
            host,
            "list_all_devices",
            side_effect=lambda flags: [
                device for device in plain(flags=flags) if "40_01_0" not in device.name()
            ],
        ):
            self.update("alpha")
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))
        self.update("alpha")
        self.assertEqual({FIRST, SECOND}, set(self.tracked("alpha")))

    def test_a_node_that_cannot_be_read_offers_nothing_and_lives(self) -> None:
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=2),)))
        self.sysfs["alpha"].devices.rename(self.sysfs["alpha"].root / "elsewhere")
        self.update("alpha")
        self.assertEqual({}, self.tracked("alpha"))
        document = self.stats_of("alpha")
        self.assertEqual({FIRST, SECOND}, set(document.withheld))
        self.assertTrue(document.notes)

    def test_a_broken_ledger_is_read_from_its_copy(self) -> None:
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=2),)))
        self.quarantine("alpha", FIRST, "overheats")
        path = self.ledger_file("alpha").path
        path.write_bytes(path.read_bytes()[:10])
        self.update("alpha")
        self.assertEqual({SECOND: "available"}, self.tracked("alpha"))
        self.assertIn("its copy is used", self.stats_of("alpha").notes[0])

    def test_a_broken_ledger_without_a_copy_withholds_everything(self) -> None:
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=1),)))
        path = self.ledger_file("alpha").path
        copy_of(path).unlink()
        path.write_text("{")
        self.update("alpha")
        self.assertEqual({}, self.tracked("alpha"))
        self.assertIn("the ledger", self.stats_of("alpha").notes[0])
        path.unlink()
        self.update("alpha")
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))


class ContractTest(DriverTest):
    """Where a contract does not hold, the service refuses to start and says why."""

    SHAPE = fixtures.Shape((fixtures.Switch(gpus=1, pfs=1),))

    def assert_refused(self, *words: str, **keywords: object) -> None:
        error = self.assertRaises(
            exception.InvalidConfiguration, self.host, "alpha", self.SHAPE, **keywords
        )
        for word in words:
            self.assertIn(word, str(error))

    def test_pci_in_placement(self) -> None:
        self.flags(report_in_placement=False, group="pci")
        self.assert_refused("[pci]report_in_placement", "true")

    def test_the_hypervisor(self) -> None:
        """Checked before libvirt is asked for anything."""
        self.flags(
            device_spec=[jsonutils.dumps(each) for each in self.SHAPE.device_spec()], group="pci"
        )
        for kind in ("lxc", "parallels"):
            self.flags(virt_type=kind, group="libvirt")
            error = self.assertRaises(
                exception.InvalidConfiguration, contract.check_config, nova.conf.CONF
            )
            self.assertIn(f"[libvirt]virt_type is {kind}", str(error))

    def test_the_release_of_nova(self) -> None:
        with mock.patch("nova.version.version_string", return_value="31.0.1"):
            self.assert_refused("32, 33, 34", "this is Nova 31", "compute_driver")

    def test_bad_tags(self) -> None:
        for tag, value in (("hpc_numa", "one"), ("hpc_tags", "9")):
            entries = self.SHAPE.device_spec()
            entries[0][tag] = value
            self.assert_refused("[pci]device_spec", tag, repr(value), device_spec=entries)

    def test_virtual_functions_of_one_adapter_with_different_tags(self) -> None:
        entries = [entry for entry in self.SHAPE.device_spec() if entry["hpc_role"] == "vf"]
        entries = [{**entries[0], "address": address} for address in VFS]
        entries[1]["hpc_group"] = VFS[1]
        self.assert_refused("[pci]device_spec", PF, "hpc_* tags", device_spec=entries)
        entries[1]["hpc_role"] = "ethvf"
        self.assert_refused(PF, "(the roles ethvf and vf)", device_spec=entries)

    def test_without_tags_nothing_is_checked(self) -> None:
        self.flags(report_in_placement=False, group="pci")
        with mock.patch("nova.version.version_string", return_value="31.0.1"):
            self.host("alpha", self.SHAPE, device_spec=self.SHAPE.device_spec(tags=False))
        self.assertEqual(5, len(self.tracked("alpha")))


class OverriddenTest(DriverTest):
    """Everything that the driver overrides exists in this Nova."""

    def test_the_methods(self) -> None:
        from virt_driver_patches.driver.hpc_libvirt import HpcLibvirtDriver

        own = {
            name
            for name, value in vars(HpcLibvirtDriver).items()
            if callable(value) and not name.startswith(("_hpc", "hpc", "__"))
        }
        self.assertIn("_get_guest_xml", own)
        self.assertEqual(
            set(), {each for each in own if not hasattr(libvirt_driver.LibvirtDriver, each)}
        )
