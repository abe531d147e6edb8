# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc lab demo``: a server from an HPC flavor, and the proof of its devices."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from keystoneauth1 import exceptions as keystone_exceptions
from openstack import exceptions as sdk_exceptions
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from nova_hpc_common.level import Level, common_level
from nova_hpc_lab import bootstrap, compare, evidence, node, observe, report
from nova_hpc_lab.cloud import Cloud
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node import qemu
from nova_hpc_lab.state import Paths

CLOUD: Final = "nova-hpc-lab"
_COMMAND_LIMIT: Final = 600.0

VCPUS: Final = 1
MEMORY_MIB: Final = 512
_BUILD_LIMIT: Final = 900.0
#: Seconds to the guest's first report. Emulation sometimes loses a kick of a virtual CPU, and then
#: the guest waits forever.
_REPORT_LIMIT: Final = 240.0
_ATTEMPTS: Final = 3
_PAUSE: Final = 3.0
FLAVOR: Final = "hpc.gpu1vf1"
SERVER: Final = "hpc-demo"
_PAGE_KIB: Final = 2048


@attrs.frozen
class OpenStack:
    """Runner of ``openstack`` commands as the lab's administrator, which prints each first."""

    paths: Paths
    console: Console

    def run(self, *words: str) -> Any:
        """Run a command that prints JSON, and return the parsed output; None if it printed none.

        :raises LabError: it failed; the text contains its error output.
        """
        command = shlex.join(["openstack", *words])
        self.console.print(
            f"$ {command}", style="bold", markup=False, highlight=False, soft_wrap=True
        )
        environ = {key: value for key, value in os.environ.items() if not key.startswith("OS_")}
        environ |= {
            "OS_CLIENT_CONFIG_FILE": str(self.paths.config / "clouds.yaml"),
            "OS_CLOUD": CLOUD,
        }
        argv = [str(self.paths.venv / "bin" / "openstack"), *words]
        try:
            done = subprocess.run(
                argv, env=environ, capture_output=True, text=True, timeout=_COMMAND_LIMIT
            )
        except (OSError, subprocess.TimeoutExpired) as err:
            raise LabError(f"cannot run {command}: {err}") from err
        if done.returncode:
            raise LabError(f"{command}: {done.stderr.strip() or f'status {done.returncode}'}")
        try:
            return json.loads(done.stdout) if done.stdout.strip() else None
        except ValueError:
            return None


def comparison(server: str, host: str, found: evidence.Evidence) -> Table:
    """Build a table of the request, the choice, the domain and the guest's report side by side."""
    title = Text(f"Server {server} on node {host}", style="table.title")
    table = Table(title=title, title_justify="left", show_lines=True)
    for column in (
        "Asked",
        "Scheduler: Placement's provider",
        "Nova's record",
        "libvirt's domain",
        "The guest reports",
    ):
        table.add_column(column, overflow="fold")
    left = list(found.guest.devices)
    for record in found.records:
        device = found.node.get(record.address)
        allocated = found.allocation.get(record.provider, 0)
        attached = record.address if record.address in found.domain.hostdevs else "missing"
        mine = next((one for one in left if device and one.identity == device.identity), None)
        if mine is not None:
            left.remove(mine)
        table.add_row(
            Text(f"1 {device.role if device else 'unknown'}"),
            Text(f"{record.provider} ({allocated})"),
            Text(_described(record.address, device)),
            Text(attached),
            Text("nothing of this identity" if mine is None else _reported(mine)),
        )
    for stranger in left:
        table.add_row("", "", "", "", Text(_reported(stranger)))
    recorded = {record.address for record in found.records}
    for address in found.domain.hostdevs:
        if address not in recorded:
            table.add_row("", "", "", Text(address), "")
    table.add_row(*(Text(cell) for cell in _size(found)))
    return table


def _described(address: str, device: evidence.HostDevice | None) -> str:
    if device is None:
        return address
    place = device.location
    return f"{address}\n{device.ids}, {device.identity}\nNUMA {place.numa}, {place.root}"


def _reported(device: evidence.GuestDevice) -> str:
    return f"{device.address}\n{device.ids}, {device.identity}\ndriver {device.driver or 'none'}"


def _size(found: evidence.Evidence) -> tuple[str, ...]:
    asked, domain, guest = found.asked, found.domain, found.guest
    pins = ", ".join(f"vCPU {vcpu} on {_set(cpus)}" for vcpu, cpus in sorted(domain.pins.items()))
    reached = found.decision
    pages = ", ".join(f"{count} at NUMA {numa}" for numa, count in sorted(found.pages.items()))
    return (
        f"{asked.vcpus} dedicated vCPU, {asked.memory_mib} MiB in pages of {asked.page_kib} KiB,"
        f" affinity {asked.level.word}",
        "" if reached is None else f"asked {reached.asked.word}, reached {reached.reached.word}",
        "",
        f"{pins}\nemulator on {_set(domain.emulator)}\nmemory strictly at NUMA"
        f" {_set(domain.memory_nodes)}, pages of {domain.page_kib} KiB; QEMU holds {pages}",
        "\n".join((f"{guest.cpus} CPU, {guest.memory_kib // 1024} MiB", *guest.check)),
    )


def _set(numbers: frozenset[int]) -> str:
    return ",".join(map(str, sorted(numbers))) or "-"


def outcome(checks: Sequence[compare.Check]) -> Group:
    """Build one line for each check: ``ok``, or ``WRONG`` with the difference."""
    lines = []
    for check in checks:
        mark = Text("ok    ", "green") if check.agrees else Text("WRONG ", "red")
        lines.append(mark + Text(check.what) + Text(f": {check.trouble}" if check.trouble else ""))
    return Group(*lines)


@attrs.define
class Servers:
    """The servers of a run of the demonstration: creates, shows and removes them."""

    cloud: Cloud
    console: Console
    client: OpenStack
    connection: Any

    def say(self, text: str = "") -> None:
        """Print a line without markup."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def title(self, text: str) -> None:
        """Print the title of a part."""
        self.console.print()
        self.console.rule(Text(text, style="bold"), align="left")

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
        """Wait for the guest's report on its console; reboot a silent guest.

        :raises LabError: it reports nothing in all starts.
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

    def examine(self, server: Any, wanted: evidence.Asked) -> bool:
        """Compare all accounts of a server and show them; True if they agree."""
        machine = self.cloud.machine(server.compute_host)
        report = self.report(server)
        found = evidence.collect(
            self.cloud.settings, self.connection, machine, server, wanted, report
        )
        checks = compare.compare(found)
        self.console.print(comparison(server.name, machine.name, found))
        self.console.print(outcome(checks))
        return all(check.agrees for check in checks)

    # The refusals.

    @property
    def scheduler_log(self) -> Path:
        """The log that the operator reads."""
        return self.cloud.services()["nova-scheduler"].process.log

    def tell_why(self, server: Any, flavor: str, since: int) -> str:
        """Show the reasons of a refusal to user and operator, and return the user's reason.

        :param since: the size of the scheduler's log before the request, in bytes.
        """
        reason = str((server.fault or {}).get("message") or "")
        self.say(f"The user reads: {reason}")
        known = self.connection.compute.find_flavor(flavor)
        for line in operator_lines(self.scheduler_log, since, known.id):
            self.say(f"The operator reads: {line}")
        return reason


def operator_lines(log: Path, offset: int, flavor: str) -> list[str]:
    """Return lines of the scheduler's log since *offset* on a request with *flavor*.

    :param offset: bytes of the log to skip.
    """
    found = []
    with log.open(errors="replace") as stream:
        stream.seek(offset)
        for line in stream:
            for mark in ("HpcTopologyFilter rejects ", "Got no allocation candidates "):
                _, here, text = line.partition(mark)
                if here and (f"flavor {flavor}:" in text or not mark.startswith("Hpc")):
                    found.append(f"{here}{text.strip()}")
    return found


Specs = Mapping[str, str]


def specs(level: Level, **devices: int) -> Specs:
    """Build the extra specs of a flavor of the lab.

    :param devices: alias -> number.
    """
    terms = ",".join(f"{name}:{count}" for name, count in devices.items())
    # With the policy "required", Nova itself would refuse devices off the guest's cell.
    policy = "preferred" if level is Level.HOST else "required"
    return {
        "hw:cpu_policy": "dedicated",
        "hw:mem_page_size": str(_PAGE_KIB),
        "hw:pci_numa_affinity_policy": policy,
        "pci_passthrough:alias": terms,
        "hpc:affinity": level.word,
        "hpc:group": terms,
    }


def tightest(devices: Iterable[evidence.HostDevice], roles: Sequence[str]) -> Level | None:
    """Return the tightest level at which one device of each role is available; None if none is."""
    found = list(devices)
    choices = [[device for device in found if device.role == role] for role in roles]
    return min(
        (common_level(one.location for one in pick) for pick in itertools.product(*choices)),
        default=None,
    )


def offered(
    devices: Mapping[str, evidence.HostDevice], providers: Iterable[observe.Provider]
) -> list[evidence.HostDevice]:
    """Return the node's devices whose provider has a free one."""
    free = {one.address for one in providers if one.used + one.reserved < one.total}
    return [device for device in devices.values() if device.provider in free]


def run(cloud: Cloud, console: Console, name: str | None, keep: bool) -> bool:
    """Run the demonstration, or compare only the server *name* if it is given.

    :returns: whether all accounts agree, and all requests that must be refused are refused.
    :raises LabError: the lab, the cloud or the server does not work.
    """
    _require_up(cloud)
    try:
        demo = Servers(
            cloud, console, OpenStack(cloud.paths, console), bootstrap.connect(cloud.settings)
        )
        return _compare_only(demo, name) if name is not None else _whole(demo, keep)
    except (sdk_exceptions.SDKException, keystone_exceptions.ClientException) as err:
        raise bootstrap.explain(err) from err


def _require_up(cloud: Cloud) -> None:
    troubles = report.gather(cloud).troubles
    if not cloud.nodes():
        troubles.append("it has no virtual node")
    if troubles:
        raise LabError(
            f"the lab is not up ({'; '.join(troubles)}); start it with: nova-hpc lab up --nodes 1"
        )


def _compare_only(demo: Servers, name: str) -> bool:
    server = demo.connection.compute.find_server(name)
    if server is None:
        raise LabError(f"there is no server {name!r}")
    server = demo.connection.compute.get_server(server.id)
    if server.compute_host is None:
        raise LabError(f"server {name!r} is {server.status} and on no node")
    flavor = server.flavor
    wanted = evidence.asked(flavor.get("extra_specs") or {}, flavor["vcpus"], flavor["ram"])
    return demo.examine(server, wanted)


def _whole(demo: Servers, keep: bool) -> bool:
    for name in (SERVER, f"{SERVER}-pair", f"{SERVER}-many"):
        demo.remove(name)
    # The first node represents all, because they have the same shape.
    machine = demo.cloud.nodes()[0]
    devices, _ = evidence.host_devices(machine)
    there = [one for one in observe.providers(demo.connection) if one.host == machine.name]
    level = tightest(offered(devices, there), ("gpu", "vf"))
    if level is None:
        raise LabError(
            f"node {machine.name} has no GPU with a virtual function to give; see: nova-hpc lab"
            " status"
        )
    demo.title(f"A GPU and a virtual function with affinity {level.word!r}")
    wanted = specs(level, gpu=1, vf=1)
    before = demo.scheduler_log.stat().st_size
    server = demo.create(SERVER, FLAVOR, wanted)
    if server.status == "ERROR":
        demo.console.print("[red]The server was refused.[/red]")
        demo.tell_why(server, FLAVOR, before)
        return False
    good = demo.examine(server, evidence.asked(wanted, VCPUS, MEMORY_MIB))
    refusals: list[Callable[[], bool]] = []
    best = tightest(devices.values(), ("gpu", "vf"))
    if best is not None and best < level:
        refusals.append(lambda: _pair(demo, best))
    refusals.append(lambda: _many(demo))
    # Every refusal is tried, even if one of them fails.
    results = [refusal() for refusal in refusals]
    if not keep:
        demo.title("The end")
        demo.client.run("server", "delete", SERVER)
        demo.remove(SERVER)
    verdict = good and all(results)
    demo.console.print(
        "[bold green]All accounts agree.[/]"
        if verdict
        else "[bold red]Not all is as it must be.[/]"
    )
    return verdict


def _pair(demo: Servers, level: Level) -> bool:
    demo.title(f"Refused: a pair at level {level.word!r}, which only withheld devices have")
    for host, reasons in observe.withheld(demo.cloud.settings).items():
        for address, reason in sorted(reasons.items()):
            demo.say(f"{host} withholds {address}: {reason}")
    return _refused(demo, f"{SERVER}-pair", specs(level, gpu=1, vf=1), because=level.word)


def _many(demo: Servers) -> bool:
    # A server does not span hosts, so only the host with the most free GPUs counts.
    free: dict[str, int] = {}
    gpu = "_".join(("CUSTOM_PCI", *qemu.GPU_IDS)).upper()
    for one in observe.providers(demo.connection):
        if one.resource_class == gpu:
            free[one.host] = free.get(one.host, 0) + one.total - one.used - one.reserved
    most = max(free.values(), default=0)
    demo.title(f"Refused: {most + 1} GPUs, where {most} are free")
    return _refused(
        demo, f"{SERVER}-many", specs(Level.HOST, gpu=most + 1), because="No valid host"
    )


def _refused(demo: Servers, name: str, wanted: Specs, because: str) -> bool:
    """Request an impossible server; True if it is refused with the expected reason.

    :param because: a word that the user's reason has to contain.
    """
    before = demo.scheduler_log.stat().st_size
    flavor = name.replace("hpc-demo-", "hpc.")
    server = demo.create(name, flavor, wanted)
    try:
        if server.status != "ERROR":
            demo.console.print("[red]It was not refused.[/red]")
            return False
        reason = demo.tell_why(server, flavor, before)
        if because not in reason:
            demo.console.print(f"[red]The reason does not say {because!r}.[/red]")
            return False
        return True
    finally:
        demo.remove(name)
        demo.connection.compute.delete_flavor(flavor)
