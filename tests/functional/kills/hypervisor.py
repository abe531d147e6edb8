# SPDX-License-Identifier: Apache-2.0
"""Nova's fake libvirt, with domains that outlive nova-compute as real ones do.

They are kept in one file, which stands for libvirtd and QEMU. It also notes
what must never be: a device in two running domains, a device that starts in a
domain with the traces of another server, and one that is reset in a running domain.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

if TYPE_CHECKING:
    from tests.functional.kills.service import ServiceVms


class Hypervisor:
    """The domains of one host, on the disk."""

    def __init__(self, path: Path, devices: Path) -> None:
        """Keep the domains at *path*; *devices* is ``sys/bus/pci/devices`` of the host."""
        self.path = path
        self.devices = devices
        #: The file of a device that is not empty when it was reset since its last start.
        self.reset_file = "reset"
        #: Where some devices have a stage between two servers.
        self.service: ServiceVms | None = None

    def read(self) -> dict[str, Any]:
        """Domains by UUID, traces by address, and what should not have been."""
        if not self.path.exists():
            return {"domains": {}, "traces": {}, "violations": []}
        found: dict[str, Any] = json.loads(self.path.read_text())
        return found

    @contextlib.contextmanager
    def _change(self) -> Iterator[dict[str, Any]]:
        body = self.read()
        yield body
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(body))
        beside.replace(self.path)

    def dirty(self) -> dict[str, str]:
        """Devices with a server's traces that no running domain has."""
        body = self.read()
        busy = self._busy(body)
        return {
            address: server
            for address, server in body["traces"].items()
            if address not in busy and not self.was_reset(address)
        }

    def uncleaned(self) -> dict[str, str]:
        """Devices with a server's data in their memory that no running domain has."""
        if self.service is None:
            return {}
        busy = self._busy(self.read())
        memory = self.service.memory()
        return {address: server for address, server in memory.items() if address not in busy}

    def _busy(self, body: dict[str, Any]) -> set[str]:
        return {
            each
            for domain in body["domains"].values()
            if domain["running"]
            for each in domain["devices"]
        }

    def was_reset(self, address: str) -> bool:
        """Since its last domain was started."""
        return (self.devices / address / self.reset_file).read_text().strip() != ""

    # -- what happens to domains ---------------------------------------------

    def defined(self, uuid: str, name: str, xml: str) -> None:
        with self._change() as body:
            before = body["domains"].get(uuid, {})
            body["domains"][uuid] = {
                "name": name,
                "xml": xml,
                "running": before.get("running", False),
                "devices": devices_of(xml),
            }

    def started(self, uuid: str) -> None:
        with self._change() as body:
            domains = body["domains"]
            domains[uuid]["running"] = True
            if self.service is not None:
                body["violations"] += self.service.started(uuid, domains[uuid]["devices"])
            for address in domains[uuid]["devices"]:
                for other, domain in domains.items():
                    if other != uuid and domain["running"] and address in domain["devices"]:
                        body["violations"].append(f"{address} is in two domains")
                traces = body["traces"].get(address, uuid)
                if traces != uuid and not self.was_reset(address):
                    body["violations"].append(f"{address} was given with another's traces")
                body["traces"][address] = uuid
                (self.devices / address / self.reset_file).write_text("")

    def used(self, uuid: str) -> None:
        """The guest begins to use its devices anew, as after a reset of its own."""
        with self._change() as body:
            domain = body["domains"].get(uuid)
            if domain is not None and domain["running"]:
                self._look(body, domain)
                if self.service is not None:
                    self.service.wrote(uuid, domain["devices"])
                for address in domain["devices"]:
                    body["traces"][address] = uuid
                    (self.devices / address / self.reset_file).write_text("")

    def stopped(self, uuid: str) -> None:
        with self._change() as body:
            domain = body["domains"].get(uuid)
            if domain is not None and domain["running"]:
                self._look(body, domain)
                domain["running"] = False

    def _look(self, body: dict[str, Any], domain: dict[str, Any]) -> None:
        """Note the devices of a running domain that were reset; its start has forgotten."""
        for address in domain["devices"]:
            text = f"{address} was reset while a domain had it"
            if self.was_reset(address) and text not in body["violations"]:
                body["violations"].append(text)

    def look(self) -> None:
        """Note what must not be of the domains that run now."""
        with self._change() as body:
            for domain in body["domains"].values():
                if domain["running"]:
                    self._look(body, domain)

    def undefined(self, uuid: str) -> None:
        with self._change() as body:
            body["domains"].pop(uuid, None)

    # -- Nova's fake ---------------------------------------------------------

    def attach(self, connection: fakelibvirt.Connection) -> None:
        """Let a new connection find the domains that are there."""
        for body in self.read()["domains"].values():
            domain = fakelibvirt.Domain(connection=connection, xml=body["xml"])
            connection._vms[domain.name()] = domain
            if body["running"]:
                domain._state = fakelibvirt.VIR_DOMAIN_RUNNING
                connection._running_vms[connection._id_counter] = domain
                connection._id_counter += 1

    def install(self) -> None:
        """Write down what any connection does."""
        connection, keeper = fakelibvirt.Connection, self
        plain = {
            name: getattr(connection, name)
            for name in ("__init__", "defineXML", "_mark_running", "_mark_not_running", "_undefine")
        }

        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            plain["__init__"](this, *args, **kwargs)
            keeper.attach(this)

        def define(this: Any, xml: Any) -> Any:
            domain = plain["defineXML"](this, xml)
            text = xml if isinstance(xml, str) else xml.decode()
            keeper.defined(domain.UUIDString(), domain.name(), text)
            return domain

        def start(this: Any, domain: Any) -> None:
            keeper.started(domain.UUIDString())
            plain["_mark_running"](this, domain)

        def stop(this: Any, domain: Any) -> None:
            keeper.stopped(domain.UUIDString())
            plain["_mark_not_running"](this, domain)

        def undefine(this: Any, domain: Any) -> None:
            keeper.undefined(domain.UUIDString())
            plain["_undefine"](this, domain)

        connection.__init__ = init
        connection.defineXML = define
        connection._mark_running = start
        connection._mark_not_running = stop
        connection._undefine = undefine


def devices_of(xml: str) -> list[str]:
    """Addresses of the passed-through functions of a domain."""
    found = []
    for source in etree.fromstring(xml.encode()).iterfind("devices/hostdev/source/address"):
        parts = [int(source.get(key, "0"), 16) for key in ("domain", "bus", "slot", "function")]
        found.append("{:04x}:{:02x}:{:02x}.{:x}".format(*parts))
    return sorted(found)
