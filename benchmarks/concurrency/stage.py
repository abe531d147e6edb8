# SPDX-License-Identifier: Apache-2.0
"""The stage of a race: a private MariaDB and a real Placement on this machine.

Both have their files below a temporary folder, and end with the context. The process
that uses this module never imports Nova.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pymysql

from nova_hpc_tools.site import settings as plugin

_DATABASES = ("placement", "nova_api", "nova", "nova_cell0")
#: One try in Placement; Nova itself starts again after a conflict. Placement repeats
#: inside the same transaction. The repetition has the new generation of the provider
#: but, on MariaDB and MySQL with their default isolation, the usage from before the
#: conflict. So two servers may both get the last device.
TRIES = 1
_START_LIMIT = 300.0
#: Debian has the server's programs in folders that an ordinary user's PATH lacks.
_SEARCH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
_LOOPBACK = "127.0.0.1"


@attrs.frozen
class Stage:
    """A running MariaDB and Placement."""

    folder: Path
    port: int

    @property
    def logs(self) -> Path:
        """Folder of the logs of every process."""
        return self.folder / "log"

    @property
    def nova_conf(self) -> Path:
        """The configuration of every process of Nova."""
        return self.folder / "nova.conf"

    @property
    def placement_conf(self) -> Path:
        """The folder of Placement's configuration."""
        return self.folder / "placement"

    @property
    def placement_url(self) -> str:
        return f"http://{_LOOPBACK}:{self.port}"

    @property
    def socket(self) -> Path:
        """The socket of MariaDB, which has no port."""
        return self.folder / "mariadb.sock"

    def database_url(self, name: str) -> str:
        return f"mysql+pymysql://root@localhost/{name}?unix_socket={self.socket}&charset=utf8"

    def most_claimed(self) -> int:
        """The highest use of any single GPU, from Placement's own tables."""
        query = (
            "SELECT COALESCE(MAX(total), 0) FROM (SELECT SUM(a.used) AS total FROM allocations a"
            " JOIN resource_classes c ON c.id = a.resource_class_id"
            " WHERE c.name = 'CUSTOM_HPC_GPU' GROUP BY a.resource_provider_id) AS used"
        )
        return self._number(query)

    def claimed(self) -> int:
        """The number of allocated GPUs."""
        query = (
            "SELECT COALESCE(SUM(a.used), 0) FROM allocations a"
            " JOIN resource_classes c ON c.id = a.resource_class_id"
            " WHERE c.name = 'CUSTOM_HPC_GPU'"
        )
        return self._number(query)

    def unused(self, resource_class: str) -> frozenset[str]:
        """Names of the providers that have units of the class left."""
        query = (
            "SELECT p.name FROM inventories i"
            " JOIN resource_providers p ON p.id = i.resource_provider_id"
            " JOIN resource_classes c ON c.id = i.resource_class_id"
            " LEFT JOIN allocations a ON a.resource_provider_id = i.resource_provider_id"
            " AND a.resource_class_id = i.resource_class_id WHERE c.name = %s"
            " GROUP BY i.id HAVING MAX(i.total - i.reserved) > COALESCE(SUM(a.used), 0)"
        )
        return frozenset(name for (name,) in self._rows("placement", query, resource_class))

    def down(self) -> frozenset[str]:
        """Hosts that are forced down."""
        query = (
            "SELECT host FROM services WHERE `binary` = 'nova-compute' AND forced_down"
            " AND deleted = 0"
        )
        return frozenset(host for (host,) in self._rows("nova", query))

    def _number(self, query: str) -> int:
        return int(self._rows("placement", query)[0][0])

    def _rows(self, database: str, query: str, *values: str) -> Sequence[tuple[Any, ...]]:
        with (
            contextlib.closing(self.connect(database)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query, values)
            found: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return found

    def connect(self, database: str | None = None) -> pymysql.Connection:
        return pymysql.connect(
            unix_socket=str(self.socket), user="root", database=database, autocommit=True
        )

    def run(self, name: str, *argv: str) -> None:
        """Run a program to its end; its output goes to the log *name*."""
        log = self.logs / f"{name}.log"
        with log.open("ab") as stream:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
        if done.returncode:
            raise RuntimeError(f"{argv[:4]} ended with {done.returncode}:\n{_tail(log)}")

    @contextlib.contextmanager
    def server(
        self,
        name: str,
        argv: tuple[str, ...],
        answers: Callable[[], object],
        environ: Mapping[str, str] | None = None,
    ) -> Iterator[None]:
        """Run a server for as long as the context lasts.

        :param answers: raises an exception while the server does not take requests.
        """
        log = self.logs / f"{name}.log"
        with log.open("ab") as stream:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env={**os.environ, **(environ or {})},
                # Ctrl-C must reach only the race, which ends its servers last.
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + _START_LIMIT
            while not _works(answers):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{name} does not answer:\n{_tail(log)}")
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def stage(tries: int = TRIES, candidates: int = plugin.FEWEST_CANDIDATES) -> Iterator[Stage]:
    """Start MariaDB and Placement, with empty schemas of Placement and Nova.

    :param tries: Placement's ``allocation_conflict_retry_count``.
    :param candidates: its ``max_allocation_candidates``.
    """
    # A short name, because paths of unix sockets have a limit.
    with tempfile.TemporaryDirectory(prefix="nhc") as folder:
        made = Stage(Path(folder), _free_port())
        made.logs.mkdir()
        _configure(made, tries, candidates)
        with _mariadb(made):
            _schemas(made)
            with _placement(made, made.placement_conf, made.port):
                yield made


@contextlib.contextmanager
def as_installed(made: Stage, memory: int) -> Iterator[str]:
    """Run one more Placement on the same database, with Placement's own defaults; yield its URL.

    :param memory: its limit of memory in bytes; above it, Placement answers with an error.
    """
    folder, port = made.folder / "placement-installed", _free_port()
    _write(folder / "placement.conf", _necessary(made))
    with _placement(made, folder, port, ("prlimit", f"--as={memory}")):
        yield f"http://{_LOOPBACK}:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _works(answers: Callable[[], object]) -> bool:
    try:
        answers()
    except (OSError, pymysql.Error):
        return False
    return True


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-12:])


def _program(name: str) -> str:
    found = shutil.which(name, path=_SEARCH)
    if found is None:
        raise RuntimeError(f"{name} is not installed: apt-get install mariadb-server")
    return found


def _script(name: str) -> tuple[str, str]:
    """A console script of this process's own environment."""
    return sys.executable, str(Path(sys.prefix, "bin", name))


def _mariadb(made: Stage) -> contextlib.AbstractContextManager[None]:
    user = getpass.getuser()
    data = f"--datadir={made.folder / 'mariadb'}"
    made.run(
        "mariadb-install",
        *(_program("mariadb-install-db"), "--no-defaults", f"--user={user}", data),
        "--auth-root-authentication-method=socket",
        *(f"--auth-root-socket-user={user}", "--skip-test-db"),
    )
    return mariadb(made)


def mariadb(made: Stage) -> contextlib.AbstractContextManager[None]:
    """Run MariaDB's server on the existing data, also after it was killed."""
    user = getpass.getuser()
    data = f"--datadir={made.folder / 'mariadb'}"
    argv = (
        *(_program("mariadbd"), "--no-defaults", f"--user={user}", data),
        *(f"--socket={made.socket}", f"--pid-file={made.folder / 'mariadb.pid'}"),
        *("--skip-networking", "--skip-log-bin", "--max-connections=400"),
        # The tables of 10,000 hosts fit in memory, as on a controller; the default is 128 MB.
        "--innodb-buffer-pool-size=1G",
        # Committed data survive a killed server, but not a power failure.
        *("--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync", "--skip-sync-frm"),
        *("--character-set-server=utf8mb3", "--collation-server=utf8mb3_general_ci"),
    )
    return made.server("mariadb", argv, lambda: made.connect().close())


def _placement(
    made: Stage, folder: Path, port: int, before: tuple[str, ...] = ()
) -> contextlib.AbstractContextManager[None]:
    argv = (
        *(*before, sys.executable, "-m", "waitress", f"--listen={_LOOPBACK}:{port}"),
        *("--threads=8", "--connection-limit=400", "placement.wsgi.api:application"),
    )
    # The proxies of the environment do not lead to the loopback.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return made.server(
        folder.name,
        argv,
        lambda: direct.open(f"http://{_LOOPBACK}:{port}", timeout=20).close(),
        {"OS_PLACEMENT_CONFIG_DIR": str(folder)},
    )


def _write(path: Path, sections: Mapping[str, Mapping[str, object]]) -> None:
    lines = []
    for section, options in sections.items():
        lines += [f"[{section}]", *(f"{name} = {value}" for name, value in options.items())]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def _necessary(made: Stage) -> dict[str, Mapping[str, object]]:
    """The options without a default in Placement."""
    return {
        "api": {"auth_strategy": "noauth2"},
        "placement_database": {"connection": made.database_url("placement")},
    }


def _configure(made: Stage, tries: int, candidates: int) -> None:
    placement = _necessary(made) | {
        "placement": {
            "allocation_candidates_generation_strategy": "breadth-first",
            "max_allocation_candidates": candidates,
            "allocation_conflict_retry_count": tries,
        },
        "workarounds": {"optimize_for_wide_provider_trees": True},
    }
    _write(made.placement_conf / "placement.conf", placement)
    nova = {
        "DEFAULT": {
            "transport_url": "fake:/",
            "state_path": made.folder / "nova",
            # No service sends heartbeats here.
            "service_down_time": 86400,
        },
        "api_database": {"connection": made.database_url("nova_api")},
        "database": {"connection": made.database_url("nova")},
        "placement": {
            # Placement's noauth2 accepts this as an administrator.
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
            "alias": '{"name": "gpu", "resource_class": "CUSTOM_HPC_GPU"}',
            "report_in_placement": True,
        },
        "oslo_concurrency": {"lock_path": made.folder / "lock"},
    }
    _write(made.nova_conf, nova)


def _schemas(made: Stage) -> None:
    with contextlib.closing(made.connect()) as connection, connection.cursor() as cursor:
        for name in _DATABASES:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb3")
    made.run(
        "placement-sync",
        *(*_script("placement-manage"), "--config-dir", str(made.placement_conf), "db", "sync"),
    )
    module = "benchmarks.concurrency.schemas"
    made.run("nova-sync", sys.executable, "-W", "ignore", "-m", module, str(made.nova_conf))
    # cell0 has the tables of any cell, without rows.
    with contextlib.closing(made.connect("nova")) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for (table,) in cursor.fetchall():
            cursor.execute(f"CREATE TABLE nova_cell0.{table} LIKE nova.{table}")
