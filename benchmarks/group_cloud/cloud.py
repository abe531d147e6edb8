# SPDX-License-Identifier: Apache-2.0
"""The processes of the cloud: their configuration, start, death and restart."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import amqp
import attrs

from benchmarks.concurrency import nova_process
from benchmarks.concurrency.stage import Stage, stage
from benchmarks.group_cloud import hosts
from benchmarks.group_cloud.broker import Broker, broker, free_port
from benchmarks.group_cloud.hosts import Shape
from nova_hpc_tools.site import settings as plugin

_LIMIT = 600.0
_HOSTS_LIMIT = 3600.0
_PASTE = """[composite:osapi_compute]
use = call:nova.api.openstack.urlmap:urlmap_factory
/v2.1/+: api
/v2.1: api

[pipeline:api]
pipeline = compute_req_id faultwrap auth app

[filter:compute_req_id]
paste.filter_factory = nova.api.compute_req_id:ComputeReqIdMiddleware.factory

[filter:faultwrap]
paste.filter_factory = nova.api.openstack:FaultWrapper.factory

[filter:auth]
paste.filter_factory = benchmarks.group_cloud.elsewhere:auth

[app:app]
paste.app_factory = nova.api.openstack.compute:APIRouterV21.factory
"""


def _synced(log: Path) -> int:
    """The number of hosts that have reported their servers to a scheduler."""
    return log.read_text(errors="replace").count("Re-created its InstanceList")


class CloudError(Exception):
    """A process failed; the text contains the end of its log."""


@attrs.define
class Cloud:
    """A running Nova over a running Placement."""

    made: Stage
    broker: Broker
    shape: Shape
    api_port: int
    #: Timeout of calls between Nova's services, in seconds.
    patience: int
    _processes: dict[str, subprocess.Popen[bytes]] = attrs.field(factory=dict)
    _orders: Any = None
    _answers: Any = None
    _hosts: Any = None
    _kept: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack)

    def keep(self, server: contextlib.AbstractContextManager[None]) -> None:
        """Start a server that ends with the cloud."""
        self._kept.enter_context(server)

    # -- files ------------------------------------------------------------------

    @property
    def files(self) -> list[str]:
        """The configuration files of all of Nova's processes."""
        return [str(self.made.nova_conf), str(self.made.folder / "cloud.conf")]

    @property
    def deaths(self) -> Path:
        """The folder with the deaths and faults that schedulers have to meet."""
        return self.made.folder / "deaths"

    def configure(self) -> None:
        self.deaths.mkdir(exist_ok=True)
        (self.made.folder / "api-paste.ini").write_text(_PASTE)
        quota = ("instances", "cores", "ram", "server_groups", "server_group_members")
        self._write(
            "cloud.conf",
            {
                "DEFAULT": {
                    "transport_url": self.broker.url,
                    "rpc_response_timeout": self.patience,
                    "long_rpc_timeout": self.patience,
                    "my_ip": "127.0.0.1",
                    "initial_cpu_allocation_ratio": 1.0,
                    "report_interval": 3600,
                    "periodic_enable": False,
                    # The fake driver: a server exists only on its own host.
                    "compute_driver": "fake.FakeDriver",
                },
                "quota": dict.fromkeys(quota, -1),
                "conductor": {"workers": 1},
                "scheduler": {"workers": 1, "max_placement_results": 1024},
                # Nova's default: the hosts report their servers to the schedulers.
                "filter_scheduler": {"track_instance_changes": True},
                "oslo_policy": {"enforce_scope": False},
                "api": {"max_limit": 10000},
            },
        )
        names = plugin.place_own_filters(plugin.NOVA_FILTERS)
        stock = [each for each in names if each not in (plugin.FILTER, plugin.FABRIC_FILTER)]
        for variant, enabled in (("ours", names), ("stock", stock)):
            ours = variant == "ours"
            self._write(
                f"{variant}.conf",
                {
                    "filter_scheduler": {
                        "available_filters": [
                            "nova.scheduler.filters.all_filters",
                            *(plugin.FILTER_CLASSES if ours else ()),
                        ],
                        "enabled_filters": ",".join(enabled),
                        "weight_classes": ",".join(
                            [plugin.ALL_WEIGHERS, *(plugin.WEIGHER_CLASSES if ours else ())]
                        ),
                    }
                },
            )

    def _write(self, name: str, sections: Mapping[str, Mapping[str, object]]) -> None:
        lines = []
        for section, options in sections.items():
            lines.append(f"[{section}]")
            for key, value in options.items():
                values = value if isinstance(value, list) else [value]
                lines += [f"{key} = {each}" for each in values]
        (self.made.folder / name).write_text("\n".join(lines) + "\n")

    # -- processes ----------------------------------------------------------------

    def spawn(self, name: str, argv: Sequence[str], extra: Mapping[str, str] = {}) -> None:
        with (self.made.logs / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                argv,
                env=os.environ | nova_process.ENVIRONMENT | dict(extra),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, name: str) -> None:
        """End a process and its children with SIGKILL."""
        process = self._processes.pop(name, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def start_api(self) -> None:
        self.spawn(
            "api",
            (sys.executable, "-m", "benchmarks.group_cloud.serve_api", str(self.api_port)),
            {
                "OS_NOVA_CONFIG_DIR": str(self.made.folder),
                "OS_NOVA_CONFIG_FILES": "api-paste.ini;nova.conf;cloud.conf",
            },
        )
        self._until("api", self._api_answers)

    def start_conductor(self) -> None:
        argv = (sys.executable, str(Path(sys.prefix, "bin", "nova-conductor")))
        self.spawn("conductor", (*argv, *self._config()))
        self._until("conductor", lambda: self.listeners("conductor") >= 1)

    def start_schedulers(self, variant: str, count: int = 4) -> None:
        """End the running schedulers, and start new ones."""
        self.stop_schedulers()
        for number in range(count):
            self.start_scheduler(number, variant)
        self._until("scheduler0", lambda: self.listeners("scheduler") >= count)
        logs = [self.made.logs / f"scheduler{number}.log" for number in range(count)]
        seen = {log: _synced(log) for log in logs}
        self.ask("sync")
        for log in logs:
            wanted = seen[log] + self.shape.leaves * self.shape.hosts
            self._until(log.stem, lambda log=log, wanted=wanted: _synced(log) >= wanted)

    def start_scheduler(self, number: int, variant: str) -> None:
        name = f"scheduler{number}"
        self._write(f"{name}.conf", {"DEFAULT": {"host": name}})
        argv = (sys.executable, "-m", "benchmarks.group_cloud.serve_scheduler")
        self.spawn(
            name,
            (*argv, *self._config(f"{variant}.conf", f"{name}.conf")),
            {"NOVA_HPC_RACE_DEATHS": str(self.deaths)},
        )

    def stop_schedulers(self) -> None:
        for name in [each for each in self._processes if each.startswith("scheduler")]:
            self.end(name)
        self._until("scheduler", lambda: self.listeners("scheduler") == 0)

    def _config(self, *more: str) -> list[str]:
        files = [*self.files, *(str(self.made.folder / each) for each in more)]
        return [word for each in files for word in ("--config-file", each)]

    def listeners(self, topic: str) -> int:
        """The number of processes that take the messages of a topic."""
        try:
            with amqp.Connection(
                f"127.0.0.1:{self.broker.port}", "race", "race", connect_timeout=10
            ) as connection:
                found = connection.channel().queue_declare(topic, passive=True)
                return int(found.consumer_count)
        except (OSError, amqp.AMQPError):
            return 0

    def _api_answers(self) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            direct.open(f"http://127.0.0.1:{self.api_port}/v2.1/flavors", timeout=60).close()
        except (urllib.error.URLError, OSError):
            return False
        return True

    def _until(self, name: str, good: Any) -> None:
        deadline = time.monotonic() + _LIMIT
        while not good():
            process = self._processes.get(name)
            if (process and process.poll() is not None) or time.monotonic() > deadline:
                log = self.made.logs / f"{name}.log"
                text = log.read_text(errors="replace")[-3000:] if log.exists() else ""
                raise CloudError(f"{name} does not come:\n{text}")
            time.sleep(0.3)

    # -- hosts --------------------------------------------------------------------

    def start_hosts(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._orders, self._answers = spawn.Queue(), spawn.Queue()
        self._hosts = spawn.Process(
            target=hosts.run,
            args=(
                self.files,
                str(self.made.logs / "hosts.log"),
                self.shape,
                self.broker.url,
                self._orders,
                self._answers,
            ),
            daemon=True,
        )
        self._hosts.start()
        self.ask("register")

    def ask(self, word: str) -> Any:
        """Send a word to the hosts' process, and wait for its answer."""
        self._orders.put(word)
        deadline = time.monotonic() + _HOSTS_LIMIT
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                answered, result = self._answers.get(timeout=2)
                if answered != word:
                    raise CloudError(str(result))
                return result
            if not self._hosts.is_alive():
                raise CloudError("the hosts' process ended; see its log")
        raise CloudError("the hosts do not answer")

    def stop(self) -> None:
        for name in list(self._processes):
            self.end(name)
        if self._hosts is not None and self._hosts.is_alive():
            self._orders.put("stop")
            self._hosts.join(10)
            if self._hosts.is_alive():
                self._hosts.kill()
                self._hosts.join()
        self._kept.close()

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run ``nova-hpc`` with this cloud's configuration."""
        script = "import sys; from nova_hpc_tools.main import main; sys.exit(main(sys.argv[1:]))"
        return subprocess.run(
            (sys.executable, "-c", script, *words, *self._config("ours.conf")),
            capture_output=True,
            text=True,
            env=os.environ | nova_process.ENVIRONMENT,
            timeout=600,
        )


@contextlib.contextmanager
def cloud(shape: Shape, patience: int = 300) -> Iterator[Cloud]:
    """Start everything except the schedulers, which :meth:`Cloud.start_schedulers` starts."""
    os.environ |= nova_process.ENVIRONMENT
    with stage() as made, broker(made.folder) as rabbit:
        found = Cloud(made, rabbit, shape, free_port(), patience)
        try:
            found.configure()
            found.start_hosts()
            found.start_conductor()
            found.start_api()
            yield found
        finally:
            found.stop()
