"""The stage of a race: a private MariaDB and a real Placement on the loopback.

Both are started as the lab starts them, below a temporary folder, and end with
the context. The process that uses this module never imports Nova.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs
import pymysql

from nova_hpc.tracker import settings as plugin
from nova_hpc_lab import config, ini, probes
from nova_hpc_lab.database import prepare_server
from nova_hpc_lab.paths import Paths
from nova_hpc_lab.process import Process, Tools
from nova_hpc_lab.services import Service, mariadb_argv, script
from nova_hpc_lab.state import Settings, write

_DATABASES = ("placement", "nova_api", "nova", "nova_cell0")
#: One try, and Nova itself begins anew after a conflict. Placement tries again
#: inside the same transaction, with a fresh generation of the provider but, on
#: MariaDB and MySQL with their default isolation, with the usage as it was
#: before the conflict: so two servers may both get the last device.
TRIES = 1
_RANGE = range(29100, 32000, 10)


@attrs.frozen
class Stage:
    """A running MariaDB and Placement."""

    paths: Paths
    settings: Settings

    @property
    def nova_conf(self) -> Path:
        """The configuration of every process of Nova."""
        return self.paths.config / "nova.conf"

    @property
    def placement_url(self) -> str:
        return config.endpoint(self.settings, "placement")

    def database_url(self, name: str) -> str:
        return config.database_url(self.settings, name)

    def most_claimed(self) -> int:
        """The highest use of any single GPU, from Placement's own tables."""
        query = (
            "SELECT COALESCE(MAX(total), 0) FROM (SELECT SUM(a.used) AS total FROM allocations a"
            " JOIN resource_classes c ON c.id = a.resource_class_id"
            " WHERE c.name = 'CUSTOM_HPC_GPU' GROUP BY a.resource_provider_id) AS used"
        )
        return self._number(query)

    def claimed(self) -> int:
        """How many GPUs are allocated."""
        query = (
            "SELECT COALESCE(SUM(a.used), 0) FROM allocations a"
            " JOIN resource_classes c ON c.id = a.resource_class_id"
            " WHERE c.name = 'CUSTOM_HPC_GPU'"
        )
        return self._number(query)

    def _number(self, query: str) -> int:
        with (
            contextlib.closing(self.connect("placement")) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query)
            return int(cursor.fetchone()[0])

    def connect(self, database: str | None = None) -> pymysql.Connection:
        return probes.connect(self.settings, database)


@contextlib.contextmanager
def stage(tries: int = TRIES) -> Iterator[Stage]:
    """Start MariaDB and Placement, with empty schemas of Placement and Nova.

    :param tries: Placement's ``allocation_conflict_retry_count``.
    """
    # Short, as unix sockets need it.
    with tempfile.TemporaryDirectory(prefix="nhc") as folder:
        top = Path(folder)
        paths = Paths(state=top / "s", cache=top / "c", venv=Path(sys.prefix))
        paths.make()
        settings = Settings.fresh(_free_base(), nodes=0, shape="")
        made = Stage(paths, settings)
        tools = Tools(paths)
        prepare_server(paths, settings, tools)
        _configure(made, tries)
        services = [_mariadb(made), _placement(made)]
        try:
            services[0].start(tools.aborted)
            _schemas(made, tools)
            services[1].start(tools.aborted)
            yield made
        finally:
            tools.abort()
            for service in reversed(services):
                service.process.stop()


def _free_base() -> int:
    """A base port whose ports of MariaDB and Placement nobody uses."""
    for base in _RANGE:
        ports = Settings.fresh(base, nodes=0, shape="").ports
        with contextlib.ExitStack() as stack:
            try:
                for name in ("placement", "database"):
                    probe = stack.enter_context(socket.socket())
                    probe.bind((config.LOOPBACK, ports[name]))
            except OSError:
                continue
            return base
    raise RuntimeError(f"no two free ports between {_RANGE.start} and {_RANGE.stop}")


def _mariadb(made: Stage) -> Service:
    return Service(
        name="mariadb",
        title="MariaDB",
        process=Process("mariadb", made.paths),
        argv=mariadb_argv(made.paths, made.settings),
        environ={},
        probe=lambda: probes.database(made.settings),
        port=made.settings.ports["database"],
    )


def _placement(made: Stage) -> Service:
    port = made.settings.ports["placement"]
    return Service(
        name="placement",
        title="Placement",
        process=Process("placement", made.paths),
        argv=(sys.executable, "-m", "nova_hpc_lab.serve", "placement.wsgi.api", str(port)),
        environ={"OS_PLACEMENT_CONFIG_DIR": str(made.paths.config / "placement")},
        probe=lambda: probes.http(port),
        port=port,
    )


def _configure(made: Stage, tries: int) -> None:
    placement = {
        "api": {"auth_strategy": "noauth2"},
        "placement_database": {"connection": made.database_url("placement")},
        "placement": {
            "allocation_candidates_generation_strategy": "breadth-first",
            "max_allocation_candidates": plugin.FEWEST_CANDIDATES,
            "allocation_conflict_retry_count": tries,
        },
        "workarounds": {"optimize_for_wide_provider_trees": True},
    }
    write(made.paths.config / "placement" / "placement.conf", ini.render(placement), mode=0o600)
    nova = {
        "DEFAULT": {
            "transport_url": "fake:/",
            "state_path": made.paths.data,
            # No service sends heartbeats here.
            "service_down_time": 86400,
        },
        "api_database": {"connection": made.database_url("nova_api")},
        "database": {"connection": made.database_url("nova")},
        "placement": {
            # What Placement's noauth2 takes for an administrator.
            "auth_type": "admin_token",
            "endpoint": made.placement_url,
            "endpoint_override": made.placement_url,
            "token": "admin",
        },
        "scheduler": {"max_placement_results": plugin.FEWEST_CANDIDATES},
        "filter_scheduler": {
            "pci_in_placement": True,
            # There are no messages between computes and schedulers here.
            "track_instance_changes": False,
        },
        "workarounds": {"disable_fallback_pcpu_query": True},
        "pci": {
            "alias": ['{"name": "gpu", "resource_class": "CUSTOM_HPC_GPU"}'],
            "report_in_placement": True,
        },
        "oslo_concurrency": {"lock_path": made.paths.run / "lock"},
    }
    write(made.nova_conf, ini.render(nova), mode=0o600)


def _schemas(made: Stage, tools: Tools) -> None:
    with contextlib.closing(made.connect()) as connection, connection.cursor() as cursor:
        for name in _DATABASES:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb3")
    folder = str(made.paths.config / "placement")
    placement = [*script(made.paths, "placement-manage"), "--config-dir", folder, "db", "sync"]
    tools.run("placement-sync", placement)
    for words in (("api_db", "sync"), ("db", "sync", "--local_cell")):
        argv = [*script(made.paths, "nova-manage"), "--config-file", str(made.nova_conf), *words]
        tools.run(f"nova-{words[0]}", argv)
    # cell0 has the tables of any cell, and nothing in them.
    with contextlib.closing(made.connect("nova")) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for (table,) in cursor.fetchall():
            cursor.execute(f"CREATE TABLE nova_cell0.{table} LIKE nova.{table}")
