# SPDX-License-Identifier: Apache-2.0
"""Servers that move live between HPC nodes: with direct ports, and with devices of their flavor."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any
from urllib import parse

import pytest
from lxml import etree
from nova import exception
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import fixtures
from tests.functional.fixtures import Shape, Switch
from tests.functional.live_base import TOGETHER, LiveBase
from tests.functional.ports_base import PortsTest
from virt_driver_patches.driver import arrivals

SHAPE = Shape((Switch(gpus=1, pfs=1, vfs=2),))
GPU = {"pci_passthrough:alias": "gpu:1"}
TWO = {"pci_passthrough:alias": "gpu:2"}
APART = fixtures.two_switches(gpus=1)


class LiveMigrationTest(PortsTest):
    """What the destination looks at before it takes the server."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(device_detach_timeout=1, group="libvirt")
        self.useFixture(
            fixtures.fixtures.MonkeyPatch(
                "nova.tests.fixtures.libvirt.Domain.migrateToURI3", self._migrate
            )
        )
        for name in ("alpha", "beta"):
            self.rails(name, SHAPE)
        self.server = self.boot(
            self.make_flavor({"hw:mem_page_size": "any"}),
            host="alpha",
            networks=self.ports("physnet4"),
        )
        node = self.computes["beta"].driver.hpc_node.source.read().node
        self.functions = [each.address for each in node.functions if each.physical_function]

    def _migrate(self, domain, destination, params, flags) -> None:
        """What libvirt and QEMU of both hosts do between them."""
        there = self.computes[parse.urlparse(destination).netloc].driver
        there._host.get_connection().createXML(params["destination_xml"], "")
        uuid = etree.fromstring(params["destination_xml"]).find("./uuid").text
        domain._connection.lookupByUUIDString(uuid).complete_job()

    def _claimed(self, host: str) -> list[str]:
        return sorted(each for each, state in self.tracked(host).items() if state != "available")

    def _refused(self) -> str:
        """Ask for the move; where the server is, what it has, and why."""
        had = self._claimed("alpha")
        before = self.domain_of(self.server)
        where = {"host": None, "block_migration": "auto"}
        self.refused_action(self.server, {"os-migrateLive": where})
        self._wait_for_migration_status(self.server, ["error"])
        self._wait_for_state_change(self.server, "ACTIVE")
        self.assertEqual("alpha", self.host_of(self.server))
        self.assertEqual(had, self._claimed("alpha"))
        self.assertEqual([], self._claimed("beta"))
        self.assertEqual(self.canonical(before), self.canonical(self.domain_of(self.server)))
        return "\n".join(self.log_lines("cannot come here by live migration"))

    def test_it_goes_where_all_is_well(self) -> None:
        self._live_migrate(self.server, "completed")
        self.assertEqual("beta", self.host_of(self.server))
        (address,) = [each for each in self._claimed("beta") if each in self.functions]
        self.assertEqual(self.server["id"], self.ledger("beta").device(address).server)
        # And the source's is clean for the next one.
        self.update("alpha")
        self.assertEqual([], self._claimed("alpha"))

    def test_quarantined_since_the_last_update(self) -> None:
        for each in self.functions:
            self.quarantine("beta", each, "smells of smoke")
        self.assertIn("is out of service", self._refused())

    def test_not_as_its_baseline(self) -> None:
        """A function whose maker has changed since the last look is nobody's."""
        for each in self.functions:
            (self.sysfs["beta"].devices / each / "vendor").write_text("0x1af4\n")
        self.assertIn("did not pass the check before it starts", self._refused())


class AliasMigrationTest(LiveBase):
    """Devices of the flavor that the operator has declared ``live_migratable``."""

    # -- where all is well ---------------------------------------------------------

    def test_a_key_of_ours_takes_nothing_away(self) -> None:
        """The server with an ``hpc:`` key moves as the one without."""
        self.place("alpha", TOGETHER)
        plain = self.boot(self.make_flavor(GPU))
        ours = self.boot(self.make_flavor({**GPU, "hpc:affinity": "host"}))
        self.place("beta", TOGETHER)
        self.moved(plain)
        self.assert_held("alpha", ours)
        self.assert_held("beta", plain)
        self.moved(ours)
        self.assert_held("alpha")
        self.assert_held("beta", plain, ours)
        for each in (plain, ours):
            self.assert_in_guest(each)
        self.assertEqual("host", self.decision(ours).asked.word)

    def test_several_devices_and_back(self) -> None:
        server = self.alone({**TWO, "hpc:affinity": "switch"})
        abi = self.instance(server).system_metadata["hpc_guest_abi"]
        self.place("beta", TOGETHER)
        for here, there in (("alpha", "beta"), ("beta", "alpha"), ("alpha", "beta")):
            self._live_migrate(server, "completed")
            self.assertEqual(there, self.host_of(server))
            self.assert_held(here)
            self.assert_held(there, server)
            self.assertEqual("switch", self.decision(server).reached.word)
        self.assertEqual(abi, self.instance(server).system_metadata["hpc_guest_abi"])
        self.assert_in_guest(server)

    def test_cells_and_groups(self) -> None:
        """NUMA cells with CPUs of their own, and groups of a GPU and a function."""
        shape = Shape(tuple(Switch(gpus=1, pfs=1, vfs=1, numa=numa) for numa in (0, 1)), cores=2)
        specs = {
            "pci_passthrough:alias": "gpu:2,vf:2",
            "hw:numa_nodes": "2",
            "hw:cpu_policy": "dedicated",
            "hw:pci_numa_affinity_policy": "required",
            "hpc:affinity": "switch",
            "hpc:group": "gpu:1,vf:1",
        }
        server = self.alone(specs, shape, vcpu=2)
        self.place("beta", shape, cpu_dedicated_set="1-3,5-7")
        self.moved(server)
        self.assert_held("alpha")
        self.assert_held("beta", server)
        requests = {each.request_id for each in self.instance(server).pci_requests.requests}
        self.assertEqual(requests, {each.request_id for each in self.devices_of(server)})
        (pinned,) = self.domain_of(server).findall("cputune/emulatorpin")
        self.assertIn(pinned.get("cpuset"), ("0,4", "0", "4"))
        self.assert_in_guest(server)

    def test_preferred_may_become_worse(self) -> None:
        server = self.alone({**TWO, "hpc:affinity": "switch", "hpc:affinity_policy": "preferred"})
        self.place("beta", APART)
        self.moved(server)
        self.assert_held("beta", server)
        self.assertNotEqual("switch", self.decision(server).reached.word)
        self.assert_in_guest(server)

    # -- refusals, with the reason -------------------------------------------------

    def test_not_declared(self) -> None:
        specs = {"pci_passthrough:alias": "fixed:1", "hpc:affinity": "host"}
        server = self.alone(specs)
        self.place("beta", TOGETHER)
        self.refused(server, "has not declared them (and their aliases) live_migratable")

    def test_a_tree(self) -> None:
        self.flags(hw_machine_type=["x86_64=q35"], group="libvirt")
        server = self.alone({**GPU, "hpc:affinity": "host", "hpc:guest_topology": "mirror"})
        self.place("beta", TOGETHER)
        self.refused(server, "it shows the places of its present devices")

    def test_less_close_than_before(self) -> None:
        server = self.alone({**TWO, "hpc:affinity": "host"})
        self.place("beta", APART)
        self.refused(server, "The server's devices share a switch, and those for its live")

    def test_another_kind(self) -> None:
        server = self.alone({**GPU, "hpc:affinity": "host"})
        (device,) = self.devices_of(server)
        device.product_id = "2330"  # a later one, of the same resource class
        device.save()
        self.place("beta", TOGETHER)
        self.refused(server, "are not of the same kind as its own")

    def test_ill_at_the_destination(self) -> None:
        server = self.alone({**GPU, "hpc:affinity": "host"})
        self.place("beta", Shape((Switch(gpus=1),)))
        self.sysfs["beta"].bind("0000:40:00.0", "nvidia")
        self.refused(server, "1 is in use by the host")

    # -- steps that fail -----------------------------------------------------------

    def _failing(self, specs: Mapping[str, str]) -> None:
        server = self.alone({**specs, "hpc:affinity": "host"})
        options = {"cpu_dedicated_set": "1-3,5-7"} if "hw:cpu_policy" in specs else {}
        self.place("beta", TOGETHER, **options)
        before = self.instance(server).system_metadata
        driver = self.computes["beta"].driver
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "plug_vifs", self._raise)
            self._ask(server)
            self._wait_for_migration_status(server, ["error", "failed"])
            self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        self.assert_held("alpha", server)
        self.assert_held("beta")
        self.migrate = self._fail
        self._live_migrate(server, "failed")
        self.assert_held("alpha", server)
        self.assert_held("beta")
        self.assertEqual(before, self.instance(server).system_metadata)
        self.migrate = self._copy
        for domain in self.computes["alpha"].driver._host.get_connection()._vms.values():
            domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE  # of the next job
        self.moved(server)
        self.assert_held("alpha")
        self.assert_held("beta", server)

    @staticmethod
    def _raise(*arguments: Any, **keywords: Any) -> None:
        raise exception.NovaException("the lights went out")

    def test_failing_steps(self) -> None:
        self._failing(GPU)

    def test_failing_steps_with_cells(self) -> None:
        policy = {"hw:pci_numa_affinity_policy": "preferred"}
        self._failing({**GPU, **policy, "hw:cpu_policy": "dedicated"})

    def test_libvirt_raises(self) -> None:
        server = self.alone({**GPU, "hpc:affinity": "host"})
        self.place("beta", TOGETHER)

        def migrate(domain: Any, there: Any, params: Mapping[str, str]) -> None:
            # Before release 34 each domain of the fake has a job without an end.
            domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, "gone", error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR
            )

        self.migrate = migrate
        self._ask(server)
        self._wait_for_migration_status(server, ["error", "failed"])
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        self.assert_held("alpha", server)
        self.assert_held("beta")

    def test_the_last_step_fails(self) -> None:
        """The guest runs at the destination, so its devices there stay its own."""
        server = self.alone({**GPU, "hpc:affinity": "host"})
        self.place("beta", TOGETHER)
        driver = self.computes["beta"].driver
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "_reattach_instance_vifs", self._raise)
            self._live_migrate(server, "error", server_expected_state="ERROR")
        self.assertEqual("beta", self.host_of(server))
        self.update("alpha")
        self.assertEqual({"available"}, set(self.tracked("alpha").values()))
        self.assertEqual({}, self.ledger("alpha").marked)
        (device,) = self.devices_of(server)
        self.assertEqual({device.address: server["id"]}, self.ledger("beta").marked)
        self.assertEqual("allocated", self.tracked("beta")[device.address])

    # -- while the copy runs ---------------------------------------------------------

    def _under_way(self, specs: Mapping[str, str]) -> tuple[dict, threading.Event]:
        """A server whose memory is being copied; the event lets libvirt end the copy."""
        server = self.alone({**specs, "hpc:affinity": "host"})
        options = {"cpu_dedicated_set": "1-3,5-7"} if "hw:cpu_policy" in specs else {}
        self.place("beta", TOGETHER, **options)
        ended = threading.Event()

        def copy(domain: Any, there: Any, params: Mapping[str, str]) -> None:
            domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_UNBOUNDED
            for each in ("alpha", "beta"):
                self.update(each)
            self.copies.set()
            ended.wait(120)
            if domain._job_type == fakelibvirt.VIR_DOMAIN_JOB_UNBOUNDED:
                self._copy(domain, there, params)

        def abort(domain: Any) -> None:
            domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_CANCELLED
            ended.set()

        def pause(domain: Any) -> None:
            ended.set()

        patch = fixtures.fixtures.MonkeyPatch
        self.useFixture(patch("nova.tests.fixtures.libvirt.Domain.abortJob", abort))
        self.useFixture(patch("nova.tests.fixtures.libvirt.Domain.suspend", pause))
        self.migrate, self.copies = copy, threading.Event()
        self._ask(server)
        self._wait_for_migration_status(server, ["running"])
        self.assertTrue(self.copies.wait(120))
        return server, ended

    def _url_of_move(self, server: Mapping[str, Any]) -> str:
        (move,) = self.api.api_get(f"/servers/{server['id']}/migrations").body["migrations"]
        return f"/servers/{server['id']}/migrations/{move['id']}"

    def _aborted(self, specs: Mapping[str, str]) -> None:
        server, _ = self._under_way(specs)
        before = [each.address for each in self.devices_of(server) if each.compute_node_id == 1]
        decision = self.decision(server)
        self.api.api_delete(self._url_of_move(server))
        self._wait_for_migration_status(server, ["cancelled"])
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        self.assertEqual("alpha", self.host_of(server))
        self.update("beta")
        self.assert_held("alpha", server)
        self.assert_held("beta")
        self.assertEqual(decision, self.decision(server))
        self.assertEqual(before, [each.address for each in self.devices_of(server)])
        self.migrate = self._copy
        for domain in self.computes["alpha"].driver._host.get_connection()._vms.values():
            domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE  # of the next job
        self.moved(server)
        self.assert_held("alpha")
        self.assert_held("beta", server)

    def test_aborted(self) -> None:
        self._aborted(GPU)

    def test_aborted_with_cells(self) -> None:
        policy = {"hw:pci_numa_affinity_policy": "preferred"}
        self._aborted({**GPU, **policy, "hw:cpu_policy": "dedicated"})

    def test_forced_to_complete(self) -> None:
        server, _ = self._under_way(TWO)
        self.api.api_post(f"{self._url_of_move(server)}/action", {"force_complete": None})
        self._wait_for_migration_status(server, ["completed"])
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual("beta", self.host_of(server))
        self.assert_held("alpha")
        self.assert_held("beta", server)
        self.assert_in_guest(server)

    # -- a move that broke off --------------------------------------------------------

    def test_given_up_while_the_destination_prepares(self) -> None:
        """A message of a move that its source has given up does not move the guest."""
        server = self.alone({**GPU, "hpc:affinity": "host"})
        self.place("beta", TOGETHER)
        driver, plain = self.computes["beta"].driver, arrivals.check_still_coming

        def given_up(tracker: Any, instance: Any, data: Any) -> None:
            gone = self.instance(server)
            gone.task_state = None
            gone.save()
            plain(tracker, instance, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrivals, "check_still_coming", given_up)
            self._ask(server)
            self._wait_for_migration_status(server, ["error", "failed"])
        self.assertEqual("alpha", self.host_of(server))
        self.assertIn(server["id"], self.domains.given)
        self.assertEqual([], list(driver._host.get_connection()._vms))
        self.eventually(lambda: self.assert_held("beta"))
        self.assertTrue(self.log_lines("This live migration was given up"))

    def test_no_start_with_devices_of_two_nodes(self) -> None:
        """Nova would put the devices of both nodes into the domain."""
        server = self.alone({**GPU, "hpc:affinity": "host"})
        self.place("beta", TOGETHER)
        other = next(iter(self.computes["beta"].manager.rt.pci_tracker.pci_devs))
        other.claim(server["id"])
        other.allocate(self.instance(server))
        other.save()
        given = len(self.domains.given[server["id"]])
        self.api.post_server_action(server["id"], {"reboot": {"type": "HARD"}})
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        self.assertEqual(given, len(self.domains.given[server["id"]]))
        events = self.api.get_instance_actions(server["id"])[0]["request_id"]
        found = self.api.get_instance_action_details(server["id"], events)["events"]
        told = " ".join(str(each["details"]) for each in found)
        self.assertIn("broke off, and its devices at the other host are not free yet", told)
        self.assertEqual("ACTIVE", self.api.get_server(server["id"])["status"])
