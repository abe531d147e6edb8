# SPDX-License-Identifier: Apache-2.0
"""Servers that are looked at before and after each action."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from lxml import etree
from nova import context as nova_context
from nova import exception, objects
from nova.virt.libvirt import event as libvirtevent

from nova_hpc_common.level import Level, Location
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.lifecycle import book, seen
from tests.functional.lifecycle.domains import FaithfulDomains, source_of
from tests.unit.virt import tree_reader

#: GPU and adapters below one switch, on each of two NUMA nodes. The second
#: adapter is for direct ports.
HERE = fixtures.Shape(
    tuple(fixtures.Switch(gpus=2 - numa, pfs=2, vfs=4, numa=numa) for numa in (0, 1)), cores=3
)
#: Two GPUs a node, with the adapter below another switch of the same root.
THERE = fixtures.Shape(
    tuple(
        fixtures.Switch(gpus=gpus, pfs=pfs, vfs=4, numa=numa, root=f"pci0000:{0x80 + numa:02x}")
        for numa in (0, 1)
        for gpus, pfs in ((2, 0), (0, 1))
    ),
    cores=3,
)
#: One GPU for all: no server of these tests fits.
SMALL = fixtures.Shape((fixtures.Switch(gpus=1, pfs=1, vfs=4, numa=0),), cores=3)
PORTS = "0000:41:02."
CPUS = "2-5,8-11"
#: What is said where nothing of this project's refuses an action.
NEVER = {"refused": "never for its devices", "text": "--"}

FLAVOR = {
    "pci_passthrough:alias": "gpu:2,vf:2",
    "hw:numa_nodes": "2",
    "hw:cpu_policy": "dedicated",
    "hw:pci_numa_affinity_policy": "required",
    "hpc:affinity": "root",
    "hpc:group": "gpu:1,vf:1",
    "hpc:guest_topology": "mirror",
}
LARGER = {**FLAVOR, "pci_passthrough:alias": "gpu:4,vf:4"}
RECORDS = ("hpc_decision", "hpc_guest_abi")


class LifecycleTest(DriverTest):
    """A server with a mirrored tree, and a book of what its actions did."""

    CAST_AS_CALL = False
    ASKED = Level.ROOT

    def setUp(self) -> None:
        super().setUp()
        self.flags(hw_machine_type=["x86_64=q35"], group="libvirt")
        self.flags(allow_resize_to_same_host=False)
        self.useFixture(FaithfulDomains(self._removed))
        self._disks()
        self.book = book.Book()
        self.errors: list[str] = []
        #: What is asked often and does not change: names of providers, ends of actions.
        self.providers: dict[str, str] = {}
        self.ended: dict[str, list[str]] = {}

    def _removed(self, connection: Any, uuid: str, alias: str) -> None:
        """Libvirt's event, from a thread of its own as in reality."""
        for compute in self.computes.values():
            if compute.driver._host.get_connection() is connection:
                event = libvirtevent.DeviceRemovedEvent(uuid, alias)
                threading.Timer(0.01, compute.driver.emit_event, [event]).start()

    def _disks(self) -> None:
        """Files of disks, which are not there: their sizes, copies and owners."""
        utils = "nova.virt.libvirt.utils"
        for path, value in (
            (f"{utils}.get_disk_size", 1 << 30),
            (f"{utils}.get_disk_backing_file", None),
            (f"{utils}.create_image", None),
            (f"{utils}.extract_snapshot", None),
            ("nova.privsep.path.chown", None),
        ):
            self.useFixture(fixtures.fixtures.MockPatch(path, return_value=value))
        self.useFixture(fixtures.Moves())

    def place(self, name: str, shape: fixtures.Shape) -> None:
        """Start a host; its second adapters are for direct ports."""
        entries = []
        for entry in shape.device_spec():
            # Those of the second node, which a server with both cells is near to.
            if shape is HERE and entry["address"].startswith(PORTS):
                entry = {**entry, "physical_network": "physnet4"}
                del entry["resource_class"]
                entry.pop("managed")
            entries.append(entry)
        self.host(name, shape, device_spec=entries, cpu_dedicated_set=CPUS)

    # -- looking ------------------------------------------------------------

    def look(self, server: Mapping[str, Any]) -> seen.Seen:
        """Everything that is to be seen of a server, also of one that is deleted."""
        context = nova_context.get_admin_context(read_deleted="yes")
        try:
            instance = objects.Instance.get_by_uuid(
                context, server["id"], expected_attrs=["system_metadata"]
            )
        except exception.InstanceNotFound:
            # It never came to a host.
            instance = objects.Instance(
                uuid=server["id"],
                deleted=True,
                host=None,
                task_state=None,
                system_metadata={},
            )
        nodes = objects.ComputeNodeList.get_all(nova_context.get_admin_context())
        names = {node.id: node.host for node in nodes}
        devices = frozenset(
            (names[each.compute_node_id], each.address) for each in self.devices_of(server)
        )
        shape = self.shapes.get(instance.host)
        truth = list(shape.functions()) if shape else []
        places = {each.address: each.location for each in truth}
        domain, running = self._domain(instance)
        tree, seats, hardware = _read(domain, {address for _, address in devices})
        return seen.Seen(
            vm_state="deleted" if instance.deleted else instance.vm_state,
            task_state=instance.task_state,
            host=instance.host,
            devices=devices,
            allocations=self._allocated(server),
            records={
                key: instance.system_metadata[key]
                for key in RECORDS
                if key in instance.system_metadata
            },
            domain=domain,
            running=running,
            places=places,
            kinds={each.address: each.kind for each in truth},
            tree=tree,
            seats=seats,
            hardware=hardware,
        )

    def _allocated(self, server: Mapping[str, Any]) -> dict[tuple[str, str], int]:
        found = {}
        for uuid, each in self._get_allocations_by_server_uuid(server["id"]).items():
            if uuid not in self.providers:
                self.providers[uuid] = self._get_resource_provider_by_uuid(uuid)["name"]
            name = self.providers[uuid]
            for resource, amount in each["resources"].items():
                found[name, resource] = amount
        return found

    def _domain(self, instance: objects.Instance) -> tuple[str | None, bool]:
        """Of a server without a host, any domain that is left."""
        names = [instance.host] if instance.host else list(self.computes)
        domains = [
            domain
            for name in names
            if name in self.computes
            for domain in self.computes[name].driver._host.get_connection()._vms.values()
        ]
        for domain in domains:
            if domain.UUIDString() == instance.uuid:
                live = domain.hpc_live is not None
                return (domain.hpc_live or domain.hpc_definition).text(), live
        return None, False

    # -- acting ------------------------------------------------------------------

    def settle(self, server: Mapping[str, Any], status: str) -> None:
        """Wait until nothing is done to a server, and it is as expected."""
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None, "status": status})

    def act(self, server: Mapping[str, Any], body: Mapping[str, Any], status: str) -> None:
        """One action through the API, to its end."""
        self.api.post_server_action(server["id"], body)
        self.settle(server, status)

    def keeps(self, action: str, server: Mapping[str, Any], do: Callable[[], None]) -> None:
        """Note what an action that is done leaves."""
        before = self.look(server)
        do()
        self.note(action, before, self.look(server))

    @contextlib.contextmanager
    def ill(self, server: Mapping[str, Any]) -> Iterator[None]:
        """A GPU of the server is taken by the host's driver for a while."""
        instance = self.instance(server)
        sysfs = self.sysfs[instance.host]
        gpu = next(each.address for each in self.devices_of(server) if each.product_id == "20b2")
        sysfs.bind(gpu, "nvidia")
        yield
        sysfs.bind(gpu, "vfio-pci")

    def never_refused(self, action: str, server: Mapping[str, Any], do: Callable[[], None]) -> None:
        """Note what an action leaves that is done even with a device that is ill."""
        with self.ill(server):
            known = self._failures(server)
            self.keeps(action, server, do)
            self.assertEqual(known, self._failures(server), action)
        self.book.note(action, **NEVER)

    def note(self, action: str, before: seen.Seen | None, after: seen.Seen) -> None:
        self.book.note(
            action,
            devices=seen.devices(before, after),
            alignment=seen.alignment(before, after, self.ASKED),
            tree=seen.tree(before, after),
            addresses=seen.addresses(before, after),
        )
        claimed = after.claimed()
        # Nova does not tell Placement of the devices of direct ports.
        claimed.pop(f"{PORTS}0", None)
        if claimed != after.allocated():
            self.errors.append(f"{action}: Nova has {claimed}, Placement {after.allocated()}")

    def refused(
        self, action: str, when: str, server: Mapping[str, Any], do: Callable[[], None]
    ) -> seen.Seen:
        """Note that an action is refused, with its text, and the server is as it was."""
        before, known = self.look(server), self._failures(server)
        do()
        news: list[str] = []

        def told() -> None:
            news[:] = self._failures(server)[len(known) :]
            self.assertTrue(news, f"{action} was not refused")

        self.eventually(told)
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        after = self.look(server)
        for field, value in attrs.asdict(before, recurse=False).items():
            if getattr(after, field) != value:
                change = f"from {value!r} to {getattr(after, field)!r}"
                self.errors.append(f"{action}, refused, has changed {field} {change}")
        text = news[0]
        self.assert_no_secrets(text)
        text = text.replace(server["id"], "<server>")
        self.book.note(action, refused=when, text=" ".join(text.split()))
        return after

    def always_refused(
        self, action: str, when: str, server: Mapping[str, Any], do: Callable[[], None]
    ) -> None:
        """Note an action that this server cannot have, and that it is as it was."""
        before = self.look(server)
        self.note(action, before, self.refused(action, when, server, do))

    def _failures(self, server: Mapping[str, Any]) -> list[str]:
        """What failed, in the words of the actions' events, oldest first."""
        found = []
        newest, *others = self.api.get_instance_actions(server["id"])
        for action in reversed(others):
            request = action["request_id"]
            if request not in self.ended:
                self.ended[request] = self._reason(server, request)
            found += self.ended[request]
        return found + self._reason(server, newest["request_id"])

    def _reason(self, server: Mapping[str, Any], request: str) -> list[str]:
        """Why one action failed; empty: it did not, so far."""
        events = self.api.get_instance_action_details(server["id"], request)["events"]
        failed = [each for each in reversed(events) if each["details"]]
        # The reason is with the innermost, which begins last; a node's, if one was asked.
        nodes = [each for each in failed if each["event"].startswith("compute_")]
        return [each["details"] for each in (nodes or failed)[-1:]]

    def finish(self) -> None:
        """Fail with everything that is wrong."""
        self.errors += self.book.differences()
        if self.errors:
            self.fail("\n".join(self.errors))


def _read(domain: str | None, mine: set[str]) -> tuple[dict, dict, tuple[str, ...]]:
    """Tree, seats and other hardware of a domain; see :class:`seen.Seen`."""
    if domain is None:
        return {}, {}, ()
    root = etree.fromstring(domain)
    seats = {}
    for device in list(_passed_through(root)):
        address = _address_of(device)
        seats[address] = _text(device.find("address")) + _text(device.find("rom"))
        if address not in mine:
            seats[address] = f"a device of another: {seats[address]}"
    parts = root.findall("devices/controller[@type='pci']") + root.findall("cpu")
    parts += [each for each in root if str(each.tag).startswith("{http://libvirt.org")]
    hardware = tuple(sorted(_text(each) for each in parts))
    tree = {address: _place(domain, address) for address in seats}
    return tree, seats, hardware


def _place(domain: str, address: str) -> Location | None:
    """Where one device sits in the guest; None: at no place of the mirrored tree."""
    root = etree.fromstring(domain)
    # The reader takes domains as this project makes them, with no device elsewhere.
    for device in list(_passed_through(root)):
        if _address_of(device) != address:
            device.getparent().remove(device)
    try:
        return tree_reader.read(etree.tostring(root)).places[address]
    except (AssertionError, KeyError):
        return None


def _address_of(device: etree._Element) -> str:
    return "{:04x}:{:02x}:{:02x}.{:x}".format(*source_of(device))


def _passed_through(root: etree._Element) -> Iterator[etree._Element]:
    for device in root.iterfind("devices/*"):
        if device.tag in ("hostdev", "interface") and source_of(device) is not None:
            yield device


def _text(element: etree._Element | None) -> str:
    """An element as XML, without the names that a running guest's devices get."""
    if element is None:
        return "nowhere"
    copy = etree.fromstring(etree.tostring(element, with_tail=False))
    for alias in copy.findall("alias"):
        copy.remove(alias)
    for each in copy.iter():
        each.text = each.tail = (each.text or "").strip() or None
    return etree.tostring(copy, method="c14n2").decode()
