# SPDX-License-Identifier: Apache-2.0
"""NVMe disks as devices: below one switch with GPU and adapter, and none without a proof."""

from __future__ import annotations

import attrs
import pytest
from oslo_serialization import jsonutils

from nova_hpc.tenancy.stage.device_stage import DeviceStage, StagePhase, load_stage
from nova_hpc.wire.ledger import DeviceState
from nova_hpc_common.level import Level
from tests.functional import fixtures
from tests.functional.cleaning_base import CleaningBase

#: Three switches; only the last has all three kinds of devices, and the nodes are not alike.
SHAPE = fixtures.Shape(
    (
        fixtures.Switch(gpus=2, pfs=1, vfs=2),
        fixtures.Switch(gpus=1, disks=2),
        fixtures.Switch(gpus=1, pfs=1, vfs=2, disks=1, numa=1),
    )
)
#: Disks of the second switch and of the third.
APART, BESIDE = ("0000:41:01.0", "0000:41:02.0"), "0000:42:02.0"
DISK = {"pci_passthrough:alias": "nvme:1"}
GROUP = {
    "pci_passthrough:alias": "gpu:1,vf:1,nvme:1",
    "hpc:group": "gpu:1,vf:1,nvme:1",
    "hpc:affinity": "switch",
    "hw:pci_numa_affinity_policy": "preferred",
}


class DisksTest(CleaningBase):
    """A stage erases the disks; the service VM that does it is a folder."""

    PCI_ALIAS = [
        jsonutils.dumps(each)
        for each in (
            *fixtures.CLASS_ALIASES,
            {"name": "nvme", "resource_class": fixtures.DISK_CLASS},
        )
    ]

    def stage_of(self, text: str) -> None:
        super().stage_of(text)
        self.flags(clean_checks={"nvme": "nvme"}, group="hpc")

    def setUp(self) -> None:
        super().setUp()
        self.stage_of("nvme:service-vm")
        self.does("prove")

    def _start(self) -> None:
        """A host whose disks wait for their first erase."""

        def meminfo(tree: object) -> None:
            path = tree.root / "proc/meminfo"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("MemAvailable: 4000000 kB\n")

        self.host("alpha", SHAPE, before=meminfo)
        self.fake(self.computes["alpha"].driver.hpc_node)

    def _erase(self) -> None:
        self.stage("alpha").attend()
        self.update("alpha")

    def _stage_of_disk(self) -> DeviceStage:
        found = load_stage(self.ledger("alpha").device(BESIDE).stage)
        assert found is not None
        return found

    def _kinds(self, server: object) -> list[str]:
        return sorted(device.product_id for device in self.devices_of(server))

    @pytest.mark.slow
    def test_a_gpu_an_adapter_and_a_disk_below_one_switch(self) -> None:
        self._start()
        self._erase()
        self.settle_start("alpha")
        server = self.boot(self.make_flavor(GROUP))
        kinds = [fixtures.VF_PRODUCT, fixtures.GPU_PRODUCT, fixtures.DISK_PRODUCT]
        self.assertEqual(sorted(kinds), self._kinds(server))
        self.assertIs(Level.SWITCH, self.level_of(server))
        self.assertIn(BESIDE, self.domain_devices(server))
        # Two disks, two GPUs and two functions are free, and no three of them are together.
        refused = self.boot(self.make_flavor(GROUP), "ERROR")
        self.assertIn("under one switch", self.fault(refused))
        self.assert_no_secrets(self.fault(refused))
        self._delete_server(refused)
        # They are had one by one.
        apart = self.boot(self.make_flavor({**GROUP, "hpc:affinity_policy": "preferred"}))
        self.assertEqual(sorted(kinds), self._kinds(apart))
        self.assert_given_once()

    def test_a_disk_is_given_again_once_it_is_erased(self) -> None:
        self._start()
        self._erase()
        server = self.boot(self.make_flavor(GROUP))
        # A restart keeps the disk, and its data.
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._start_server(server)
        self._erase()
        self.assertIn(BESIDE, self.domain_devices(server))
        self.assertIs(StagePhase.DUE, self._stage_of_disk().phase)
        self._delete_server(server)
        self.update("alpha")
        # The GPU and the adapter are free, and the disk is not.
        self.assertNotIn(BESIDE, self.tracked("alpha"))
        self.assertNotIn(BESIDE, self.given_by_placement("alpha"))
        early = self.boot(self.make_flavor(GROUP), "ERROR")
        self._delete_server(early)
        self._erase()
        entry = self._stage_of_disk()
        self.assertIs(StagePhase.CLEAN, entry.phase)
        self.assertEqual("sanitize, crypto erase; 128 blocks read back", entry.proof)
        self.assertIs(Level.SWITCH, self.level_of(self.boot(self.make_flavor(GROUP))))

    def _assert_no_disk(self, *disks: str) -> None:
        """Nova and Placement have none of them, and no server gets one."""
        self.update("alpha")
        self.assertFalse(set(disks) & set(self.tracked("alpha")))
        self.assertFalse(set(disks) & set(self.given_by_placement("alpha")))
        others = {*APART, BESIDE} - set(disks)
        servers = [self.boot(self.make_flavor(DISK)) for _ in others]
        refused = self.boot(self.make_flavor(DISK), "ERROR")
        given = {each.address for one in servers for each in self.devices_of(one)}
        self.assertEqual(others, given)
        self.assertEqual([], self.devices_of(refused))

    def test_no_disk_before_its_first_erase(self) -> None:
        self._start()
        self._assert_no_disk(*APART, BESIDE)

    def test_no_disk_whose_stage_passed_without_a_proof(self) -> None:
        """The image of the service VM has another program of that name."""
        self.does("pass")
        self._start()
        self._erase()
        self._assert_no_disk(*APART, BESIDE)

    def test_no_disk_whose_erase_failed(self) -> None:
        self.does("refuse")
        self._start()
        for _ in range(3):
            self._erase()
        self.assertIs(DeviceState.QUARANTINED, self.ledger("alpha").device(BESIDE).state)
        self._assert_no_disk(*APART, BESIDE)

    def test_no_disk_without_a_stage(self) -> None:
        self.flags(clean_stage={}, clean_checks={}, group="hpc")
        self.host("alpha", SHAPE)
        self.assertIn("no cleaner", self.stats_of("alpha").withheld[BESIDE])
        self._assert_no_disk(*APART, BESIDE)

    @pytest.mark.slow
    def test_no_disk_whose_proof_is_lost(self) -> None:
        """An entry that is clean by the ledger of a release without proofs."""
        self._start()
        self._erase()
        plain = DeviceStage(StagePhase.CLEAN, server="s", since=1.0, seconds=1.0)
        self.ledger_file("alpha").change(
            lambda now: now.put({BESIDE: attrs.evolve(now.device(BESIDE), stage=plain.dumps())})
        )
        # Nova still offers it, and the node refuses it.
        self.assertIn(BESIDE, self.tracked("alpha"))
        early = self.boot(self.make_flavor(GROUP), "ERROR")
        self.assert_no_secrets(self.fault(early))
        self._delete_server(early)
        self._assert_no_disk(BESIDE)
