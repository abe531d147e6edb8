# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc explain`` says what the scheduler does, on Nova's own stack."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

from keystoneauth1 import loading
from nova import context as nova_context
from nova import objects
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc_common.level import Level
from nova_hpc_tools.cloud.capacity import measure_flavor
from nova_hpc_tools.cloud.explain import explain_asked, explain_flavor
from nova_hpc_tools.cloud.explain.model import FlavorQuestion, FlavorReport, ServerReport
from nova_hpc_tools.cloud.explain.server_report import explain_server
from nova_hpc_tools.readers import server_requests, snapshot
from nova_hpc_tools.snapshot import Snapshot, SnapshotError
from nova_hpc_tools.snapshot import document as snapshot_document
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch


class Glance(BaseHTTPRequestHandler):
    """What of Glance's API is asked: images by name and by id."""

    IMAGES = (
        {"id": uuids.cells, "name": "two-cells", "hw_numa_nodes": "2", "os_distro": "debian"},
        {"id": uuids.one, "name": "twin"},
        {"id": uuids.other, "name": "twin"},
    )

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        name = parse_qs(url.query).get("name")
        status, body = 200, {}
        if name == ["broken"]:
            status = 503
        elif name:
            body = {"images": [each for each in self.IMAGES if each["name"] == name[0]]}
        else:
            body = next((each for each in self.IMAGES if url.path.endswith(each["id"])), {})
            status = 200 if body else 404
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: object) -> None:
        pass


class ExplainBase(base.HpcServersTest):
    """What the tests of explain have in common."""

    def cloud(self) -> Snapshot:
        """The cloud now, by way of the text of a file."""
        return snapshot_document.load_cloud_snapshot(
            snapshot_document.dump_cloud_snapshot(snapshot.take_cloud_snapshot())
        )

    def explain(self, flavor: str, **question: object) -> FlavorReport:
        return explain_flavor(self.cloud(), FlavorQuestion(flavor, **question))

    def addresses(self, report: FlavorReport, number: int = 0) -> list[str]:
        """Pools of the devices that a report chooses, once for each device."""
        placed = report.placed[number]
        names = {device.provider: device.address for device in placed.before.devices}
        return sorted(names[pick.pool] for pick in placed.choice.devices.picks)

    def pools_of(self, server: dict) -> list[str]:
        """The same of the devices that Nova gave to a server."""
        return sorted(device.parent_addr or device.address for device in self.devices_of(server))

    def setUp(self) -> None:
        super().setUp()
        # Of equal devices every server would take others.
        self.flags(spread_equal_sets=False, group="hpc")

    def assert_explained(self, flavor: str) -> dict:
        """What is explained is what then happens; returns the server."""
        report = self.explain(flavor)
        self.assertTrue(report.fits)
        server = self.boot(flavor)
        self.assertEqual(report.placed[0].before.host, self.host_of(server))
        self.assertEqual(self.addresses(report), self.pools_of(server))
        self.assertIs(report.placed[0].choice.devices.level, self.level_of(server))
        return server


class ExplainTest(ExplainBase):
    """The same state is explained and then scheduled."""

    def test_same_devices_as_the_filter(self) -> None:
        """Until nothing fits, on hosts that differ, with GPUs and functions."""
        self.start_host("one", Shape((Switch(gpus=3, pfs=1), Switch(gpus=2, pfs=1, numa=1))))
        self.start_host("two", Shape((Switch(gpus=1, pfs=1), Switch(gpus=4, pfs=1, numa=1))))
        # No two hosts and switches are equal, so there is nothing to spread.
        pair = self.make_flavor(
            {"pci_passthrough:alias": "gpu:2,vf:2", "hpc:affinity": "switch"}, name="pair"
        )
        single = self.make_flavor(
            {"pci_passthrough:alias": "gpu:1,vf:1", "hpc:affinity": "switch"}, name="single"
        )
        for flavor in (single, pair, single):
            self.assert_explained(flavor)
        report = self.explain(pair)
        while report.fits:
            self.assert_explained(pair)
            report = self.explain(pair)
        self.assertEqual((), report.placed)
        self.boot(pair, state="ERROR")

    def test_same_miss_as_the_filter(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1))
        self.start_host("two", Shape((Switch(gpus=1), Switch(gpus=1), Switch(gpus=1, numa=1))))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"})
        report = self.explain(flavor)
        self.assertFalse(report.fits)
        self.boot(flavor, state="ERROR")
        for verdict in report.verdicts:
            (line,) = self.log_lines(f"HpcTopologyFilter rejects {verdict.node.host}, ")
            self.assertTrue(line.endswith(f": {verdict.reason}"), line)
        # The first step that helps, and it does.
        (remedy,) = [each for each in report.remedies if each.kind == "affinity"]
        self.assertEqual(("with hpc:affinity=numa", Level.NUMA), (remedy.text, remedy.level))
        self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2", "hpc:affinity": "numa"}))

    def test_cpus_that_placement_does_not_know(self) -> None:
        """Without a set of dedicated CPUs, Nova's topology calls all of a host's CPUs so."""
        self.start_host("bare", fixtures.two_switches(gpus=2))
        specs = {
            "pci_passthrough:alias": "gpu:2",
            "hpc:affinity": "switch",
            "hw:pci_numa_affinity_policy": "required",
            "hw:cpu_policy": "dedicated",
        }
        pinned = self.make_flavor(specs)
        report = self.explain(pinned)
        self.assertFalse(report.fits)
        self.assertIn("0 free dedicated CPUs", report.verdicts[0].reason)
        (room,) = measure_flavor(self.cloud(), report.flavor).rooms
        self.assertEqual(0, room.fit)
        self.boot(pinned, state="ERROR")
        # A flavor without dedicated CPUs is not concerned.
        del specs["hw:cpu_policy"]
        self.assert_explained(self.make_flavor(specs))

    def test_count_is_consumed(self) -> None:
        self.start_host("one", Shape((Switch(gpus=3), Switch(gpus=2, numa=1))))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"})
        report = self.explain(flavor, count=3)
        self.assertEqual(2, len(report.placed))
        self.assertFalse(report.fits)
        # One GPU is left, wherever the third server may look.
        self.assertEqual(["size"], [remedy.kind for remedy in report.remedies])
        for number in range(2):
            server = self.boot(flavor)
            self.assertEqual(self.addresses(report, number), self.pools_of(server))
        self.boot(flavor, state="ERROR")

    def test_guest_cells_and_pages(self) -> None:
        """CPUs and pages beside the devices decide as they do in Nova."""
        self.flags(cpu_dedicated_set="0-7", group="compute")
        self.start_host("one", Shape((Switch(gpus=1), Switch(gpus=2, numa=1))))
        specs = {
            "pci_passthrough:alias": "gpu:1",
            "hpc:affinity": "numa",
            "hw:cpu_policy": "dedicated",
            "hw:numa_nodes": "1",
            "hw:pci_numa_affinity_policy": "required",
        }
        flavor = self.make_flavor(specs, vcpu=3)
        for _ in range(2):
            self.assert_explained(flavor)
        report = self.explain(flavor)
        self.assertFalse(report.fits)
        self.assertIn("CPU", report.verdicts[0].reason)
        # Either server leaves CPUs behind, but only one GPU is beside them.
        self.assertIn("server", {remedy.kind for remedy in report.remedies})
        self.boot(flavor, state="ERROR")

    def test_equal_devices_are_spread(self) -> None:
        """Which of equal devices a server gets is its own; the rest is as explained."""
        self.flags(spread_equal_sets=True, group="hpc")
        self.start_host("one", Shape((Switch(gpus=1), Switch(gpus=4, numa=1))))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"})
        for _ in range(2):
            report = self.explain(flavor)
            server = self.boot(flavor)
            truth = self.shapes["one"].locations()
            self.assertEqual(
                [truth[address] for address in self.addresses(report)], self.locations_of(server)
            )

    def test_a_service_that_is_disabled_and_a_reserved_device(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1))
        self.start_host("two", Shape((Switch(gpus=1), Switch(gpus=1, numa=1))))
        (service,) = self.api.get_services(host="one", binary="nova-compute")
        self.api.put_service(service["id"], {"status": "disabled", "disabled_reason": "fire"})
        self._reserve_placement_resource("two_0000:40:00.0", fixtures.GPU_CLASS, 1)
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1", "hpc:affinity": "host"})
        report = self.explain(flavor)
        self.assertEqual("its nova-compute is disabled (fire)", report.verdicts[0].reason)
        self.assertEqual(["0000:41:00.0"], self.addresses(report))
        self.assert_explained(flavor)

    def test_what_nova_refuses(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1))
        unknown = self.make_flavor(
            {"pci_passthrough:alias": "tpu:1", "hpc:affinity": "host"}, name="unknown"
        )
        plain = self.make_flavor({"pci_passthrough:alias": "gpu:1"}, name="plain")
        for flavor, text in ((unknown, "tpu"), (plain, "no hpc: keys"), ("none", "no flavor")):
            error = self.assertRaises(SnapshotError, self.explain, flavor)
            self.assertIn(text, str(error))

    def test_an_image_counts(self) -> None:
        """Its NUMA cells are those of the guest; Glance is really asked."""
        server = HTTPServer(("127.0.0.1", 0), Glance)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        url = f"http://127.0.0.1:{server.server_port}"
        loading.register_auth_conf_options(base.CONF, "glance")
        base.CONF.register_opts(loading.get_auth_plugin_conf_options("none"), group="glance")
        self.flags(auth_type="none", endpoint=url, endpoint_override=url, group="glance")
        self.start_host("one", fixtures.two_switches(gpus=1, numa=(0, 1)))
        flavor = self.make_flavor(
            {
                "pci_passthrough:alias": "gpu:2",
                "hpc:affinity": "switch",
                "hw:pci_numa_affinity_policy": "required",
            },
            name="pair",
            vcpu=2,
        )
        for image in ("two-cells", uuids.cells):
            taken = snapshot.take_cloud_snapshot(image)
            with_image = explain_flavor(taken, FlavorQuestion(flavor, image))
            self.assertEqual({0: 0, 1: 1}, dict(with_image.placed[0].choice.devices.cells))
            self.assertEqual(2, len(with_image.request.groups))
            # Without the image they are one group, which fits under no switch.
            self.assertFalse(explain_flavor(taken, FlavorQuestion(flavor)).fits)
        for image, text in (
            ("none", "no active image 'none'"),
            (uuids.nobody, f"no active image '{uuids.nobody}'"),
            ("twin", "2 images are called 'twin'; give an ID"),
            ("broken", "Glance answered 503"),
        ):
            error = self.assertRaises(SnapshotError, snapshot.take_cloud_snapshot, image)
            self.assertIn(text, str(error))
        base.CONF.clear_override("auth_type", group="glance")
        error = self.assertRaises(SnapshotError, snapshot.take_cloud_snapshot, "two-cells")
        self.assertIn("no credentials to read images with", str(error))

    def test_server(self) -> None:
        """Nova's records say which devices a server has."""
        self.start_host("one", Shape((Switch(gpus=2, pfs=1), Switch(gpus=2, pfs=1, numa=1))))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1,vf:2", "hpc:affinity": "switch"})
        server = self.boot(flavor)
        taken = self.cloud()
        past: ServerReport = explain_server(taken, server["id"])
        self.assertEqual(
            [device.address for device in self.devices_of(server)],
            sorted(address for each in past.given for address in each.addresses),
        )
        self.assertEqual(past, explain_server(taken, server["name"]))

    def test_decision_and_reached_level(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1))
        server = self.boot(
            self.make_flavor(
                {
                    "pci_passthrough:alias": "gpu:2",
                    "hpc:affinity": "switch",
                    "hpc:affinity_policy": "preferred",
                }
            )
        )
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server["id"], expected_attrs=["system_metadata"]
        )
        instance.system_metadata["hpc_decision"] = (
            '{"v":1,"asked":"switch","policy":"preferred","reached":"numa"}'
        )
        instance.save()
        past = explain_server(self.cloud(), server["id"])
        self.assertIs(Level.NUMA, past.decision.reached)
        self.assertIn("preferred", past.notes[0])


class AskedTest(ExplainBase):
    """Servers that found no host: what was asked for is read from them."""

    def refused(self, flavor: str, **keywords: object) -> dict:
        server = self.boot(flavor, state="ERROR", **keywords)
        self.assertTrue(self.fault(server).startswith("No valid host was found"))
        return server

    def test_by_server_and_by_request(self) -> None:
        """Refused by the filter, and by Placement; as the flavor was at that time."""
        self.start_host("one", fixtures.two_switches(gpus=1))
        specs = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
        flavor = self.make_flavor(specs, name="pair")
        server = self.refused(flavor, name="mine")
        found = server_requests.find_server_request("mine")
        self.assertEqual((server["id"],), found.servers)
        self.assertEqual(("pair", "error"), (found.flavor.name, found.state))
        self.assertEqual(self.fault(server), found.fault)
        # The operator has changed it since.
        self.admin_api.post_extra_spec(flavor, {"extra_specs": {"hpc:affinity": "numa"}})
        report = explain_asked(self.cloud(), server_requests.find_server_request(server["id"]))
        self.assertFalse(report.fits)
        self.assertIs(Level.SWITCH, report.request.level)
        (verdict,) = report.verdicts
        self.assertIn("at most 1 under one switch", verdict.reason)
        self.assertEqual(found, server_requests.find_server_request(None, found.request))
        large = self.refused(self.make_flavor(specs | {"pci_passthrough:alias": "gpu:3"}))
        report = explain_asked(self.cloud(), server_requests.find_server_request(large["id"]))
        self.assertEqual("2 gpu free (needs 3)", report.verdicts[0].reason)
        # There is room now.
        self.start_host("two", fixtures.two_switches(gpus=3))
        self.assertTrue(
            explain_asked(self.cloud(), server_requests.find_server_request(large["id"])).fits
        )

    def test_what_is_not_there(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1))
        there = self.boot(self.make_flavor({}))
        for name in ("nobody", there["id"], ".*"):
            with self.assertRaisesRegex(SnapshotError, "there is no server"):
                server_requests.find_server_request(name)
        with self.assertRaisesRegex(SnapshotError, "no server in ERROR was made by the request"):
            server_requests.find_server_request(None, "req-nobody")
