# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc doctor --part cloud``: faults made in Placement and Nova, found, and cured as it says.

The rows of the documentation's table are in :data:`tests.unit.doctor.doctor_faults.CLOUD`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from unittest import mock

import requests_mock
from keystoneauth1 import adapter, fixture, session
from keystoneauth1.identity import v3
from nova import context as nova_context
from nova import objects
from nova.scheduler.client import query, report
from oslo_config import cfg
from oslo_utils import uuidutils

from nova_hpc.fabric.model import FabricMap, FabricPlace
from nova_hpc.wire import stats
from nova_hpc_tools.doctor import facts_records as cli_doctor
from nova_hpc_tools.fabric.map_aggregates import aggregates_of
from nova_hpc_tools.readers import records
from nova_hpc_tools.site.findings import CHECKS, DoctorFinding
from nova_hpc_tools.site.layout_cures import render_cure
from nova_hpc_tools.snapshot import cloud_readers
from tests.functional import base, fixtures
from tests.functional.reserve_base import ADAPTER, FIRST, NEAR, PF, TWO, ReserveTest
from tests.unit.doctor import doctor_faults

CONF = cfg.CONF
LEAVES = {"alpha": "leaf1", "beta": "leaf1", "gamma": "leaf1"}
GHOST = "ghost"
#: Words of a cure that are UUIDs.
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class CloudTest(ReserveTest):
    """Three hosts in one leaf; GPUs, and adapters for ports."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.Moves())
        self.useFixture(
            fixtures.fixtures.MockPatchObject(
                cloud_readers, "records_reader", side_effect=lambda _: records.collect_records
            )
        )
        self.flags(alias=[each for each in CONF.pci.alias if self.offered(each)], group="pci")
        self.flags(cpu_shared_set="0", cpu_dedicated_set="1", group="compute")

    @staticmethod
    def offered(alias: str) -> bool:
        """Whether the hosts of these tests offer it."""
        return json.loads(alias)["name"] in ("gpu", "vf")

    def look(self) -> dict[str, DoctorFinding]:
        """What the command finds."""
        return {each.check: each for each in cli_doctor.examine_records_twice(())}

    def found(self, check: str) -> DoctorFinding:
        finding = self.look()[check]
        self.assertTrue(finding.seen.endswith("."), finding.seen)
        return finding

    def gone(self, check: str) -> None:
        self.assertNotIn(check, self.look())

    # -- what operators do ----------------------------------------------------------

    def make_provider(self, name: str, parent: str | None = None) -> str:
        uuid = uuidutils.generate_uuid()
        body = {"name": name, "uuid": uuid} | ({"parent_provider_uuid": parent} if parent else {})
        answer = self.placement.post("/resource_providers", body, version="1.20")
        self.assertEqual(200, answer.status, answer.body)
        return uuid

    def set_inventory(self, provider: str, **fields: int) -> None:
        url = f"/resource_providers/{provider}"
        found = self.placement.get(f"{url}/inventories").body
        ((name, now),) = found["inventories"].items() or [(fixtures.GPU_CLASS, {"total": 1})]
        body = {
            "resource_provider_generation": found["resource_provider_generation"],
            "inventories": {name: now | fields},
        }
        answer = self.placement.put(f"{url}/inventories", body, version="1.26")
        self.assertEqual(200, answer.status, answer.body)

    def delete_provider(self, uuid: str) -> None:
        self.assertEqual(204, self.placement.delete(f"/resource_providers/{uuid}").status)

    def sync(self, leaves: Mapping[str, str], name: str = "ib") -> None:
        """``nova-hpc fabric sync`` on an empty Nova: its aggregates."""
        for each in self.admin_api.api_get("/os-aggregates").body["aggregates"]:
            for host in each["hosts"]:
                self.admin_api.remove_host_from_aggregate(each["id"], host)
            self.admin_api.delete_aggregate(each["id"])
        self.add_map(leaves, name)

    def add_map(self, leaves: Mapping[str, str], name: str = "ib") -> None:
        there = {host: leaf for host, leaf in leaves.items() if host in self.sysfs}
        places = [FabricPlace(host, leaf=leaf, spine="s") for host, leaf in there.items()]
        for aggregate in aggregates_of(FabricMap(places, name=name)):
            made = self.admin_api.post_aggregate(
                {"aggregate": {"name": f"{name} {aggregate.name}"}}
            )
            action = {"set_metadata": {"metadata": dict(aggregate.metadata)}}
            self.admin_api.api_post(f"/os-aggregates/{made['id']}/action", action)
            for host in aggregate.hosts:
                self.admin_api.add_host_to_aggregate(made["id"], host)


class FaultTest(CloudTest):
    """One fault a test; its cure is what the finding says."""

    def test_a_healthy_cloud_has_nothing(self) -> None:
        self.host("alpha", TWO)
        self.host("beta", TWO)
        self.flags(alias=[each for each in CONF.pci.alias if '"gpu"' in each], group="pci")
        self.sync(LEAVES)
        server = self.boot(self.make_flavor(NEAR))
        self.quarantine("beta", FIRST, "overheats")
        for name in ("alpha", "beta"):
            self.update(name)
        self.assertEqual({}, self.look())
        # A server that is stopped, and one that moves, have what they have.
        self.api.post_server_action(server["id"], {"os-stop": None})
        self._wait_for_state_change(server, "SHUTOFF")
        self.assertEqual({}, self.look())

    def test_a_node_without_dedicated_cpus(self) -> None:
        """Nova's topology of such a host says that all of its CPUs are."""
        self.host("alpha", TWO)
        self.gone("cpus-none")
        self.flags(cpu_shared_set=None, cpu_dedicated_set=None, group="compute")
        self.host("beta", TWO)
        finding = self.found("cpus-none")
        self.assertEqual("beta", finding.node)
        self.assertIn("[compute]cpu_dedicated_set", render_cure(finding.cure))
        # Nova may ask Placement for VCPU, too: then it is no fault.
        self.flags(disable_fallback_pcpu_query=False, group="workarounds")
        self.gone("cpus-none")
        self.flags(disable_fallback_pcpu_query=True, group="workarounds")
        self.flags(cpu_shared_set="0", cpu_dedicated_set="1", group="compute")
        self.restart("beta")
        self.gone("cpus-none")

    def test_a_move_that_nobody_has_confirmed(self) -> None:
        self.host("alpha", TWO)
        self.host("beta", TWO)
        self.flags(alias=[each for each in CONF.pci.alias if '"gpu"' in each], group="pci")
        server = self.boot(self.make_flavor(NEAR))
        before = self.host_of(server)
        self._migrate_server(server)
        server = self._wait_for_state_change(server, "VERIFY_RESIZE")
        self.assertNotEqual(before, self.host_of(server))
        self.assertEqual({}, self.look())
        self._confirm_resize(server)
        self.assertEqual({}, self.look())

    def test_a_server_that_is_being_scheduled(self) -> None:
        """Its allocation is there, and no cell has it yet."""
        self.host("alpha", TWO)
        self.flags(alias=[each for each in CONF.pci.alias if '"gpu"' in each], group="pci")
        seen: list[Any] = []
        plain = query.SchedulerQueryClient.select_destinations

        def select(client: Any, *arguments: Any, **keywords: Any) -> Any:
            chosen = plain(client, *arguments, **keywords)
            seen.append((self.consumers("alpha", FIRST), self.look()))
            return chosen

        with mock.patch.object(query.SchedulerQueryClient, "select_destinations", select):
            self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}))
        ((consumers, found),) = seen
        self.assertEqual(1, len(consumers))
        self.assertEqual({}, found)

    def test_an_orphaned_allocation(self) -> None:
        """The node itself is down, so nobody else says it."""
        self.host("alpha", TWO)
        self.stop_host("alpha")
        consumer = self.allocate("alpha", FIRST)
        finding = self.found("allocation-orphaned")
        self.assertIn(FIRST, finding.seen)
        self.assertEqual(
            f"openstack resource provider allocation delete {consumer}", render_cure(finding.cure)
        )
        self.assertEqual(204, self.placement.delete(f"/allocations/{consumer}").status)
        self.gone("allocation-orphaned")

    def test_an_allocation_of_a_server_that_no_host_was_found_for(self) -> None:
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:3"}), state="ERROR")
        self.allocate("alpha", FIRST, server["id"])
        self.assertIn(server["id"], render_cure(self.found("allocation-orphaned").cure))

    def test_a_device_without_a_provider(self) -> None:
        self.host("alpha", TWO)
        self.delete_provider(self.provider("alpha", FIRST)["uuid"])
        finding = self.found("provider-missing")
        self.assertIn(FIRST, finding.seen)
        self.assertIn("Restart nova-compute on alpha", render_cure(finding.cure))
        self.restart("alpha")
        self.gone("provider-missing")

    def test_functions_that_placement_does_not_know(self) -> None:
        self.host("alpha", ADAPTER)
        self.set_inventory(self.provider("alpha", PF)["uuid"], total=3)
        finding = self.found("provider-missing")
        self.assertIn("Placement has 3 of 4 devices", finding.seen)
        self.restart("alpha")
        self.gone("provider-missing")

    def test_a_device_that_the_node_has_not(self) -> None:
        self.host("alpha", TWO)
        root = self.provider("alpha", FIRST)["root_provider_uuid"]
        stale = self.make_provider("alpha_0000:99:00.0", root)
        self.set_inventory(stale, total=1)
        finding = self.found("provider-excess")
        self.assertIn("0000:99:00.0 of alpha: Placement gives 1 of 1, and Nova has 0", finding.seen)
        words = render_cure(finding.cure).split(";")[0]
        self.assertTrue(words.endswith(f"--resource {fixtures.GPU_CLASS}:reserved=1 {stale}"))
        self.set_inventory(stale, reserved=1)
        self.gone("provider-excess")

    def test_a_device_that_cyborg_counts_too(self) -> None:
        self.host("alpha", TWO)
        root = self.provider("alpha", FIRST)["root_provider_uuid"]
        accelerator = self.make_provider("NVIDIA_GPU_0", root)
        self.gone("provider-cyborg")
        # As Cyborg's conductor marks its providers (cyborg/conductor/manager.py).
        body = {"traits": ["OWNER_CYBORG"], "resource_provider_generation": 0}
        url = f"/resource_providers/{accelerator}/traits"
        answer = self.placement.put(url, body, version="1.6")
        self.assertEqual(200, answer.status, answer.body)
        finding = self.found("provider-cyborg")
        self.assertEqual("alpha", finding.node)
        self.assertIn("NVIDIA_GPU_0", finding.seen)
        self.delete_provider(accelerator)
        self.gone("provider-cyborg")

    def test_a_node_that_is_no_more(self) -> None:
        self.host("alpha", TWO)
        root = self.make_provider(GHOST)
        child = self.make_provider(f"{GHOST}_{FIRST}", root)
        self.set_inventory(child, total=1)
        finding = self.found("node-gone")
        self.assertIn(f"{FIRST} of {GHOST}", finding.seen)
        self.assertEqual([child], _UUID.findall(render_cure(finding.cure)))
        for uuid in (child, root):
            self.delete_provider(uuid)
        self.gone("node-gone")

    def test_an_alias_that_no_node_has(self) -> None:
        self.host("alpha", TWO)
        before = list(CONF.pci.alias)
        other = json.dumps({"name": "other", "vendor_id": "1002", "product_id": "740f"})
        self.flags(alias=[*before, other], group="pci")
        self.assertIn("other requests CUSTOM_PCI_1002_740F", self.found("alias-nowhere").seen)
        self.flags(alias=[each for each in before if '"gpu"' in each], group="pci")
        self.gone("alias-nowhere")

    def test_a_host_in_two_leaves(self) -> None:
        self.host("alpha", TWO)
        self.sync({"alpha": "leaf1"})
        self.add_map({"alpha": "leaf2"})
        self.assertIn("two domains of level leaf", self.found("map-contradicts").seen)
        self.sync({"alpha": "leaf2"})
        self.gone("map-contradicts")

    def test_a_host_that_the_map_does_not_have(self) -> None:
        for name in ("alpha", "beta"):
            self.host(name, TWO)
        self.gone("host-no-leaf")  # without a map nothing is missing
        self.sync({"alpha": "leaf1"})
        self.assertIn("beta", self.found("host-no-leaf").seen)
        self.sync({"alpha": "leaf1", "beta": "leaf1"})
        self.gone("host-no-leaf")

    def test_networks_that_do_not_meet(self) -> None:
        self.sync({})
        for name in ("alpha", "beta"):
            self.host(name, ADAPTER, self.on("ib0"))
        self.host("gamma", ADAPTER, self.on("ib1"))
        self.sync(LEAVES)
        finding = self.found("rails-mixed")
        self.assertIn("In leaf leaf1, gamma has adapters in ib1, the others in ib0.", finding.seen)
        self.flags(device_spec=[json.dumps(each) for each in self.on("ib0")], group="pci")
        self.flags(
            sysfs_root=str(self.sysfs["gamma"].root),
            ledger_file=str(self.sysfs["gamma"].root / "ledger"),
            group="hpc",
        )
        self.restart("gamma")
        self.gone("rails-mixed")

    def on(self, network: str) -> list[dict[str, str]]:
        """The entries of the adapter's host with its functions in a network of Neutron's."""
        found = []
        for each in ADAPTER.device_spec():
            if each["product_id"] == fixtures.VF_PRODUCT:
                each = {**each, "physical_network": network}
                del each["resource_class"], each["managed"]
            found.append(each)
        return found

    def test_a_user_without_the_role(self) -> None:
        self.host("alpha", TWO)
        for roles, wrong in (
            (["reader", "member"], True),
            (["service"], False),
            (["admin"], False),
        ):
            with self.user(roles):
                if wrong:
                    self.assertIn("member, reader", self.found("service-role").seen)
                else:
                    self.gone("service-role")
        self.assertIsNone(records.collect_records().roles)  # of these tests' Placement

    def user(self, roles: list[str]) -> Any:
        """Nova's user, as a Keystone of this test knows it."""
        token = fixture.V3Token()
        token.set_project_scope()
        for each in roles:
            token.add_role(name=each)
        url = "http://127.0.0.1/identity/v3"
        stack = requests_mock.Mocker(real_http=True)
        stack.get(url, json={"version": fixture.V3Discovery(url)})
        stack.post(f"{url}/auth/tokens", json=token, headers={"X-Subject-Token": "t"})
        auth = v3.Password(url, username="nova", password="p", project_id="service")
        made = adapter.Adapter(session.Session(auth=auth), service_type="placement")
        return _Together(
            stack, mock.patch.object(records.utils, "get_ksa_adapter", return_value=made)
        )

    # -- what cannot be read ---------------------------------------------------------

    def test_placement_that_answers_500(self) -> None:
        self.host("alpha", TWO)
        self.sync({"alpha": "leaf1"})
        self.add_map({"alpha": "leaf2"})
        broken = mock.Mock(status_code=500)
        with mock.patch.object(report.SchedulerReportClient, "get", return_value=broken):
            found = self.look()
        self.assertEqual({"not-looked", "map-contradicts"}, set(found))
        self.assertIn("Placement answers 500 to /resource_providers", found["not-looked"].seen)

    def test_a_cell_that_does_not_answer(self) -> None:
        self.host("alpha", TWO)
        with mock.patch.object(
            objects.ComputeNodeList, "get_all", side_effect=RuntimeError("no connection")
        ):
            found = self.look()
        # Its devices are not called those of a node that is no more.
        self.assertEqual({"not-looked"}, set(found))
        self.assertIn("no connection", found["not-looked"].seen)

    def test_a_node_of_a_later_release(self) -> None:
        self.host("alpha", TWO)
        node = objects.ComputeNode.get_by_host_and_nodename(
            nova_context.get_admin_context(), "alpha", "alpha"
        )
        before = dict(node.stats)
        node.stats = before | {stats.KEY: '{"v": 99}'}
        node.save()
        self.assertIn("The device report of alpha", self.found("not-read").seen)
        node.stats = before
        node.save()
        self.gone("not-read")

    def test_a_node_with_another_driver(self) -> None:
        self.flags(compute_driver=base.STOCK_DRIVER)
        self.start_host("alpha", TWO)
        found = self.found("driver-stock")
        self.assertIn("alpha offers devices with hpc_* tags", found.seen)
        self.assertIn("compute_driver = hpc.HpcLibvirtDriver", render_cure(found.cure))


class _Together:
    """Two contexts as one."""

    def __init__(self, *both: Any) -> None:
        self.both = both

    def __enter__(self) -> None:
        for each in self.both:
            each.__enter__()

    def __exit__(self, *error: Any) -> None:
        for each in reversed(self.both):
            each.__exit__(*error)


def test_the_documentation_has_all_of_them() -> None:
    mine = {name.removeprefix("test_") for name in dir(FaultTest) if name.startswith("test_")}
    rows = {row.text.lower().replace(" ", "_"): row.check for row in doctor_faults.CLOUD}
    assert set(rows) <= mine, set(rows) - mine
    assert set(rows.values()) <= set(CHECKS)
    names = list(CHECKS)
    assert set(names[names.index("service-role") : names.index("aliases-differ")]) <= set(
        rows.values()
    )
