# SPDX-License-Identifier: Apache-2.0
"""The fabric of a whole lab: a simulated port represents each adapter that is kept for ports.

The adapters' PCI addresses are available only when the nodes are up. The inventory for Neutron's
driver is made then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from nova_hpc_lab import config, database, evidence, node
from nova_hpc_lab.fabric.net import FabricNet, net_of_hosts
from nova_hpc_lab.fabric.partition_services import (
    inventory_file,
    merge_sections,
    partition_options,
    partition_services,
    prepare_partitions,
)
from nova_hpc_lab.fabric.simulator import ibsim_service, net_file, prepare_simulator
from nova_hpc_lab.fabric.subnet_manager import opensm_service, prepare_manager
from nova_hpc_lab.process import Process, Tools
from nova_hpc_lab.progress import Report, Step
from nova_hpc_lab.services import Service
from nova_hpc_lab.state import Paths, Settings, write

_FIRST_KEY, _LAST_KEY = 100, 199
#: Seconds in which the nodes come up.
_LATEST: Final = 2100.0
#: Prints the targets of links in sysfs: the adapter's first, then its functions' by number.
_ADDRESSES: Final = (
    'cd "/sys/class/net/$1" && readlink device'
    " && ls -d device/virtfn* | sort -V | xargs -n 1 readlink"
)


def lab_net(
    settings: Settings,
    networks: Mapping[str, str],
    adapters: Mapping[tuple[str, str], Sequence[str]] | None = None,
) -> FabricNet:
    """Build the fabric: a port for each adapter of each node that is kept for ports.

    :param networks: interface of each such adapter of a node -> its physical network.
    :param adapters: node and interface -> PCI address of the adapter, then of its functions. A
        missing adapter has a port on the fabric without an address.
    """
    found = adapters or {}
    hosts = {}
    for index in range(1, settings.nodes + 1):
        host = f"hpc{index}"
        places = [found.get((host, interface), ("",)) for interface in sorted(networks)]
        hosts[host] = [(place[0], place[1:]) for place in places]
    return net_of_hosts(hosts)


def prepare_fabric(paths: Paths, settings: Settings, networks: Mapping[str, str]) -> None:
    """Write all files of the fabric, and of the services that use it."""
    physical = sorted(set(networks.values()))
    options = partition_options(paths, physical, _FIRST_KEY, _LAST_KEY)
    neutron = merge_sections(config.neutron(paths, settings), options)
    net = lab_net(settings, networks)
    prepare_partitions(paths, settings, neutron)
    if net_file(paths).exists() and net_file(paths).read_text() != net.text():
        # The number of nodes has changed, and the simulator reads its net only at its start.
        for name in ("fabric-agent", "opensm", "ibsim"):
            Process(name, paths).stop()
    prepare_simulator(paths, net)
    prepare_manager(paths)
    if not inventory_file(paths).exists():
        write(inventory_file(paths), FabricNet(()).inventory())


def fabric_services(
    paths: Paths, settings: Settings, networks: Mapping[str, str]
) -> dict[str, Service]:
    """Return name -> process of the fabric: simulator, subnet manager, partition services."""
    simulated = (ibsim_service(paths, lab_net(settings, networks)), opensm_service(paths))
    return {one.name: one for one in simulated} | partition_services(paths, settings)


def fabric_steps(
    paths: Paths,
    settings: Settings,
    nodes: Sequence[node.Node],
    services: Mapping[str, Service],
    tools: Tools,
) -> list[Step]:
    """Return the steps that bring the fabric up, and write its port inventory for Neutron."""

    def start(name: str) -> Callable[[Report], None]:
        return lambda report: services[name].start(tools.aborted)

    def tables(report: Report) -> None:
        database.upgrade_neutron(paths, settings, tools)

    def inventory(report: Report) -> None:
        _write_inventory(paths, settings, nodes)

    return [
        Step("ibsim", services["ibsim"].title, start("ibsim")),
        Step("opensm", services["opensm"].title, start("opensm"), ("ibsim",)),
        # A lab of an earlier release does not have these tables yet.
        Step("partition-tables", "Database of partitions", tables, ("schema-neutron",)),
        Step(
            "neutron-rpc-server",
            services["neutron-rpc-server"].title,
            start("neutron-rpc-server"),
            ("partition-tables", "rabbitmq"),
        ),
        Step(
            "fabric-agent",
            services["fabric-agent"].title,
            start("fabric-agent"),
            ("neutron-rpc-server", "opensm"),
        ),
        Step("ports", "Ports of the fabric", inventory, [one.name for one in nodes], _LATEST),
    ]


def _write_inventory(paths: Paths, settings: Settings, nodes: Sequence[node.Node]) -> None:
    """Write the inventory of the fabric's ports and the nodes' adapters that they represent."""
    networks = nodes[0].shape.networks if nodes else {}
    adapters = {
        (machine.name, interface): adapter_addresses(machine, interface)
        for machine in nodes
        for interface in networks
    }
    write(inventory_file(paths), lab_net(settings, networks, adapters).inventory())


def adapter_addresses(machine: node.Node, interface: str) -> list[str]:
    """Read the PCI address of an adapter in a node, then the addresses of its virtual functions."""
    said = evidence.remote(machine, ["sh", "-c", _ADDRESSES, "sh", interface])
    return [Path(line).name for line in said.splitlines()]
