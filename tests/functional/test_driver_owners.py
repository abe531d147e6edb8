# SPDX-License-Identifier: Apache-2.0
"""A device that anybody has is neither reset nor offered, whoever has forgotten its server.

Nova's own stack deletes, evacuates and forgets; what goes on running is a domain of its
fake libvirt, or a process that the kernel knows of.
"""

from __future__ import annotations

import contextlib
import threading
import time

import attrs
from nova import context as nova_context
from nova import objects
from nova.db.main import api as main_db
from nova.db.main import models
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_hpc.tenancy.ledger import copy_of
from nova_hpc.wire.ledger import SOMEBODY
from tests.functional import fixtures
from tests.functional.test_driver_hygiene import FIRST, GPU, ONE, SECOND, TWO, _Base

FOREIGN = "11111111-2222-3333-4444-555555555555"


class OwnersTest(_Base):
    # -- what happens to hosts --------------------------------------------------

    def connection(self, host: str) -> fakelibvirt.Connection:
        return self.computes[host].driver._host.get_connection()

    def guests(self, host: str) -> dict[str, fakelibvirt.Domain]:
        """By UUID."""
        return {each.UUIDString(): each for each in self.connection(host)._vms.values()}

    def end_domain(self, host: str, uuid: str) -> None:
        """The guest ends behind Nova's back, as when it is powered off and reaped."""
        domain = self.guests(host)[uuid]
        domain.destroy()
        domain.undefine()

    def foreign(self, host: str, address: str, running: bool = True) -> fakelibvirt.Domain:
        """A guest that is none of Nova's."""
        bus, slot, function = address[5:7], address[8:10], address[11]
        xml = f"""
<domain type='kvm'><name>by-hand</name><uuid>{FOREIGN}</uuid><memory>1048576</memory>
<vcpu>1</vcpu><os><type>hvm</type></os><devices>
<hostdev mode='subsystem' type='pci' managed='no'><source>
<address domain='0x0000' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>
</source></hostdev></devices></domain>"""
        domain = self.connection(host).defineXML(xml)
        if running:
            domain.create()
        return domain

    def restart(self, host: str) -> None:
        self.computes[host] = self.restart_compute_service(host, keep_hypervisor_state=True)

    def locally_deleted(self) -> str:
        """A server that was deleted while nova-compute was down; its guest runs on."""
        self.host("alpha", ONE)
        self.flags(running_deleted_instance_action="noop")
        server = self.boot(self.make_flavor(GPU))
        self.computes["alpha"].stop()
        self.api.put_service_force_down(self._service("alpha"), True)
        self.api.delete_server(server["id"])
        self._wait_until_deleted(server)
        self.restart("alpha")
        self.api.put_service_force_down(self._service("alpha"), False)
        self.assertEqual(fakelibvirt.VIR_DOMAIN_RUNNING, self.guests("alpha")[server["id"]]._state)
        return server["id"]

    def _service(self, host: str) -> str:
        (service,) = self.api.get_services(host=host, binary="nova-compute")
        return service["id"]

    # -- what is asserted ---------------------------------------------------------

    def assert_untouched(self, host: str, address: str, mark: str | None, text: str) -> None:
        """Several updates change nothing: not reset, marked, not offered, and said why."""
        for _ in range(3):
            self.update(host)
            self.assertEqual(0, self.resets(host, address))
            self.assertEqual(mark, self.record(host, address).server)
            self.assertIn(text, self.stats_of(host).withheld.get(address, "it is offered"))
        refused = self.boot(self.make_flavor(GPU), state="ERROR")
        self._delete_server(refused)
        self.assertEqual(0, self.resets(host, address))
        self.assertEqual({}, self.held(host))

    def assert_cleaned_and_offered(self, host: str, address: str) -> None:
        self.update(host)
        self.assertEqual(1, self.resets(host, address))
        self.assertIsNone(self.record(host, address).server)
        self.assertNotIn(address, self.stats_of(host).withheld)
        server = self.boot(self.make_flavor(GPU))
        self.assertIn(address, [device.address for device in self.devices_of(server)])

    # -- Nova has forgotten the server ----------------------------------------------

    def test_a_local_delete_while_nova_compute_is_down(self) -> None:
        server = self.locally_deleted()
        text = "(running) has it, and Nova knows of no server that does"
        self.assert_untouched("alpha", FIRST, server, text)
        self.end_domain("alpha", server)
        self.assert_cleaned_and_offered("alpha", FIRST)

    def test_the_mark_stays_until_the_clean_has_passed(self) -> None:
        server = self.locally_deleted()
        self.update("alpha")
        self.end_domain("alpha", server)
        self.path("alpha", FIRST, "reset").unlink()
        self.update("alpha")
        self.assertIn(FIRST, self.stats_of("alpha").withheld)
        refused = self.boot(self.make_flavor(GPU), state="ERROR")
        self._delete_server(refused)

    def test_a_guest_that_is_paused_or_shut_off_has_its_devices(self) -> None:
        server = self.locally_deleted()
        domain = self.guests("alpha")[server]
        domain.suspend()
        self.assert_untouched("alpha", FIRST, server, "(paused) has it")
        domain.destroy()
        self.assert_untouched("alpha", FIRST, server, "(shut off) has it")
        domain._has_saved_state = True
        self.assert_untouched("alpha", FIRST, server, "(saved) has it")
        domain.undefine()
        self.assert_cleaned_and_offered("alpha", FIRST)

    def test_an_evacuation_behind_a_broken_network(self) -> None:
        self.host("alpha", ONE)
        self.host("beta", ONE)
        server = self.boot(self.make_flavor(GPU), host="alpha")
        alpha = self.computes["alpha"]
        self.api.put_service_force_down(self._service("alpha"), True)
        self._evacuate_server(server, expected_host="beta")
        service = objects.Service.get_by_compute_host(self._cell(), "alpha")
        service.forced_down = False
        service.save()
        # The network heals: nova-compute was there all the time, and so was the guest.
        self.assertIs(alpha, self.computes["alpha"])
        self.forget("alpha", FIRST)
        # Nova looks at its devices before it frees those of servers that have left. It is free
        # for Nova's tracker then, and Placement gives it to nobody.
        self.update("alpha")
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))
        self.assertEqual({}, self.given_by_placement("alpha"))
        for _ in range(2):
            self.update("alpha")
            self.assertEqual(0, self.resets("alpha", FIRST))
            self.assertIn("(running) has it", self.stats_of("alpha").withheld.get(FIRST, ""))
        self.assertEqual(server["id"], self.record("beta", FIRST).server)
        self.end_domain("alpha", server["id"])
        self.update("alpha")
        self.assertEqual(1, self.resets("alpha", FIRST))
        self.assertNotIn(FIRST, self.stats_of("alpha").withheld)
        self.assertEqual({FIRST: 1}, self.given_by_placement("alpha"))
        self.update("beta")
        self.assertEqual(0, self.resets("beta", FIRST))

    def test_a_mark_where_nothing_is_cleaned(self) -> None:
        """One from before ``[hpc]clean_devices`` was switched off must not hold it for ever."""
        self.flags(clean_devices=False, group="hpc")
        self.host("alpha", ONE)
        marked = self.record("alpha", FIRST)
        self.ledger_file("alpha").change(
            lambda now: now.put({FIRST: attrs.evolve(marked, server=FOREIGN)})
        )
        for _ in range(2):
            self.update("alpha")
            self.assertEqual({FIRST: 1}, self.given_by_placement("alpha"))

    def forget_in_nova(self, uuid: str) -> None:
        """The database is restored from before the server was made."""
        cell = self._cell()
        with main_db.get_context_manager(cell).writer.using(cell) as session:
            for device in session.query(models.PciDevice).filter_by(instance_uuid=uuid):
                device.status, device.instance_uuid = "available", None
            session.query(models.Instance).filter_by(uuid=uuid).update(
                {"deleted": models.Instance.id, "host": None, "node": None}
            )
        self.placement.delete(f"/allocations/{uuid}")

    def _cell(self) -> nova_context.RequestContext:
        context = nova_context.get_admin_context()
        nova_context.set_target_cell(context, self.cell_mappings["cell1"])
        return context

    def test_a_restored_database(self) -> None:
        self.host("alpha", ONE)
        self.flags(running_deleted_instance_action="noop")
        server = self.boot(self.make_flavor(GPU))["id"]
        self.computes["alpha"].stop()
        self.forget_in_nova(server)
        self.restart("alpha")
        self.assertIn(server, self.guests("alpha"))
        self.assert_untouched("alpha", FIRST, server, "(running) has it")
        self.end_domain("alpha", server)
        self.assert_cleaned_and_offered("alpha", FIRST)

    def lose_the_ledger(self, host: str) -> None:
        path = self.ledger_file(host).path
        path.unlink()
        copy_of(path).unlink()

    def test_the_ledger_is_lost_as_well(self) -> None:
        self.host("alpha", ONE)
        self.flags(running_deleted_instance_action="noop")
        server = self.boot(self.make_flavor(GPU))["id"]
        self.computes["alpha"].stop()
        self.forget_in_nova(server)
        self.lose_the_ledger("alpha")
        self.restart("alpha")
        self.assert_untouched("alpha", FIRST, server, "(running) has it")
        # What it looks like with a guest on it is no baseline.
        self.assertIsNone(self.record("alpha", FIRST).baseline)
        self.end_domain("alpha", server)
        self.assert_cleaned_and_offered("alpha", FIRST)

    # -- somebody else has it ---------------------------------------------------------

    def test_a_guest_of_somebody_else(self) -> None:
        self.host("alpha", ONE)
        self.foreign("alpha", FIRST)
        self.assert_untouched("alpha", FIRST, FOREIGN, "guest domain by-hand (running) has it")
        self.end_domain("alpha", FOREIGN)
        self.assert_cleaned_and_offered("alpha", FIRST)

    def test_a_process_of_somebody_else(self) -> None:
        """QEMU without libvirt, or DPDK: only the kernel knows."""
        self.host("alpha", ONE)
        with self.sysfs["alpha"].held(FIRST):
            # What stands for the group is busy for another reason than a group is: so
            # nobody can tell, and who cannot tell writes nothing down.
            self.assert_untouched("alpha", FIRST, None, "/dev/vfio/")
        self.update("alpha")
        self.assertNotIn(FIRST, self.stats_of("alpha").withheld)

    def test_the_kernel_names_a_process(self) -> None:
        """The same with the very answer of VFIO, which no file of a test gives to root."""
        from nova_hpc.tenancy.holders import KernelHolder

        self.host("alpha", ONE)
        busy = {FIRST: KernelHolder("a process of this host has /dev/vfio/41 open")}
        patch = fixtures.fixtures.MockPatch(
            "virt_driver_patches.driver.node.holders.find_kernel_holders", return_value=busy
        )
        with patch:
            self.assert_untouched("alpha", FIRST, SOMEBODY, "has /dev/vfio/41 open")
        self.assert_cleaned_and_offered("alpha", FIRST)

    def test_a_process_that_comes_between_the_update_and_a_server(self) -> None:
        self.host("alpha", ONE)
        self.host("beta", ONE)
        with self.sysfs["alpha"].held(FIRST):
            server = self.boot(self.make_flavor(GPU | {"hpc:affinity": "host"}), host="alpha",
                               state="ERROR")  # fmt: skip
            text = self.refusal(server)
            self.assertIn("1 did not pass the check", text)
            self.assert_no_secrets(text)
            self.assertEqual("beta", self.host_of(self.boot(self.make_flavor(GPU))))
            self.assertEqual({}, self.held("alpha"))
            self.assertEqual(0, self.resets("alpha", FIRST))

    def test_a_device_that_is_taken_the_moment_its_server_ends(self) -> None:
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor(GPU))
        (mine,) = (device.address for device in self.devices_of(server))
        self.foreign("alpha", mine)
        self._delete_server(server)
        self.assertEqual(0, self.resets("alpha", mine))
        self.assertEqual(server["id"], self.record("alpha", mine).server)
        self.assertTrue(self.log_lines(f"{mine} is not clean yet: guest domain by-hand"))
        self.update("alpha")
        self.assertEqual(0, self.resets("alpha", mine))
        self.end_domain("alpha", FOREIGN)
        self.update("alpha")
        self.assertEqual(1, self.resets("alpha", mine))
        self.assertIsNone(self.record("alpha", mine).server)

    # -- libvirt does not answer ----------------------------------------------------------

    @contextlib.contextmanager
    def silent_libvirt(self, host: str, how):
        """Libvirt lists no domains when it is asked for all; what Nova asks, it answers."""
        target = self.computes[host].driver._host
        plain = target.list_instance_domains

        def listing(only_running=True):
            return how() if self._is_ours() else plain(only_running=only_running)

        with fixtures.fixtures.MockPatchObject(target, "list_instance_domains", listing):
            yield

    @staticmethod
    def _is_ours() -> bool:
        return threading.current_thread().name == "hpc-domains"

    def test_a_libvirt_that_fails(self) -> None:
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor(GPU))
        (mine,) = (device.address for device in self.devices_of(server))

        def fail():
            raise fakelibvirt.make_libvirtError(fakelibvirt.libvirtError, "cannot recv data")

        self._no_libvirt(server, mine, fail)

    def test_a_libvirt_that_hangs(self) -> None:
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor(GPU))
        (mine,) = (device.address for device in self.devices_of(server))
        self.computes["alpha"].driver.hpc_domains._patience = 0.2
        self._no_libvirt(server, mine, lambda: time.sleep(1) or [])
        time.sleep(1)

    def _no_libvirt(self, server, mine: str, how) -> None:
        (other,) = {FIRST, SECOND} - {mine}
        with self.silent_libvirt("alpha", how):
            self._delete_server(server)
            self.assertEqual(0, self.resets("alpha", mine))
            self.assertEqual(server["id"], self.record("alpha", mine).server)
            self.update("alpha")
            self.assertEqual(0, self.resets("alpha", mine))
            found = self.stats_of("alpha").withheld
            for each in (mine, other):
                self.assertIn("libvirt does not say which guest domains", found[each])
            self.assertIsNone(self.record("alpha", other).server)
        self.eventually(lambda: self._well(mine))

    def _well(self, mine: str) -> None:
        self.update("alpha")
        self.assertEqual({}, dict(self.stats_of("alpha").withheld))
        self.assertEqual(1, self.resets("alpha", mine))
        self.assertIsNone(self.record("alpha", mine).server)

    def test_a_domain_whose_xml_is_broken(self) -> None:
        self.host("alpha", ONE)
        domain = self.foreign("alpha", FIRST)
        plain = domain.XMLDesc
        domain.XMLDesc = lambda flags: plain(flags).replace("bus='0x40'", "bus='?'")
        self.update("alpha")
        text = self.stats_of("alpha").withheld[FIRST]
        self.assertIn("guest domain by-hand (running) cannot be read: the address", text)
        self.assertIsNone(self.record("alpha", FIRST).server)
        self.end_domain("alpha", FOREIGN)
        self.update("alpha")
        self.assertEqual({}, dict(self.stats_of("alpha").withheld))
        self.assertEqual(0, self.resets("alpha", FIRST))

    # -- what is no disagreement --------------------------------------------------------------

    def test_a_fleet_in_order_is_left_alone(self) -> None:
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=2, pfs=1),)))
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:1,vf:1"}))
        self._stop_server(server)
        self.update("alpha")
        self._start_server(server)
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({}, dict(self.stats_of("alpha").withheld))
        for each in objects.PciDeviceList.get_by_instance_uuid(
            nova_context.get_admin_context(), server["id"]
        ):
            self.assertEqual(0, self.resets("alpha", each.address))
