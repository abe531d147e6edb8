# SPDX-License-Identifier: Apache-2.0
"""The page "Replace a GPU", step by step: its commands on a node of files and Nova's stack."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import fixtures as plain_fixtures
import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc_tools.cloud import server_moves
from tests.functional import fixtures
from tests.functional.drain_base import connect_as_admin, run_drain
from tests.functional.driver_base import DriverTest
from tests.functional.driver_fixtures import FakeSysfs
from tests.unit.commands import pages
from tests.unit.tenancy.hygiene_node import config

PAGE = pages.DOCS / "admin/replace-gpu.rst"
GPU, OTHER = "0000:40:00.0", "0000:40:01.0"
TWO = fixtures.Shape((fixtures.Switch(gpus=2),))
SPECS = {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"}
OLD, NEXT_TO_IT, NEW = 0x48B02DA1B2C3D4E5, 0x48B02DF1F2F3F4F5, 0x48B02D0123456789
H100, A100 = 0x2330, 0x20B2
#: How the node was set up, by the page of one node.
CONFIGURE = "nova-hpc configure --write /etc/nova/nova.conf.d --part common --part compute"


class ReplaceTest(DriverTest):
    """Two hosts with two GPUs each; one GPU of the first is replaced."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.Moves())
        self.useFixture(fixtures.fixtures.MonkeyPatch(f"{server_moves.__name__}._PAUSE", 0.1))
        self.compute = connect_as_admin(self.api_fixture.base_url, self.admin_api.project_id)
        self.folder = Path(self.useFixture(plain_fixtures.TempDir()).path)
        self.conf = self.folder / "nova.conf"

    # -- the node -----------------------------------------------------------------------

    def cards(self, name: str, *serials: int | None, product: int = A100) -> None:
        """Put cards into the slots of a node that is off: their serial numbers, and a boot.

        :param product: of the first one.
        """
        tree = self.sysfs[name]
        boot = tree.root / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True, exist_ok=True)
        boot.write_text(f"{serials} {product}\n")
        for address, serial in zip((GPU, OTHER), serials, strict=True):
            model = product if address == GPU else A100
            place = tree.devices / address
            (place / "config").write_bytes(config(device=model, serial=serial))
            (place / "device").write_text(f"0x{model:04x}\n")

    def nodes(self, *serials: int | None) -> None:
        """The node with these cards, as ``configure`` sets it up, and one beside it."""
        self.host("beta", TWO)
        tree = self.sysfs["alpha"] = self.useFixture(FakeSysfs(TWO))
        self.cards("alpha", *serials)
        self.conf.write_text(
            "[DEFAULT]\ncompute_driver = hpc.HpcLibvirtDriver\n"
            f"[hpc]\nsysfs_root = {tree.root}\nledger_file = {self.ledger_path('alpha')}\n"
            "[libvirt]\nconnection_uri = test:///default\n"
        )
        self.well(CONFIGURE)
        self._read_options()
        self.start_host("alpha", TWO, self.entries())
        self.settle_start("alpha")

    def entries(self) -> list[dict[str, str]]:
        """``[pci]device_spec``, as ``configure`` has written it."""
        text = (self.folder / "nova.conf.d/nova-hpc-compute.conf").read_text()
        return [json.loads(each) for each in re.findall(r"^device_spec = (.*)$", text, re.M)]

    def _read_options(self) -> None:
        root, ledger = str(self.sysfs["alpha"].root), str(self.ledger_path("alpha"))
        self.flags(sysfs_root=root, ledger_file=ledger, group="hpc")

    def restart(self, product: int | None = None) -> None:
        """The node is switched on: nova-compute reads its configuration, libvirt the devices.

        :param product: of a card that libvirt sees for the first time.
        """
        self._read_options()
        self.flags(device_spec=[json.dumps(each) for each in self.entries()], group="pci")
        if product is not None:
            listed = self.computes["alpha"].driver._host.get_connection().pci_info.devices
            device = listed["pci_0000_40_00_0"]
            plain = device.XMLDesc
            device.XMLDesc = lambda flags: plain(flags).replace(f"{A100:04x}", f"{product:04x}")
        self.computes["alpha"] = self.restart_compute_service("alpha", keep_hypervisor_state=True)
        self.update("alpha")

    # -- what is typed ------------------------------------------------------------------

    def step(self, number: int) -> list[str]:
        """The lines that the page has below the title of a step."""
        lines = PAGE.read_text(encoding="utf-8").split("\n")
        titles = [at for at, line in enumerate(lines) if re.fullmatch("=+", line)]
        begin = next(at for at in titles if lines[at - 1].startswith(f"{number}. "))
        end = next((at for at in titles if at > begin), len(lines))
        found = [
            line[2:]
            for block in pages.blocks(PAGE)
            if begin < block.line < end
            for line in block.text.split("\n")
        ]
        self.assertTrue(found, number)
        return found

    def type(self, line: str) -> tuple[int, str]:
        """Type a line of the page; the exit status, and what is said."""
        words = shlex.split(
            line.replace("0000:41:00.0", GPU)
            .replace("node17", "alpha")
            .replace("/etc/nova/nova.conf.d", str(self.folder / "nova.conf.d"))
        )
        match words:
            case ["nova-hpc", "drain", *rest]:
                status, out, err = run_drain(self.compute, rest)
                return status, out + err
            case ["openstack", "server", "list", "--all-projects", "--host", host]:
                found = self.admin_api.get_servers(search_opts={"all_tenants": 1, "host": host})
                return 0, "".join(f"{each['id']}\n" for each in found)
            case ["openstack", "compute", "service", "set", "--enable", host, binary]:
                (service,) = self.admin_api.get_services(host=host, binary=binary)
                self.admin_api.put_service(service["id"], {"status": "enabled"})
                return 0, ""
            case ["nova-hpc", command, *rest]:
                more = ["--config-file", str(self.conf)]
                if command != "device":
                    more += ["--root", str(self.sysfs["alpha"].root)]
                else:
                    more += ["--config-dir", str(self.folder / "nova.conf.d")]
                # A process of its own: in this one the options have values of the services'.
                done = subprocess.run(
                    [sys.executable, "-m", "nova_hpc_tools.main", command, *rest, *more],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                # The table alone for a machine: what is said beside it goes to stderr.
                said = "" if "json" in words else done.stderr
                return done.returncode, done.stdout + said
        raise AssertionError(line)

    def well(self, line: str) -> str:
        status, out = self.type(line)
        self.assertEqual(0, status, (line, out))
        return out

    def states(self) -> dict[str, str]:
        rows = json.loads(self.well("nova-hpc device list -f json"))
        return {row["Address"]: row["State"] for row in rows}

    def provider(self) -> str:
        context = nova_context.get_admin_context()
        node = objects.ComputeNode.get_by_host_and_nodename(context, "alpha", "alpha")
        (record,) = (
            each
            for each in objects.PciDeviceList.get_by_compute_node(context, node.id)
            if each.address == GPU
        )
        return str(record.extra_info["rp_uuid"])

    # -- the steps ------------------------------------------------------------------------

    def until_empty(self, hardware: str) -> str:
        """Steps 1 and 2: the GPU is out of service and the node empty; its provider."""
        server = self.boot(self.make_flavor(SPECS), host="alpha")
        mine = self.devices_of(server)[0].address
        provider = self.provider()
        listed, quarantine, show = self.step(1)
        self.assertIn(GPU, self.well(listed))
        self.assertIn("in quarantine", self.well(quarantine))
        self.assertIn(hardware, self.well(show))
        self.assertEqual(server["id"] if mine == GPU else "", self.holder())
        plan, do, rest = self.step(2)
        self.assertEqual(1, self.type(plan)[0])
        self.assertIn("1 server has left alpha", self.well(do))
        self.assertEqual("", self.well(rest))
        self.update("alpha")
        self.assertEqual({GPU: "quarantined", OTHER: "free"}, self.states())
        return provider

    def holder(self) -> str:
        rows = json.loads(self.well("nova-hpc device list -f json"))
        return next(row["Server"] for row in rows if row["Address"] == GPU)

    def given_again(self) -> None:
        """The last step: both GPUs of the node can be had, and are."""
        (enable,) = self.step(7)
        self.well(enable)
        self.assertEqual({GPU: "free", OTHER: "free"}, self.states())
        self.assertEqual({GPU: 0, OTHER: 0}, self.reserved_in_placement("alpha"))
        flavor = self.make_flavor({**SPECS, "pci_passthrough:alias": "gpu:2"})
        server = self.boot(flavor, host="alpha")
        self.assertEqual([GPU, OTHER], [each.address for each in self.devices_of(server)])
        self.assert_given_once()

    def test_a_card_with_a_serial_number(self) -> None:
        self.nodes(OLD, NEXT_TO_IT)
        provider = self.until_empty(f"serial:{OLD:016x}")
        self.cards("alpha", NEW, NEXT_TO_IT)
        self.restart()
        configure, _, listed, absent = self.step(4)
        self.assertIn("Nothing to do.", self.well(configure))
        self.assertNotIn("quarantined", self.well(listed))
        away = self.well(absent)
        self.assertIn(f"serial:{OLD:016x}", away)
        self.assertIn("quarantined", away)
        said = self.log_lines(f"{GPU} is other hardware than before: it is new, and other hardware")
        self.assertEqual(1, len(said))
        self.assertNotIn(f"{NEW:x}", said[0])
        self.assertEqual(f"serial:{NEW:016x}", self.ledger("alpha").device(GPU).hardware)
        # What Placement has stands for the place: the provider is the same.
        self.assertEqual(provider, self.provider())
        self.given_again()
        # The old card in another slot of the node is not given to anybody.
        self.assertEqual({}, self.ledger("alpha").quarantined)

    @pytest.mark.slow
    def test_a_card_without_a_serial_number(self) -> None:
        self.nodes(None, None)
        self.until_empty(f"slot:{GPU}")
        self.cards("alpha", None, None)
        self.restart()
        *_, listed, absent = self.step(4)
        self.assertIn("quarantined", self.well(listed))
        self.assertIn("No hardware of this node is missing.", self.well(absent))
        accept, release = self.step(5)
        self.assertIn("does not differ from its baseline", self.type(accept)[1])
        self.assertIn("back in service", self.well(release))
        self.update("alpha")
        self.given_again()

    @pytest.mark.slow
    def test_another_product(self) -> None:
        self.nodes(OLD, NEXT_TO_IT)
        self.until_empty(f"serial:{OLD:016x}")
        self.cards("alpha", NEW, NEXT_TO_IT, product=H100)
        self.restart(product=H100)
        configure, *_ = self.step(4)
        self.assertIn(
            '+device_spec = {"vendor_id": "10de", "product_id": "2330"', self.well(configure)
        )
        write, _ = self.step(6)  # prepare writes to the host itself
        self.well(write)
        self.restart()
        self.given_again()

    # -- a server that stayed ---------------------------------------------------------------

    def a_server_that_stays(self) -> dict[str, Any]:
        """A server that has both GPUs and is stopped."""
        self.nodes(OLD, NEXT_TO_IT)
        flavor = self.make_flavor({**SPECS, "pci_passthrough:alias": "gpu:2"})
        server = self.boot(flavor, host="alpha")
        self._stop_server(server)
        return server

    def reset_file(self, address: str = GPU) -> Path:
        return self.sysfs["alpha"].devices / address / "reset"

    @pytest.mark.slow
    def test_a_server_that_stayed(self) -> None:
        """Its new card is cleaned before it starts, and no other."""
        server = self.a_server_that_stays()
        self.cards("alpha", NEW, NEXT_TO_IT)
        self.restart()
        self.assertEqual(f"serial:{NEW:016x}", self.ledger("alpha").device(GPU).hardware)
        self.assertEqual("", self.reset_file().read_text().strip())
        self._start_server(server)
        self.assertEqual("1", self.reset_file().read_text().strip())
        self.assertEqual("", self.reset_file(OTHER).read_text().strip())
        self.update("alpha")
        self.assertEqual(server["id"], self.ledger("alpha").device(GPU).server)
        # It is the server's card from now on.
        self.reset_file().write_text("")
        self._stop_server(server)
        self.restart()
        self._start_server(server)
        self.assertEqual("", self.reset_file().read_text().strip())
        self._delete_server(server)
        self.assertEqual("1", self.reset_file().read_text().strip())
        self.update("alpha")
        self.assert_all_free("alpha")

    @pytest.mark.slow
    def test_a_server_that_stayed_and_a_card_that_cannot_be_cleaned(self) -> None:
        server = self.a_server_that_stays()
        self.cards("alpha", NEW, NEXT_TO_IT)
        self.restart()
        self.reset_file().unlink()
        self.api.post_server_action(server["id"], {"os-start": None})
        self.eventually(lambda: self.assertTrue(self.fault_messages(server)))
        self._wait_for_state_change(server, "SHUTOFF")
        fault = self.fault_messages(server)[0]
        self.assertIn("The hardware of 1 of the server's 2 PCI devices was replaced", fault)
        self.assert_no_secrets(fault)
        (said,) = self.log_lines(f"PCI device {GPU} is other hardware than the server had")
        self.assertIn(f"nova-hpc device release {GPU}", said)
        self.assertEqual("quarantined", self.states()[GPU])
        self.update("alpha")
        # The operator does what the log says.
        self.reset_file().write_text("")
        self.well(f"nova-hpc device release {GPU}")
        self._start_server(server)
        self.assertEqual("1", self.reset_file().read_text().strip())
        self.assertEqual(server["id"], self.ledger("alpha").device(GPU).server)

    @pytest.mark.slow
    def test_a_server_that_comes_back_with_its_host(self) -> None:
        """Nova starts it before the first update has looked at the node."""
        self.nodes(OLD, NEXT_TO_IT)
        self.flags(resume_guests_state_on_host_boot=True)
        flavor = self.make_flavor({**SPECS, "pci_passthrough:alias": "gpu:2"})
        server = self.boot(flavor, host="alpha")
        self.cards("alpha", NEW, NEXT_TO_IT)
        instance, compute = self.instance(server), self.computes["alpha"]
        compute.driver._host._get_domain(instance).destroy()
        compute.manager._resume_guests_state(
            nova_context.get_admin_context(), instance, instance.get_network_info()
        )
        self.assertEqual("ACTIVE", self.api.get_server(server["id"])["status"])
        self.assertEqual("1", self.reset_file().read_text().strip())
        self.assertEqual("", self.reset_file(OTHER).read_text().strip())
        self.assertEqual(f"serial:{NEW:016x}", self.ledger("alpha").device(GPU).hardware)
