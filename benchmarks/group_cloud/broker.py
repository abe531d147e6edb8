# SPDX-License-Identifier: Apache-2.0
"""A private RabbitMQ, which can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import amqp
import attrs

_SEARCH = os.pathsep.join(("/usr/lib/rabbitmq/bin", os.environ.get("PATH", os.defpath)))
_LOOPBACK = "127.0.0.1"
_LIMIT = 400.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


@attrs.define
class Broker:
    """RabbitMQ and Erlang's port mapper, below a folder."""

    folder: Path
    port: int = attrs.field(factory=free_port)
    _mapper_port: int = attrs.field(factory=free_port)
    _distribution_port: int = attrs.field(factory=free_port)
    _mapper: subprocess.Popen[bytes] | None = None
    _server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"rabbit://race:race@{_LOOPBACK}:{self.port}/"

    def start(self) -> None:
        home = self.folder / "rabbitmq"
        home.mkdir(exist_ok=True)
        cookie = home / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text("races" * 5)
            cookie.chmod(0o400)
            lines = ("default_user = race", "default_pass = race", "log.console = false")
            limits = ("vm_memory_high_watermark.absolute = 1GB", "disk_free_limit.absolute = 100MB")
            (home / "rabbitmq.conf").write_text("\n".join((*lines, *limits)) + "\n")
            (home / "enabled_plugins").write_text("[].\n")
        if self._mapper is None:
            mapper = shutil.which("epmd", path=_SEARCH) or "epmd"
            argv = (mapper, "-address", _LOOPBACK, "-port", str(self._mapper_port))
            self._mapper = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
        server = shutil.which("rabbitmq-server", path=_SEARCH)
        if server is None:
            raise RuntimeError("rabbitmq-server is not installed: apt-get install rabbitmq-server")
        with (self.folder / "log" / "rabbitmq.log").open("ab") as log:
            self._server = subprocess.Popen(
                (server,),
                env=os.environ | self._environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _LIMIT
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"RabbitMQ does not answer; see {self.folder}/log/rabbitmq.log")
            time.sleep(0.3)

    def kill(self) -> None:
        """SIGKILL for the server; its port mapper stays."""
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()
            self._server = None

    def stop(self) -> None:
        self.kill()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None

    def _answers(self) -> bool:
        address = f"{_LOOPBACK}:{self.port}"
        try:
            with amqp.Connection(address, "race", "race", connect_timeout=5):
                return True
        except (OSError, amqp.AMQPError):
            return False

    def _environment(self, home: Path) -> dict[str, str]:
        return {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": f"race{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": _LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": _LOOPBACK,
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_LOG_BASE": str(home),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_PID_FILE": str(home / "own.pid"),
            # With this variable, the start script replaces itself by the server.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1}"
                " +S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
        }


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[Broker]:
    """A running RabbitMQ, for as long as the context lasts."""
    made = Broker(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
