"""``nova-hpc lab demo``: a server from an HPC flavor, and proof of what it got."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from keystoneauth1 import exceptions as keystone_exceptions
from openstack import exceptions as sdk_exceptions
from rich.console import Console

from nova_hpc.topology.level import Level, common_level
from nova_hpc_lab import accounts, bootstrap, evidence, observe, report
from nova_hpc_lab.clients import OpenStack
from nova_hpc_lab.cloud import Cloud
from nova_hpc_lab.demo_servers import MEMORY_MIB, VCPUS, Servers
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node import qemu

FLAVOR: Final = "hpc.gpu1vf1"
SERVER: Final = "hpc-demo"
_PAGE_KIB: Final = 2048

Specs = Mapping[str, str]


def specs(level: Level, **devices: int) -> Specs:
    """The extra specs of a flavor of the lab."""
    terms = ",".join(f"{name}:{count}" for name, count in devices.items())
    # Nova's own policy would refuse devices beside the guest's cell otherwise.
    policy = "preferred" if level is Level.HOST else "required"
    return {
        "hw:cpu_policy": "dedicated",
        "hw:mem_page_size": str(_PAGE_KIB),
        "hw:pci_numa_affinity_policy": policy,
        "pci_passthrough:alias": terms,
        "hpc:affinity": level.word,
        "hpc:group": terms,
    }


def tightest(devices: Iterable[accounts.HostDevice], roles: Sequence[str]) -> Level | None:
    """The tightest level at which one device of each role can be had; None if not at all."""
    found = list(devices)
    choices = [[device for device in found if device.role == role] for role in roles]
    return min(
        (common_level(one.location for one in pick) for pick in itertools.product(*choices)),
        default=None,
    )


def offered(
    devices: Mapping[str, accounts.HostDevice], providers: Iterable[observe.Provider]
) -> list[accounts.HostDevice]:
    """Those of a node's devices whose provider still has one to give."""
    free = {one.address for one in providers if one.used < one.total}
    return [device for device in devices.values() if device.provider in free]


def run(cloud: Cloud, console: Console, name: str | None, keep: bool) -> bool:
    """The demonstration, or with *name* only the comparison of that server.

    :returns: whether all accounts agree and all that must be refused is.
    :raises LabError: something does not work at all.
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
    # The first node speaks for all: they have one shape.
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
    # Every refusal is tried, even after one that failed.
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
    # Servers do not span hosts, so the host with the most free ones counts.
    free: dict[str, int] = {}
    gpu = "_".join(("CUSTOM_PCI", *qemu.GPU_IDS)).upper()
    for one in observe.providers(demo.connection):
        if one.resource_class == gpu:
            free[one.host] = free.get(one.host, 0) + one.total - one.used
    most = max(free.values(), default=0)
    demo.title(f"Refused: {most + 1} GPUs, where {most} are free")
    return _refused(
        demo, f"{SERVER}-many", specs(Level.HOST, gpu=most + 1), because="No valid host"
    )


def _refused(demo: Servers, name: str, wanted: Specs, because: str) -> bool:
    """Ask for what cannot be; True if that is refused, with the reason shown.

    :param because: a word that the user's reason has to hold.
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
