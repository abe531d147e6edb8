# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster report``, from the owner's command to the node's ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.watch.owner_report import load_owner_report
from nova_hpc_common.wire import server_devices
from nova_hpc_common.wire.server_devices import ServerDevices
from tests.functional.cluster_client import base
from virt_driver_patches.driver.device_reports import DeviceReports

GPU, OTHER = "0000:41:00.0", "0000:42:00.0"


class ReportTest(base.ClusterClientTest):
    def setUp(self) -> None:
        super().setUp()
        self.create("k", 2)
        self.members = {each["name"]: each for each in self.servers()}
        for member in self.members.values():
            text = ServerDevices(roles={"gpu": 1}).dumps()
            body = {"metadata": {server_devices.KEY: text}}
            self.api.post_server_metadata(member["id"], body["metadata"])
        self.file = LedgerFile(Path(self._folder) / "ledger.json", of_compute=True)
        host = self.admin_api.get_server(self.members["k-1"]["id"])["OS-EXT-SRV-ATTR:host"]
        self.reports = DeviceReports(host, self.file)
        self.moment = 0.0

    def minute(self) -> tuple[list[str], list[str]]:
        """The node reads; returns the words in its ledger, and the owner's actions."""
        self.moment += 61.0
        member = self.members["k-1"]["id"]
        self.reports.read({GPU: member, OTHER: self.members["k-2"]["id"]}, self.moment)
        entry = load_owner_report(self.file.read().device(GPU).report)
        admin = nova_context.get_admin_context()
        actions = objects.InstanceActionList.get_by_instance_uuid(admin, member)
        ours = [f"{each.action} {each.message}" for each in actions if "hpc_" in each.action]
        return sorted(word.value for word in entry.words) if entry else [], ours[::-1]

    def shown(self) -> Any:
        return self.cluster("show", "k", "-f", "json").json["reports"]

    def tags_of(self, name: str) -> list[str]:
        return sorted(self.api.get_server(self.members[name]["id"])["tags"])

    def test_report_show_and_withdraw(self) -> None:
        said = self.cluster("report", "k", "k-1", "--why", "slow", "-f", "json")
        member = self.members["k-1"]["id"]
        self.assertEqual({"name": "k-1", "id": member, "reports": ["slow"]}, said.json)
        self.assertIn(f"openstack server event list {member}", said.err)
        self.assertEqual({"k-1": ["slow"]}, self.shown())
        self.assertEqual((["slow"], ["hpc_fault_reported slow"]), self.minute())
        # Twice is once; another word is one more.
        self.cluster("report", "k", "1", "--why", "slow")
        self.assertEqual((["slow"], ["hpc_fault_reported slow"]), self.minute())
        said = self.cluster("report", "k", "1", "--why", "gone", "-f", "json")
        self.assertEqual(["gone", "slow"], said.json["reports"])
        self.assertEqual(["gone", "slow"], self.minute()[0])
        # A report is no fault: heal has nothing to do.
        self.assertEqual({}, self.cluster("show", "k", "-f", "json").json["faults"])
        self.cluster("heal", "k", "--interval", "0.3", "--force")
        said = self.cluster("report", "k", "k-1", "--withdraw", "-f", "json")
        self.assertEqual([], said.json["reports"])
        words, actions = self.minute()
        self.assertEqual([], words)
        self.assertEqual(["hpc_report_withdrawn gone", "hpc_report_withdrawn slow"], actions[-2:])
        self.assertEqual({}, self.shown())
        self.cluster("report", "k", "k-1", "--withdraw")  # nothing is left to withdraw
        self.assertEqual(4, len(self.minute()[1]))

    def test_bad_input_is_refused_with_its_cure(self) -> None:
        before = {name: self.tags_of(name) for name in self.members}
        for words, text, status in (
            (("k", "k-9", "--why", "slow"), "cluster k has no member k-9", 1),
            (("k", "no\x1b[1m", "--why", "slow"), "does not say members of k", 1),
            (("k", "1-2", "--why", "slow"), "'1-2' names 2 members", 1),
            (("nothing", "1", "--why", "slow"), "no cluster is called nothing", 1),
            (("k", "1", "--why", "melted"), "'gone', 'errors', 'link'", 2),
            (("k", "1", "--why", "host"), "invalid choice: 'host'", 2),
            (("k", "1"), "--why --withdraw is required", 2),
            (("k", "1", "--why", "slow", "--withdraw"), "not allowed with", 2),
        ):
            said = self.cluster("report", *words, status=status)
            self.assertIn(text, said.err)
            self.assertNotIn("\x1b", said.err)
        self.assertEqual(before, {name: self.tags_of(name) for name in self.members})

    @pytest.mark.slow
    def test_a_member_without_devices_and_one_with_fifty_tags(self) -> None:
        member = self.members["k-1"]["id"]
        full = [*self.tags_of("k-1"), *(f"own-{at}" for at in range(49))]
        self.api.api_put(f"/servers/{member}/tags", {"tags": full})
        said = self.cluster("report", "k", "1", "--why", "slow", status=1)
        self.assertIn("k-1 has 50 tags, and Nova allows 50", said.err)
        self.assertIn(f"openstack server unset --tag TAG {member}", said.err)
        self.api.api_put(f"/servers/{member}/tags", {"tags": [*full[:49], "hpc-report=slow"]})
        self.cluster("report", "k", "1", "--why", "slow")
        other = self.members["k-2"]["id"]
        self.api.api_delete(f"/servers/{other}/metadata/{server_devices.KEY}")
        said = self.cluster("report", "k", "2", "--why", "slow", status=1)
        self.assertIn("k-2 has no PCI devices", said.err)
        self.api.post_server_action(other, {"shelve": None})
        self._wait_for_state_change({"id": other}, "SHELVED_OFFLOADED")
        said = self.cluster("report", "k", "2", "--why", "slow", status=1)
        self.assertIn("k-2 is SHELVED_OFFLOADED and on no host", said.err)
