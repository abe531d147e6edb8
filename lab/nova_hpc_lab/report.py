# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc lab status``: all services and nodes of a lab, as data and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from keystoneauth1 import exceptions as keystone_exceptions
from openstack import exceptions as sdk_exceptions
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from nova_hpc_common.outside.text import printable_text
from nova_hpc_lab import bootstrap, config, machines, node, observe
from nova_hpc_lab.cloud import Cloud, ServiceStatus
from nova_hpc_tools.site import identity

#: Resource class of Placement -> role; configure makes one of the two classes for a role.
_ROLE_OF_CLASS: Final = {
    name: role["role"]
    for role in config.DEVICE_ROLES
    for name in (
        identity.product_class(role["vendor_id"], role["product_id"]),
        identity.class_of_role(role["role"]),
    )
}


@attrs.frozen
class Device:
    """A PCI device that a node offers or withholds, with its amounts in Placement."""

    address: str
    resource_class: str
    total: int
    used: int
    #: The reason why it is not offered; empty if it is.
    withheld: str = ""

    @property
    def role(self) -> str:
        """The role of the device's class in the lab; empty if the class is unknown."""
        return _ROLE_OF_CLASS.get(self.resource_class, "")


@attrs.frozen
class NodeReport:
    """A virtual node as its machine, Nova and Placement report it."""

    status: node.NodeStatus
    #: ``up`` or ``down`` by Nova's heartbeats, ``unknown`` if Nova does not answer.
    compute: str
    devices: tuple[Device, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether servers can be started there."""
        return self.status.state is node.State.UP and self.compute == "up"


@attrs.frozen
class LabReport:
    """The data that ``nova-hpc lab status`` shows: services, nodes and their devices."""

    state: str
    services: tuple[ServiceStatus, ...]
    nodes: tuple[NodeReport, ...]

    @property
    def healthy(self) -> bool:
        """Whether all services and nodes work."""
        return not self.troubles

    @property
    def troubles(self) -> list[str]:
        """The problems, each with the name of the part."""
        return [f"{one.title}: {one.trouble}" for one in self.services if one.trouble] + [
            f"node {one.status.name}: {one.status.state.value}, its nova-compute: {one.compute}"
            for one in self.nodes
            if not one.healthy
        ]

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON object for machines; keys are only ever added."""
        return {
            "version": 1,
            "healthy": self.healthy,
            "state_directory": self.state,
            "services": [
                {
                    "name": one.name,
                    "title": one.title,
                    "port": one.port,
                    "pid": one.pid,
                    "healthy": not one.trouble,
                    "reason": one.trouble,
                }
                for one in self.services
            ],
            "nodes": [
                {
                    **attrs.asdict(one.status),
                    "state": one.status.state.value,
                    "healthy": one.healthy,
                    "nova_compute": one.compute,
                    "providers": [
                        {**attrs.asdict(device), "role": device.role} for device in one.devices
                    ],
                }
                for one in self.nodes
            ],
        }

    def tables(self) -> Group:
        """Build rich's tables of the report for people."""
        return Group(_services(self.services), *(_node(one) for one in self.nodes))


def gather(cloud: Cloud) -> LabReport:
    """Read the state of all parts; a part that does not answer is unknown, and never an error."""
    services = cloud.service_statuses()
    computes: Mapping[str, str] = {}
    devices: Mapping[str, tuple[Device, ...]] = {}
    if cloud.settings.nodes and not any(
        one.trouble for one in services if one.name in ("keystone", "nova-api", "placement")
    ):
        try:
            connection = bootstrap.connect(cloud.settings)
            computes = observe.compute_services(connection)
            devices = _devices(
                observe.providers(connection), observe.withheld(cloud.settings), computes
            )
        except (sdk_exceptions.SDKException, keystone_exceptions.ClientException, OSError):
            # The services' own lines contain the reason.
            pass
    return LabReport(
        state=str(cloud.paths.state),
        services=tuple(services),
        nodes=tuple(
            NodeReport(
                status=machine.status(),
                compute=computes.get(machine.name, "unknown"),
                devices=devices.get(machine.name, ()),
            )
            for machine in cloud.nodes()
        ),
    )


def _devices(
    offered: Sequence[observe.Provider],
    withheld: Mapping[str, Mapping[str, str]],
    hosts: Mapping[str, str],
) -> dict[str, tuple[Device, ...]]:
    found = {}
    for host in hosts:
        why = withheld.get(host, {})
        mine = [one for one in offered if one.host == host]
        devices = [
            Device(one.address, one.resource_class, one.most, one.used)
            for one in mine
            if one.offered
        ]
        classes = {one.address: one.resource_class for one in mine}
        devices += [
            Device(address, classes.get(address, ""), 0, 0, why[address]) for address in sorted(why)
        ]
        # A physical function whose virtual functions are all withheld is reserved; the lines of
        # these functions contain the reasons.
        devices += [
            Device(one.address, one.resource_class, 0, 0, "it is reserved in Placement")
            for one in mine
            if not one.offered and one.address not in why
        ]
        found[host] = tuple(devices)
    return found


def show(report: LabReport, console: Console) -> None:
    """Print the report's tables for people."""
    console.print(report.tables())


def _services(services: Sequence[ServiceStatus]) -> Table:
    table = Table(title="Control plane", title_justify="left")
    for column in ("Service", "Port", "PID", "Health"):
        table.add_column(column, justify="right" if column in ("Port", "PID") else "left")
    for one in services:
        health = f"[red]{_plain(one.trouble)}[/red]" if one.trouble else "[green]ok[/green]"
        table.add_row(one.title, _number(one.port), _number(one.pid), health)
    return table


def _node(report: NodeReport) -> Table:
    status = report.status
    colour = "green" if report.healthy else "red"
    facts = [f"[{colour}]{status.state.value}[/{colour}]"]
    if status.reason and status.reason != status.state.value:
        facts.append(_plain(status.reason))
    facts.append(f"nova-compute {report.compute}")
    facts.append(f"supervisor {_number(status.supervisor_pid)}, QEMU {_number(status.qemu_pid)}")
    if status.ssh_port:
        facts.append(f"SSH port {status.ssh_port}")
    if status.uptime is not None:
        facts.append(f"up {status.uptime:.0f} s")
    if status.heartbeat_age is not None:
        facts.append(f"heartbeat {status.heartbeat_age:.0f} s ago")
    if again := machines.started_again(status):
        facts.append(_plain(again.removeprefix(", ")))
    table = Table(title=f"Node {status.name}: {', '.join(facts)}", title_justify="left")
    for column in ("Device", "Role", "Used", "Health", "Resource class"):
        table.add_column(column)
    for device in report.devices:
        used, health = f"{device.used} of {device.total}", "[green]offered[/green]"
        if device.withheld:
            used, health = "-", f"[red]withheld: {_plain(device.withheld)}[/]"
        known = [_plain(text) or "-" for text in (device.role, device.resource_class)]
        table.add_row(device.address, known[0], used, health, known[1])
    if not report.devices:
        for line in status.devices:
            table.add_row(_plain(line), "", "", "not in Placement", "")
    else:
        table.caption = "\n".join(_plain(line) for line in status.devices)
        table.caption_justify = "left"
    return table


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _plain(text: str) -> str:
    # rich reads [words] as markup.
    return escape(printable_text(text))
