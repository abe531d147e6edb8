"""Servers of the demonstration: made, watched, compared, and refused."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
from rich.console import Console

from nova_hpc_lab import accounts, bootstrap, compare, evidence, node, present
from nova_hpc_lab.clients import OpenStack
from nova_hpc_lab.cloud import Cloud
from nova_hpc_lab.errors import LabError

VCPUS: Final = 1
MEMORY_MIB: Final = 512

_BUILD_LIMIT: Final = 900.0
#: To the first report; a kick of a virtual CPU is lost now and then in
#: emulation, and then the guest waits for ever.
_REPORT_LIMIT: Final = 240.0
_ATTEMPTS: Final = 3
_PAUSE: Final = 3.0


@attrs.define
class Servers:
    """What a run of the demonstration does with servers, and how it shows that."""

    cloud: Cloud
    console: Console
    client: OpenStack
    connection: Any

    def say(self, text: str = "") -> None:
        """Print a line as it is."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def title(self, text: str) -> None:
        """Print the title of a part."""
        self.console.print()
        self.console.rule(f"[bold]{text}", align="left")

    # The server.

    def create(self, name: str, flavor: str, wanted: Mapping[str, str]) -> Any:
        """Make the flavor and the server with the ``openstack`` command."""
        self.remove(name)
        if self.connection.compute.find_flavor(flavor) is not None:
            self.client.run("flavor", "delete", flavor)
        properties = itertools.chain.from_iterable(
            ("--property", f"{key}={value}") for key, value in wanted.items()
        )
        self.client.run(
            *("flavor", "create", flavor, "--vcpus", str(VCPUS), "--ram", str(MEMORY_MIB)),
            *("--disk", "1", *properties, "-f", "json"),
        )
        made = self.client.run(
            *("--os-compute-api-version", "2.37", "server", "create", "--flavor", flavor),
            *("--image", bootstrap.GUEST_IMAGE, "--nic", "none", name, "-f", "json"),
        )
        return self._settled(made["id"])

    def _settled(self, server: str) -> Any:
        started = time.monotonic()
        while True:
            found = self.connection.compute.get_server(server)
            seconds = time.monotonic() - started
            if found.status in ("ACTIVE", "ERROR"):
                self.say(f"{found.name} is {found.status} after {seconds:.0f} s")
                return found
            if seconds > _BUILD_LIMIT:
                raise LabError(
                    f"server {found.name} is still {found.status} ({found.task_state}) after"
                    f" {seconds:.0f} s; see: nova-hpc lab logs {found.compute_host or 'hpc1'}"
                )
            time.sleep(_PAUSE)

    def remove(self, name: str) -> None:
        """Delete a server of an earlier run, and wait until its devices are free."""
        for server in list(self.connection.compute.servers(name=f"^{name}$")):
            self.connection.compute.delete_server(server, ignore_missing=True)
            self.connection.compute.wait_for_delete(server, interval=2, wait=int(_BUILD_LIMIT))

    def report(self, server: Any) -> node.GuestReport:
        """What the guest says on its console; a silent one is started again.

        :raises LabError: it says nothing, however often it is started.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            started = time.monotonic()
            while time.monotonic() - started < _REPORT_LIMIT:
                answer = self.connection.compute.get_server_console_output(server)
                found = node.parse_report(str((answer or {}).get("output") or ""))
                if found is not None:
                    seconds = time.monotonic() - started
                    self.say(
                        f"The guest reports after {seconds:.0f} s (start {attempt} of at most"
                        f" {_ATTEMPTS})."
                    )
                    return found
                time.sleep(_PAUSE)
            if attempt < _ATTEMPTS:
                self.say("The guest is silent.")
                self.client.run("server", "reboot", "--hard", server.id)
                self._settled(server.id)
        raise LabError(
            f"the guest of {server.name} said nothing on its console in {_ATTEMPTS} starts; see:"
            f" openstack console log show {server.id}"
        )

    def examine(self, server: Any, wanted: accounts.Asked) -> bool:
        """Compare all accounts of a server and show them; True if they agree."""
        machine = self.cloud.machine(server.compute_host)
        report = self.report(server)
        found = evidence.collect(
            self.cloud.settings, self.connection, machine, server, wanted, report
        )
        checks = compare.compare(found)
        self.console.print(present.comparison(server.name, machine.name, found))
        self.console.print(present.outcome(checks))
        return all(check.agrees for check in checks)

    # The refusals.

    @property
    def scheduler_log(self) -> Path:
        """What the operator reads."""
        return self.cloud.services()["nova-scheduler"].process.log

    def tell_why(self, server: Any, flavor: str, since: int) -> str:
        """Show why a server was refused, and return the user's reason.

        :param since: the size of the scheduler's log before, in bytes.
        """
        reason = str((server.fault or {}).get("message") or "")
        self.say(f"The user reads: {reason}")
        known = self.connection.compute.find_flavor(flavor)
        for line in operator_lines(self.scheduler_log, since, known.id):
            self.say(f"The operator reads: {line}")
        return reason


def operator_lines(log: Path, offset: int, flavor: str) -> list[str]:
    """What the scheduler's log says since *offset* of a request with *flavor*."""
    found = []
    with log.open(errors="replace") as stream:
        stream.seek(offset)
        for line in stream:
            for mark in ("HpcTopologyFilter rejects ", "Got no allocation candidates "):
                _, here, text = line.partition(mark)
                if here and (f"flavor {flavor}:" in text or not mark.startswith("Hpc")):
                    found.append(f"{here}{text.strip()}")
    return found
