# SPDX-License-Identifier: Apache-2.0
"""Every action of a server's life: what it keeps, or why it is refused.

``python -m tests.functional.lifecycle --write`` puts what these tests see into the
table of docs/source/user/life-cycle-actions.inc; a plain run compares.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from nova.tests.fixtures import cinder as cinder_fixture

from tests.functional import base, fixtures
from tests.functional.lifecycle.base import (
    FLAVOR,
    HERE,
    LARGER,
    NEVER,
    SMALL,
    THERE,
    LifecycleTest,
)

IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
VOLUME = cinder_fixture.CinderFixture.IMAGE_BACKED_VOL
ILL = "a device is not fit to be used"
FULL = "no host has devices that fit"
ALWAYS = "always"
IN_ERROR = "the server's status is ERROR"
#: One GPU, and a port that is near to it.
ONE = {
    "pci_passthrough:alias": "gpu:1",
    "hw:cpu_policy": "dedicated",
    "hw:pci_numa_affinity_policy": "preferred",
    "hpc:affinity": "root",
}
REBOOT = {"reboot": {"type": "HARD"}}
SNAPSHOT = {"createImage": {"name": "snapshot"}}
STEP = Callable[[], None]

pytestmark = pytest.mark.slow


class InPlaceTest(LifecycleTest):
    """A server that stays on its host."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(shelved_offload_time=-1, resume_guests_state_on_host_boot=True)
        self.useFixture(cinder_fixture.CinderFixture(self))
        self.place("alpha", HERE)
        self.server = self.boot(self.make_flavor(FLAVOR, vcpu=2))

    def do(self, body: dict[str, Any], status: str = "ACTIVE") -> STEP:
        return lambda: self.act(self.server, body, status)

    def ask(self, body: dict[str, Any]) -> STEP:
        """An action that will be refused."""
        return lambda: self.refused_action(self.server, body)

    def check(self, action: str, body: dict[str, Any], *, status: str = "ACTIVE") -> None:
        """Refused with a device that is ill, done without."""
        with self.ill(self.server):
            self.refused(action, ILL, self.server, self.ask(body))
        self.keeps(action, self.server, self.do(body, status))

    def around(self, action: str, away: dict[str, Any], status: str, back: dict[str, Any]) -> None:
        """An action and its opposite, of which the second is refused with an ill device."""
        before = self.look(self.server)
        self.act(self.server, away, status)
        with self.ill(self.server):
            self.refused(action, ILL, self.server, self.ask(back))
        self.act(self.server, back, "ACTIVE")
        self.note(action, before, self.look(self.server))

    def test_on_one_host(self) -> None:
        self.note("Create", None, self.look(self.server))
        more = self.make_flavor({**ONE, "pci_passthrough:alias": "gpu:3"})
        refused = self.boot(more, state="ERROR")
        text = " ".join(self.fault(refused).split())
        self.assert_no_secrets(text)
        self.book.note("Create", refused=FULL, text=text)
        self._delete_server(refused)
        self.check("Soft reboot", {"reboot": {"type": "SOFT"}})
        self.check("Hard reboot", REBOOT)
        self.around("Stop, start", {"os-stop": None}, "SHUTOFF", {"os-start": None})
        self.never_refused("Pause, unpause", self.server, self._pause)
        self.always_refused("Suspend", ALWAYS, self.server, self.ask({"suspend": None}))
        with self.allowed():
            action = "Suspend (allowed), resume"
            self.around(action, {"suspend": None}, "SUSPENDED", {"resume": None})
        self.never_refused("Snapshot, live", self.server, self.do(SNAPSHOT))
        with self.cold():
            self.always_refused("Snapshot, cold", ALWAYS, self.server, self.ask(SNAPSHOT))
            with self.allowed():
                self.check("Snapshot, cold (allowed)", SNAPSHOT)
        self.never_refused("Shelve", self.server, self.do({"shelve": None}, "SHELVED"))
        self.check("Unshelve", {"unshelve": None})
        self.check("Rescue", {"rescue": {"adminPass": "secret"}}, status="RESCUE")
        self.check("Unrescue", {"unrescue": None})
        self.check("Rebuild", {"rebuild": {"imageRef": IMAGE}})
        self.finish()

    def _pause(self) -> None:
        self.act(self.server, {"pause": None}, "PAUSED")
        self.act(self.server, {"unpause": None}, "ACTIVE")

    @contextlib.contextmanager
    def cold(self) -> Iterator[None]:
        """Snapshots for which Nova suspends the guest."""
        self.flags(disable_libvirt_livesnapshot=True, group="workarounds")
        yield
        self.flags(disable_libvirt_livesnapshot=False, group="workarounds")

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Suspends on a node whose operator allows them."""
        self.flags(suspend_with_devices=True, group="hpc")
        yield
        self.flags(suspend_with_devices=False, group="hpc")

    def test_plugging_and_restarts(self) -> None:
        self.never_refused("Attach, detach a volume", self.server, self._volume)
        plain = self.neutron.create_port({"port": self.neutron.port_2})["port"]["id"]
        self.never_refused(
            "Attach, detach an interface", self.server, lambda: self._interface(plain)
        )
        self._port()
        self.never_refused("Restart of nova-compute", self.server, self._restart)
        self._host_boot()
        self.never_refused("Delete", self.server, lambda: self._delete_server(self.server))
        self.finish()

    def _volume(self) -> None:
        self._attach_volume(self.server, VOLUME)
        during = self.look(self.server)
        self.assertIn(VOLUME, during.domain)
        self.assertEqual([], during.wrong_pairs())
        self.api.delete_server_volume(self.server["id"], VOLUME)
        self._wait_for_volume_detach(self.server["id"], VOLUME)

    def _attach(self, server: dict, port: str) -> None:
        self.api.attach_interface(server["id"], {"interfaceAttachment": {"port_id": port}})

    def _detach(self, port: str) -> None:
        self.api.detach_interface(self.server["id"], port)
        # Nova answers at once, and frees the device last.
        self.eventually(lambda: self.assertNotIn(port, self._ports()))
        self.eventually(lambda: self.assertEqual(4, len(self.devices_of(self.server))))

    def _ports(self) -> list[str]:
        attached = self.api.get_port_interfaces(self.server["id"])
        return [each["port_id"] for each in attached]

    def _interface(self, port: str) -> None:
        before = self.look(self.server)
        self._attach(self.server, port)
        during = self.look(self.server)
        self.assertNotEqual(before.domain, during.domain)
        self.assertEqual([], during.wrong_pairs())
        self._detach(port)

    def _port(self) -> None:
        port = self.direct_port()
        action = "Attach a direct port"
        # A second server, with a GPU of the other node only.
        small = self.boot(self.make_flavor(ONE))
        self.refused(action, "its adapter is elsewhere", small, lambda: self._no(small, port))
        self._delete_server(small)
        self.keeps(action, self.server, lambda: self._attach(self.server, port))
        self._as_recorded(action)
        with self.ill(self.server):
            with_port = "Hard reboot with a direct port"
            self.refused(with_port, ILL, self.server, self.ask(REBOOT))
        self.keeps(with_port, self.server, self.do(REBOOT))
        with self.allowed():
            action = "Suspend (allowed) with a direct port"
            self.always_refused(action, ALWAYS, self.server, self.ask({"suspend": None}))
        with self.allowed(), self.cold():
            action = "Snapshot, cold (allowed), with a direct port"
            self.always_refused(action, ALWAYS, self.server, self.ask(SNAPSHOT))
        self._as_recorded(with_port)
        self.never_refused("Detach a direct port", self.server, lambda: self._detach(port))
        self._as_recorded("Detach a direct port")
        self.act(self.server, REBOOT, "ACTIVE")

    def _as_recorded(self, action: str) -> None:
        """The guest has what Nova's records give the server, ports included."""
        for _ in range(2):
            self.update("alpha")
        for address, text in self.stats_of("alpha").differs.items():
            self.errors.append(f"{action}: {address} {text}")

    def _no(self, server: dict, port: str) -> None:
        with self.assertRaises(base.client.OpenStackApiException) as caught:
            self._attach(server, port)
        self.assertIn("No adapter close enough", str(caught.exception))

    def _restart(self) -> None:
        self.restart_compute_service("alpha")

    def _host_boot(self) -> None:
        """The guest is off, and nova-compute starts."""
        action = "Reboot of the host"
        before = self.look(self.server)
        with self.ill(self.server):
            self._power_cut()
            off = self.look(self.server)
            self._restart()
            after = self.look(self.server)
        # Nobody asked for anything: the guest stays off, and the server tells why.
        self.assertEqual((off.domain, False), (after.domain, after.running))
        self.assertEqual(before.devices, after.devices)
        self.assertEqual(before.allocations, after.allocations)
        fault = self.fault(self.server)
        self.assert_no_secrets(fault)
        self.assertEqual("ERROR", self.api.get_server(self.server["id"])["status"])
        self.book.note(action, refused=f"{ILL}; {IN_ERROR}", text=fault)
        # A hard reboot repairs it.
        self.act(self.server, REBOOT, "ACTIVE")
        self._power_cut()
        self._restart()
        self.note(action, before, self.look(self.server))
        self.assertTrue(self.look(self.server).running)

    def _power_cut(self) -> None:
        connection = self.computes["alpha"].driver._host.get_connection()
        for domain in list(connection._running_vms.values()):
            domain.hpc_live = None
            connection._running_vms.clear()
            domain._state = fixtures.fakelibvirt.VIR_DOMAIN_SHUTOFF


class MoveTest(LifecycleTest):
    """A server that goes to other devices."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(shelved_offload_time=0)
        self.place("alpha", HERE)
        self.place("gamma", SMALL)
        self.server = self.boot(self.make_flavor(FLAVOR, vcpu=2), host="alpha")

    def ask(self, body: dict[str, Any]) -> STEP:
        return lambda: self.refused_action(self.server, body)

    def enable(self, *names: str) -> None:
        """Only these hosts take servers."""
        for service in self.api.get_services(binary="nova-compute"):
            status = "enabled" if service["host"] in names else "disabled"
            self.api.put_service(service["id"], {"status": status})

    def test_moves(self) -> None:
        larger = {"resize": {"flavorRef": self.make_flavor(LARGER, vcpu=2)}}
        same = {"resize": {"flavorRef": self.make_flavor(FLAVOR, vcpu=2, memory_mb=128)}}
        for action, body in (
            ("Live migration", {"os-migrateLive": {"host": None, "block_migration": "auto"}}),
            ("Cold migration", {"migrate": None}),
            ("Resize up", larger),
            ("Resize down", same),
        ):
            self.refused(action, FULL, self.server, self.ask(body))
        self.place("beta", THERE)
        live = {"os-migrateLive": {"host": "beta", "block_migration": "auto"}}
        self.book.cells.pop("Live migration")
        self.always_refused("Live migration", ALWAYS, self.server, self.ask(live))
        self._reverted("Cold migration or resize, reverted", larger)
        self._confirmed("Resize up", larger)
        self._confirmed("Resize down", same)
        self._confirmed("Cold migration", {"migrate": None})
        self.finish()

    def test_offload_and_evacuation(self) -> None:
        self._shelve()
        self.place("beta", THERE)
        self._evacuate()
        self.finish()

    def _moved(self, body: dict[str, Any]) -> None:
        self.act(self.server, body, "VERIFY_RESIZE")

    def _confirmed(self, action: str, body: dict[str, Any]) -> None:
        def move() -> None:
            self._moved(body)
            self._confirm_resize(self.server)

        self.keeps(action, self.server, move)

    def _reverted(self, action: str, body: dict[str, Any]) -> None:
        before = self.look(self.server)
        self._moved(body)
        self._revert_resize(self.server)
        self.note(action, before, self.look(self.server))
        # The destination has let go when the source looks at its devices.
        with self.ill(self.server):
            self._moved(body)
            self.act(self.server, {"revertResize": None}, "ERROR")
        fault = self.fault(self.server)
        self.assert_no_secrets(fault)
        self.book.note(action, refused=f"{ILL}; {IN_ERROR}", text=fault)
        self.act(self.server, REBOOT, "ACTIVE")
        self.assertEqual(before.devices, self.look(self.server).devices)

    def _shelve(self) -> None:
        action = "Unshelve after an offload"
        self.never_refused("Shelve and offload", self.server, self._offload)
        self.enable("gamma")
        self.refused(action, FULL, self.server, self.ask({"unshelve": None}))
        self.enable("alpha")
        self.keeps(action, self.server, lambda: self.act(self.server, {"unshelve": None}, "ACTIVE"))

    def _offload(self) -> None:
        self.act(self.server, {"shelve": None}, "SHELVED_OFFLOADED")
        # The status comes before the devices are given back.
        self.eventually(lambda: self.assertEqual([], self.devices_of(self.server)))

    def _evacuate(self) -> None:
        self.stop_host("alpha")
        self.enable("gamma")
        before = self.look(self.server)
        self.act(self.server, {"evacuate": {}}, "ERROR")
        after = self.look(self.server)
        self.assertEqual(attrs.evolve(before, vm_state="error"), after)
        fault = self.fault(self.server)
        self.assert_no_secrets(fault)
        self.book.note("Evacuation", refused=f"{FULL}; {IN_ERROR}", text=" ".join(fault.split()))
        self.enable("beta")
        self.keeps("Evacuation", self.server, self._to_beta)

    def _to_beta(self) -> None:
        # Nova starts a server that was in ERROR; others stay off.
        self._evacuate_server(self.server, expected_host="beta", expected_state="ACTIVE")


class DeleteTest(LifecycleTest):
    """A server that is deleted while it is built."""

    def test_deletes(self) -> None:
        self.place("alpha", HERE)
        flavor = self.make_flavor(FLAVOR, vcpu=2)
        for action, path in (
            (
                "Delete while waiting for a host",
                "nova.conductor.manager.ComputeTaskManager._schedule_instances",
            ),
            (
                "Delete while networks are made",
                "nova.compute.manager.ComputeManager._build_networks_for_instance",
            ),
            (
                "Delete while the guest is made",
                "nova.virt.libvirt.driver.LibvirtDriver._create_guest_with_network",
            ),
        ):
            with self._held(path) as (reached, go_on, over):
                asked = self._build_server(flavor_id=flavor, networks="none")
                server = self.api.post_server({"server": asked})
                self.assertTrue(reached.wait(120), action)
                before = self.look(server)
                self.assertEqual("for a host" not in action, bool(before.mine), action)
                self.api.delete_server(server["id"])
                go_on.set()
                self._wait_until_deleted(server)
                # The scheduler has allocated by now, and the conductor takes it back.
                self.assertTrue(over.wait(120), action)
            self.eventually(functools.partial(self._given_back, server))
            self.note(action, before, self.look(server))
            self.book.note(action, **NEVER)
        self.finish()

    def _given_back(self, server: dict[str, Any]) -> None:
        self.assert_all_free("alpha")
        self.assertEqual({}, self.look(server).allocations)

    @contextlib.contextmanager
    def _held(self, path: str) -> Iterator[tuple[threading.Event, ...]]:
        """Stop a build before one of Nova's methods: it is reached, may go on, and is over."""
        reached, go_on, over = (threading.Event() for _ in range(3))
        owner, name = path.rsplit(".", 1)
        module, cls = owner.rsplit(".", 1)
        plain = getattr(getattr(importlib.import_module(module), cls), name)

        def method(*args: Any, **keywords: Any) -> Any:
            reached.set()
            go_on.wait(120)
            try:
                return plain(*args, **keywords)
            finally:
                over.set()

        with fixtures.fixtures.MonkeyPatch(path, method):
            try:
                yield reached, go_on, over
            finally:
                go_on.set()
