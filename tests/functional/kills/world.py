# SPDX-License-Identifier: Apache-2.0
"""One life of the services: Nova's own stack on a world that is on the disk.

A world is a folder: Nova's and Placement's databases (SQLite, in WAL mode), the
node's sysfs and state files, and the domains of its hypervisor. A life is a
process that opens it; a life that is killed leaves it as it was.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import tempfile
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

import fixtures as fixtures_lib
from nova import context as nova_context
from nova import objects
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional import fixtures as placement_fixtures
from nova.tests.functional.api import client as api_client
from oslo_db.sqlalchemy import engines
from oslo_utils.fixture import uuidsentinel as uuids

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.driver_fixtures import FakeSysfs
from tests.functional.kills import vendor
from tests.functional.kills.agent import AGENT, install
from tests.functional.kills.faults import Faults
from tests.functional.kills.hypervisor import Hypervisor
from tests.functional.kills.life import LOG
from tests.functional.kills.service import Stages
from tests.functional.kills.vendor import Vendor

HOST = "alpha"
#: Seconds for which nova-compute may say nothing: longer than any run takes.
SILENCE = 30 * 24 * 3600
#: Two GPUs and two virtual functions below one switch.
SHAPE = fixtures.Shape((fixtures.Switch(gpus=2, pfs=1, vfs=2),))
#: What one server takes, and all there is.
ONE = {"pci_passthrough:alias": "gpu:1,vf:1", "hpc:affinity": "switch"}
ALL = {"pci_passthrough:alias": "gpu:2,vf:2", "hpc:affinity": "switch"}
FLAVORS = {"one": ONE, "all": ALL}

# Nova's package of fixtures has another module under this name.
database_fixtures = importlib.import_module("nova.tests.fixtures.nova")

# All lives are forked after this, and know the same names.
for _name in ("cell1", f"node_{HOST}", "machine_id"):
    getattr(uuids, _name)


class KeptSysfs(FakeSysfs):
    """A sysfs in the world's own folder."""

    def __init__(self, shape: fixtures.Shape, root: Path) -> None:
        super().__init__(shape)
        self.kept = root

    def _setUp(self) -> None:
        self.root = self.kept
        self.devices = self.root / "sys/bus/pci/devices"
        if self.devices.exists():
            return
        self.devices.mkdir(parents=True)
        self._cpus()
        for function in self.shape.functions():
            self._add(function)


class World(Faults, Stages, Vendor, DriverTest):
    """All services in this process; :meth:`live` serves orders from a pipe."""

    host_name = HOST
    folder: Path
    #: Whether nova-compute is started.
    with_compute: bool
    #: Whether GPUs have a stage between two servers.
    with_stage: bool
    #: Whether only a vendor's cleaner resets devices, and nova-compute is not root.
    with_vendor: bool
    orders: Any

    def setUp(self) -> None:
        self.first = not (self.folder / "db").exists()
        (self.folder / "db").mkdir(exist_ok=True)
        (self.folder / "tmp").mkdir(exist_ok=True)
        options: dict[str, Any] = {}
        if self.with_vendor:
            options = self._begin_vendor()
        tempfile.tempdir = str(self.folder / "tmp")
        # Nova's fixture formats every line, which takes longer than what is logged.
        logging.disable(logging.INFO)
        keeper = logging.FileHandler(self.folder / LOG)
        keeper.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        logging.getLogger().addHandler(keeper)
        self.hypervisor = Hypervisor(
            self.folder / "domains.json", self.folder / "node/sys/bus/pci/devices"
        )
        if self.with_vendor:
            self.hypervisor.reset_file = vendor.FILE
        self.hypervisor.install()
        self._keep_databases()
        # A service says that it lives five seconds after its start and later; most lives
        # here are shorter, so that after a minute of them nobody would believe it: no host
        # would be valid, and servers would be deleted without their node. API and scheduler
        # read it once, when they start.
        self.flags(service_down_time=SILENCE)
        super().setUp()
        instances = self.folder / "instances"
        instances.mkdir(exist_ok=True)
        self.flags(instances_path=str(instances))
        install()
        tree = self.useFixture(KeptSysfs(SHAPE, self.folder / "node"))
        self.sysfs[HOST] = tree
        self.flags(
            sysfs_root=str(tree.root),
            ledger_file=str(self.ledger_path(HOST)),
            group="hpc",
        )
        if self.with_vendor:
            self.flags(**options, group="hpc")
            vendor.install(self.ledger_path(HOST))
        if self.with_stage:
            staged = [each.address for each in SHAPE.functions() if each.kind == "gpu"]
            self.flags(**self.prepare_stage(staged, tree.root), group="hpc")
            self.hypervisor.service = self.service
        if self.with_compute:
            self.start_host(HOST, SHAPE)
            self.prepare()

    def _begin_vendor(self) -> dict[str, Any]:
        tree = KeptSysfs(SHAPE, self.folder / "node")
        tree.setUp()
        return self.begin_vendor(tree, {"clean_timeout": 60.0} if self.with_stage else {})

    def ledger_path(self, host: str) -> Path:
        """See :meth:`DriverTest.ledger_path`."""
        return self.vendor_ledger() if self.with_vendor else super().ledger_path(host)

    # -- the databases -----------------------------------------------------------

    def _keep_databases(self) -> None:
        """Let Nova's fixtures open the world's files, and fill only new ones."""
        plain = database_fixtures._use_file_backed_sqlite_with_wal

        def use(name: str) -> tuple[str, str]:
            url, path = plain(name)
            Path(path).unlink()
            kept = self.folder / "db" / f"{name.replace('/', '_')}.sqlite"
            return url.replace(path, str(kept)), str(kept)

        # Every new connection reads the whole schema, half of the work of a life.
        engines.pool.NullPool = engines.pool.QueuePool
        for module in (database_fixtures, placement_fixtures):
            module._use_file_backed_sqlite_with_wal = use
        if self.first:
            return
        database_fixtures.Database._apply_schema = lambda this: None
        database_fixtures.CellDatabases._cache_schema = lambda this, connection: None
        nova_fixtures.DefaultFlavorsFixture = fixtures_lib.Fixture

    def _setup_cells(self) -> None:
        if self.first:
            super()._setup_cells()
            return
        databases = nova_fixtures.CellDatabases()
        context = nova_context.get_admin_context()
        for cell in objects.CellMappingList.get_all(context):
            self.cell_mappings[cell.name] = cell
            databases.add_cell_database(
                cell.database_connection, default=cell.database_connection == uuids.cell1
            )
        for mapping in objects.HostMappingList.get_all(context):
            self.host_mappings[mapping.host] = mapping
        self.useFixture(databases)

    # -- orders ------------------------------------------------------------------

    def live(self) -> None:
        """Do what the other end of the pipe says, until it is closed."""
        self.orders.send(("ok", None))
        while True:
            try:
                word, *arguments = self.orders.recv()
            except EOFError:
                return
            try:
                answer: tuple[str, Any] = ("ok", getattr(self, f"do_{word}")(*arguments))
            except Exception:
                answer = ("failed", traceback.format_exc())
            self.orders.send(answer)
            print(word, answer[0], f"{time.process_time():.1f} s of CPU", flush=True)

    def do_arm(self, environ: dict[str, str]) -> None:
        """Whatever is ordered from now on is counted."""
        os.environ.update(environ)
        AGENT.arm()

    def do_disarm(self) -> bool:
        """Nothing is counted any more; whether the step of the fault was reached."""
        AGENT.disarm()
        return AGENT.struck

    def do_flavors(self) -> dict[str, str]:
        """Make the flavors."""
        return {name: self.make_flavor(specs) for name, specs in FLAVORS.items()}

    def do_create(self, flavor: str) -> tuple[str, str, str]:
        """Create a server; its id, its status and its fault."""
        body = self._build_server(flavor_id=flavor, networks="none")
        server = self.api.post_server({"server": body})
        while server.get("status") not in ("ACTIVE", "ERROR"):
            # Without asking the API all the time, which would be most of the work.
            time.sleep(0.1)
            if not AGENT.busy:
                server = self.api.get_server(server["id"])
        while AGENT.busy:
            time.sleep(0.1)
        fault = server.get("fault", {}).get("message", "")
        return server["id"], server.get("status", ""), fault

    def do_delete(self, server: str) -> bool:
        """What a user does; whether it is gone after a while."""
        try:
            self.api.delete_server(server)
            for _ in range(300):
                task = self.admin_api.get_server(server)["OS-EXT-STS:task_state"]
                if not AGENT.busy and task is None:
                    break  # it has failed
                time.sleep(0.1)
        except api_client.OpenStackApiNotFoundException:
            return True
        except api_client.OpenStackApiException:
            pass  # a cast is a call here: it has failed
        return False

    def do_servers(self) -> dict[str, str]:
        """Id -> status of every server that the API shows."""
        return {each["id"]: each["status"] for each in self.admin_api.get_servers()}

    def do_update(self) -> None:
        """The periodic update."""
        self.update(HOST)

    def do_facts(self) -> dict[str, Any]:
        """Everything that must be as it was; see :mod:`tests.functional.kills.verdict`."""
        file = self.ledger_path(HOST)
        self.hypervisor.look()
        body = self.hypervisor.read()
        ledger = self.ledger(HOST)
        return {
            "tracked": self.tracked(HOST),
            "inventory": self.given_by_placement(HOST),
            "allocations": self._allocations(),
            "problems": list(ledger.problems),
            "files": {"ledger": _is_json(file)} if file.exists() else {},
            "marked": ledger.marked,
            "unreported": sorted(e for e, known in ledger.devices.items() if known.unreported),
            "quarantine": ledger.quarantined,
            "domains": {
                uuid: {key: domain[key] for key in ("running", "devices")}
                for uuid, domain in body["domains"].items()
            },
            "violations": body["violations"] + (self.service.seen() if self.with_stage else []),
            "dirty": self.hypervisor.dirty(),
            "uncleaned": self.hypervisor.uncleaned(),
            "withheld": dict(self.stats_of(HOST).withheld),
            "notes": list(self.stats_of(HOST).notes),
        }

    def _allocations(self) -> dict[str, list[str]]:
        """Provider -> its consumers."""
        found = {}
        providers = self.placement.get("/resource_providers", version="1.14").body
        for provider in providers["resource_providers"]:
            url = f"/resource_providers/{provider['uuid']}/allocations"
            consumers = sorted(self.placement.get(url).body["allocations"])
            if consumers:
                found[provider["name"]] = consumers
        return found


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True


def serve(folder: Path, orders: Any, compute: bool, stage: bool, with_vendor: bool) -> None:
    """Main function of the process of one life."""
    World.folder, World.orders = folder, orders
    World.with_compute, World.with_stage, World.with_vendor = compute, stage, with_vendor
    result = unittest.TestResult()
    World("live").run(result)
    for _, text in [*result.errors, *result.failures]:
        orders.send(("failed", text))
