# SPDX-License-Identifier: Apache-2.0
"""Makes the data of the lab's databases and message broker, completely or not at all."""

from __future__ import annotations

import getpass
import shutil
from collections.abc import Callable
from typing import Final

from nova_hpc_lab import config
from nova_hpc_lab.process import Tools
from nova_hpc_lab.services import connect, program, script
from nova_hpc_lab.state import Paths, Settings, write

#: Queries for the names of complete schemas. They are stored in the database server itself, so
#: that they never contradict its content.
_IS_MADE: Final = "SELECT 1 FROM lab_ledger WHERE name = %s"
_MADE: Final = "REPLACE INTO lab_ledger (name) VALUES (%s)"

#: Nova replaces these fields by its own options, so ports may change between starts.
_CELL_TEMPLATE: Final = "{scheme}://{username}:{password}@{hostname}:{port}/%s?{query}"
_TRANSPORT_TEMPLATE: Final = "{scheme}://{username}:{password}@{hostname}:{port}/"


def prepare_server(paths: Paths, settings: Settings, tools: Tools) -> None:
    """Make MariaDB's data directory, and the file that creates its one user.

    The directory gets its name when it is complete. The file creates the user again at each start
    of the server, so its password is always the lab's.
    """
    password = settings.passwords["database"]
    statements = (
        "CREATE DATABASE IF NOT EXISTS lab;\n"
        "CREATE TABLE IF NOT EXISTS lab.lab_ledger (name VARCHAR(64) PRIMARY KEY);\n"
        f"CREATE OR REPLACE USER lab@'{config.LOOPBACK}' IDENTIFIED BY '{password}';\n"
        f"GRANT ALL ON *.* TO lab@'{config.LOOPBACK}';\n"
    )
    write(paths.config / "mariadb.sql", statements, mode=0o600)
    data = paths.data / "mariadb"
    if data.is_dir():
        return
    unfinished = paths.data / "mariadb.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    user = getpass.getuser()
    tools.run(
        "mariadb-install",
        [
            program("mariadb-install-db", "mariadb-server"),
            "--no-defaults",
            f"--user={user}",
            f"--datadir={unfinished}",
            "--auth-root-authentication-method=socket",
            f"--auth-root-socket-user={user}",
            "--skip-test-db",
        ],
    )
    unfinished.rename(data)


def prepare_broker(paths: Paths, settings: Settings) -> None:
    """Write RabbitMQ's configuration, and delete the messages of an earlier run.

    The data of a killed broker can prevent its start. The lab does not need them, because all
    services and computes reconnect.
    """
    home = paths.data / "rabbitmq"
    shutil.rmtree(home / "mnesia", ignore_errors=True)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    write(home / ".erlang.cookie", settings.passwords["cookie"], mode=0o400)
    lines = (
        "default_user = lab",
        f"default_pass = {settings.passwords['messages']}",
        "vm_memory_high_watermark.absolute = 1GB",
        "disk_free_limit.absolute = 200MB",
    )
    folder = paths.config / "rabbitmq"
    write(folder / "rabbitmq.conf", "\n".join(lines) + "\n", mode=0o600)
    write(folder / "enabled_plugins", "[].\n")


def make_keys(paths: Paths, tools: Tools) -> None:
    """Make Keystone's keys, unless they exist."""
    data = paths.data / "keystone"
    user = getpass.getuser()
    for kind in ("fernet", "credential"):
        folder = data / kind
        # Key 1 is the primary one and is written last.
        if (folder / "1").exists():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
        _keystone(paths, tools, f"{kind}_setup", "--keystone-user", user, "--keystone-group", user)


def make_schema(name: str, paths: Paths, settings: Settings, tools: Tools) -> None:
    """Make the databases of one service, unless they are complete.

    An interrupted migration cannot be continued, because MariaDB does not roll back changes of
    tables. So incomplete databases are dropped and made again.
    """
    with connect(settings, "lab") as connection, connection.cursor() as cursor:
        if cursor.execute(_IS_MADE, (name,)):
            return
        for database in config.DATABASES[name]:
            cursor.execute(f"DROP DATABASE IF EXISTS {database}")
            cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb3")
    _MIGRATIONS[name](paths, settings, tools)
    with connect(settings, "lab") as connection, connection.cursor() as cursor:
        cursor.execute(_MADE, (name,))


def bootstrap_identity(paths: Paths, settings: Settings, tools: Tools) -> None:
    """Create the administrator and Keystone's own endpoints, or bring them up to date."""
    url = config.endpoint(settings, "identity")
    tools.run(
        "keystone-bootstrap",
        [
            *script(paths, "keystone-manage"),
            *("--config-file", str(paths.config / "keystone" / "keystone.conf")),
            "bootstrap",
            *("--bootstrap-region-id", config.REGION),
            *("--bootstrap-public-url", url),
            *("--bootstrap-internal-url", url),
            *("--bootstrap-admin-url", url),
        ],
        # Passed in the environment, because all users of the machine can read command lines.
        {"OS_BOOTSTRAP_PASSWORD": settings.passwords["admin"]},
    )


def _keystone(paths: Paths, tools: Tools, *command: str) -> None:
    conf = str(paths.config / "keystone" / "keystone.conf")
    argv = [*script(paths, "keystone-manage"), "--config-file", conf, *command]
    tools.run(f"keystone-{command[0]}", argv)


def _sync_keystone(paths: Paths, settings: Settings, tools: Tools) -> None:
    _keystone(paths, tools, "db_sync")
    bootstrap_identity(paths, settings, tools)


def _sync_placement(paths: Paths, settings: Settings, tools: Tools) -> None:
    folder = str(paths.config / "placement")
    argv = [*script(paths, "placement-manage"), "--config-dir", folder, "db", "sync"]
    tools.run("placement-db-sync", argv)


def _sync_glance(paths: Paths, settings: Settings, tools: Tools) -> None:
    conf = str(paths.config / "glance" / "glance-api.conf")
    argv = [*script(paths, "glance-manage"), "--config-file", conf, "db_sync"]
    tools.run("glance-db-sync", argv)


def upgrade_neutron(paths: Paths, settings: Settings, tools: Tools) -> None:
    """Bring Neutron's database up to date, with the tables of plug-ins installed since."""
    _sync_neutron(paths, settings, tools)


def _sync_neutron(paths: Paths, settings: Settings, tools: Tools) -> None:
    conf = str(paths.config / "neutron" / "neutron.conf")
    argv = [*script(paths, "neutron-db-manage"), "--config-file", conf, "upgrade", "head"]
    tools.run("neutron-db-sync", argv)


def _sync_nova(paths: Paths, settings: Settings, tools: Tools) -> None:
    conf = str(paths.config / "nova" / "nova.conf")

    def manage(*command: str) -> None:
        argv = [*script(paths, "nova-manage"), "--config-file", conf, *command]
        tools.run("nova-db-sync", argv)

    manage("api_db", "sync")
    manage("cell_v2", "map_cell0", "--database_connection", _CELL_TEMPLATE % "nova_cell0")
    manage("db", "sync")
    manage(
        *("cell_v2", "create_cell", "--name", "cell1"),
        *("--database_connection", _CELL_TEMPLATE % "nova"),
        *("--transport-url", _TRANSPORT_TEMPLATE),
    )


_MIGRATIONS: Final[dict[str, Callable[[Paths, Settings, Tools], None]]] = {
    "keystone": _sync_keystone,
    "placement": _sync_placement,
    "glance": _sync_glance,
    "nova": _sync_nova,
    "neutron": _sync_neutron,
}
