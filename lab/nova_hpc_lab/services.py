# SPDX-License-Identifier: Apache-2.0
"""The processes of the control plane, with their command lines and probes.

A probe uses the service, and raises an error if that does not work.
"""

from __future__ import annotations

import getpass
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import amqp
import attrs
import psutil
import pymysql
import requests

from nova_hpc_lab import config
from nova_hpc_lab.errors import InterruptedStepError, LabError
from nova_hpc_lab.process import Process
from nova_hpc_lab.state import Paths, Settings

#: Directories of the servers' programs in Debian; an ordinary user's PATH does not contain all.
_SEARCH: Final = "/usr/lib/rabbitmq/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START_LIMIT: Final = 300.0


def probe_listening(port: int) -> None:
    """Check that a process accepts connections at *port*."""
    with socket.create_connection((config.LOOPBACK, port), timeout=5):
        pass


def probe_http(port: int) -> None:
    """Check that the API at *port* answers with its versions."""
    # The proxies in the environment cannot reach the loopback.
    with requests.Session() as session:
        session.trust_env = False
        answer = session.get(f"http://{config.LOOPBACK}:{port}/", timeout=20)
    if answer.status_code >= 400:
        raise LabError(f"GET / answers {answer.status_code}")


def probe_database(settings: Settings) -> None:
    """Check that the database server accepts the lab's user."""
    with connect(settings) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1")


def connect(settings: Settings, database: str | None = None) -> pymysql.Connection:
    """Connect to the lab's database server.

    :param database: name of the database; None for none.
    """
    return pymysql.connect(
        host=config.LOOPBACK,
        port=settings.ports["database"],
        user="lab",
        password=settings.passwords["database"],
        database=database,
        autocommit=True,
        connect_timeout=10,
        read_timeout=120,
    )


def broker(settings: Settings) -> amqp.Connection:
    """Connect to RabbitMQ as the lab's user."""
    return amqp.Connection(
        host=f"{config.LOOPBACK}:{settings.ports['messages']}",
        userid="lab",
        password=settings.passwords["messages"],
        connect_timeout=10,
    )


def probe_messages(settings: Settings) -> None:
    """Check that RabbitMQ accepts the lab's user."""
    with broker(settings):
        pass


def probe_consumed(settings: Settings, *topics: str) -> None:
    """Check that each of *topics* has a consumer."""
    for topic in topics:
        with broker(settings) as connection:
            try:
                queue = connection.channel().queue_declare(topic, passive=True)
            except amqp.NotFound:
                raise LabError("does not listen to the message bus yet") from None
        if not queue.consumer_count:
            raise LabError("does not listen to the message bus")


def probe_worker(settings: Settings, binary: str, topic: str) -> None:
    """Check that a service of Nova reads messages, and writes heartbeats to the database."""
    probe_consumed(settings, topic)
    with connect(settings, "nova") as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT TIMESTAMPDIFF(SECOND, COALESCE(updated_at, created_at), UTC_TIMESTAMP())"
            " FROM services WHERE `binary` = %s AND deleted = 0",
            (binary,),
        )
        ages = [int(row[0]) for row in cursor.fetchall()]
    if not ages:
        raise LabError("not registered yet")
    # The default of Nova's own limit, [DEFAULT]service_down_time.
    if min(ages) > 60:
        raise LabError(f"last heartbeat {min(ages)} s ago")


@attrs.frozen
class Service:
    """One process of the control plane, with its command line and its probe."""

    name: str
    #: Its name for people.
    title: str
    process: Process
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    #: Raises an error if the service does not answer correctly.
    probe: Callable[[], None]
    port: int | None = None

    def start(self, aborted: threading.Event) -> None:
        """Start the service, unless it runs, and wait until it answers.

        :param aborted: ends the waiting early.
        :raises LabError: the port is in use, or the process ended, or it does not answer; the text
            contains the end of its log.
        """
        if self.process.pid() is None:
            if self.port is not None:
                require_free(self.port, self.title)
            self.process.spawn(self.argv, self.environ)
        deadline = time.monotonic() + _START_LIMIT
        while True:
            reason = self.trouble()
            if not reason:
                return
            if self.process.pid() is None:
                raise LabError(
                    f"{self.title} ended by itself; the end of {self.process.log}:\n"
                    f"{self.process.tail()}"
                )
            if time.monotonic() > deadline:
                raise LabError(
                    f"{self.title} does not answer after {_START_LIMIT:.0f} s ({reason});"
                    f" the end of {self.process.log}:\n{self.process.tail()}"
                )
            if aborted.wait(0.2):
                raise InterruptedStepError

    def trouble(self) -> str:
        """Probe the service; return the reason why it does not work, or "" if it works."""
        if self.process.pid() is None:
            return "not running"
        try:
            self.probe()
        except (OSError, pymysql.Error, amqp.AMQPError, LabError) as err:
            return _first_line(err)
        return ""


def require_free(port: int, title: str) -> None:
    """Check that no process listens on loopback *port*.

    :raises LabError: a process does; the text names it if it is visible.
    """
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            owner = "another process"
            if connection.pid is not None:
                try:
                    owner = f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
                except psutil.Error:
                    owner = f"process {connection.pid}"
            raise LabError(
                f"port {port}, meant for {title}, is in use by {owner}; end that process, or"
                " choose other ports with: nova-hpc lab up --base-port PORT"
            )


def program(name: str, package: str) -> str:
    """Return the path of a program of Debian.

    :raises LabError: it is not installed; the text names the package.
    """
    found = shutil.which(name, path=_SEARCH)
    if found is None:
        raise LabError(f"{name} is not installed; install it with: apt-get install {package}")
    return found


def script(paths: Paths, name: str) -> tuple[str, str]:
    """Return the command line of a console script of the Python environment."""
    return sys.executable, str(paths.venv / "bin" / name)


def control_plane(paths: Paths, settings: Settings) -> dict[str, Service]:
    """Return name -> process of the control plane, in the order of their dependencies.

    No process is started.
    """
    ports = settings.ports
    etc = paths.config

    def make(
        name: str,
        title: str,
        argv: tuple[str, ...],
        probe: Callable[[], None],
        port: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Service:
        return Service(
            name=name,
            title=title,
            process=Process(name, paths),
            argv=argv,
            environ=environ or {},
            probe=probe,
            port=port,
        )

    def wsgi(name: str, title: str, module: str, port: str, environ: Mapping[str, str]) -> Service:
        number = ports[port]
        argv = (sys.executable, "-m", "nova_hpc_lab.serve", module, str(number))
        return make(name, title, argv, lambda: probe_http(number), number, environ)

    nova = ("--config-file", str(etc / "nova" / "nova.conf"))
    services = [
        make(
            "mariadb",
            "MariaDB",
            mariadb_argv(paths, settings),
            lambda: probe_database(settings),
            ports["database"],
        ),
        make(
            "epmd",
            "Erlang's port mapper",
            (
                program("epmd", "rabbitmq-server"),
                *("-address", config.LOOPBACK, "-port", str(ports["epmd"])),
            ),
            lambda: probe_listening(ports["epmd"]),
            ports["epmd"],
        ),
        make(
            "rabbitmq",
            "RabbitMQ",
            (program("rabbitmq-server", "rabbitmq-server"),),
            lambda: probe_messages(settings),
            ports["messages"],
            rabbitmq_environment(paths, settings),
        ),
        wsgi(
            "keystone",
            "Keystone",
            "keystone.wsgi.api",
            "identity",
            {"OS_KEYSTONE_CONFIG_DIR": str(etc / "keystone")},
        ),
        wsgi(
            "placement",
            "Placement",
            "placement.wsgi.api",
            "placement",
            {"OS_PLACEMENT_CONFIG_DIR": str(etc / "placement")},
        ),
        wsgi(
            "glance",
            "Glance",
            "glance.wsgi.api",
            "image",
            {"OS_GLANCE_CONFIG_DIR": str(etc / "glance")},
        ),
        wsgi(
            "neutron",
            "Neutron",
            "neutron.wsgi.api",
            "network",
            {
                "OS_NEUTRON_CONFIG_DIR": str(etc / "neutron"),
                "OS_NEUTRON_CONFIG_FILES": "neutron.conf",
            },
        ),
        make(
            "nova-conductor",
            "Nova's conductor",
            script(paths, "nova-conductor") + nova,
            lambda: probe_worker(settings, "nova-conductor", "conductor"),
        ),
        make(
            "nova-scheduler",
            "Nova's scheduler",
            script(paths, "nova-scheduler") + nova,
            lambda: probe_worker(settings, "nova-scheduler", "scheduler"),
        ),
        wsgi(
            "nova-api",
            "Nova's API",
            "nova.wsgi.osapi_compute",
            "compute",
            {
                "OS_NOVA_CONFIG_DIR": str(etc / "nova"),
                # The paste file has to be first.
                "OS_NOVA_CONFIG_FILES": f"{paths.venv / 'etc/nova/api-paste.ini'};nova.conf",
            },
        ),
    ]
    return {service.name: service for service in services}


def mariadb_argv(paths: Paths, settings: Settings) -> tuple[str, ...]:
    """Return the command line of MariaDB's server with the lab's own data directory."""
    return (
        program("mariadbd", "mariadb-server"),
        "--no-defaults",
        f"--user={getpass.getuser()}",
        f"--datadir={paths.data / 'mariadb'}",
        f"--socket={paths.run / 'mariadb.sock'}",
        f"--pid-file={paths.run / 'mariadbd.own.pid'}",
        f"--init-file={paths.config / 'mariadb.sql'}",
        f"--bind-address={config.LOOPBACK}",
        f"--port={settings.ports['database']}",
        "--max-connections=400",
        "--innodb-buffer-pool-size=128M",
        # A crash of the machine may lose a lab's data; speed is more important.
        "--innodb-flush-log-at-trx-commit=0",
        "--skip-log-bin",
        "--skip-name-resolve",
        "--character-set-server=utf8mb3",
        "--collation-server=utf8mb3_general_ci",
    )


def rabbitmq_environment(paths: Paths, settings: Settings) -> dict[str, str]:
    """Return the variables that keep RabbitMQ on the loopback and in the lab's directory."""
    home = paths.data / "rabbitmq"
    ports = settings.ports
    return {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "RABBITMQ_NODENAME": "nova-hpc-lab@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": config.LOOPBACK,
        "RABBITMQ_NODE_PORT": str(ports["messages"]),
        "RABBITMQ_DIST_PORT": str(ports["distribution"]),
        "ERL_EPMD_PORT": str(ports["epmd"]),
        "ERL_EPMD_ADDRESS": config.LOOPBACK,
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(paths.logs),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(paths.config / "rabbitmq" / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(paths.config / "rabbitmq" / "enabled_plugins"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        # A lab does not need crash dumps of a killed server.
        "ERL_CRASH_DUMP_SECONDS": "0",
        "RABBITMQ_PID_FILE": str(home / "own.pid"),
        # With this variable, the start script becomes the server instead of watching it.
        "RUNNING_UNDER_SYSTEMD": "true",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            "-kernel inet_dist_use_interface {127,0,0,1}"
            " +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
        ),
    }


def _first_line(err: BaseException) -> str:
    text = str(err).strip() or type(err).__name__
    return text.splitlines()[0][:200]
