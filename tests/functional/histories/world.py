# SPDX-License-Identifier: Apache-2.0
"""Two nodes in which histories happen, and what Nova, Placement and libvirt say of them."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import Any, Final

import attrs
import sqlalchemy
from nova import context as nova_context
from nova import exception
from nova.db.main import api as main_db
from nova.virt.libvirt import event as libvirtevent
from placement import db_api as placement_db

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.histories.truth import Mortal, Truth
from tests.functional.lifecycle.domains import FaithfulDomains
from virt_driver_patches.domain import attach

HOSTS: Final = ("alpha", "beta")
#: Two GPUs and two virtual functions below one switch.
SHAPE: Final = fixtures.Shape((fixtures.Switch(gpus=2, pfs=1, vfs=2),))
FLAVORS: Final = {
    "pair": {"pci_passthrough:alias": "gpu:1,vf:1", "hpc:affinity": "switch"},
    "gpu": {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"},
    "stock": {"pci_passthrough:alias": "gpu:1"},
    "all": {"pci_passthrough:alias": "gpu:2,vf:2", "hpc:affinity": "switch"},
}
#: Seconds after which services that still do something are taken for hung: of their own CPU
#: time, since a busy machine lets them wait, and by the clock.
_PATIENCE: Final = (20.0, 1200.0)


class HistoryError(AssertionError):
    """What must never be has been; the text holds the seed and the history."""


@attrs.frozen
class Shown:
    """A server by Nova's database."""

    state: str
    task: str | None
    host: str | None

    def __str__(self) -> str:
        task = f" ({self.task})" if self.task else ""
        return f"{self.state}{task} on {self.host}"


@attrs.define
class Totals:
    """What has happened in some histories."""

    histories: int = 0
    operations: int = 0
    kills: int = 0
    by_name: dict[str, int] = attrs.field(factory=dict)
    steps: set[str] = attrs.field(factory=set)
    left_behind: int = 0
    released: int = 0
    lifted: int = 0
    #: Devices that were offered for one update longer than they should be, when a server
    #: was gone that Nova had freed after the node had looked.
    late: int = 0


class HistoryTest(DriverTest):
    """Two nodes in which histories happen, one after the other."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        # Nova's fixture formats every line, which takes longer than what is logged.
        logging.disable(logging.INFO)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.flags(running_deleted_instance_action="noop")
        # Every look tries a suspect device again.
        self.flags(suspect_retry=0.0, suspect_retry_most=0.0, group="hpc")
        self.flags(device_detach_timeout=1, device_detach_attempts=1, group="libvirt")
        self.useFixture(fixtures.fixtures.MonkeyPatch(f"{attach.__name__}._PAUSE", 0.0))
        self.no_libvirt: set[str] = set()
        self.down: set[str] = set()
        self.connections: dict[str, Any] = {}
        self.truth = self.useFixture(Truth(self._host_of))
        self.mortal = self.useFixture(Mortal(self._manager_of))
        self.guests = self.useFixture(FaithfulDomains(self._removed))
        self.useFixture(fixtures.Moves())
        for name in HOSTS:
            self.host(name, SHAPE)
            self._seize(name)
        self.flavors = {name: self.make_flavor(specs) for name, specs in FLAVORS.items()}
        self.totals = Totals()
        self.update_all()
        self.first = {name: self.providers_of(name) for name in HOSTS}

    # -- hosts -----------------------------------------------------------------------

    def _host_of(self, thing: Any) -> str | None:
        for name, tree in self.sysfs.items():
            if thing == tree.root or thing is self.connections.get(name):
                return name
        return None

    def _manager_of(self, root: Path) -> Any:
        name = self._host_of(root)
        return self.computes[name].manager if name in self.computes else None

    def _seize(self, name: str) -> None:
        """Remember the host's libvirt, and let it be away at times."""
        host = self.computes[name].driver._host
        connection = self.connections.setdefault(name, host.get_connection())

        def connect() -> Any:
            if name in self.no_libvirt:
                raise exception.HypervisorUnavailable(host=name)
            return connection

        host.get_connection = connect

    def restart(self, name: str) -> None:
        """nova-compute starts again, with the guests that there are."""
        tree = self.sysfs[name]
        self.flags(sysfs_root=str(tree.root), ledger_file=str(tree.root / "ledger"), group="hpc")
        self.no_libvirt.discard(name)
        if name in self.computes:
            compute = self.computes.pop(name)
            self.compute_rp_uuids.pop(name)
            getattr(compute.manager, "_in_progress_tasks", {}).clear()
            compute.stop()
        cell = self.host_mappings[name].cell_mapping.name
        self.start_compute(name, cell_name=cell, connection=self.connections[name])
        self._seize(name)
        self.down.discard(name)
        self.settle()

    def settle(self) -> None:
        """Wait until no service has anything to do."""
        ends = time.process_time() + _PATIENCE[0], time.monotonic() + _PATIENCE[1]
        while not self.mortal.idle(self.down):
            if time.process_time() > ends[0] or time.monotonic() > ends[1]:
                raise HistoryError("services do not come to rest")
            time.sleep(0.01)

    def update_all(self) -> None:
        """The periodic update of every host; Nova goes on when one fails."""
        for name in HOSTS:
            with contextlib.suppress(exception.HypervisorUnavailable):
                self.update(name)

    def _removed(self, connection: Any, server: str, alias: str) -> None:
        name = self._host_of(connection)
        if name in self.computes:
            self.computes[name].driver.emit_event(libvirtevent.DeviceRemovedEvent(server, alias))

    def known_domains(self, name: str) -> dict[str, Any]:
        """By UUID."""
        return {each.UUIDString(): each for each in self.connections[name]._vms.values()}

    def devices(self, name: str) -> list[str]:
        """What can be given, by address."""
        return [each.address for each in SHAPE.functions() if each.kind != "pf"]

    # Objects of Nova and answers of the API take many times longer than these queries.

    def nova_rows(self, cell: str, query: str) -> list[Any]:
        """Rows of the database of one of Nova's cells."""
        context = nova_context.get_admin_context()
        with nova_context.target_cell(context, self.cell_mappings[cell]) as target:
            engine = main_db.get_context_manager(target).writer.get_engine()
            with engine.connect() as connection:
                return list(connection.execute(sqlalchemy.text(query)))

    def servers(self) -> dict[str, Shown]:
        """What Nova has of servers, by UUID."""
        query = "SELECT uuid, vm_state, task_state, host FROM instances WHERE deleted = 0"
        return {
            server: Shown(state, task, host)
            for cell in self.cell_mappings
            for server, state, task, host in self.nova_rows(cell, query)
        }

    def _pci(self, name: str) -> list[Any]:
        return self.nova_rows(
            self.host_mappings[name].cell_mapping.name,
            "SELECT d.address, d.status, d.instance_uuid FROM pci_devices d "
            "JOIN compute_nodes n ON n.id = d.compute_node_id "
            f"WHERE d.deleted = 0 AND n.deleted = 0 AND n.host = '{name}'",
        )

    def tracked(self, name: str) -> dict[str, str]:
        """Address -> status of the devices that Nova tracks on a host."""
        return {address: status for address, status, _ in self._pci(name)}

    def taken(self, name: str) -> dict[str, str]:
        """Address -> server, by Nova's records."""
        return {
            address: server
            for address, status, server in self._pci(name)
            if status in ("claimed", "allocated")
        }

    def asked(self, query: str) -> list[Any]:
        """Rows of Placement's database."""
        engine = placement_db.placement_context_manager.writer.get_engine()
        with engine.connect() as connection:
            return list(connection.execute(sqlalchemy.text(query)))

    def providers_of(self, name: str) -> dict[str, str]:
        """Name -> UUID of the providers of a host's devices."""
        rows = self.asked("SELECT name, uuid FROM resource_providers")
        return {each: found for each, found in rows if each.startswith(f"{name}_")}

    def _inventories(self, name: str, field: str) -> dict[str, int]:
        rows = self.asked(
            f"SELECT p.name, i.{field} FROM resource_providers p "
            "LEFT JOIN inventories i ON i.resource_provider_id = p.id"
        )
        found: dict[str, int] = {}
        for provider, amount in rows:
            host, _, address = provider.partition("_")
            if host == name and address:
                found[address] = found.get(address, 0) + (amount or 0)
        return found

    def allocations(self) -> dict[str, list[str]]:
        """Consumer -> providers, of everything in Placement."""
        found: dict[str, list[str]] = {}
        for consumer, provider in self.asked(
            "SELECT DISTINCT a.consumer_id, p.name FROM allocations a "
            "JOIN resource_providers p ON p.id = a.resource_provider_id"
        ):
            found.setdefault(consumer, []).append(provider)
        return found
