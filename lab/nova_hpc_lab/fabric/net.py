# SPDX-License-Identifier: Apache-2.0
"""The simulated fabric as data: a fat tree of two levels with hosts.

ibsim reads it as text; Neutron's driver reads the hosts' ports as an inventory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs
import yaml

from nova_hpc.fabric.partitions.keys import format_guid

#: The simulated node of the subnet manager, its agent and all programs that read tables.
MANAGER: Final = "manager"
MANAGER_GUID: Final = 0x0002C900_00100001
_FIRST_HOST_GUID: Final = 0x0002C900_00200001
_FIRST_SPARE_GUID: Final = 0x0002C900_00F00001
_FIRST_SPINE_GUID: Final = 0x0002C900_00010000
_FIRST_LEAF_GUID: Final = 0x0002C900_00020000
_SPINES: Final = 2
#: Ports of a switch; a switch of ibsim has at most 255.
_MOST_ON_A_LEAF: Final = 36


@attrs.frozen
class NetPort:
    """One adapter with one port.

    :ivar name: its name in the simulator, a program's ``SIM_HOST``.
    :ivar guid: the GUID of the port.
    :ivar host: Nova's name of the host that contains it; "" if none does.
    :ivar address: its PCI address in the host.
    :ivar functions: PCI addresses of its virtual functions.
    """

    name: str
    guid: int
    host: str = ""
    address: str = ""
    functions: tuple[str, ...] = ()


@attrs.frozen
class FabricNet:
    """A fabric: the subnet manager's node, the hosts' ports, and spare nodes.

    Tests use a spare node as a stranger's. Unlinking a spare node makes the simulator detect dead
    clients.
    """

    ports: tuple[NetPort, ...]
    spares: int = 2
    on_a_leaf: int = attrs.field(default=_MOST_ON_A_LEAF, validator=attrs.validators.ge(1))

    def spare_ports(self) -> tuple[NetPort, ...]:
        """Return the ports of the spare nodes, which belong to no host."""
        return tuple(
            NetPort(f"spare{number}", _FIRST_SPARE_GUID + 16 * number)
            for number in range(self.spares)
        )

    def all_ports(self) -> tuple[NetPort, ...]:
        """Return every adapter of the fabric; the subnet manager's first."""
        return (NetPort(MANAGER, MANAGER_GUID), *self.ports, *self.spare_ports())

    def leaf_count(self) -> int:
        """Return the number of leaf switches."""
        return -(-len(self.all_ports()) // self.on_a_leaf)

    def text(self) -> str:
        """Format the fabric in ibsim's format (``man ibsim``)."""
        leaves, ports = self.leaf_count(), self.all_ports()
        lines = []
        for spine in range(_SPINES):
            lines += _head("switch", _FIRST_SPINE_GUID + spine, max(2, leaves), f"spine{spine}")
            lines += [f'[{leaf + 1}] "leaf{leaf}"[{spine + 1}]' for leaf in range(leaves)]
        for leaf in range(leaves):
            hung = ports[leaf * self.on_a_leaf : (leaf + 1) * self.on_a_leaf]
            width = self.on_a_leaf + _SPINES
            lines += _head("switch", _FIRST_LEAF_GUID + leaf, width, f"leaf{leaf}")
            lines += [f'[{spine + 1}] "spine{spine}"[{leaf + 1}]' for spine in range(_SPINES)]
            lines += [
                f'[{_SPINES + 1 + place}] "{port.name}"[1]' for place, port in enumerate(hung)
            ]
        for number, port in enumerate(ports):
            leaf, place = divmod(number, self.on_a_leaf)
            # ibsim numbers the GUIDs of ports upwards from their node's GUID.
            lines += _head("hca", port.guid - 1, 1, port.name)
            lines.append(f'[1] "leaf{leaf}"[{_SPINES + 1 + place}]')
        return "\n".join(lines) + "\n"

    def inventory(self) -> str:
        """Format the port inventory for Neutron's driver (``[hpc_partitions]port_inventory``)."""
        ports = [
            {
                "host": port.host,
                "address": port.address,
                "guid": format_guid(port.guid),
                "functions": list(port.functions),
            }
            for port in self.ports
            if port.address
        ]
        return yaml.safe_dump({"version": 1, "ports": ports}, sort_keys=False)


def _head(kind: str, guid: int, width: int, name: str) -> list[str]:
    field, word = {"switch": ("switchguid", "Switch"), "hca": ("caguid", "Hca")}[kind]
    return ["", f"{field}={guid:#x}", f'{word} {width} "{name}"']


def net_of_hosts(
    hosts: Mapping[str, Sequence[tuple[str, Iterable[str]]]],
    *,
    spares: int = 2,
    on_a_leaf: int = 36,
) -> FabricNet:
    """Build a fabric with the physical ports of *hosts*.

    :param hosts: host -> PCI address of each physical port, with the addresses of its functions.
    :param spares: the number of spare nodes.
    :param on_a_leaf: the number of ports below a leaf switch.
    """
    ports, guid = [], _FIRST_HOST_GUID
    for host, adapters in hosts.items():
        for place, (address, functions) in enumerate(adapters):
            ports.append(NetPort(f"{host}-{place}", guid, host, address, tuple(functions)))
            guid += 16
    return FabricNet(tuple(ports), spares, on_a_leaf)


def numbered_hosts(
    count: int, ports: int, functions: int = 4
) -> dict[str, list[tuple[str, list[str]]]]:
    """Return *count* equal hosts ``cn0``, ``cn1``, ... for :func:`net_of_hosts`.

    :param ports: physical ports of a host.
    :param functions: virtual functions of a port.
    """
    adapters = [
        (
            f"0000:{0x81 + place:02x}:00.0",
            [f"0000:{0x81 + place:02x}:00.{1 + function}" for function in range(functions)],
        )
        for place in range(ports)
    ]
    return {f"cn{number}": adapters for number in range(count)}
