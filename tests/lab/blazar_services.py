# SPDX-License-Identifier: Apache-2.0
"""Blazar beside the lab's cloud: its API, its manager with our plug-in, and its filter.

The scheduler starts again with the filter that Blazar's guide asks for. Blazar has an environment
of its own, as an operator's has.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests

from nova_hpc_lab import bootstrap, config, services
from nova_hpc_lab.process import Process, environment
from nova_hpc_lab.state import Paths, Settings
from tests.lab import environments

#: The aggregate of Nova in which Blazar keeps the hosts that no lease has.
FREEPOOL = "freepool"
_SERVE = (
    "import importlib, sys, waitress; "
    "waitress.serve(importlib.import_module(sys.argv[1]).application, "
    "host='127.0.0.1', port=int(sys.argv[2]))"
)


class BlazarServices:
    """Blazar of one lab, and the commands that its users type."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self.paths = Paths.from_environment(lab.environ)
        self.settings: Settings = lab.settings
        self.python = environments.python(
            "blazar",
            *("-r", "tests/blazar/requirements.txt", "python-openstackclient", "waitress"),
            *("pymysql", "-e", "./nova_hpc_common", "-e", ".", "-e", "./extras/nova_hpc_blazar"),
        )
        # The filter alone: Nova's own environment stays as it is.
        self._filter = self.python.parents[1] / "filter"
        if not self._filter.exists():
            pip = (self.python, "-m", "pip", "install", "-q", "--no-deps", "--target")
            subprocess.run([*pip, self._filter, "blazar-nova"], check=True)
        self._folder = self.paths.config / "blazar"
        self._file = self._folder / "blazar.conf"
        with socket.create_server((config.LOOPBACK, 0)) as free:
            self.port = free.getsockname()[1]
        self._processes = {name: Process(name, self.paths) for name in ("blazar-api", "blazar")}
        self._scheduler = services.control_plane(self.paths, self.settings)["nova-scheduler"]

    def start(self) -> None:
        """Set Blazar up as the page and its guide describe, and start it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file.write_text(config.render(self._options()))
        with services.connect(self.settings) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS blazar")
        self._run("blazar-db-manage", "--config-file", self._file, "upgrade", "head")
        self._enter_catalog()
        pool = self.lab.client("aggregate", "create", FREEPOOL)
        assert pool.returncode == 0, pool.stderr
        manager = (self.python.with_name("blazar-manager"), "--config-file", self._file)
        self._processes["blazar"].spawn([str(word) for word in (self.python, *manager)])
        self._processes["blazar-api"].spawn(
            [str(self.python), "-c", _SERVE, "blazar.wsgi.api", str(self.port)],
            {"OS_BLAZAR_CONFIG_DIR": str(self._folder)},
        )
        self.lab.until(self._answers, f"Blazar answers\n{self.tail()}", 120)
        self._filter_hosts()

    def stop(self) -> None:
        """End Blazar, and start the scheduler as it was."""
        for process in self._processes.values():
            process.stop()
        identity = bootstrap.connect(self.settings).identity
        for service in identity.services(type="reservation"):
            identity.delete_service(service)
        self._scheduler.process.stop()
        self.lab.up("--nodes", str(self.settings.nodes), "--shape", str(self.settings.shape))

    def tail(self) -> str:
        """Return the ends of Blazar's logs."""
        return "\n".join(process.tail(40) for process in self._processes.values())

    def reservation(self, environ: Mapping[str, str], *words: str) -> Any:
        """Run ``openstack reservation``, and return its JSON."""
        done = self.type_reservation(environ, *words, "-f", "json")
        assert done.returncode == 0, f"{done.stderr}\n{self.tail()}"
        return json.loads(done.stdout[done.stdout.index("{") :])

    def type_reservation(
        self, environ: Mapping[str, str], *words: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``openstack reservation``, however it ends."""
        done = subprocess.run(
            [self.python.with_name("openstack"), "reservation", *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        # What the client prints has hundreds of lines about each host and event.
        said = done.stderr if done.returncode else "done"
        print(f"$ openstack reservation {' '.join(words)}\n{said}", flush=True)
        return done

    def _options(self) -> config.Sections:
        client = config._client(self.settings)
        return {
            "DEFAULT": {
                "host": config.LOOPBACK,
                "transport_url": config.transport_url(self.settings),
                "os_auth_host": config.LOOPBACK,
                "os_auth_port": self.settings.ports["identity"],
                "os_admin_username": "admin",
                "os_admin_password": self.settings.passwords["admin"],
                "os_admin_project_name": "admin",
                "os_region_name": config.REGION,
            },
            "database": {"connection": config.database_url(self.settings, "blazar")},
            "keystone_authtoken": client | {"interface": "public"},
            "manager": {"plugins": "physical.host.plugin,hpc.cluster"},
            "pci": {"alias": [json.dumps(alias) for alias in config.ALIASES]},
        }

    def _run(self, program: str, *words: Path | str) -> None:
        argv = [self.python, self.python.with_name(program), *words]
        done = subprocess.run(
            argv, env=environment(self.paths), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _enter_catalog(self) -> None:
        identity = bootstrap.connect(self.settings).identity
        service = identity.create_service(type="reservation", name="blazar")
        for interface in ("public", "internal", "admin"):
            identity.create_endpoint(
                service_id=service.id,
                interface=interface,
                url=f"http://{config.LOOPBACK}:{self.port}/v1",
                region_id=config.REGION,
            )

    def _answers(self) -> bool:
        with requests.Session() as session:
            session.trust_env = False
            try:
                # Without a token, it refuses.
                answer = session.get(f"http://{config.LOOPBACK}:{self.port}/v1/leases", timeout=20)
            except requests.RequestException:
                return False
        services.probe_consumed(self.settings, "blazar.manager")
        return answer.status_code == 401

    def _filter_hosts(self) -> None:
        """Start the scheduler again, with Blazar's filter and the one that keeps its promise."""
        nova = self.paths.config / "nova" / "nova.conf"
        (line,) = [
            each for each in nova.read_text().splitlines() if each.startswith("enabled_filters")
        ]
        own = "AggregateInstanceExtraSpecsFilter,BlazarFilter"
        filters = line.split("=", 1)[1].strip()
        more = {
            "available_filters": [
                "nova.scheduler.filters.all_filters",
                "blazarnova.scheduler.filters.blazar_filter.BlazarFilter",
                *config.plugin.FILTER_CLASSES,
            ],
            # Ours stay last.
            "enabled_filters": f"{own},{filters}",
        }
        path = self._folder / "scheduler.conf"
        path.write_text(config.render({"filter_scheduler": more}))
        self._scheduler.process.stop()
        self._scheduler.process.spawn(
            [*self._scheduler.argv, "--config-file", str(path)],
            {"PYTHONPATH": os.pathsep.join([str(self._filter)])},
        )
        self.lab.until(lambda: not self._scheduler.trouble(), "the scheduler works", 120)
